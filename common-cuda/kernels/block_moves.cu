// Blocks with gaps that a collective copies from the memory of several ranks' devices, all at once.
//
// A job is never revoked, as in moves.cu.

#include "shape.h"

#define MOST_SPREADS 16

// A copy, and the number of its first tile. A tile has as many elements for each thread of a block.
struct Spread {
    u64 tile;
    struct Shape shape;
};

struct BlockMoves {
    struct Job job;
    u64 tiles;
    u32 count;
    // The elements of a tile for each thread, at most 4.
    u32 each;
    struct Spread spread[MOST_SPREADS];
};

// Copies a tile, which begins with this element. Each thread reads all its elements before it writes one.
template <typename T> DEVICE void tile_of(const struct Shape &shape, u64 first, u32 each) {
    T value[4];
#pragma unroll
    for (u32 k = 0; k < 4; k++) {
        u64 i = first + k * THREADS + THREAD;
        if (k < each && i < shape.elements) value[k] = *(const T MEMORY *)element(shape.from, (u32)i, sizeof(T));
    }
#pragma unroll
    for (u32 k = 0; k < 4; k++) {
        u64 i = first + k * THREADS + THREAD;
        if (k < each && i < shape.elements) *(T MEMORY *)element(shape.to, (u32)i, sizeof(T)) = value[k];
    }
}

KERNEL(THREADS) void cableway_block_moves(const struct BlockMoves moves) {
    for (u64 tile = BLOCK; tile < moves.tiles; tile += BLOCKS) {
        // Find the last copy that begins with this tile or before.
        u32 low = 0;
        while (low + 1 < moves.count && moves.spread[low + 1].tile <= tile) low++;
        const struct Shape &shape = moves.spread[low].shape;
        u64 first = (tile - moves.spread[low].tile) * moves.each * THREADS;
        switch (shape.width) {
        case 16: tile_of<u128>(shape, first, moves.each); break;
        case 8: tile_of<u64>(shape, first, moves.each); break;
        case 4: tile_of<u32>(shape, first, moves.each); break;
        case 2: tile_of<u16>(shape, first, moves.each); break;
        default: tile_of<u8>(shape, first, moves.each);
        }
    }
    end(moves.job);
}
