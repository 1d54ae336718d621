// Copies by kernels: many at once, blocks at regular distances, or blocks of a list. One source serves both vendors:
// CUDA by `clang -x cuda`, HIP by `clang -x hip`, neither with a toolkit or a header. ./compile makes copy.ptx of it,
// which is a part of the library. The structures below match those in common-cuda/src/kernels/.
//
// Every job can be revoked: otherwise a job that waits for a kernel of the program, which waits for the message, would
// wait forever. The first thread block that runs stores in host memory that the job has started, and then checks
// whether it is revoked. The host stores that the job is revoked, and then checks whether it has started. So either the
// host sees that the job may copy, or the job sees that it must not. Each word in host memory has one writer, so that
// no atomic operation crosses the bus. One block reads it for all, because such reads wait for each other: on an H200
// each takes a microsecond.
//
// A started job always ends: blocks without room yet run after others have finished.
//
// No kernel uses local memory or allocates memory. Shared memory holds a flag, and in one kernel a table of fixed size.
// So a launch needs only room on the device.

#include "pieces.h"
#include "shape.h"

// The bytes of a tile.
#define TILE 4096

#define MOST_PIECES 64
struct Pieces {
    struct Job job;
    u64 tiles;
    u64 count;
    struct Piece piece[MOST_PIECES];
};

KERNEL(THREADS) void cableway_copy_pieces(const struct Pieces pieces) {
    if (begin(pieces.job)) copy_pieces<TILE>(pieces.piece, (u32)pieces.count, pieces.tiles);
    end(pieces.job);
}

struct Strided {
    struct Job job;
    struct Shape shape;
};

template <typename T> DEVICE void strided(const struct Shape &copy) {
    u64 step = (u64)BLOCKS * THREADS;
    u64 i = (u64)BLOCK * THREADS + THREAD;
    for (; i + 3 * step < copy.elements; i += 4 * step) {
        T value[4];
#pragma unroll
        for (u32 k = 0; k < 4; k++)
            value[k] = *(const T MEMORY *)element(copy.from, (u32)(i + k * step), sizeof(T));
#pragma unroll
        for (u32 k = 0; k < 4; k++) *(T MEMORY *)element(copy.to, (u32)(i + k * step), sizeof(T)) = value[k];
    }
    for (; i < copy.elements; i += step)
        *(T MEMORY *)element(copy.to, (u32)i, sizeof(T)) = *(const T MEMORY *)element(copy.from, (u32)i, sizeof(T));
}

KERNEL(THREADS) void cableway_copy_strided(const struct Strided copy) {
    if (begin(copy.job)) {
        const struct Shape &shape = copy.shape;
        switch (shape.width) {
        case 16: strided<u128>(shape); break;
        case 8: strided<u64>(shape); break;
        case 4: strided<u32>(shape); break;
        case 2: strided<u16>(shape); break;
        default: strided<u8>(shape);
        }
    }
    end(copy.job);
}

// A range of a message's packed bytes, and the user's memory. Each thread block moves a part of the range, one batch of
// the message's blocks after the other. It writes the addresses of a batch into a table, and then each thread moves
// every THREADS-th element, so that long and short blocks cost the same.
struct Packed {
    struct Job job;
    // The address of the first packed byte, and the base of the blocks' offsets.
    u64 packed, user;
    // The positions of the first byte and of the one after the last, and the bytes of each thread block.
    u64 first, end, part;
    // The list of the blocks of one element, plus one entry; 0 if the blocks lie at regular distances.
    u64 entries;
    // The packed bytes of a list's element, and the distance to the next one.
    u64 size;
    s64 extent;
    // The bytes of each block; 0 if they differ.
    u64 uniform;
    // For blocks at regular distances, the innermost first.
    s64 stride[3];
    u32 count[3];
    // The number of blocks in the list, its unit, the bytes of an element that a thread moves, the blocks of a batch.
    u32 blocks, unit, width, batch;
    u32 unpack;
};

// A part in progress, relative to a position.
struct Part {
    u64 origin;
    // The first block of the batch, and its beginning.
    u64 block, lead;
};

// For each block of the batch: its beginning, cut to the part, and its address extrapolated to position 0.
static __attribute__((shared)) u32 begins[THREADS + 1];
static __attribute__((shared)) u64 shifts[THREADS];

struct Block {
    u64 begin, address;
};

DEVICE struct Block block_of(const struct Packed &copy, u64 index) {
    if (copy.entries == 0) {
        u64 address = copy.user + (u64)(copy.stride[0] * (s64)(index % copy.count[0]));
        u64 rest = index / copy.count[0];
        address += (u64)(copy.stride[1] * (s64)(rest % copy.count[1]));
        address += (u64)(copy.stride[2] * (s64)(rest / copy.count[1]));
        return {index * copy.uniform, address};
    }
    u64 element = index < copy.blocks ? 0 : index / copy.blocks;
    u64 entry = ((const u64 MEMORY *)copy.entries)[index - element * copy.blocks];
    return {element * copy.size + (entry >> 32) * copy.unit,
            copy.user + (u64)(copy.extent * (s64)element) + (entry & 0xffffffff) * copy.unit};
}

// Finds the block that contains a position. All threads search together: three rounds find one of a hundred million.
DEVICE u64 block_at(const struct Packed &copy, u64 position) {
    if (copy.uniform != 0) return position / copy.uniform;
    static __attribute__((shared)) u32 found;
    const u32 MEMORY *starts = (const u32 MEMORY *)copy.entries + 1;
    u64 element = position / copy.size;
    u32 within = (u32)((position - element * copy.size) / copy.unit);
    u32 low = 0, high = copy.blocks;
    while (high - low > 1) {
        u32 step = (high - low + THREADS - 1) / THREADS;
        u32 probe = low + THREAD * step;
        if (probe < high && starts[2 * probe] <= within && (probe + step >= high || starts[2 * (probe + step)] > within))
            found = probe;
        barrier();
        low = found;
        if (high - low > step) high = low + step;
        barrier();
    }
    return element * copy.blocks + low;
}

// Returns the user's address of the byte at a position of the batch.
DEVICE u64 user_address(const struct Packed &copy, struct Part part, u64 position) {
    u32 low = 0;
    if (copy.uniform != 0) {
        low = (u32)(position - part.lead) / (u32)copy.uniform;
    } else {
        u32 at = (u32)(position - part.origin), high = copy.batch;
        while (high - low > 1) {
            u32 middle = (low + high) / 2;
            if (begins[middle] <= at) low = middle; else high = middle;
        }
    }
    return shifts[low] + position;
}

// Moves elements of one type, from a position that is a multiple of their size.
template <typename T> DEVICE void move(const struct Packed &copy, struct Part part, u64 position, u64 until) {
    const u32 step = THREADS * sizeof(T);
    position += THREAD * sizeof(T);
    while (position < until) {
        u64 to[4];
        T value[4];
#pragma unroll
        for (u32 k = 0; k < 4; k++) {
            if (position + k * step < until) {
                u64 user = user_address(copy, part, position + k * step);
                u64 packed = copy.packed + (position + k * step - copy.first);
                to[k] = copy.unpack ? user : packed;
                value[k] = *(const T MEMORY *)(copy.unpack ? packed : user);
            }
        }
#pragma unroll
        for (u32 k = 0; k < 4; k++)
            if (position + k * step < until) *(T MEMORY *)to[k] = value[k];
        position += 4 * step;
    }
}

DEVICE void move_batch(const struct Packed &copy, struct Part part, u64 from, u64 until) {
    u64 low = (from + copy.width - 1) & (0 - (u64)copy.width), high = until & (0 - (u64)copy.width);
    if (low > until) low = until;
    if (high < low) high = low;
    move<u8>(copy, part, from, low);
    switch (copy.width) {
    case 16: move<u128>(copy, part, low, high); break;
    case 8: move<u64>(copy, part, low, high); break;
    case 4: move<u32>(copy, part, low, high); break;
    case 2: move<u16>(copy, part, low, high); break;
    default: move<u8>(copy, part, low, high);
    }
    move<u8>(copy, part, high, until);
}

DEVICE void move_part(const struct Packed &copy) {
    u64 from = (copy.first & (0 - (u64)sizeof(u128))) + BLOCK * copy.part;
    u64 end = from + copy.part;
    if (from < copy.first) from = copy.first;
    if (end > copy.end) end = copy.end;
    if (from >= end) return;
    struct Part part = {from, block_at(copy, from), 0};
    do {
        for (u32 i = THREAD; i <= copy.batch; i += THREADS) {
            struct Block block = block_of(copy, part.block + i);
            u64 begin = block.begin > part.origin ? block.begin : part.origin;
            begins[i] = (u32)((begin < end ? begin : end) - part.origin);
            if (i < copy.batch) shifts[i] = block.address - block.begin;
        }
        barrier();
        u64 until = part.origin + begins[copy.batch];
        part.lead = part.block * copy.uniform;
        move_batch(copy, part, from, until);
        from = until;
        part.block += copy.batch;
        barrier();
    } while (from < end);
}

KERNEL(THREADS) void cableway_copy_packed(const struct Packed copy) {
    if (begin(copy.job)) move_part(copy);
    end(copy.job);
}

// A value that a stream writes to a word of 64 bits; the address is 0 if there is none.
struct Written {
    u64 address, value;
};

// A copy in a stream of the program, with the words that the stream writes before the copy and behind it. It is no job, and
// nobody revokes it: its place in the stream is all that tells when it begins. Launches with the same slot do not overlap.
#define SLOTS 4096
struct Signalled {
    u64 to, from, len, slot;
    // The address of a word with the number of bytes that have arrived, of which at most `len` are copied; 0 if all have. The
    // word is 0 after the copy.
    u64 arrived;
    struct Written before, behind[2];
};
// The bytes of a tile of a copy that has fewer tiles than a block has groups of lanes.
#define SMALL_TILE 512

// For each slot, the number of the launch's blocks that have copied.
static __attribute__((device)) u32 copied[SLOTS];

// Copies what has arrived, of at most 16 bytes for each lane. Data and number are read at the same time, because each read of
// host memory takes a microsecond.
DEVICE void arrived_at_once(const struct Signalled &copy) {
    const u32 at = THREAD * (u32)sizeof(u128);
    u128 data = {};
    if (at < copy.len) data = *(const volatile u128 MEMORY *)(copy.from + at);
    u64 end = *(const volatile u64 MEMORY *)copy.arrived;
    if (end > copy.len) end = copy.len;
    if (at + sizeof(u128) <= end && copy.to % sizeof(u128) == 0) {
        *(u128 MEMORY *)(copy.to + at) = data;
        return;
    }
#pragma unroll
    for (u32 i = 0; i < sizeof(u128); i++)
        if (at + i < end) *(u8 MEMORY *)(copy.to + at + i) = (u8)(data[i / 4] >> (i % 4 * 8));
}

KERNEL(THREADS) void cableway_copy_signalled(const struct Signalled copy) {
    if (BLOCK == 0 && THREAD == 0 && copy.before.address != 0)
        *(volatile u64 MEMORY *)copy.before.address = copy.before.value;
    u64 len = copy.len;
    if (copy.arrived != 0 && len <= LANES * sizeof(u128) && copy.from % sizeof(u128) == 0) {
        if (BLOCK == 0 && THREAD < LANES) arrived_at_once(copy);
        len = 0;
    } else if (copy.arrived != 0) {
        // Read once, because such reads wait for each other.
        static __attribute__((shared)) volatile u64 arrived;
        if (THREAD == 0) arrived = *(const volatile u64 MEMORY *)copy.arrived;
        barrier();
        if (arrived < len) len = arrived;
    }
    const u64 groups = (u64)BLOCKS * (THREADS / LANES);
    const u32 tile = len <= (THREADS / LANES) * SMALL_TILE ? SMALL_TILE : TILE;
    for (u64 at = (BLOCK + (u64)BLOCKS * (THREAD / LANES)) * tile; at < len; at += groups * tile) {
        u64 left = len - at;
        bytes(copy.to + at, copy.from + at, left < tile ? (u32)left : tile, THREAD % LANES);
    }
    barrier();
    if (THREAD != 0) return;
    if (BLOCKS != 1) {
        fence();
        if (__atomic_fetch_add(&copied[copy.slot], 1, __ATOMIC_RELAXED) + 1 != BLOCKS) return;
        copied[copy.slot] = 0;
    }
    if (copy.arrived != 0) *(volatile u64 MEMORY *)copy.arrived = 0;
    for (u32 i = 0; i < 2 && copy.behind[i].address != 0; i++) {
        // A reader that sees the word sees the data, and the words before.
        fence();
        *(volatile u64 MEMORY *)copy.behind[i].address = copy.behind[i].value;
    }
}
