/* Threads that use windows in device memory at once: each a window of its own, and all of them a shared one, which the
 * process has locked. CABLEWAY_CUDA_LIBDIR names the driver. */
#include "collectives/memory.h"

#include <pthread.h>

enum { THREADS = 4, ROUNDS = 20, BYTES = 3000 };

static MPI_Win own[THREADS], shared;
static struct memory memories[THREADS], counters;

/* Writes into the next process's window, reads it back, and counts in the shared window of each process. */
static void *use_windows(void *argument)
{
    const int thread = (int) (intptr_t) argument, next = (test.rank + 1) % test.size;
    unsigned char *out = malloc(BYTES), *in = malloc(BYTES);
    const long one = 1;
    CHECK_EQUAL(cuda.set_current(test.context), 0);
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < BYTES; i++) {
            out[i] = (unsigned char) mix((uint64_t) (100 * test.rank + thread), (uint64_t) round, (uint64_t) i);
        }
        memset(in, 0, BYTES);
        MPI_Win_lock(MPI_LOCK_EXCLUSIVE, next, 0, own[thread]);
        MPI_Put(out, BYTES, MPI_BYTE, next, 0, BYTES, MPI_BYTE, own[thread]);
        MPI_Win_flush(next, own[thread]);
        MPI_Get(in, BYTES, MPI_BYTE, next, 0, BYTES, MPI_BYTE, own[thread]);
        MPI_Win_unlock(next, own[thread]);
        CHECK(0 == memcmp(in, out, BYTES));
        for (int target = 0; target < test.size; target++) {
            long old = -1;
            MPI_Request request;
            MPI_Rget_accumulate(&one, 1, MPI_LONG, &old, 1, MPI_LONG, target, 0, 1, MPI_LONG, MPI_SUM, shared, &request);
            MPI_Wait(&request, MPI_STATUS_IGNORE);
            CHECK(old >= 0);
        }
        count_check();
    }
    free(out);
    free(in);
    return NULL;
}

int main(int argc, char **argv)
{
    pthread_t threads[THREADS];
    long counted;
    set_up(argc, argv, MPI_THREAD_MULTIPLE);
    memory_use(&counters, true, 0, sizeof(long), 0);
    memory_put(&counters);
    MPI_Win_create(memory_at(&counters), sizeof(long), sizeof(long), MPI_INFO_NULL, MPI_COMM_WORLD, &shared);
    for (int i = 0; i < THREADS; i++) {
        memory_use(&memories[i], 0 == (test.rank + i) % 2, 0, BYTES, RECV_GAP);
        memory_put(&memories[i]);
        MPI_Win_create(memory_at(&memories[i]), BYTES, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &own[i]);
    }
    MPI_Win_lock_all(0, shared);
    for (int i = 0; i < THREADS; i++) {
        CHECK_EQUAL(pthread_create(&threads[i], NULL, use_windows, (void *) (intptr_t) i), 0);
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
    }
    MPI_Win_unlock_all(shared);
    MPI_Win_free(&shared);
    memory_get(&counters);
    memcpy(&counted, data(&counters, counters.got), sizeof counted);
    CHECK_EQUAL(counted, (long) test.size * THREADS * ROUNDS);
    for (int i = 0; i < THREADS; i++) {
        MPI_Win_free(&own[i]);
        memory_discard(&memories[i]);
    }
    memory_discard(&counters);
    tear_down();
    return 0;
}
