// See run.

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#define KERNELS "../one_shot.cu"
#include "on_cpu.h"

namespace modules {
#include "../reduce_integers.cu"
}

static u64 state = 88172645463325252ull;
static u64 below(u64 limit) {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return state % limit;
}

static const u32 MOST = 300, SEGMENT = 16 * (1 + MOST / 8 + 1);
static u32 numbered;

// What a rank sends to another one, or to all if they read one segment.
static u8 sent_byte(u32 round, u32 from, u32 to, u32 at) { return (u8)(round * 7 + from * 31 + to * 57 + at * 3); }

struct Rank {
    std::vector<u8> input, output;
    struct Reduction told = {};
    u32 words[64] = {};

    // Runs the kernel. Returns whether all data had come.
    bool run(void (*kernel)(const struct Reduction)) {
        memset(words, 0, sizeof words);
        u32 number = ++numbered;
        told.job = {(u64)words, number, number % JOBS};
        OnCpu<struct Reduction>{kernel, told}.launch(1);
        if (words[ENDED] != number) printf("a kernel did not report its end\n"), exit(1);
        return words[LATE] != number;
    }
};

// Exchanges blocks of random lengths at random places, once without all lines there, and once with them.
static bool moves(u32 round, u32 ranks, bool to_each) {
    std::vector<u8> slots(ranks * ranks * SEGMENT + 16);
    u64 first = ((u64)slots.data() + 15) & ~15ull;
    std::vector<Rank> all(ranks);
    u32 len[16][16], place = (u32)below(9);
    for (u32 from = 0; from < ranks; from++)
        for (u32 to = 0; to < ranks; to++) len[from][to] = to_each || to == 0 ? (u32)below(MOST + 1) : len[from][0];
    for (u32 me = 0; me < ranks; me++) {
        Rank &rank = all[me];
        rank.input.resize(ranks * (MOST + 16));
        rank.output.assign(ranks * (MOST + 16), 0xee);
        struct OneShot &shot = rank.told.one_shot;
        shot.slots = first;
        shot.slot = ranks * SEGMENT;
        shot.shared = !to_each;
        for (u32 other = 0; to_each && other < ranks; other++) shot.places[other] = other * SEGMENT;
        shot.ranks = ranks;
        shot.me = me;
        shot.number = round + 1;
        shot.patience = 2;
        for (u32 other = 0; other < ranks; other++) {
            u8 *from = &rank.input[other * (MOST + 16) + place];
            for (u32 i = 0; i < len[me][other]; i++) from[i] = sent_byte(round, me, to_each ? other : 0, i);
            shot.from[other] = (u64)from;
            shot.sent[other] = len[me][other];
            shot.to[other] = (u64)&rank.output[other * (MOST + 16) + place];
            shot.received[other] = len[other][me];
        }
    }
    for (u32 me = 0; me + 1 < ranks; me++)
        if (all[me].run(cableway_one_shot)) return false;
    for (u32 me = ranks; me-- > 0;)
        if (!all[me].run(cableway_one_shot)) return false;
    for (u32 me = 0; me < ranks; me++) {
        std::vector<u8> expected(ranks * (MOST + 16), 0xee);
        for (u32 other = 0; other < ranks; other++)
            for (u32 i = 0; i < len[other][me]; i++)
                expected[other * (MOST + 16) + place + i] = sent_byte(round, other, to_each ? me : 0, i);
        if (expected != all[me].output) return false;
    }
    // Another length is not taken.
    all[0].told.one_shot.received[1]++;
    return !all[0].run(cableway_one_shot);
}

// Sums elements of all ranks, in place. The first kernel has not all lines, and must leave its operand as it is.
static bool sums(u32 round, u32 ranks) {
    u32 count = 1 + (u32)below(MOST / 4);
    std::vector<u8> slots(ranks * SEGMENT + 16);
    u64 first = ((u64)slots.data() + 15) & ~15ull;
    std::vector<Rank> all(ranks);
    std::vector<u32> sum(count);
    for (u32 me = 0; me < ranks; me++) {
        Rank &rank = all[me];
        rank.input.resize(4 * count);
        rank.output.resize(ranks * 4 * count);
        u32 *mine = (u32 *)rank.input.data();
        for (u32 i = 0; i < count; i++) sum[i] += mine[i] = (u32)below(1u << 31);
        struct Reduction &told = rank.told;
        struct OneShot &shot = told.one_shot;
        shot.slots = first;
        shot.slot = SEGMENT;
        shot.shared = 1;
        shot.ranks = ranks;
        shot.me = me;
        shot.number = round + 1;
        shot.patience = 2;
        shot.from[0] = (u64)mine;
        shot.sent[0] = 4 * count;
        told.sources = ranks;
        told.destinations = 1;
        told.to[0] = (u64)mine;
        told.head = count;
        told.operation = SUM;
        told.element = U32;
        for (u32 other = 0; other < ranks; other++) {
            u64 place = (u64)&rank.output[other * 4 * count];
            shot.to[other] = other == me ? 0 : place;
            shot.received[other] = 4 * count;
            told.from[other] = other == me ? (u64)mine : place;
        }
    }
    std::vector<u8> before = all[0].input;
    if (all[0].run(modules::cableway_reduce_integers) || all[0].input != before) return false;
    for (u32 me = 1; me + 1 < ranks; me++)
        if (all[me].run(modules::cableway_reduce_integers)) return false;
    for (u32 me = ranks; me-- > 0;)
        if (!all[me].run(modules::cableway_reduce_integers) || memcmp(all[me].input.data(), sum.data(), 4 * count) != 0) return false;
    return true;
}

int main() {
    for (u32 round = 0; round < 60; round++) {
        u32 ranks = 2 + round % 4;
        if (!moves(round, ranks, round % 2 == 0) || !sums(round, ranks)) {
            printf("an exchange of %u ranks is wrong (round %u)\n", ranks, round);
            return 1;
        }
    }
    puts("exchanges through slots are right");
}
