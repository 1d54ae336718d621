// Blocks of several ranks that a collective copies from the memory of their devices, all at once.
//
// A job is never revoked, and nobody asks whether it has started. Its last block reports the end (job.h). So a kernel reads
// nothing in host memory before it copies.

#include "pieces.h"

// Smaller than those of other copies: a group has a whole tile on its way at a time.
#define TILE 2048
#define MOST_PIECES 16

struct Moves {
    struct Job job;
    u64 tiles;
    u64 count;
    struct Piece piece[MOST_PIECES];
};

KERNEL(THREADS) void cableway_moves(const struct Moves moves) {
    copy_pieces<TILE>(moves.piece, (u32)moves.count, moves.tiles);
    end(moves.job);
}
