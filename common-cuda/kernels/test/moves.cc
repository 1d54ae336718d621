// See run.

#include <cstdio>
#include <cstdlib>
#include <vector>

#define KERNELS "../moves.cu"
#include "on_cpu.h"

// One to 16 pieces of every length around the sizes that matter, at many pairs of places within 16 bytes, by one block and by
// several.
int main(int, char **) {
    static const u64 lengths[] = {1, 15, 16, 17, 100, 2047, 2048, 2049, 4096, 10001, 65536};
    const u64 kinds = sizeof lengths / sizeof *lengths, most = lengths[kinds - 1], apart = most + 64;
    u64 checked = 0;
    for (u64 count = 1; count <= MOST_PIECES; count++)
        for (u64 blocks = 1; blocks <= 3; blocks += 2) {
            std::vector<u8> source(count * apart), target(count * apart, 0xee), expected(target);
            for (u64 i = 0; i < source.size(); i++) source[i] = (u8)(i * 31 + i / 255);
            struct Moves moves = {};
            std::vector<u32> words(ENDED + 1, 0);
            moves.job = {(u64)words.data(), 77, 5};
            moves.count = count;
            for (u64 i = 0; i < count; i++) {
                u64 len = lengths[(i + count) % kinds], to = i * apart + (i * 5 + count) % 16;
                // Pieces come from the opposite order of places.
                u64 from = (count - 1 - i) * apart + (i * 3 + blocks) % 16;
                moves.piece[i] = {(u64)target.data() + to, (u64)source.data() + from, len, moves.tiles};
                moves.tiles += (len + TILE - 1) / TILE;
                for (u64 k = 0; k < len; k++) expected[to + k] = source[from + k];
            }
            OnCpu<struct Moves>{cableway_moves, moves}.launch(blocks);
            if (target != expected || words[ENDED] != 77 || words[STARTED] != 0 || finished[5] != 0) {
                fprintf(stderr, "%llu pieces by %llu blocks are wrong\n", count, blocks);
                return 1;
            }
            checked++;
        }
    printf("%llu lists of moves are right\n", checked);
}
