// Words that a kernel waits for and stores to. The host compiles the functions, too, and tests call them there.
#ifndef CABLEWAY_GDSYNC_DEVICE_CUH
#define CABLEWAY_GDSYNC_DEVICE_CUH

#include <gdsync.h>

#if defined(__CUDACC__) || defined(__CUDA__)
#define CABLEWAY_ON_BOTH __host__ __device__
#else
#define CABLEWAY_ON_BOTH
#endif

namespace gdsync {

enum { ERROR_FAILED = 5, ERROR_TIMEOUT = 11, ERROR_INVALID = 22 }; // EIO, EAGAIN, EINVAL. Waits have no timeout.

typedef gds_wait_cond_flag_t wait_cond_t;

// A word, and the value that is stored or compared with.
struct sem32 {
    typedef uint32_t T;
    typedef int32_t Tsigned;
    T sem;
    T value;
    CABLEWAY_ON_BOTH T *word() { return &sem; }
};
typedef struct sem32 sem32_t;

// The same with the address of the word.
struct isem32 {
    typedef uint32_t T;
    typedef int32_t Tsigned;
    T *ptr;
    T value;
    CABLEWAY_ON_BOTH isem32() : ptr(0), value(0) {}
    CABLEWAY_ON_BOTH T *word() const { return ptr; }
};
typedef struct isem32 isem32_t;

struct isem64 {
    typedef uint64_t T;
    typedef int64_t Tsigned;
    T *ptr;
    T value;
    CABLEWAY_ON_BOTH isem64() : ptr(0), value(0) {}
    CABLEWAY_ON_BOTH T *word() const { return ptr; }
};
typedef struct isem64 isem64_t;

namespace device {

// What the writer of the word did before is visible after the load, wherever it ran.
CABLEWAY_ON_BOTH inline uint32_t load(const uint32_t *word)
{
#if !defined(__CUDA_ARCH__)
    return __atomic_load_n(word, __ATOMIC_ACQUIRE);
#elif __CUDA_ARCH__ >= 700
    uint32_t value;
    asm volatile("ld.acquire.sys.u32 %0, [%1];" : "=r"(value) : "l"(word) : "memory");
    return value;
#else
    uint32_t value;
    asm volatile("ld.volatile.u32 %0, [%1];" : "=r"(value) : "l"(word) : "memory");
    asm volatile("membar.sys;" ::: "memory");
    return value;
#endif
}

CABLEWAY_ON_BOTH inline uint64_t load(const uint64_t *word)
{
#if !defined(__CUDA_ARCH__)
    return __atomic_load_n(word, __ATOMIC_ACQUIRE);
#elif __CUDA_ARCH__ >= 700
    uint64_t value;
    asm volatile("ld.acquire.sys.u64 %0, [%1];" : "=l"(value) : "l"(word) : "memory");
    return value;
#else
    uint64_t value;
    asm volatile("ld.volatile.u64 %0, [%1];" : "=l"(value) : "l"(word) : "memory");
    asm volatile("membar.sys;" ::: "memory");
    return value;
#endif
}

// What the calling thread did before, and what other threads did before a barrier with it, is visible to those who load the
// word.
CABLEWAY_ON_BOTH inline void store(uint32_t *word, uint32_t value)
{
#if !defined(__CUDA_ARCH__)
    __atomic_store_n(word, value, __ATOMIC_RELEASE);
#elif __CUDA_ARCH__ >= 700
    asm volatile("st.release.sys.u32 [%0], %1;" ::"l"(word), "r"(value) : "memory");
#else
    asm volatile("membar.sys;" ::: "memory");
    asm volatile("st.volatile.u32 [%0], %1;" ::"l"(word), "r"(value) : "memory");
#endif
}

CABLEWAY_ON_BOTH inline void store(uint64_t *word, uint64_t value)
{
#if !defined(__CUDA_ARCH__)
    __atomic_store_n(word, value, __ATOMIC_RELEASE);
#elif __CUDA_ARCH__ >= 700
    asm volatile("st.release.sys.u64 [%0], %1;" ::"l"(word), "l"(value) : "memory");
#else
    asm volatile("membar.sys;" ::: "memory");
    asm volatile("st.volatile.u64 [%0], %1;" ::"l"(word), "l"(value) : "memory");
#endif
}

// Stores the value.
template <typename S> CABLEWAY_ON_BOTH inline void release(S &sem)
{
    store(sem.word(), sem.value);
}

// Return 0 once the word satisfies the condition.

template <typename S> CABLEWAY_ON_BOTH inline int wait_eq(S &sem)
{
    while (load(sem.word()) != sem.value) {
    }
    return 0;
}

template <typename S> CABLEWAY_ON_BOTH inline int wait_geq(S &sem)
{
    // The difference wraps around before it has a sign.
    while ((typename S::Tsigned)(load(sem.word()) - sem.value) < 0) {
    }
    return 0;
}

template <typename S> CABLEWAY_ON_BOTH inline int wait_and(S &sem)
{
    while (0 == (load(sem.word()) & sem.value)) {
    }
    return 0;
}

template <typename S> CABLEWAY_ON_BOTH inline int wait_nor(S &sem)
{
    while (0 == (typename S::T) ~(load(sem.word()) | sem.value)) {
    }
    return 0;
}

// The same by the number of the condition. Returns ERROR_INVALID for another number.
template <typename S> CABLEWAY_ON_BOTH inline int wait(S &sem, wait_cond_t cond)
{
    switch (cond) {
    case GDS_WAIT_COND_GEQ: return wait_geq(sem);
    case GDS_WAIT_COND_EQ: return wait_eq(sem);
    case GDS_WAIT_COND_AND: return wait_and(sem);
    case GDS_WAIT_COND_NOR: return wait_nor(sem);
    default: return ERROR_INVALID;
    }
}

} // namespace device
} // namespace gdsync

#endif
