/* The last process takes its byte order for another than that of all others. */
#define _GNU_SOURCE
#include "check.h"

#include <dlfcn.h>
#include <stdint.h>

enum { BIG_ENDIAN_WORDS = 0x08 };

static void expect_refusal(int rc, const char *what)
{
    if (MPI_SUCCESS == rc) {
        fprintf(stderr, "%s succeeded\n", what);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
}

/* Replaces Open MPI's function by which a process determines its architecture. */
int opal_arch_init(void)
{
    int (*own)(void) = (int (*)(void)) dlsym(RTLD_NEXT, "opal_arch_init");
    uint32_t *architecture = dlsym(RTLD_NEXT, "opal_local_arch");
    const char *rank = getenv("OMPI_COMM_WORLD_RANK"), *size = getenv("OMPI_COMM_WORLD_SIZE");
    int rc = own();
    if (atoi(rank) + 1 == atoi(size)) {
        *architecture ^= BIG_ENDIAN_WORDS;
    }
    return rc;
}

int main(int argc, char **argv)
{
    int rank, size, value = 7;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    if (rank + 1 == size) {
        expect_refusal(MPI_Recv(&value, 1, MPI_INT, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE), "receiving from a process of another byte order");
        expect_refusal(MPI_Send(&value, 1, MPI_INT, 0, 1, MPI_COMM_WORLD), "sending to a process of another byte order");
    } else if (0 == rank) {
        expect_refusal(MPI_Send(&value, 1, MPI_INT, size - 1, 0, MPI_COMM_WORLD), "sending to the process of another byte order");
        expect_refusal(MPI_Recv(&value, 1, MPI_INT, size - 1, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE),
                       "receiving from the process of another byte order");
        /* Processes of the same byte order can communicate. */
        MPI_Send(&value, 1, MPI_INT, 1, 2, MPI_COMM_WORLD);
    } else {
        CHECK_EQUAL(MPI_Recv(&value, 1, MPI_INT, 0, 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE), MPI_SUCCESS);
    }
    MPI_Finalize();
    return 0;
}
