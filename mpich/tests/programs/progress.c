/* Members of a collective on device memory wait for each other in MPI, too. Each part hangs if a process that waits in one of
 * the two does not serve the other. */
#include "memory.h"

enum { ELEMENTS = 1 << 17, ROUNDS = 20, MESSAGE = 1 << 22 };

static double *values, *others;
static char *message;

/* The last rank enters the collective when rank 0, which is in it already, has taken its message. */
static void message_into_a_waiting_process(void)
{
    MPI_Request request = MPI_REQUEST_NULL;
    const int last = size - 1;
    if (0 == rank) {
        MPI_Irecv(message, MESSAGE, MPI_CHAR, last, 1, MPI_COMM_WORLD, &request);
    } else if (last == rank) {
        MPI_Ssend(message, MESSAGE, MPI_CHAR, 0, 1, MPI_COMM_WORLD);
    }
    MPI_Allreduce(values, others, ELEMENTS, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    check(others, ELEMENTS, size, size);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
}

/* The root leaves the collective, and waits in MPI until the last rank has its data. */
static void root_that_waits_elsewhere(int round)
{
    const int last = size - 1;
    put(others, ELEMENTS, 0 == rank ? round : -1);
    MPI_Bcast(others, ELEMENTS, MPI_DOUBLE, 0, MPI_COMM_WORLD);
    if (last == rank) {
        check(others, ELEMENTS, round, 1);
        MPI_Send(NULL, 0, MPI_CHAR, 0, 2, MPI_COMM_WORLD);
    } else if (0 == rank) {
        MPI_Recv(NULL, 0, MPI_CHAR, last, 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    }
}

int main(int argc, char **argv)
{
    begin_on_device(&argc, &argv);
    CHECK(1 < size);
    values = on_device(ELEMENTS), others = on_device(ELEMENTS), message = calloc(MESSAGE, 1);
    put(values, ELEMENTS, 1);
    for (int round = 0; round < ROUNDS; round++) {
        message_into_a_waiting_process();
        root_that_waits_elsewhere(round);
    }
    MPI_Finalize();
    if (0 == rank) {
        printf("rounds: %d\n", ROUNDS);
    }
    return 0;
}
