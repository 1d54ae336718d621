/* The last process believes its words to be in another order than all others have them. */
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

/* Stands before Open MPI's own, by which a process finds out what it is. */
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
        expect_refusal(MPI_Recv(&value, 1, MPI_INT, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE), "receiving from another");
        expect_refusal(MPI_Send(&value, 1, MPI_INT, 0, 1, MPI_COMM_WORLD), "sending to another");
    } else if (0 == rank) {
        expect_refusal(MPI_Send(&value, 1, MPI_INT, size - 1, 0, MPI_COMM_WORLD), "sending to the odd one");
        expect_refusal(MPI_Recv(&value, 1, MPI_INT, size - 1, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE),
                       "receiving from the odd one");
        /* Those that are alike get on. */
        MPI_Send(&value, 1, MPI_INT, 1, 2, MPI_COMM_WORLD);
    } else {
        CHECK_EQUAL(MPI_Recv(&value, 1, MPI_INT, 0, 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE), MPI_SUCCESS);
    }
    MPI_Finalize();
    return 0;
}
