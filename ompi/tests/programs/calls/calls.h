/* The walk over MPI's calls: each is run on host memory, then the same way on device memory, and must leave the same
 * bytes in both buffers, between the blocks of the type, too.
 *
 * A row is a call by name, perhaps with a variant behind a colon, and code that uses S (what it sends from) and R (what
 * it receives into), C elements of type T per process, room for SLOTS times as many. Everything else it makes itself. */
#ifndef CALLS_H
#define CALLS_H

#include "../check.h"

#include <dlfcn.h>
#include <mpi-ext.h>
#include <stdbool.h>
#include <stdint.h>

enum { SLOTS = 6, LARGE = 1000, MOST_ROWS = 400 };

static int rank, size, next, previous;
static MPI_Comm comm;
/* The arguments of the rows in the present run. */
static int C;
static MPI_Datatype T;
static MPI_Op OP;
/* The bytes of T. */
static MPI_Aint extent;

struct row {
    const char *name;
    void (*run)(void *S, void *R);
    bool aliases; /* uses only R */
};
static struct row rows[MOST_ROWS];
static int row_count;

#define ROW_AS(identifier, NAME, ...)                                                                                 \
    static void identifier(void *S, void *R)                                                                          \
    {                                                                                                                  \
        (void) S, (void) R;                                                                                            \
        __VA_ARGS__                                                                                                      \
    }                                                                                                                  \
    __attribute__((constructor)) static void identifier##_row(void)                                                    \
    {                                                                                                                  \
        CHECK(row_count < MOST_ROWS);                                                                                  \
        rows[row_count++] = (struct row){.name = NAME, .run = identifier};                                             \
    }
/* A second expansion, so that a macro can name a call. */
#define ROW(call, ...) ROW_OF(call, __VA_ARGS__)
#define ROW_OF(call, ...) ROW_AS(row_##call, #call, __VA_ARGS__)
#define VARIANT(call, variant, ...) VARIANT_OF(call, variant, __VA_ARGS__)
#define VARIANT_OF(call, variant, ...) ROW_AS(row_##call##_##variant, #call ":" #variant, __VA_ARGS__)

/* --- memory --- */

static struct {
    int (*cuInit)(unsigned);
    int (*cuDeviceGetCount)(int *);
    int (*cuDevicePrimaryCtxRetain)(void **, int);
    int (*cuCtxSetCurrent)(void *);
    int (*cuMemAlloc)(uint64_t *, size_t);
    int (*cuMemFree)(uint64_t);
    int (*cuMemcpyHtoD)(uint64_t, const void *, size_t);
    int (*cuMemcpyDtoH)(void *, uint64_t, size_t);
} driver;

static void *look_up(void *library, const char *name)
{
    void *found = dlsym(library, name);
    CHECK(NULL != found);
    return found;
}

/* Each rank uses its own device, if there are enough. */
static void open_driver(void)
{
    int devices = 0;
    const char *folder = getenv("CABLEWAY_CUDA_LIBDIR");
    char path[4096];
    void *library, *context;
    snprintf(path, sizeof path, "%s%slibcuda.so.1", NULL != folder ? folder : "", NULL != folder ? "/" : "");
    library = dlopen(path, RTLD_NOW);
    if (NULL == library) {
        fprintf(stderr, "%s\n", dlerror());
    }
    CHECK(NULL != library);
#define LOOK_UP(name, symbol) *(void **) &driver.name = look_up(library, symbol)
    LOOK_UP(cuInit, "cuInit");
    LOOK_UP(cuDeviceGetCount, "cuDeviceGetCount");
    LOOK_UP(cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain");
    LOOK_UP(cuCtxSetCurrent, "cuCtxSetCurrent");
    LOOK_UP(cuMemAlloc, "cuMemAlloc_v2");
    LOOK_UP(cuMemFree, "cuMemFree_v2");
    LOOK_UP(cuMemcpyHtoD, "cuMemcpyHtoD_v2");
    LOOK_UP(cuMemcpyDtoH, "cuMemcpyDtoH_v2");
    CHECK_EQUAL(driver.cuInit(0), 0);
    CHECK_EQUAL(driver.cuDeviceGetCount(&devices), 0);
    CHECK(devices > 0);
    CHECK_EQUAL(driver.cuDevicePrimaryCtxRetain(&context, rank % devices), 0);
    CHECK_EQUAL(driver.cuCtxSetCurrent(context), 0);
}

static void *device_memory(size_t bytes)
{
    uint64_t address = 0;
    CHECK_EQUAL(driver.cuMemAlloc(&address, bytes), 0);
    return (void *) address;
}

static void to_device(void *to, const void *from, size_t bytes)
{
    CHECK_EQUAL(driver.cuMemcpyHtoD((uint64_t) to, from, bytes), 0);
}

static void from_device(void *to, const void *from, size_t bytes)
{
    CHECK_EQUAL(driver.cuMemcpyDtoH(to, (uint64_t) from, bytes), 0);
}

/* --- helpers for rows --- */

#define WAIT(request) MPI_Wait(&(request), MPI_STATUS_IGNORE)
#define AT(buffer, elements) ((void *) ((char *) (buffer) + (elements) *extent))

#endif
