// What all kernels that do a job share: types, and the words by which host and job agree on what is done. Without a
// toolkit or a header. The structure matches that in common-cuda/src/kernels/job.rs.

#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long s64;
typedef u32 u128 __attribute__((vector_size(16)));

#define DEVICE static inline __attribute__((device, always_inline))
#define METHOD inline __attribute__((device, always_inline))
#define MEMORY __attribute__((address_space(1)))

#ifdef __HIP__
#define KERNEL(threads) extern "C" __attribute__((global, amdgpu_flat_work_group_size(threads, threads)))
#define THREAD __builtin_amdgcn_workitem_id_x()
#define BLOCK __builtin_amdgcn_workgroup_id_x()
#define BLOCKS (__builtin_amdgcn_grid_size_x() / THREADS)
DEVICE void barrier(void) {
    __builtin_amdgcn_fence(__ATOMIC_SEQ_CST, "workgroup");
    __builtin_amdgcn_s_barrier();
    __builtin_amdgcn_fence(__ATOMIC_SEQ_CST, "workgroup");
}
DEVICE void fence(void) { __builtin_amdgcn_fence(__ATOMIC_SEQ_CST, ""); }
#else
#define KERNEL(threads) extern "C" __attribute__((global, launch_bounds(threads)))
#define THREAD (u32)__nvvm_read_ptx_sreg_tid_x()
#define BLOCK (u32)__nvvm_read_ptx_sreg_ctaid_x()
#define BLOCKS (u32)__nvvm_read_ptx_sreg_nctaid_x()
DEVICE void barrier(void) { __syncthreads(); }
DEVICE void fence(void) { __nvvm_membar_sys(); }
#endif

// The threads of a block, fewer in a test.
#ifndef THREADS
#define THREADS 512
#endif
// The number of jobs under way in a context; the indices of a job's words: revoked, started, ended, late.
#define JOBS 128
#define REVOKED 0
#define STARTED 16
#define ENDED 32
#define LATE 48

// The job's number, and the address of its words.
struct Job {
    u64 words;
    u32 number;
    u32 slot;
};

// For each slot, the job of which a block has run, and the decision for that block: twice the number, plus one to run.
static __attribute__((device)) u32 claimed[JOBS];
static __attribute__((device)) volatile u64 decided[JOBS];
// The number of the job's blocks that have ended.
static __attribute__((device)) u32 finished[JOBS];

DEVICE volatile u32 MEMORY *word(struct Job job, u32 index) {
    return (volatile u32 MEMORY *)(job.words) + index;
}

// Returns whether the job must be done.
DEVICE bool begin(struct Job job) {
    static __attribute__((shared)) u32 go;
    if (THREAD == 0) {
        u64 decision;
        if (__atomic_exchange_n(&claimed[job.slot], job.number, __ATOMIC_RELAXED) != job.number) {
            *word(job, STARTED) = job.number;
            fence();
            decision = 2 * (u64)job.number + (*word(job, REVOKED) != job.number);
            decided[job.slot] = decision;
        } else {
            do decision = decided[job.slot];
            while (decision / 2 != job.number);
        }
        go = decision & 1;
    }
    barrier();
    return go;
}

// Records that this block accesses no more memory, after its stores became visible. The last block reports the end.
DEVICE void end(struct Job job) {
    barrier();
    if (THREAD == 0) {
        fence();
        // A fence takes most of a microsecond if stores went to another device, and one block needs no second one.
        if (BLOCKS != 1) {
            if (__atomic_fetch_add(&finished[job.slot], 1, __ATOMIC_RELAXED) + 1 != BLOCKS) return;
            finished[job.slot] = 0;
            fence();
        }
        *word(job, ENDED) = job.number;
    }
}
