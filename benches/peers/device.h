/* Device memory for programs of MPI, or page-locked memory, by the driver alone. Without devices, no_device.h stands in
 * for it. */
#include <dlfcn.h>

/* Whether buffers are page-locked memory of the device's context. */
static int page_locked;

/* A function of the driver's. */
static void *driver(const char *name)
{
    static void *library;
    if (!library) {
        char path[4096];
        const char *folder = getenv("CABLEWAY_CUDA_LIBDIR");
        snprintf(path, sizeof path, "%s%slibcuda.so.1", folder ? folder : "", folder && *folder ? "/" : "");
        library = dlopen(path, RTLD_NOW);
    }
    void *function = library ? dlsym(library, name) : NULL;
    if (!function)
        give_up(dlerror());
    return function;
}

static void use_device(int device)
{
    void *context;
    int number;
    if (((int (*)(unsigned))driver("cuInit"))(0) != 0 ||
        ((int (*)(int *, int))driver("cuDeviceGet"))(&number, device) != 0 ||
        ((int (*)(void **, int))driver("cuDevicePrimaryCtxRetain"))(&context, number) != 0 ||
        ((int (*)(void *))driver("cuCtxSetCurrent"))(context) != 0)
        give_up("the device cannot be used");
}

static char *device_buffer(size_t size)
{
    unsigned long long address = 0;
    const char *call = page_locked ? "cuMemAllocHost_v2" : "cuMemAlloc_v2";
    if (((int (*)(unsigned long long *, size_t))driver(call))(&address, size) != 0)
        give_up("no device memory, or page-locked memory, for a message");
    return (char *)address;
}

static void device_release(char *buffer)
{
    const char *call = page_locked ? "cuMemFreeHost" : "cuMemFree_v2";
    ((int (*)(unsigned long long))driver(call))((unsigned long long)buffer);
}
