// Plain copies of bytes by groups of threads. The structure matches that in common-cuda/src/kernels/pieces.rs.

#pragma once

#include "job.h"

// The threads of a group that copies a tile together.
#define LANES 32

// Copies elements of one type, each lane every LANES-th, with four in flight at a time.
template <typename T> DEVICE void elements(u64 to, u64 from, u32 count, u32 lane) {
    T MEMORY *dst = (T MEMORY *)to;
    const T MEMORY *src = (const T MEMORY *)from;
    u32 i = lane;
    for (; i + 3 * LANES < count; i += 4 * LANES) {
        T a = src[i], b = src[i + LANES], c = src[i + 2 * LANES], d = src[i + 3 * LANES];
        dst[i] = a;
        dst[i + LANES] = b;
        dst[i + 2 * LANES] = c;
        dst[i + 3 * LANES] = d;
    }
    for (; i < count; i += LANES) dst[i] = src[i];
}

#include "bytes.h"

// A plain copy, and the number of its first tile.
struct Piece {
    u64 to, from, len, tile;
};

// Copies all tiles of a list of pieces. Neighbouring tiles belong to different blocks.
template <u32 TILE_BYTES, u32 MOST> DEVICE void copy_pieces(const struct Piece (&piece)[MOST], u32 count, u64 tiles) {
    u32 lane = THREAD % LANES;
    u64 groups = (u64)BLOCKS * (THREADS / LANES);
    for (u64 tile = BLOCK + (u64)BLOCKS * (THREAD / LANES); tile < tiles; tile += groups) {
        // Find the last piece that begins with this tile or before.
        u32 low = 0, high = count;
        while (high - low > 1) {
            u32 middle = (low + high) / 2;
            if (piece[middle].tile <= tile) low = middle; else high = middle;
        }
        u64 at = (tile - piece[low].tile) * TILE_BYTES, left = piece[low].len - at;
        bytes(piece[low].to + at, piece[low].from + at, left < TILE_BYTES ? (u32)left : TILE_BYTES, lane);
    }
}
