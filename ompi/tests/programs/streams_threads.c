/* Threads that use streams of their own at once, while the main thread exchanges messages of the host. */
#include "streams/stream.h"

#include <pthread.h>

enum { THREADS = 3, ROUNDS = 60, BYTES = 20000 };

/* A thread's stream and its memory. The driver frees memory only after it has waited for all streams of the context. So
 * memory is taken before a stream waits and given back after. */
static struct {
    struct lane lane;
    device_pointer out, in, copy;
} parts[THREADS];
static volatile int running = THREADS;

static void *exchange(void *argument)
{
    const int tag = (int) (intptr_t) argument, other = 1 - test.rank;
    const struct lane *lane = &parts[tag].lane;
    const device_pointer out = parts[tag].out, in = parts[tag].in, copy = parts[tag].copy;
    CHECK_EQUAL(cuda.set_current(test.context), 0);
    for (int round = 0; round < ROUNDS; round++) {
        MPI_Request requests[2];
        CHECK_EQUAL(work.fill(out, (unsigned char) (round + tag), BYTES, lane->handle), 0);
        CHECK_EQUAL(MPIX_Irecv_enqueue(at(in), BYTES, MPI_BYTE, other, tag, lane->comm, &requests[0]), MPI_SUCCESS);
        CHECK_EQUAL(MPIX_Isend_enqueue(at(out), BYTES, MPI_BYTE, other, tag, lane->comm, &requests[1]), MPI_SUCCESS);
        if (0 == round % 3) {
            /* The host waits, among threads that wait for other messages. */
            CHECK_EQUAL(MPI_Waitall(2, requests, MPI_STATUSES_IGNORE), MPI_SUCCESS);
        } else {
            CHECK_EQUAL(MPIX_Waitall_enqueue(2, requests, MPI_STATUSES_IGNORE), MPI_SUCCESS);
        }
        CHECK_EQUAL(work.copy(copy, in, BYTES, lane->handle), 0);
        CHECK_EQUAL(work.synchronize(lane->handle), 0);
        check_bytes(copy, BYTES, round + tag);
    }
    __atomic_fetch_sub(&running, 1, __ATOMIC_ACQ_REL);
    return NULL;
}

int main(int argc, char **argv)
{
    pthread_t threads[THREADS];
    int here = 1, anywhere = 1;
    set_up(argc, argv, MPI_THREAD_MULTIPLE);
    load_streams();
    CHECK_EQUAL(test.size, 2);
    for (int i = 0; i < THREADS; i++) {
        lane_open(&parts[i].lane);
        parts[i].out = device_memory(BYTES), parts[i].in = device_memory(BYTES), parts[i].copy = device_memory(BYTES);
    }
    for (int i = 0; i < THREADS; i++) {
        CHECK_EQUAL(pthread_create(&threads[i], NULL, exchange, (void *) (intptr_t) i), 0);
    }
    while (anywhere) {
        here = __atomic_load_n(&running, __ATOMIC_ACQUIRE);
        CHECK_EQUAL(MPI_Allreduce(&here, &anywhere, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD), MPI_SUCCESS);
        MPI_Sendrecv_replace(&here, 1, MPI_INT, 1 - test.rank, 0, 1 - test.rank, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
    }
    for (int i = 0; i < THREADS; i++) {
        CHECK_EQUAL(cuda.free(parts[i].out) | cuda.free(parts[i].in) | cuda.free(parts[i].copy), 0);
        lane_close(&parts[i].lane);
    }
    tear_down();
    return 0;
}
