// See run.

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <vector>

#define KERNELS "../reduce.h"
#include "on_cpu.h"

#include "reference.h"

// Each is a module of its own.
namespace modules {
#include "../reduce_bits.cu"
namespace integers {
#include "../reduce_integers.cu"
}
namespace floats {
#include "../reduce_floats.cu"
}
#include "../reduce_pairs.cu"
} // namespace modules

static const struct Layout {
    u32 sources, destinations;
    // Which buffers the results go to: 0 and those above the last source are no sources.
    u32 to[3];
    // Whether the first source's elements are kept in the last buffer.
    bool keeps;
    // By how many alignments each buffer is off a multiple of 16.
    u32 off[6];
} LAYOUTS[] = {{2, 1, {0}, false, {0, 0, 0, 0, 0, 0}},      {3, 1, {0}, false, {1, 1, 1, 1, 1, 1}},
               {4, 1, {0}, false, {1, 0, 2, 3, 1, 0}},      {2, 1, {1}, false, {3, 3, 3, 3, 3, 3}},
               {3, 1, {3}, false, {0, 1, 0, 1, 0, 1}},      {5, 1, {2}, false, {0, 0, 0, 0, 0, 0}},
               {3, 3, {1, 3, 2}, true, {1, 1, 1, 1, 1, 1}}, {2, 3, {0, 2, 3}, false, {0, 0, 0, 0, 0, 0}},
               {2, 2, {0, 4}, false, {0, 0, 0, 0, 1, 0}},   {2, 1, {1}, true, {0, 0, 0, 0, 0, 0}},
               {2, 1, {1}, true, {2, 2, 2, 2, 2, 3}}};

static u32 numbered, wrong;

typedef void Kernel(const struct Reduction);

// Describes a reduction as the library does (common-cuda/src/kernels/reduce.rs).
static Kernel *describe(u32 operation, u32 element, u64 count, struct Reduction &told) {
    bool bitwise = operation >= BIT_AND && operation <= BIT_XOR;
    bool chosen = operation == MIN || operation == MAX;
    told.operation = operation;
    told.element = element <= I64 && !chosen ? element + (U8 - I8) : element;
    u64 times = 1;
    if (bitwise && (told.element == U16 || told.element == U64)) {
        told.element = told.element == U16 ? U8 : U32;
        times = 2;
    }
    if (operation == SUM && (element == COMPLEX32 || element == COMPLEX64)) {
        told.element = element == COMPLEX32 ? F32 : F64;
        times = 2;
    }
    count *= times;
    u64 size = TYPES[element].size / times, before = (0 - told.to[0]) % 16;
    bool together = before % size == 0 && !TYPES[element].gaps;
    for (u32 i = 0; i < told.sources; i++) together &= (told.from[i] ^ told.to[0]) % 16 == 0;
    for (u32 i = 0; i < told.destinations; i++) together &= (told.to[i] ^ told.to[0]) % 16 == 0;
    if (told.kept != 0) together &= (told.kept ^ told.to[0]) % 16 == 0;
    told.head = count;
    told.vectors = told.tail = 0;
    if (together) {
        if (before / size < count) told.head = before / size;
        told.vectors = (count - told.head) / (16 / size);
        told.tail = (count - told.head) % (16 / size);
    }
    if (operation >= MIN_LOC) return modules::cableway_reduce_pairs;
    if (operation >= LOGICAL_AND) return modules::cableway_reduce_bits;
    return element < F16 ? modules::integers::cableway_reduce_integers : modules::floats::cableway_reduce_floats;
}

static void reduce(u32 operation, u32 element, u64 count, const struct Layout &layout, u32 blocks) {
    const struct Type &type = TYPES[element];
    u64 region = ((count + 4) * type.size + 79) / 16 * 16, places[6];
    std::vector<u8> before(6 * region + 16);
    for (u8 &byte : before) byte = (u8)below(256);
    // Offsets are counted from a multiple of 16, whatever the vector's address is.
    std::vector<u8> after(before.size() + 16);
    u8 *first = (u8 *)(((u64)after.data() + 15) & ~15ull);
    for (u32 i = 0; i < 6; i++) places[i] = i * region + layout.off[i] * type.alignment;
    for (u32 i = 1; i <= layout.sources; i++)
        for (u64 k = 0; k < count; k++) arbitrary(type, &before[places[i] + k * type.size]);
    memcpy(first, before.data(), before.size());

    struct Reduction told = {};
    told.destinations = layout.destinations;
    for (u32 i = 0; i < layout.destinations; i++) told.to[i] = (u64)first + places[layout.to[i]];
    told.sources = layout.sources;
    for (u32 i = 0; i < layout.sources; i++) told.from[i] = (u64)first + places[i + 1];
    if (layout.keeps) told.kept = (u64)first + places[5];
    Kernel *kernel = describe(operation, element, count, told);
    u32 words[64] = {}, number = ++numbered;
    told.job = {(u64)words, number, number % JOBS};
    OnCpu<struct Reduction>{kernel, told}.launch(blocks);

    bool right = words[ENDED] == number;
    std::vector<u8> expected = before;
    for (u64 k = 0; k < count; k++) {
        u8 result[16];
        memcpy(result, &before[places[1] + k * type.size], type.size);
        for (u32 part = 0; layout.keeps && part < type.parts; part++)
            memcpy(&expected[places[5] + k * type.size + type.part[part].at], result + type.part[part].at, type.part[part].len);
        for (u32 i = 2; i <= layout.sources; i++) fold(operation, type, result, &before[places[i] + k * type.size]);
        for (u32 i = 0; i < layout.destinations; i++) {
            u64 at = places[layout.to[i]] + k * type.size;
            right &= same(operation, type, result, first + at);
            for (u32 part = 0; part < type.parts; part++) {
                u64 where = at + type.part[part].at;
                memcpy(&expected[where], first + where, type.part[part].len);
            }
        }
    }
    if (right && memcmp(expected.data(), first, expected.size()) == 0) return;
    printf("operation %u of %llu elements of type %u from %u sources to %u destinations is wrong\n", operation, count,
           element, layout.sources, layout.destinations);
    wrong++;
}

int main() {
    // Two vectors of bytes for each thread, and a little more.
    const u64 base = 2 * 16 * THREADS * 2;
    for (u32 operation = SUM; operation <= MAX_LOC; operation++)
        for (u32 element = I8; element <= TWO_DOUBLE; element++)
            if (applies(operation, element))
                for (u64 count : {(u64)0, (u64)1, (u64)2, (u64)3, base - 1, base, base + 1, base + 3})
                    for (const struct Layout &layout : LAYOUTS)
                        reduce(operation, element, count, layout, 1 + (u32)below(3));
    printf("%u reductions on the CPU, %u wrong\n", numbered, wrong);
    return wrong != 0;
}
