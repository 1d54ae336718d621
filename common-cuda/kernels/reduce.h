// Reductions: how a kernel walks through its buffers. What an element is, and how two of them are combined, each
// module says (reduce_bits.cu, reduce_integers.cu, reduce_floats.cu, reduce_pairs.cu), so that a program loads only what
// it uses. The structure matches that in common-cuda/src/kernels/reduce.rs.
//
// A job is never revoked, and nobody asks whether it has started. Its last block reports the end (job.h).

#pragma once

#include "one_shot.h"
#include "job.h"

#define MOST_SOURCES 16
// A multiprocessor has room for two thread blocks, so that many vectors are on their way.
#ifdef __HIP__
#define REDUCING KERNEL(THREADS)
#else
#define REDUCING extern "C" __attribute__((global, launch_bounds(THREADS, 2)))
#endif

// Element i of every destination becomes the fold of element i of each source, from the first source to the last. A
// destination may be a source. All sources of an element are read before any destination is written.
struct Reduction {
    struct Job job;
    // Some may be in memory of other devices.
    u64 to[MOST_SOURCES], from[MOST_SOURCES];
    // Where the first source's elements are kept as they were, or 0. No source is there.
    u64 kept;
    // Elements before the first vector, vectors of 16 bytes, elements after them. All addresses of vectors are multiples
    // of 16.
    u64 head, vectors, tail;
    u32 destinations, sources;
    // Both as the host numbers them.
    u32 operation, element;
    // What is exchanged before the reduction, by one block alone. Sources may be where the data of other ranks goes.
    struct OneShot one_shot;
};

// The numbers of operations and elements.
enum Operation { SUM, PRODUCT, MIN, MAX, LOGICAL_AND, LOGICAL_OR, LOGICAL_XOR, BIT_AND, BIT_OR, BIT_XOR, MIN_LOC, MAX_LOC };
enum Element {
    I8, I16, I32, I64, U8, U16, U32, U64, F16, F32, F64, COMPLEX32, COMPLEX64,
    FLOAT_INT, DOUBLE_INT, LONG_INT, TWO_INT, SHORT_INT, TWO_FLOAT, TWO_DOUBLE
};

// Elements that are one number, folded as they are. Other elements have the same members.
template <typename T> struct Number {
    typedef T Item;
    static constexpr u32 SIZE = sizeof(T);
    METHOD T load(u64 at) const { return *(const T MEMORY *)at; }
    METHOD void store(u64 at, T item) const { *(T MEMORY *)at = item; }
    // What is folded instead of a source's elements, and what the destination gets instead of the result: of one
    // element, and of a vector of them.
    METHOD T before(T item) const { return item; }
    METHOD T after(T item) const { return item; }
    METHOD u128 all_before(u128 items) const { return items; }
    METHOD u128 all_after(u128 items) const { return items; }
};

// Elements some of whose bits are inverted before and after the fold. Complements come in reverse order, so that one
// code finds minima and maxima.
template <typename T> struct Inverted : Number<T> {
    // For eight bytes.
    u64 bits;
    METHOD Inverted(u64 bits) : bits(bits) {}
    METHOD T before(T item) const { return item ^ (T)bits; }
    METHOD T after(T item) const { return item ^ (T)bits; }
    METHOD u128 all_before(u128 items) const {
        u32 low = (u32)bits, high = (u32)(bits >> 32);
        return items ^ u128{low, high, low, high};
    }
    METHOD u128 all_after(u128 items) const { return all_before(items); }
};

// One bit in each element of eight bytes.
template <typename T> DEVICE u64 in_each(T bit) {
    u64 bits = bit;
    for (u32 width = 8 * sizeof(T); width < 64; width *= 2) bits |= bits << width;
    return bits;
}

// The bits of an element of some size.
template <u32 SIZE> struct BitsOf;
template <> struct BitsOf<1> { typedef u8 Type; };
template <> struct BitsOf<2> { typedef u16 Type; };
template <> struct BitsOf<4> { typedef u32 Type; };
template <> struct BitsOf<8> { typedef u64 Type; };

// A vector of elements without gaps, folded element by element.
template <typename F> struct Vector {
    static constexpr u32 SIZE = sizeof(u128);
    typedef u128 Item;
    F element;
    METHOD Vector(F element) : element(element) {}
    METHOD u128 load(u64 at) const { return *(const u128 MEMORY *)at; }
    METHOD void store(u64 at, u128 item) const { *(u128 MEMORY *)at = item; }
    METHOD u128 before(u128 item) const { return element.all_before(item); }
    METHOD u128 after(u128 item) const { return element.all_after(item); }
    METHOD u128 fold(u128 a, u128 b) const {
        typedef typename F::Item E;
        if constexpr (F::SIZE == SIZE) {
            return __builtin_bit_cast(u128, element.fold(__builtin_bit_cast(E, a), __builtin_bit_cast(E, b)));
        } else {
            typedef typename BitsOf<F::SIZE>::Type Bits;
            typedef Bits Elements __attribute__((ext_vector_type(SIZE / F::SIZE)));
            Elements x = __builtin_bit_cast(Elements, a), y = __builtin_bit_cast(Elements, b);
#pragma unroll
            for (u32 k = 0; k < SIZE / F::SIZE; k++) {
                Bits p = x[k], q = y[k];
                x[k] = __builtin_bit_cast(Bits, element.fold(__builtin_bit_cast(E, p), __builtin_bit_cast(E, q)));
            }
            return __builtin_bit_cast(u128, x);
        }
    }
};

// Folds two units, or one if both offsets are the same. Both are read before the first is written, so that their
// latencies overlap. A separate code for one unit would be half as long again.
template <typename F>
DEVICE void fold_units(const F &unit, const struct Reduction &reduction, const u64 (&offset)[2]) {
    typename F::Item result[2];
#pragma unroll
    for (u32 k = 0; k < 2; k++) result[k] = unit.load(reduction.from[0] + offset[k]);
    if (reduction.kept != 0) {
#pragma unroll
        for (u32 k = 0; k < 2; k++) unit.store(reduction.kept + offset[k], result[k]);
    }
#pragma unroll
    for (u32 k = 0; k < 2; k++) result[k] = unit.before(result[k]);
#pragma nounroll
    for (u32 source = 1; source < reduction.sources; source++) {
        typename F::Item next[2];
        u64 from = reduction.from[source];
#pragma unroll
        for (u32 k = 0; k < 2; k++) next[k] = unit.before(unit.load(from + offset[k]));
#pragma unroll
        for (u32 k = 0; k < 2; k++) result[k] = unit.fold(result[k], next[k]);
    }
#pragma unroll
    for (u32 k = 0; k < 2; k++) result[k] = unit.after(result[k]);
#pragma nounroll
    for (u32 destination = 0; destination < reduction.destinations; destination++) {
        u64 to = reduction.to[destination];
        unit.store(to + offset[0], result[0]);
        if (offset[1] != offset[0]) unit.store(to + offset[1], result[1]);
    }
}

// Folds the vectors. Neighbouring threads fold neighbouring ones.
template <typename F> DEVICE void fold_vectors(const F &unit, const struct Reduction &reduction) {
    u64 step = (u64)BLOCKS * THREADS, i = (u64)BLOCK * THREADS + THREAD;
    u64 count = reduction.vectors, first = reduction.head * F::SIZE;
    const Vector<F> vector(unit);
#pragma nounroll
    for (; i < count; i += 2 * step) {
        u64 j = i + step < count ? i + step : i;
        fold_units(vector, reduction, {first + i * sizeof(u128), first + j * sizeof(u128)});
    }
}

// Folds the elements before and after the vectors.
template <typename F> DEVICE void fold_elements(const F &unit, const struct Reduction &reduction) {
    u64 step = (u64)BLOCKS * THREADS, i = (u64)BLOCK * THREADS + THREAD;
    u64 head = reduction.head, count = head + reduction.tail, between = reduction.vectors * sizeof(u128);
#pragma nounroll
    for (; i < count; i += 2 * step) {
        u64 j = i + step < count ? i + step : i;
        fold_units(unit, reduction, {i * F::SIZE + (i < head ? 0 : between), j * F::SIZE + (j < head ? 0 : between)});
    }
}

template <typename F> DEVICE void fold_all(const F &unit, const struct Reduction &reduction) {
    fold_vectors(unit, reduction);
    fold_elements(unit, reduction);
}
