/*
 * Memory of the kind that the program's first argument names: on the host, on a device by the driver of
 * CABLEWAY_CUDA_LIBDIR, on a device by the library, or on the host in odd ranks and on a device in the others.
 */
#ifndef MEMORY_H
#define MEMORY_H

#include "job.h"

#include <dlfcn.h>

typedef unsigned long long device_pointer;

static struct {
    int (*init)(unsigned);
    int (*retain)(void **, int);
    int (*set_current)(void *);
    int (*alloc)(device_pointer *, size_t);
    int (*free)(device_pointer);
    int (*to_device)(device_pointer, const void *, size_t);
    int (*to_host)(void *, device_pointer, size_t);
} cuda;

enum kind { HOST, DEVICE, LIBRARY };
static enum kind kind = HOST;

/* Some memory, by its address. */
struct memory {
    void *address;
    size_t bytes;
    cableway_device_buffer *buffer;
};

static inline void *open_driver(void)
{
    char path[4096];
    const char *folder = getenv("CABLEWAY_CUDA_LIBDIR");
    void *driver;
    snprintf(path, sizeof path, "%s%slibcuda.so.1", NULL != folder ? folder : "", NULL != folder ? "/" : "");
    driver = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    CHECK(NULL != driver);
    return driver;
}

static inline void load_driver(void)
{
    void *driver = open_driver(), *context;
#define SYMBOL(field, name)                                                                                           \
    *(void **) &cuda.field = dlsym(driver, name);                                                                     \
    CHECK(NULL != cuda.field)
    SYMBOL(init, "cuInit");
    SYMBOL(retain, "cuDevicePrimaryCtxRetain");
    SYMBOL(set_current, "cuCtxSetCurrent");
    SYMBOL(alloc, "cuMemAlloc_v2");
    SYMBOL(free, "cuMemFree_v2");
    SYMBOL(to_device, "cuMemcpyHtoD_v2");
    SYMBOL(to_host, "cuMemcpyDtoH_v2");
    CHECK_EQUAL(cuda.init(0), 0);
    CHECK_EQUAL(cuda.retain(&context, 0), 0);
    CHECK_EQUAL(cuda.set_current(context), 0);
}

/* Reads the first argument. The job has begun. */
static inline void select_memory(int argc, char **argv)
{
    const char *name = argc > 1 ? argv[1] : "host";
    if (0 == strcmp(name, "device") || (0 == strcmp(name, "mixed") && 0 == rank % 2)) {
        kind = DEVICE;
        load_driver();
    } else if (0 == strcmp(name, "library")) {
        kind = LIBRARY;
    } else {
        CHECK(0 == strcmp(name, "host") || 0 == strcmp(name, "mixed"));
    }
}

static inline struct memory obtain(size_t bytes)
{
    struct memory memory = {NULL, bytes, NULL};
    device_pointer pointer;
    switch (kind) {
    case HOST:
        memory.address = allocate(bytes);
        break;
    case DEVICE:
        CHECK_EQUAL(cuda.alloc(&pointer, bytes), 0);
        memory.address = (void *) (uintptr_t) pointer;
        break;
    case LIBRARY:
        CALL(cableway_device_allocate(world, 0, CABLEWAY_MEMORY_DEVICE, bytes, &memory.buffer, &memory.address));
        break;
    }
    return memory;
}

static inline void release(struct memory *memory)
{
    switch (kind) {
    case HOST:
        free(memory->address);
        break;
    case DEVICE:
        CHECK_EQUAL(cuda.free((device_pointer) (uintptr_t) memory->address), 0);
        break;
    case LIBRARY:
        CALL(cableway_device_free(&memory->buffer));
        CHECK(NULL == memory->buffer);
        break;
    }
}

/* Copies from the host to the beginning of the memory, and back. */
static inline void put(const struct memory *memory, const void *source, size_t bytes)
{
    CHECK(bytes <= memory->bytes);
    switch (kind) {
    case HOST:
        memcpy(memory->address, source, bytes);
        break;
    case DEVICE:
        CHECK_EQUAL(cuda.to_device((device_pointer) (uintptr_t) memory->address, source, bytes), 0);
        break;
    case LIBRARY:
        CALL(cableway_device_write(memory->buffer, 0, source, bytes));
        break;
    }
}

static inline void get(const struct memory *memory, void *destination, size_t bytes)
{
    CHECK(bytes <= memory->bytes);
    switch (kind) {
    case HOST:
        memcpy(destination, memory->address, bytes);
        break;
    case DEVICE:
        CHECK_EQUAL(cuda.to_host(destination, (device_pointer) (uintptr_t) memory->address, bytes), 0);
        break;
    case LIBRARY:
        CALL(cableway_device_read(memory->buffer, 0, destination, bytes));
        break;
    }
}

#endif
