/* Many threads in MPI at once, each pair of them with its own tag, and all of them on one communicator. */
#include "check.h"

#include <pthread.h>

enum { THREADS = 4, ROUNDS = 200, LARGE = 100000 };

static int rank, size, next, previous;

static void *work(void *argument)
{
    int tag = (int) (long) argument;
    static __thread int out[LARGE], in[LARGE];
    for (int round = 0; round < ROUNDS; round++) {
        int ints = round % 20 == 0 ? LARGE : 1 + round % 50, count;
        MPI_Request requests[2];
        MPI_Status statuses[2];
        for (int i = 0; i < ints; i++) {
            out[i] = rank * 1000003 + tag * 101 + round + i;
        }
        MPI_Irecv(in, ints, MPI_INT, round % 3 ? previous : MPI_ANY_SOURCE, tag, MPI_COMM_WORLD, &requests[0]);
        MPI_Isend(out, ints, MPI_INT, next, tag, MPI_COMM_WORLD, &requests[1]);
        if (round % 2) {
            MPI_Waitall(2, requests, statuses);
        } else {
            int flag = 0;
            while (!flag) {
                MPI_Testall(2, requests, &flag, statuses);
            }
        }
        MPI_Get_count(&statuses[0], MPI_INT, &count);
        CHECK_EQUAL(count, ints);
        CHECK_EQUAL(statuses[0].MPI_SOURCE, previous);
        for (int i = 0; i < ints; i++) {
            CHECK_EQUAL(in[i], previous * 1000003 + tag * 101 + round + i);
        }
    }
    return NULL;
}

int main(int argc, char **argv)
{
    pthread_t threads[THREADS];
    int provided;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
    CHECK_EQUAL(provided, MPI_THREAD_MULTIPLE);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    next = (rank + 1) % size;
    previous = (rank + size - 1) % size;
    for (long thread = 0; thread < THREADS; thread++) {
        CHECK(0 == pthread_create(&threads[thread], NULL, work, (void *) thread));
    }
    for (int thread = 0; thread < THREADS; thread++) {
        pthread_join(threads[thread], NULL);
    }
    MPI_Finalize();
    return 0;
}
