// Blocks of bytes at regular distances. The structures match those in common-cuda/src/kernels/shape.rs.

#pragma once

#include "job.h"

// Blocks of this many elements, with repetitions and distances in bytes for each dimension, the innermost first.
struct Side {
    u64 address;
    s64 stride[3];
    u32 block;
    u32 count[3];
};

// A copy from blocks to blocks.
struct Shape {
    // The number of elements, and the bytes of one, which divides the blocks and distances of both sides.
    u32 elements;
    u32 width;
    struct Side to, from;
};

DEVICE u64 element(const struct Side &side, u32 index, u32 width) {
    u32 block = index / side.block;
    u64 address = side.address + (u64)(index % side.block) * width;
    if (side.count[1] == 1) return address + (u64)(side.stride[0] * (s64)block);
    address += (u64)(side.stride[0] * (s64)(block % side.count[0]));
    block /= side.count[0];
    if (side.count[2] == 1) return address + (u64)(side.stride[1] * (s64)block);
    address += (u64)(side.stride[1] * (s64)(block % side.count[1]));
    return address + (u64)(side.stride[2] * (s64)(block / side.count[1]));
}
