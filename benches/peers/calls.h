/* Calls of the driver for programs that measure it alone. A call that fails ends the program. */
#ifndef CALLS_H
#define CALLS_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef unsigned long long address;

/* CUDA_MEMCPY2D */
struct rows {
    size_t src_x, src_y;
    int src_type;
    const void *src_host;
    address src_device;
    void *src_array;
    size_t src_pitch, dst_x, dst_y;
    int dst_type;
    void *dst_host;
    address dst_device;
    void *dst_array;
    size_t dst_pitch, width, height;
};

static void give_up(const char *why)
{
    fprintf(stderr, "%s\n", why);
    exit(1);
}

#include "device.h"

static void check(int result, const char *call)
{
    if (result != 0) {
        fprintf(stderr, "%s returned %d\n", call, result);
        exit(1);
    }
}

#define CALL(name, types, ...) check(((int(*) types)driver(#name))(__VA_ARGS__), #name)

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

/* Begins a copy of `size` bytes from page-locked memory as two rows. */
static inline void copy_two_rows(address to, const void *from, size_t size, void *stream)
{
    enum { HOST = 1, DEVICE = 2 };
    struct rows rows = {.src_type = HOST, .src_host = from, .dst_type = DEVICE, .dst_device = to, .height = 2};
    rows.width = rows.src_pitch = rows.dst_pitch = size / 2;
    CALL(cuMemcpy2DAsync_v2, (struct rows *, void *), &rows, stream);
}

#endif
