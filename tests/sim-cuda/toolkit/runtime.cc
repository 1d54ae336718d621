// A small double of CUDA's runtime over the driver that CABLEWAY_CUDA_LIBDIR names, for programs that clang compiles without
// the toolkit. The binary of their kernels is PTX (clang's -fcuda-include-gpubinary), which the driver loads at the first
// launch.
#include "cuda_runtime.h"

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <map>
#include <string>

namespace {
struct Launch {
    dim3 grid, block;
    size_t shared;
    void *stream;
};

// As the compiler lays out what it registers.
struct Wrapper {
    int magic, version;
    const char *text;
    void *unused;
};

struct Kernel {
    const char *text, *name;
    void *function;
};

thread_local Launch pushed;
cudaError_t last = cudaSuccess;

std::map<const void *, Kernel> &kernels()
{
    static std::map<const void *, Kernel> registered;
    return registered;
}

void *symbol(const char *name)
{
    static void *driver = [] {
        const char *folder = getenv("CABLEWAY_CUDA_LIBDIR");
        return dlopen((folder ? std::string(folder) + "/libcuda.so.1" : "libcuda.so.1").c_str(), RTLD_NOW);
    }();
    void *found = driver ? dlsym(driver, name) : nullptr;
    if (!found) {
        fprintf(stderr, "%s: %s\n", name, dlerror());
        abort();
    }
    return found;
}

// Calls a function of the driver.
template <typename... A> cudaError_t call(const char *name, A... arguments)
{
    auto result = (cudaError_t) ((int (*)(A...)) symbol(name))(arguments...);
    last = cudaSuccess == result ? last : result;
    return result;
}

uint64_t address(const void *pointer)
{
    return (uint64_t) (uintptr_t) pointer;
}
} // namespace

extern "C" {
cudaError_t cudaGetDeviceCount(int *count)
{
    call("cuInit", 0u);
    return call("cuDeviceGetCount", count);
}

cudaError_t cudaSetDevice(int device)
{
    int handle = 0;
    void *context = nullptr;
    call("cuInit", 0u);
    call("cuDeviceGet", &handle, device);
    call("cuDevicePrimaryCtxRetain", &context, handle);
    return call("cuCtxSetCurrent", context);
}

cudaError_t cudaMalloc(void **pointer, size_t bytes)
{
    return call("cuMemAlloc_v2", (uint64_t *) pointer, bytes);
}

cudaError_t cudaFree(void *pointer)
{
    return call("cuMemFree_v2", address(pointer));
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, cudaMemcpyKind)
{
    return call("cuMemcpy", address(to), address(from), bytes);
}

cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t stream)
{
    return call("cuMemsetD8Async", address(to), (unsigned char) value, bytes, stream);
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags)
{
    return call("cuStreamCreate", stream, flags);
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    return call("cuStreamSynchronize", stream);
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    return call("cuStreamDestroy_v2", stream);
}

cudaError_t cudaGetLastError(void)
{
    cudaError_t result = last;
    last = cudaSuccess;
    return result;
}

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, void *stream)
{
    pushed = {grid, block, shared, stream};
    return 0;
}

cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *stream)
{
    *grid = pushed.grid;
    *block = pushed.block;
    *shared = pushed.shared;
    *(void **) stream = pushed.stream;
    return cudaSuccess;
}

cudaError_t cudaLaunchKernel(const void *stub, dim3 grid, dim3 block, void **arguments, size_t shared, cudaStream_t stream)
{
    Kernel &kernel = kernels()[stub];
    if (!kernel.function) {
        void *module = nullptr;
        call("cuModuleLoadData", &module, kernel.text);
        call("cuModuleGetFunction", &kernel.function, module, kernel.name);
    }
    return call("cuLaunchKernel", kernel.function, grid.x, grid.y, grid.z, block.x, block.y, block.z, (unsigned) shared,
                stream, arguments, (void **) nullptr);
}

// What the compiler's initialisers call.
void **__cudaRegisterFatBinary(void *wrapper)
{
    return (void **) wrapper;
}

void __cudaRegisterFatBinaryEnd(void **) {}

void __cudaUnregisterFatBinary(void **) {}

void __cudaRegisterFunction(void **wrapper, const char *stub, char *, const char *name, int, uint3 *, uint3 *, dim3 *,
                            dim3 *, int *)
{
    kernels()[stub] = {((const Wrapper *) wrapper)->text, name, nullptr};
}
}
