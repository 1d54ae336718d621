/* Messages that a matched probe took, received after their communicator was freed: MPI_Comm_free only marks a communicator
 * that operations still use. A message too long for its receive is reported through the communicator's error handler. */
#include "check.h"

#include <stdbool.h>

enum { INTS = 8, TAG = 5 };

static int rank, next, previous;

/* Returns a message whose communicator is already freed. */
static MPI_Message take(void)
{
    int out[INTS], count;
    MPI_Comm gone;
    MPI_Message message;
    MPI_Status status;
    for (int i = 0; i < INTS; i++) {
        out[i] = rank * 100 + i;
    }
    MPI_Comm_dup(MPI_COMM_WORLD, &gone);
    MPI_Comm_set_errhandler(gone, MPI_ERRORS_RETURN);
    MPI_Send(out, INTS, MPI_INT, next, TAG, gone);
    MPI_Mprobe(previous, TAG, gone, &message, &status);
    MPI_Get_count(&status, MPI_INT, &count);
    CHECK_EQUAL(count, INTS);
    MPI_Comm_free(&gone);
    return message;
}

static int receive(MPI_Message *message, int *in, int count, bool blocking, MPI_Status *status)
{
    MPI_Request request;
    int code;
    if (blocking) {
        return MPI_Mrecv(in, count, MPI_INT, message, status);
    }
    code = MPI_Imrecv(in, count, MPI_INT, message, &request);
    CHECK_EQUAL(code, MPI_SUCCESS);
    return MPI_Wait(&request, status);
}

static void receive_late(int count, bool blocking, int expected)
{
    int in[INTS] = {0}, class;
    MPI_Comm other;
    MPI_Status status;
    MPI_Message message = take();
    /* The new communicator may be at the address of the old one. */
    MPI_Comm_dup(MPI_COMM_WORLD, &other);
    MPI_Error_class(receive(&message, in, count, blocking, &status), &class);
    CHECK_EQUAL(class, expected);
    CHECK(message == MPI_MESSAGE_NULL);
    CHECK_EQUAL(status.MPI_SOURCE, previous);
    CHECK_EQUAL(status.MPI_TAG, TAG);
    for (int i = 0; i < count; i++) {
        CHECK_EQUAL(in[i], previous * 100 + i);
    }
    MPI_Comm_free(&other);
}

int main(int argc, char **argv)
{
    int size;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    next = (rank + 1) % size;
    previous = (rank + size - 1) % size;
    for (int blocking = 0; blocking <= 1; blocking++) {
        receive_late(INTS, blocking, MPI_SUCCESS);
        receive_late(INTS / 2, blocking, MPI_ERR_TRUNCATE);
    }
    MPI_Finalize();
    return 0;
}
