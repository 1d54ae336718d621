// See run.

#include <cstdio>
#include <cstdlib>
#include <vector>

#define KERNELS "../block_moves.cu"
#include "on_cpu.h"

static u64 state = 1;

static u64 below(u64 limit) {
    state = state * 6364136223846793005 + 1442695040888963407;
    return (state >> 33) % limit;
}

// One side: blocks of so many elements in up to three dimensions, apart from each other, and the bytes that they span.
static struct Side side(u32 width, u32 block, const u32 (&count)[3], u64 *span) {
    struct Side made = {0, {0, 0, 0}, block, {count[0], count[1], count[2]}};
    u64 reach = (u64)block * width;
    for (int i = 0; i < 3; i++) {
        made.stride[i] = (s64)(reach + below(3) * width);
        reach = (u64)made.stride[i] * count[i];
    }
    *span = reach;
    return made;
}

// The elements of a side in packing order, slowly.
static u64 place(const struct Side &side, u32 width, u64 index) {
    u64 block = index / side.block, at = index % side.block * width;
    at += (u64)side.stride[0] * (block % side.count[0]);
    block /= side.count[0];
    at += (u64)side.stride[1] * (block % side.count[1]);
    return at + (u64)side.stride[2] * (block / side.count[1]);
}

// One to 16 copies of random blocks, with one to four elements for each thread, by one block and by several.
int main(int argc, char **argv) {
    int cases = argc > 1 ? atoi(argv[1]) : 100;
    for (int each = 0; each < cases; each++) {
        std::vector<u8> source(1 << 20), target(1 << 20, 0xee), expected(target);
        for (u64 i = 0; i < source.size(); i++) source[i] = (u8)(i * 31 + i / 255);
        u64 from = (16 - (u64)source.data() % 16) % 16, to = (16 - (u64)target.data() % 16) % 16;
        struct BlockMoves moves = {};
        std::vector<u32> words(ENDED + 1, 0);
        moves.job = {(u64)words.data(), 77, 5};
        moves.count = 1 + (u32)below(MOST_SPREADS);
        moves.each = 1 + (u32)below(4);
        for (u32 i = 0; i < moves.count; i++) {
            u32 width = 1u << below(5), block = 1 + (u32)below(9), used = (u32)below(4);
            u32 count[3] = {1, 1, 1}, turned[3] = {1, 1, 1};
            // The host leaves no dimension out before one that it uses.
            for (u32 k = 0; k < used; k++) count[k] = turned[used - 1 - k] = 2 + (u32)below(4);
            u32 blocks = count[0] * count[1] * count[2], elements = below(8) == 0 ? 0 : blocks * block;
            u64 spans[2];
            struct Shape shape = {
                elements, width, side(width, block, turned, &spans[0]), side(width, block, count, &spans[1])};
            shape.to.address = (u64)target.data() + to;
            // From the last block of the first dimension to the first one.
            if (below(2) == 0) {
                shape.to.address += (u64)shape.to.stride[0] * (shape.to.count[0] - 1);
                shape.to.stride[0] = -shape.to.stride[0];
            }
            shape.from.address = (u64)source.data() + from;
            for (u64 k = 0; k < shape.elements; k++)
                for (u32 byte = 0; byte < width; byte++) {
                    u64 at = shape.to.address - (u64)target.data() + place(shape.to, width, k) + byte;
                    expected[at] = source[from + place(shape.from, width, k) + byte];
                }
            moves.spread[i] = {moves.tiles, shape};
            u64 tile = (u64)moves.each * THREADS;
            moves.tiles += (shape.elements + tile - 1) / tile;
            to += (spans[0] + 15) / 16 * 16;
            from += (spans[1] + 15) / 16 * 16;
        }
        OnCpu<struct BlockMoves>{cableway_block_moves, moves}.launch(1 + (u32)below(3));
        if (target != expected || words[ENDED] != 77 || finished[5] != 0) {
            fprintf(stderr, "case %d is wrong\n", each);
            return 1;
        }
    }
    printf("%d lists of blocks are right\n", cases);
}
