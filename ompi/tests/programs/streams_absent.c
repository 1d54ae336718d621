/* MPICH's stream extensions where Open MPI has selected another PML than Cableway's component. */
#include "check.h"

#include <cableway_mpix.h>

static int calls;

static void handler(MPI_Comm *comm, int *error, ...)
{
    (void) comm;
    CHECK_EQUAL(*error, MPI_ERR_OTHER);
    calls++;
}

int main(int argc, char **argv)
{
    MPI_Errhandler errors;
    MPIX_Stream stream = MPIX_STREAM_NULL;
    MPI_Comm comm;
    MPI_Request request = MPI_REQUEST_NULL;
    /* Before MPI_Init there is no error handler to call. */
    CHECK_EQUAL(MPIX_Stream_create(MPI_INFO_NULL, &stream), MPI_ERR_OTHER);
    MPI_Init(&argc, &argv);
    MPI_Comm_create_errhandler(handler, &errors);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, errors);
    CHECK_EQUAL(MPIX_Stream_create(MPI_INFO_NULL, &stream), MPI_ERR_OTHER);
    CHECK_EQUAL(calls, 1);
    CHECK_EQUAL(MPIX_Stream_comm_create(MPI_COMM_WORLD, stream, &comm), MPI_ERR_OTHER);
    CHECK_EQUAL(MPIX_Send_enqueue(&calls, 1, MPI_INT, 0, 0, MPI_COMM_WORLD), MPI_ERR_OTHER);
    CHECK_EQUAL(MPIX_Wait_enqueue(&request, MPI_STATUS_IGNORE), MPI_ERR_OTHER);
    CHECK_EQUAL(calls, 4);
    MPI_Errhandler_free(&errors);
    MPI_Finalize();
    CHECK_EQUAL(MPIX_Stream_free(&stream), MPI_ERR_OTHER);
    printf("refused\n");
    return 0;
}
