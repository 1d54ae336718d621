/* The driver that CABLEWAY_CUDA_LIBDIR names, or the machine's. */
#ifndef DRIVER_H
#define DRIVER_H

#include "check.h"

#include <dlfcn.h>
#include <stdint.h>

typedef unsigned long long device_pointer;

static struct {
    int (*init)(unsigned);
    int (*device_get)(int *, int);
    int (*device_get_count)(int *);
    int (*retain)(void **, int);
    int (*release)(int);
    int (*reset)(int);
    int (*set_current)(void *);
    int (*alloc)(device_pointer *, size_t);
    int (*free)(device_pointer);
    int (*to_device)(device_pointer, const void *, size_t);
    int (*to_host)(void *, device_pointer, size_t);
} cuda;

static inline void *open_driver(void)
{
    char path[4096];
    const char *folder = getenv("CABLEWAY_CUDA_LIBDIR");
    void *driver;
    snprintf(path, sizeof path, "%s%slibcuda.so.1", NULL != folder ? folder : "", NULL != folder ? "/" : "");
    driver = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (NULL == driver) {
        fprintf(stderr, "%s\n", dlerror());
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    return driver;
}

static void load(void)
{
    void *driver = open_driver();
#define SYMBOL(field, name)                                                                                           \
    *(void **) &cuda.field = dlsym(driver, name);                                                                     \
    CHECK(NULL != cuda.field)
    SYMBOL(init, "cuInit");
    SYMBOL(device_get, "cuDeviceGet");
    SYMBOL(device_get_count, "cuDeviceGetCount");
    SYMBOL(retain, "cuDevicePrimaryCtxRetain");
    SYMBOL(release, "cuDevicePrimaryCtxRelease_v2");
    SYMBOL(reset, "cuDevicePrimaryCtxReset_v2");
    SYMBOL(set_current, "cuCtxSetCurrent");
    SYMBOL(alloc, "cuMemAlloc_v2");
    SYMBOL(free, "cuMemFree_v2");
    SYMBOL(to_device, "cuMemcpyHtoD_v2");
    SYMBOL(to_host, "cuMemcpyDtoH_v2");
}

#endif
