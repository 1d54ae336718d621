// The kernel of mp_kernel.cc. A compiler without CUDA's toolkit takes it, too:
//
//   clang-19 -x cuda -nocudainc -nocudalib --cuda-device-only --cuda-gpu-arch=sm_70 -O2 -S -o mp_kernel.ptx ...
//   nvcc -ptx -arch=sm_70 -o mp_kernel.ptx ...
#ifndef __CUDACC__
#define __global__ __attribute__((global))
#define __device__ __attribute__((device))
#define __host__ __attribute__((host))
#include <__clang_cuda_builtin_vars.h>
extern "C" __device__ void __syncthreads();
#endif

#include "mp_kernel/exchange.h"

// The threads of one block.
struct Threads {
    unsigned char *out, *in;
    unsigned long long bytes;
    int faults;

    __device__ void barrier() { __syncthreads(); }
    __device__ bool first() { return 0 == threadIdx.x; }
    __device__ void fill(unsigned step, unsigned char value)
    {
        for (unsigned long long i = threadIdx.x; i < bytes; i += blockDim.x) {
            out[step * bytes + i] = value;
        }
    }
    __device__ void check(unsigned step, unsigned char value)
    {
        for (unsigned long long i = threadIdx.x; i < bytes; i += blockDim.x) {
            faults += value != in[step * bytes + i];
        }
    }
};

// Each thread writes how many bytes and waits were wrong.
extern "C" __global__ void exchange_kernel(Step *steps, unsigned count, int rank, unsigned char *out, unsigned char *in,
                                           unsigned long long bytes, int *wrong)
{
    Threads threads = {out, in, bytes, 0};
    int failed = exchange(steps, count, rank, threads);
    wrong[threadIdx.x] = failed + threads.faults;
}
