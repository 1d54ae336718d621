/* A rank that waits in a blocking call of the component still progresses the rest of Open MPI: collective operations
 * that were started before, and one-sided operations that other processes direct to it. */
#include "check.h"

enum { ELEMENTS = 1000 };

int main(int argc, char **argv)
{
    int rank, size, flag = 0;
    static int out[ELEMENTS], in[ELEMENTS], window[ELEMENTS], got[ELEMENTS];
    MPI_Request request;
    MPI_Win win;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);

    /* The reduction takes several rounds. Rank 0 must act in them while it waits for messages that the others send
     * later. */
    for (int i = 0; i < ELEMENTS; i++) {
        out[i] = rank + i;
    }
    MPI_Iallreduce(out, in, ELEMENTS, MPI_INT, MPI_SUM, MPI_COMM_WORLD, &request);
    if (rank == 0) {
        for (int other = 1; other < size; other++) {
            MPI_Recv(&flag, 1, MPI_INT, other, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        }
        MPI_Wait(&request, MPI_STATUS_IGNORE);
    } else {
        MPI_Wait(&request, MPI_STATUS_IGNORE);
        MPI_Send(&flag, 1, MPI_INT, 0, 1, MPI_COMM_WORLD);
    }
    for (int i = 0; i < ELEMENTS; i++) {
        CHECK_EQUAL(in[i], size * (size - 1) / 2 + size * i);
    }

    /* Accumulates into rank 0 and reads from there. A two-sided implementation serves this in its progress. */
    memset(window, 0, sizeof window);
    MPI_Win_create(window, sizeof window, sizeof(int), MPI_INFO_NULL, MPI_COMM_WORLD, &win);
    MPI_Win_fence(0, win);
    MPI_Win_fence(0, win);
    if (rank == 0) {
        for (int other = 1; other < size; other++) {
            MPI_Recv(&flag, 1, MPI_INT, other, 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        }
    } else {
        MPI_Win_lock(MPI_LOCK_EXCLUSIVE, 0, 0, win);
        MPI_Accumulate(out, ELEMENTS, MPI_INT, 0, 0, ELEMENTS, MPI_INT, MPI_SUM, win);
        MPI_Win_unlock(0, win);
        MPI_Win_lock(MPI_LOCK_SHARED, 0, 0, win);
        MPI_Get(got, ELEMENTS, MPI_INT, 0, 0, ELEMENTS, MPI_INT, win);
        MPI_Win_unlock(0, win);
        CHECK(got[0] >= rank);
        MPI_Send(&flag, 1, MPI_INT, 0, 2, MPI_COMM_WORLD);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0) {
        MPI_Win_lock(MPI_LOCK_SHARED, 0, 0, win);
        CHECK_EQUAL(window[0], size * (size - 1) / 2);
        MPI_Win_unlock(0, win);
    }
    MPI_Win_free(&win);
    MPI_Finalize();
    return 0;
}
