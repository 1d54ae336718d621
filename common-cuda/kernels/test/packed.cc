// See run.

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#define KERNELS "../copy.cu"
#include "on_cpu.h"

static u64 state;

static u64 below(u64 limit) {
    state = state * 6364136223846793005 + 1442695040888963407;
    return (state >> 33) % limit;
}

// A message: what the kernel is told of its blocks, and by each packed byte's position its offset.
struct Message {
    struct Packed told = {};
    std::vector<u64> entries, offsets;
};

static Message regular() {
    Message message;
    struct Packed &told = message.told;
    u64 unit = 1 << below(5), block = (1 + below(4)) * unit;
    told.uniform = block;
    s64 reach = (s64)block;
    for (int i = 0; i < 3; i++) {
        told.count[i] = 1 + below(i == 0 ? 12 : 5);
        told.stride[i] = reach + (s64)(below(3) * unit);
        reach = told.stride[i] * told.count[i];
    }
    for (u64 z = 0; z < told.count[2]; z++)
        for (u64 y = 0; y < told.count[1]; y++)
            for (u64 x = 0; x < told.count[0]; x++)
                for (u64 byte = 0; byte < block; byte++)
                    message.offsets.push_back(x * told.stride[0] + y * told.stride[1] + z * told.stride[2] + byte);
    told.size = told.blocks = told.unit = 1;
    return message;
}

static Message listed() {
    static const u64 lengths[] = {1, 1, 2, 50};
    Message message;
    struct Packed &told = message.told;
    u64 same = below(2) ? 1 + below(4) : 0, offset = 0, start = 0;
    told.blocks = 1 + below(200);
    told.unit = 1 << below(5);
    std::vector<u64> element;
    for (u32 block = 0; block < told.blocks; block++) {
        offset += below(5);
        u64 len = same ? same : lengths[below(4)];
        message.entries.push_back(offset | start << 32);
        for (u64 byte = 0; byte < len * told.unit; byte++) element.push_back(offset * told.unit + byte);
        offset += len;
        start += len;
    }
    message.entries.push_back(start << 32);
    told.size = start * told.unit;
    told.uniform = same * told.unit;
    told.extent = (s64)((offset + below(3)) * told.unit);
    for (u64 count = 1 + below(4), i = 0; i < count; i++)
        for (u64 byte : element) message.offsets.push_back(i * (u64)told.extent + byte);
    return message;
}

// Bytes among others that nobody may touch, the first of them at a multiple of 32 and so many more.
struct Bytes {
    std::vector<u8> all;
    u8 *first;

    Bytes(u64 len, u64 aside) : all(len + aside + 96) {
        for (u8 &byte : all) byte = (u8)below(256);
        first = (u8 *)(((u64)all.data() + 63) & ~31ull) + aside;
    }
};

static bool right(u32 number) {
    state = number * 7919 + 1;
    Message message = below(3) == 0 ? regular() : listed();
    struct Packed &told = message.told;
    u64 span = 0;
    for (u64 offset : message.offsets)
        if (offset >= span) span = offset + 1;
    told.first = below(message.offsets.size());
    u64 len = 1 + below(message.offsets.size() - told.first);
    told.end = told.first + len;
    Bytes user(span, 0), packed(len, below(2) ? told.first % 16 : below(16));
    told.unpack = below(2);
    std::vector<u8> user_after = user.all, packed_after = packed.all;
    for (u64 i = 0; i < len; i++) {
        u8 &on_user = user_after[user.first - user.all.data() + message.offsets[told.first + i]];
        u8 &on_packed = packed_after[packed.first - packed.all.data() + i];
        if (told.unpack) on_user = on_packed; else on_packed = on_user;
    }

    told.user = (u64)user.first;
    told.packed = (u64)packed.first;
    told.entries = message.entries.empty() ? 0 : (u64)message.entries.data();
    u64 bits = 16 | told.user | (told.packed - told.first) | (told.entries ? told.unit | (u64)told.extent : told.uniform);
    for (int i = 0; i < 3; i++)
        if (told.count[i] > 1) bits |= (u64)told.stride[i];
    told.width = (u32)(bits & (0 - bits));
    told.part = 16 * (1 + below(20));
    told.batch = 1 + below(THREADS);
    u32 words[64] = {};
    told.job = {(u64)words, number, number % JOBS};
    OnCpu<struct Packed>{cableway_copy_packed, told}.launch((told.end - (told.first & ~15ull) + told.part - 1) / told.part);

    if (user.all == user_after && packed.all == packed_after && words[STARTED] == number && words[ENDED] == number)
        return true;
    printf("case %u: %llu bytes from %llu on, %s of %s blocks, in elements of %u, is wrong\n", number, len, told.first,
           told.unpack ? "unpacked" : "packed", told.entries ? "listed" : "regular", told.width);
    return false;
}

int main(int, char **arguments) {
    u32 cases = (u32)atoi(arguments[1]), wrong = 0;
    for (u32 number = 1; number <= cases; number++) wrong += !right(number);
    printf("%u messages packed or unpacked on the CPU, %u wrong\n", cases, wrong);
    return wrong != 0;
}
