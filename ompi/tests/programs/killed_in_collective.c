/* Rank 1 is killed inside a collective on device memory. On the others a call must fail, or end the job.
 * CABLEWAY_CUDA_LIBDIR names the driver.
 *
 *   killed_in_collective operation    in an operation of the program, which a blocking MPI_Allreduce calls
 *   killed_in_collective started      with a non-blocking MPI_Allreduce under way
 *   killed_in_collective stopped      before an MPI_Allreduce that rank 2 calls, and rank 0 does not */
#include "collectives/memory.h"

#include <signal.h>
#include <unistd.h>

enum { WORDS = 1 << 18, ROUNDS = 3 };

/* Rank 1 survives no round: neither one that calls this, nor one that does not. */
static void add_or_die(void *in, void *inout, int *count, MPI_Datatype *type)
{
    (void) type;
    if (1 == test.rank) {
        raise(SIGKILL);
    }
    for (int i = 0; i < *count; i++) {
        ((int *) inout)[i] += ((int *) in)[i];
    }
}

static int reduce(const char *how, struct memory *send, struct memory *recv, MPI_Op op)
{
    MPI_Request request;
    int code;
    if (0 == strcmp(how, "operation")) {
        return MPI_Allreduce(memory_at(send), memory_at(recv), WORDS, MPI_INT, op, MPI_COMM_WORLD);
    }
    code = MPI_Iallreduce(memory_at(send), memory_at(recv), WORDS, MPI_INT, MPI_SUM, MPI_COMM_WORLD, &request);
    if (1 == test.rank) {
        raise(SIGKILL);
    }
    return MPI_SUCCESS != code ? code : MPI_Wait(&request, MPI_STATUS_IGNORE);
}

/* Rank 0 stays, makes progress, and waits until rank 2 has got its error. */
static int call_alone(struct memory *send, struct memory *recv)
{
    int code = MPI_SUCCESS;
    if (1 == test.rank) {
        raise(SIGKILL);
    }
    if (2 == test.rank) {
        code = MPI_Allreduce(memory_at(send), memory_at(recv), WORDS, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
        MPI_Send(&code, 1, MPI_INT, 0, 0, MPI_COMM_WORLD);
    } else {
        MPI_Recv(&code, 1, MPI_INT, 2, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    }
    return code;
}

/* Rank 1 returns after the others have left the operation. If it died earlier, their operation could fail. */
static void connect_all(struct memory *send, struct memory *recv)
{
    CHECK(MPI_SUCCESS == MPI_Allreduce(memory_at(send), memory_at(recv), WORDS, MPI_INT, MPI_SUM, MPI_COMM_WORLD));
    if (1 != test.rank) {
        MPI_Send(NULL, 0, MPI_INT, 1, 0, MPI_COMM_WORLD);
        return;
    }
    for (int others = 1; others < test.size; others++) {
        MPI_Recv(NULL, 0, MPI_INT, MPI_ANY_SOURCE, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    }
}

int main(int argc, char **argv)
{
    struct memory send = {0}, recv = {0};
    MPI_Op op;
    int code = MPI_SUCCESS;
    set_up(argc, argv, MPI_THREAD_SINGLE);
    CHECK(2 == argc && 1 < test.size);
    MPI_Op_create(add_or_die, 1, &op);
    memory_use(&send, true, 0, WORDS * sizeof(int), 0);
    memory_use(&recv, true, 0, WORDS * sizeof(int), 0);
    memory_put(&send);
    memory_put(&recv);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    connect_all(&send, &recv);
    if (0 == strcmp(argv[1], "stopped")) {
        code = call_alone(&send, &recv);
    }
    for (int round = 0; MPI_SUCCESS == code && round < ROUNDS; round++) {
        code = reduce(argv[1], &send, &recv, op);
        if (1 == test.rank) {
            raise(SIGKILL);
        }
    }
    CHECK(MPI_SUCCESS != code);
    fprintf(stderr, "rank %d: failed with an error\n", test.rank);
    _exit(0);
}
