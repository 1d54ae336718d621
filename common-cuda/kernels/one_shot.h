// Exchanges of little data among ranks of one node, by one kernel of each rank. The structure matches that in
// common-cuda/src/kernels/one_shot.rs.
//
// Each rank has a slot in host memory that all ranks share. Only that rank writes to it. It stores its data there at once,
// and reads what it needs from the slots of the others. A line holds eight bytes of data, and the number of the exchange
// behind each four bytes, so that data and number arrive in one store:
//
//   | data 0 to 3 | number | data 4 to 7 | number |
//
// The first line of a segment holds the number of bytes in the segment.
//
// A kernel reads a line a limited number of times. If the line has not come, the kernel reports that the line was late, and
// reduces nothing. The host launches it again once all lines are there. So no kernel waits for another one without end.

#pragma once

#include "job.h"

#define MOST_RANKS 16
#define LINE_DATA 8

struct OneShot {
    // The slot of the first rank, or 0 if nothing is exchanged.
    u64 slots;
    // What goes to each rank, and where the data of each rank goes. An address is 0 if nothing does.
    u64 from[MOST_RANKS], to[MOST_RANKS];
    u32 sent[MOST_RANKS], received[MOST_RANKS];
    // The bytes from the beginning of a slot to the segment for each rank.
    u32 places[MOST_RANKS];
    // The bytes from one slot to the next.
    u32 slot;
    u32 ranks, me, number;
    // All ranks read one segment.
    u32 shared;
    // How often a line is read.
    u32 patience;
};

// Loads up to eight bytes from any address.
DEVICE u64 load_some(u64 from, u32 len) {
    if (len == 8 && from % 8 == 0) return *(const u64 MEMORY *)from;
    if (len == 8 && from % 4 == 0) {
        u64 low = *(const u32 MEMORY *)from;
        return low | (u64) * (const u32 MEMORY *)(from + 4) << 32;
    }
    u64 value = 0;
    for (u32 i = 0; i < len; i++) value |= (u64) * (const u8 MEMORY *)(from + i) << (8 * i);
    return value;
}

// Stores up to eight bytes at any address.
DEVICE void store_some(u64 to, u64 value, u32 len) {
    if (len == 8 && to % 8 == 0) {
        *(u64 MEMORY *)to = value;
    } else if (len == 8 && to % 4 == 0) {
        *(u32 MEMORY *)to = (u32)value;
        *(u32 MEMORY *)(to + 4) = (u32)(value >> 32);
    } else {
        for (u32 i = 0; i < len; i++) *(u8 MEMORY *)(to + i) = (u8)(value >> (8 * i));
    }
}

DEVICE void put_line(u64 at, u64 data, u32 number) {
    u128 line = {(u32)data, number, (u32)(data >> 32), number};
    *(volatile u128 MEMORY *)at = line;
}

DEVICE u32 least(u32 a, u32 b) { return a < b ? a : b; }

// Returns the lines of a segment with so many bytes.
DEVICE u32 lines_of(u32 len) { return 1 + (len + LINE_DATA - 1) / LINE_DATA; }

// Stores a segment. Its lines are stored by different threads.
DEVICE void publish(const struct OneShot &shot, u32 rank) {
    u64 at = shot.slots + (u64)shot.me * shot.slot + shot.places[rank];
    u64 from = shot.from[rank];
    u32 len = shot.sent[rank], lines = lines_of(len);
    for (u32 line = THREAD; line < lines; line += THREADS) {
        u32 begin = (line - 1) * LINE_DATA;
        u64 data = line == 0 ? len : load_some(from + begin, least(LINE_DATA, len - begin));
        put_line(at + 16 * (u64)line, data, shot.number);
    }
}

// Copies this rank's own data.
DEVICE void keep(const struct OneShot &shot) {
    u64 from = shot.from[shot.shared ? 0 : shot.me], to = shot.to[shot.me];
    u32 len = shot.received[shot.me];
    if (to == 0) return;
    for (u32 begin = THREAD * LINE_DATA; begin < len; begin += THREADS * LINE_DATA) {
        u32 some = least(LINE_DATA, len - begin);
        store_some(to + begin, load_some(from + begin, some), some);
    }
}

// Fetches some of a rank's lines, with four of them on their way at a time. Returns false if one did not come, or is not
// what was expected.
DEVICE u32 fetch(const struct OneShot &shot, u32 rank, u32 first) {
    u64 at = shot.slots + (u64)rank * shot.slot + shot.places[shot.me];
    u64 to = shot.to[rank];
    u32 len = shot.received[rank], lines = lines_of(len);
    for (; first < lines; first += 4 * THREADS) {
        u128 line[4];
        u32 missing, tries = 0;
        do {
            missing = 0;
#pragma unroll
            for (u32 k = 0; k < 4; k++)
                if (first + k * THREADS < lines) line[k] = *(const volatile u128 MEMORY *)(at + 16 * (u64)(first + k * THREADS));
#pragma unroll
            for (u32 k = 0; k < 4; k++)
                if (first + k * THREADS < lines) missing |= (line[k][1] ^ shot.number) | (line[k][3] ^ shot.number);
            if (missing != 0 && ++tries >= shot.patience) return 0;
        } while (missing != 0);
#pragma unroll
        for (u32 k = 0; k < 4; k++) {
            u32 number = first + k * THREADS;
            if (number >= lines) break;
            u64 data = line[k][0] | (u64)line[k][2] << 32;
            if (number == 0) {
                if (data != len) return 0;
            } else {
                u32 begin = (number - 1) * LINE_DATA;
                store_some(to + begin, data, least(LINE_DATA, len - begin));
            }
        }
    }
    return 1;
}

// Exchanges the data of a job, if it has some. Returns false if lines were late, after it has reported so.
DEVICE bool gathered(struct Job job, const struct OneShot &shot) {
    static __attribute__((shared)) volatile u32 late;
    if (shot.slots == 0) return true;
    if (THREAD == 0) late = 0;
    barrier();
    if (shot.shared) {
        publish(shot, 0);
    } else {
#pragma nounroll
        for (u32 rank = 0; rank < shot.ranks; rank++)
            if (rank != shot.me) publish(shot, rank);
    }
    keep(shot);
    // The first lines of different ranks are read by different threads.
    u32 before = 0;
#pragma nounroll
    for (u32 rank = 0; rank < shot.ranks; rank++) {
        if (rank == shot.me) continue;
        if (!fetch(shot, rank, (THREAD + THREADS - before % THREADS) % THREADS)) late = 1;
        before += lines_of(shot.received[rank]);
    }
    barrier();
    if (!late) return true;
    if (THREAD == 0) *word(job, LATE) = job.number;
    return false;
}
