/* Device memory in concurrent calls of many threads: messages, and collectives that are staged through host memory.
 * A thread completes requests that another one has started. */
#include "check.h"
#include "driver.h"

#include <pthread.h>

enum { THREADS = 4, ROUNDS = 20, INTS = 3000 };

static int rank, size;
static void *context;
static MPI_Comm communicators[THREADS];

/* The buffers and requests of a thread. */
static struct work {
    device_pointer from, sum, all, in;
    MPI_Request requests[4];
} works[THREADS];
static pthread_barrier_t started, completed;

static void *at(device_pointer pointer)
{
    return (void *) (uintptr_t) pointer;
}

static void start(int thread, int round)
{
    struct work *work = &works[thread];
    MPI_Comm comm = communicators[thread];
    const int next = (rank + 1) % size, previous = (rank + size - 1) % size;
    int values[INTS];
    for (int i = 0; i < INTS; i++) {
        values[i] = 1000 * thread + 10 * round + rank + i;
    }
    CHECK_EQUAL(cuda.to_device(work->from, values, sizeof values), 0);
    MPI_Iallreduce(at(work->from), at(work->sum), INTS, MPI_INT, MPI_SUM, comm, &work->requests[0]);
    MPI_Iallgather(at(work->from), INTS, MPI_INT, at(work->all), INTS, MPI_INT, comm, &work->requests[1]);
    MPI_Irecv(at(work->in), INTS, MPI_INT, previous, 3, comm, &work->requests[2]);
    MPI_Isend(at(work->from), INTS, MPI_INT, next, 3, comm, &work->requests[3]);
}

static void check(int thread, int round)
{
    struct work *work = &works[thread];
    const int previous = (rank + size - 1) % size, ranks = size * (size - 1) / 2;
    int values[INTS];
    MPI_Waitall(4, work->requests, MPI_STATUSES_IGNORE);
    CHECK_EQUAL(cuda.to_host(values, work->sum, sizeof values), 0);
    for (int i = 0; i < INTS; i++) {
        CHECK_EQUAL(values[i], size * (1000 * thread + 10 * round + i) + ranks);
    }
    CHECK_EQUAL(cuda.to_host(values, work->in, sizeof values), 0);
    for (int i = 0; i < INTS; i++) {
        CHECK_EQUAL(values[i], 1000 * thread + 10 * round + previous + i);
    }
    for (int other = 0; other < size; other++) {
        CHECK_EQUAL(cuda.to_host(values, work->all + other * sizeof values, sizeof values), 0);
        for (int i = 0; i < INTS; i++) {
            CHECK_EQUAL(values[i], 1000 * thread + 10 * round + other + i);
        }
    }
    /* A blocking call. */
    MPI_Bcast(at(work->in), INTS, MPI_INT, round % size, communicators[thread]);
    CHECK_EQUAL(cuda.to_host(values, work->in, sizeof values), 0);
    CHECK_EQUAL(values[0], 1000 * thread + 10 * round + (round + size - 1) % size);
}

static void *run(void *argument)
{
    const int thread = (int) (long) argument;
    CHECK_EQUAL(cuda.set_current(context), 0);
    for (int round = 0; round < ROUNDS; round++) {
        start(thread, round);
        pthread_barrier_wait(&started);
        check((thread + 1) % THREADS, round);
        pthread_barrier_wait(&completed);
    }
    return NULL;
}

int main(int argc, char **argv)
{
    pthread_t threads[THREADS];
    int provided, device;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
    CHECK_EQUAL(provided, MPI_THREAD_MULTIPLE);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    load();
    CHECK_EQUAL(cuda.init(0), 0);
    CHECK_EQUAL(cuda.device_get(&device, 0), 0);
    CHECK_EQUAL(cuda.retain(&context, device), 0);
    CHECK_EQUAL(cuda.set_current(context), 0);
    pthread_barrier_init(&started, NULL, THREADS);
    pthread_barrier_init(&completed, NULL, THREADS);
    for (int thread = 0; thread < THREADS; thread++) {
        device_pointer *const pointers[] = {&works[thread].from, &works[thread].sum, &works[thread].in};
        for (int i = 0; i < 3; i++) {
            CHECK_EQUAL(cuda.alloc(pointers[i], INTS * sizeof(int)), 0);
        }
        CHECK_EQUAL(cuda.alloc(&works[thread].all, size * INTS * sizeof(int)), 0);
        MPI_Comm_dup(MPI_COMM_WORLD, &communicators[thread]);
    }
    for (long thread = 0; thread < THREADS; thread++) {
        CHECK(0 == pthread_create(&threads[thread], NULL, run, (void *) thread));
    }
    for (int thread = 0; thread < THREADS; thread++) {
        pthread_join(threads[thread], NULL);
        MPI_Comm_free(&communicators[thread]);
        CHECK_EQUAL(cuda.free(works[thread].from) | cuda.free(works[thread].sum) | cuda.free(works[thread].in), 0);
        CHECK_EQUAL(cuda.free(works[thread].all), 0);
    }
    MPI_Finalize();
    return 0;
}
