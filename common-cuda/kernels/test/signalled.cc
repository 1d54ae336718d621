// See run.

#include <cstdio>
#include <cstdlib>
#include <vector>

#define KERNELS "../copy.cu"
#include "on_cpu.h"

// Copies of every length around the sizes that matter, at many pairs of places within 16 bytes.
int main(int, char **) {
    static const u64 lengths[] = {0, 1, 2, 15, 16, 17, 31, 100, 511, 512, 513, 4095, 4096, 4097, 65535, 65536, 300001};
    for (u64 len : lengths)
        for (u64 place = 0; place < 256; place += len < 200 ? 7 : 85) {
            u64 to = place % 16, from = place / 16;
            std::vector<u8> source(len + 64), target(len + 64, 0xee), expected;
            for (u64 i = 0; i < source.size(); i++) source[i] = (u8)(i * 31 + i / 255);
            // The first byte at a multiple of 16, with some before it.
            u64 base = (16 - (u64)target.data() % 16) + 16, first = (16 - (u64)source.data() % 16) + 16;
            expected = target;
            // How many bytes have arrived: all, without a word or by a word that says more, or some.
            u64 arrived = place % 3 == 2 ? len * 2 / 3 : len + 5;
            u64 copied_bytes = place % 3 == 2 ? arrived : len;
            for (u64 i = 0; i < copied_bytes; i++) expected[base + to + i] = source[first + from + i];
            u64 words[4] = {7, 7, 7, 7};
            struct Signalled copy = {(u64)target.data() + base + to, (u64)source.data() + first + from, len, 7, 0, {}, {}};
            if (place % 3 != 0) copy.arrived = (u64)&arrived;
            u64 given = place % 4;
            if (given > 0) copy.before = {(u64)&words[0], 1};
            if (given > 1) copy.behind[0] = {(u64)&words[1], 2};
            if (given > 2) copy.behind[1] = {(u64)&words[2], 3};
            OnCpu<struct Signalled>{cableway_copy_signalled, copy}.launch(len > 65536 ? 3 : 1);
            bool right = target == expected && words[3] == 7 && copied[7] == 0;
            if (copy.arrived != 0) right = right && arrived == 0;
            for (u64 i = 0; i < 3; i++) right = right && words[i] == (given > i ? i + 1 : 7);
            if (!right) {
                fprintf(stderr, "%llu bytes from %llu to %llu with %llu words are wrong\n", len, from, to, given);
                return 1;
            }
        }
    puts("copies with words are right");
}
