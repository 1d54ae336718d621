/* Buffers of a test: host or device memory with guard bytes around it, what it was filled with, and what it must hold
 * afterwards. */
#ifndef MEMORY_H
#define MEMORY_H

#include "../driver.h"

#include <stdbool.h>

enum { GUARD = 64, SEND_GAP = 0x5a, RECV_GAP = 0xa5 };

static struct {
    int rank, size; /* in MPI_COMM_WORLD */
    void *context;  /* of the device */
    long checks;    /* verified operations of this process; threads add to it */
    char run[500];  /* what starts this run again */
} test;

/* Each rank uses its own device, if there are enough. */
static inline void set_up(int argc, char **argv, int threads)
{
    int provided, devices = 0, device;
    MPI_Init_thread(&argc, &argv, threads, &provided);
    CHECK(provided >= threads);
    MPI_Comm_rank(MPI_COMM_WORLD, &test.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &test.size);
    for (int i = 0; i < argc; i++) {
        size_t length = strlen(test.run);
        snprintf(test.run + length, sizeof test.run - length, " %s", argv[i]);
    }
    load();
    CHECK_EQUAL(cuda.init(0), 0);
    CHECK_EQUAL(cuda.device_get_count(&devices), 0);
    CHECK(devices > 0);
    CHECK_EQUAL(cuda.device_get(&device, test.rank % devices), 0);
    CHECK_EQUAL(cuda.retain(&test.context, device), 0);
    CHECK_EQUAL(cuda.set_current(test.context), 0);
}

/* Rank 0 prints the number of checks that ran in all processes. */
static inline void tear_down(void)
{
    long all = 0;
    MPI_Reduce(&test.checks, &all, 1, MPI_LONG, MPI_SUM, 0, MPI_COMM_WORLD);
    if (0 == test.rank) {
        printf("checks: %ld\n", all);
        fflush(stdout);
    }
    MPI_Finalize();
}

static inline void count_check(void)
{
    __atomic_fetch_add(&test.checks, 1, __ATOMIC_RELAXED);
}

/* A well mixed function of its arguments (the finalizer of splitmix64). */
static inline uint64_t mix(uint64_t a, uint64_t b, uint64_t c)
{
    uint64_t x = a * 0x9e3779b97f4a7c15 + b * 0xd1b54a32d192ed03 + c * 0x8cb92ba72f3d8dd7 + 0x632be59bd9b4e019;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
    x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
    return x ^ (x >> 31);
}

struct memory {
    bool on_device;
    size_t shift;    /* of the data behind the guard */
    size_t bytes;    /* of the data */
    size_t capacity; /* of each of the following */
    unsigned char *host, *before, *want, *got;
    device_pointer device;
};

/* Provides memory for so many bytes, and fills the images with a value. */
static inline void memory_use(struct memory *memory, bool on_device, size_t shift, size_t bytes, int gap)
{
    size_t whole = bytes + shift + 2 * GUARD;
    memory->on_device = on_device;
    memory->shift = shift;
    memory->bytes = bytes;
    if (memory->capacity < whole) {
        unsigned char **images[] = {&memory->host, &memory->before, &memory->want, &memory->got};
        memory->capacity = whole + whole / 2;
        for (int i = 0; i < 4; i++) {
            free(*images[i]);
            *images[i] = malloc(memory->capacity);
            CHECK(NULL != *images[i]);
        }
        if (0 != memory->device) {
            CHECK_EQUAL(cuda.free(memory->device), 0);
        }
        CHECK_EQUAL(cuda.alloc(&memory->device, memory->capacity), 0);
    }
    memset(memory->before, gap, whole);
    memset(memory->want, gap, whole);
}

static inline void memory_discard(struct memory *memory)
{
    if (0 != memory->capacity) {
        free(memory->host), free(memory->before), free(memory->want), free(memory->got);
        CHECK_EQUAL(cuda.free(memory->device), 0);
    }
    memset(memory, 0, sizeof *memory);
}

static inline void *memory_at(const struct memory *memory)
{
    char *start = memory->on_device ? (char *) (uintptr_t) memory->device : (char *) memory->host;
    return start + GUARD + memory->shift;
}

/* The data in an image. */
static inline unsigned char *data(const struct memory *memory, unsigned char *image)
{
    return image + GUARD + memory->shift;
}

static inline size_t memory_whole(const struct memory *memory)
{
    return memory->bytes + memory->shift + 2 * GUARD;
}

static inline void memory_put(struct memory *memory)
{
    size_t whole = memory_whole(memory);
    if (memory->on_device) {
        CHECK_EQUAL(cuda.to_device(memory->device, memory->before, whole), 0);
        /* A function that uses the wrong memory must not find the data. */
        memset(memory->host, 0xee, whole);
    } else {
        memcpy(memory->host, memory->before, whole);
    }
}

static inline void memory_get(struct memory *memory)
{
    if (memory->on_device) {
        CHECK_EQUAL(cuda.to_host(memory->got, memory->device, memory_whole(memory)), 0);
    } else {
        memcpy(memory->got, memory->host, memory_whole(memory));
    }
}

/* Returns the position of the first byte that is not what it must be, or -1. Guards have positions, too. */
static inline long memory_differs(const struct memory *memory)
{
    size_t whole = memory_whole(memory);
    if (0 == memcmp(memory->got, memory->want, whole)) {
        return -1;
    }
    size_t at = 0;
    while (memory->got[at] == memory->want[at]) {
        at++;
    }
    return (long) at;
}

#endif
