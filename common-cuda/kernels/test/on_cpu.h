// A block of threads on the CPU: what the kernels ask of a device. Blocks come one after the other.

#pragma once

#include <pthread.h>
#include <atomic>

static thread_local unsigned this_thread;
static unsigned this_block, all_blocks;
static pthread_barrier_t everybody;

#define __nvvm_read_ptx_sreg_tid_x() this_thread
#define __nvvm_read_ptx_sreg_ctaid_x() this_block
#define __nvvm_read_ptx_sreg_nctaid_x() all_blocks
#define __syncthreads() pthread_barrier_wait(&everybody)
#define __nvvm_membar_sys() std::atomic_thread_fence(std::memory_order_seq_cst)

#include KERNELS

// Runs a kernel as a launch would. The threads stay for all blocks.
template <typename Argument> struct OnCpu {
    void (*kernel)(const Argument);
    const Argument &argument;

    static void *thread(void *of) {
        auto [launch, number] = *static_cast<Start *>(of);
        this_thread = number;
        for (unsigned block = 0; block < all_blocks; block++) {
            if (number == 0) this_block = block;
            pthread_barrier_wait(&everybody);
            launch->kernel(launch->argument);
            pthread_barrier_wait(&everybody);
        }
        return nullptr;
    }

    void launch(unsigned blocks) {
        all_blocks = blocks;
        pthread_barrier_init(&everybody, nullptr, THREADS);
        pthread_t threads[THREADS];
        Start starts[THREADS];
        for (unsigned i = 0; i < THREADS; i++) {
            starts[i] = {this, i};
            pthread_create(&threads[i], nullptr, thread, &starts[i]);
        }
        for (pthread_t each : threads) pthread_join(each, nullptr);
        pthread_barrier_destroy(&everybody);
    }

  private:
    struct Start {
        OnCpu *launch;
        unsigned number;
    };
};
