// A ping-pong of two ranks that a kernel performs. A device compiles it (mp_kernel.cu), and the host, which plays the
// kernel (mp_kernel.cc).
#ifndef EXCHANGE_H
#define EXCHANGE_H

#include <mp/device.cuh>

// A message to the peer, and one from it.
struct Step {
    mp::mlx5::send_desc_t send;
    mp::mlx5::wait_desc_t sent, received;
};

// The byte that a rank sends in a step.
CABLEWAY_ON_BOTH inline unsigned char byte_of(unsigned step, int rank)
{
    return (unsigned char)(2 * step + 17 + rank);
}

// `Work` says what the threads of a kernel do together: `barrier()`, `first()` for one of them, `fill(step, value)` for the
// bytes that are sent, `check(step, value)` for those that came. Returns the number of failed waits.
template <typename Work> CABLEWAY_ON_BOTH inline int exchange(Step *steps, unsigned count, int rank, Work &work)
{
    int failed = 0;
    for (unsigned i = 0; i < count; i++) {
        // Rank 0 sends first.
        for (int half = 0; half < 2; half++) {
            if (half == rank) {
                work.fill(i, byte_of(i, rank));
                work.barrier();
                if (work.first()) {
                    mp::device::mlx5::send(steps[i].send);
                    failed += 0 != mp::device::mlx5::wait(steps[i].sent);
                    mp::device::mlx5::signal(steps[i].sent);
                }
            } else {
                if (work.first()) {
                    failed += 0 != mp::device::mlx5::wait(steps[i].received);
                    mp::device::mlx5::signal(steps[i].received);
                }
                work.barrier();
                work.check(i, byte_of(i, 1 - rank));
            }
        }
    }
    return failed;
}

#endif
