/* A process broadcasts and frees the communicator before the others begin. An agreement on Cableway's collectives may be
 * under way then: the others propose it to a process that is not there any more, or that process had proposed it.
 * CABLEWAY_CUDA_LIBDIR names the driver. */
#include "collectives/memory.h"

enum { CALLS = 4, ROUNDS = 3, INTEGERS = 500, DONE = 7, BETWEEN = 8 };

/* `root` is what the process passes. Others than the sender receive in device memory. */
static void broadcast(MPI_Comm comm, int root, bool sends, bool on_device, int salt)
{
    struct memory memory = {0};
    if (MPI_PROC_NULL == root) {
        CHECK_EQUAL(MPI_Bcast(NULL, 0, MPI_INT, root, comm), MPI_SUCCESS);
        return;
    }
    memory_use(&memory, !sends || on_device, 0, INTEGERS * sizeof(int), RECV_GAP);
    for (int i = 0; i < INTEGERS; i++) {
        ((int *) data(&memory, memory.want))[i] = 1000 * salt + i;
    }
    if (sends) {
        memcpy(data(&memory, memory.before), data(&memory, memory.want), INTEGERS * sizeof(int));
    }
    memory_put(&memory);
    CHECK_EQUAL(MPI_Bcast(memory_at(&memory), INTEGERS, MPI_INT, root, comm), MPI_SUCCESS);
    memory_get(&memory);
    CHECK_EQUAL(memory_differs(&memory), -1);
    count_check();
    memory_discard(&memory);
}

/* The sender has left before the others begin. */
static void leave_early(MPI_Comm comm, int root, int sender, bool on_device, int round)
{
    const bool sends = test.rank == sender;
    /* Later calls with device memory may wait for the receivers. */
    const int calls = on_device ? 1 : CALLS;
    if (!sends) {
        MPI_Recv(NULL, 0, MPI_INT, sender, DONE, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    }
    for (int call = 0; call < calls; call++) {
        broadcast(comm, root, sends, on_device, 10 * round + call);
    }
    MPI_Comm_free(&comm);
    for (int rank = 0; sends && rank < test.size; rank++) {
        if (rank != sender) {
            MPI_Send(NULL, 0, MPI_INT, rank, DONE, MPI_COMM_WORLD);
        }
    }
}

/* The last process is a group of its own. It passes on what the others tell each other. */
static MPI_Comm between(void)
{
    const int last = test.size - 1;
    const bool alone = test.rank == last;
    MPI_Comm own, both;
    MPI_Comm_split(MPI_COMM_WORLD, alone, 0, &own);
    MPI_Intercomm_create(own, 0, MPI_COMM_WORLD, alone ? 0 : last, BETWEEN, &both);
    MPI_Comm_free(&own);
    return both;
}

int main(int argc, char **argv)
{
    set_up(argc, argv, MPI_THREAD_SINGLE);
    const int last = test.size - 1;
    for (int round = 0; round < ROUNDS; round++) {
        for (int on_device = 0; on_device < 2; on_device++) {
            MPI_Comm comm;
            MPI_Comm_dup(MPI_COMM_WORLD, &comm);
            leave_early(comm, last, last, on_device, round);
            MPI_Comm_dup(MPI_COMM_WORLD, &comm);
            leave_early(comm, 0, 0, on_device, round);
            leave_early(between(), test.rank == last ? MPI_ROOT : 0, last, on_device, round);
            leave_early(between(), test.rank == last ? 0 : test.rank ? MPI_PROC_NULL : MPI_ROOT, 0, on_device, round);
        }
    }
    tear_down();
    return 0;
}
