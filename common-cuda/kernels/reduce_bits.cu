// Bitwise and logical operations on integers. See reduce.h.

#include "reduce.h"

// One code for all three operations: both masks are all ones or zero.
template <typename T> struct Bits : Number<T> {
    u32 both, either;
    METHOD Bits(u32 operation) {
        both = operation == BIT_XOR || operation == LOGICAL_XOR ? 0 : ~0u;
        either = operation == BIT_AND || operation == LOGICAL_AND ? 0 : ~0u;
    }
    METHOD T fold(T a, T b) const { return (a & b & (T)mask(both)) | ((a ^ b) & (T)mask(either)); }
    DEVICE u64 mask(u32 half) { return half | (u64)half << 32; }
};

// Each element is 1 if it is not zero, before it is folded.
template <typename T> struct Truth : Bits<T> {
    METHOD Truth(u32 operation) : Bits<T>(operation) {}
    METHOD T before(T item) const { return item != 0; }
    METHOD u128 all_before(u128 items) const {
        typedef T Elements __attribute__((ext_vector_type(sizeof(u128) / sizeof(T))));
        Elements x = __builtin_bit_cast(Elements, items);
#pragma unroll
        for (u32 k = 0; k < sizeof(u128) / sizeof(T); k++) x[k] = x[k] != 0;
        return __builtin_bit_cast(u128, x);
    }
};

// The host describes bitwise operations as those of words, or of bytes where an element is smaller.
REDUCING void cableway_reduce_bits(const struct Reduction reduction) {
    if (!gathered(reduction.job, reduction.one_shot)) return end(reduction.job);
    u32 operation = reduction.operation;
    if (operation >= BIT_AND) {
        switch (reduction.element) {
        case U8: fold_all(Bits<u8>(operation), reduction); break;
        case U32: fold_all(Bits<u32>(operation), reduction); break;
        }
    } else {
        switch (reduction.element) {
        case U8: fold_all(Truth<u8>(operation), reduction); break;
        case U16: fold_all(Truth<u16>(operation), reduction); break;
        case U32: fold_all(Truth<u32>(operation), reduction); break;
        case U64: fold_all(Truth<u64>(operation), reduction); break;
        }
    }
    end(reduction.job);
}
