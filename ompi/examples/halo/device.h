/* What halo.c needs of CUDA's driver, which it loads when it runs, so that it builds without the toolkit. */
#ifndef DEVICE_H
#define DEVICE_H

#include <dlfcn.h>
#include <libgen.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

typedef unsigned long long device_pointer;

static struct {
    int (*init)(unsigned);
    int (*count)(int *);
    int (*device)(int *, int);
    int (*context)(void **, int);
    int (*use)(void *);
    int (*stream)(void **, unsigned);
    int (*synchronize)(void *);
    int (*allocate)(device_pointer *, size_t);
    int (*to_device)(device_pointer, const void *, size_t);
    int (*to_host)(void *, device_pointer, size_t);
    int (*load)(void **, const char *);
    int (*function)(void **, void *, const char *);
    int (*launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);
} cuda;

static void check(int result, const char *what)
{
    if (0 != result) {
        fprintf(stderr, "%s returned %d\n", what, result);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
}
#define CHECK(call) check(call, #call)

static void *function_of(void *library, const char *name)
{
    void *found = NULL == library ? NULL : dlsym(library, name);
    if (NULL == found) {
        fprintf(stderr, "%s\n", dlerror());
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    return found;
}

/* Loads the driver from the folder that CABLEWAY_CUDA_LIBDIR names, or from where the loader finds it. */
static void load_driver(void)
{
    const char *folder = getenv("CABLEWAY_CUDA_LIBDIR");
    char path[4096];
    snprintf(path, sizeof path, "%s%slibcuda.so.1", NULL == folder ? "" : folder, NULL == folder ? "" : "/");
    void *driver = dlopen(path, RTLD_NOW);
    *(void **) &cuda.init = function_of(driver, "cuInit");
    *(void **) &cuda.count = function_of(driver, "cuDeviceGetCount");
    *(void **) &cuda.device = function_of(driver, "cuDeviceGet");
    *(void **) &cuda.context = function_of(driver, "cuDevicePrimaryCtxRetain");
    *(void **) &cuda.use = function_of(driver, "cuCtxSetCurrent");
    *(void **) &cuda.stream = function_of(driver, "cuStreamCreate");
    *(void **) &cuda.synchronize = function_of(driver, "cuStreamSynchronize");
    *(void **) &cuda.allocate = function_of(driver, "cuMemAlloc_v2");
    *(void **) &cuda.to_device = function_of(driver, "cuMemcpyHtoD_v2");
    *(void **) &cuda.to_host = function_of(driver, "cuMemcpyDtoH_v2");
    *(void **) &cuda.load = function_of(driver, "cuModuleLoad");
    *(void **) &cuda.function = function_of(driver, "cuModuleGetFunction");
    *(void **) &cuda.launch = function_of(driver, "cuLaunchKernel");
}

/* Uses one of the devices, and returns how many there are. */
static int use_device(int rank)
{
    int devices, device;
    void *context;
    CHECK(cuda.init(0));
    CHECK(cuda.count(&devices));
    CHECK(cuda.device(&device, rank % devices));
    CHECK(cuda.context(&context, device));
    CHECK(cuda.use(context));
    return devices;
}

static device_pointer device_memory(size_t bytes)
{
    device_pointer pointer;
    CHECK(cuda.allocate(&pointer, bytes));
    return pointer;
}

static void *at(device_pointer pointer)
{
    return (void *) (size_t) pointer;
}

/* Loads the kernels from the file beside this program. */
static void *load_kernels(const char *name)
{
    char program[4096] = "", path[4200];
    void *module;
    if (readlink("/proc/self/exe", program, sizeof program - 1) < 0) {
        perror("/proc/self/exe");
    }
    snprintf(path, sizeof path, "%s/%s", dirname(program), name);
    check(cuda.load(&module, path), path);
    return module;
}

#endif
