/* Counts what a program that has host memory only makes MPICH do, by functions of its own in place of MPICH's.
 *
 *   counted CALLS */
#include "check.h"

#include <dlfcn.h>

/* MPICH's functions that the preloaded library may call, and those that the program calls. */
enum function { ALLREDUCE, BCAST, IALLREDUCE, ALLGATHER, SET_ATTR, FUNCTIONS };
static long calls[FUNCTIONS];

#define NEXT(name) *(void **) &next = dlsym(RTLD_NEXT, #name)

int PMPI_Allreduce(const void *send, void *receive, int count, MPI_Datatype type, MPI_Op op, MPI_Comm comm)
{
    int (*next)(const void *, void *, int, MPI_Datatype, MPI_Op, MPI_Comm);
    NEXT(PMPI_Allreduce);
    calls[ALLREDUCE]++;
    return next(send, receive, count, type, op, comm);
}

int PMPI_Bcast(void *buffer, int count, MPI_Datatype type, int root, MPI_Comm comm)
{
    int (*next)(void *, int, MPI_Datatype, int, MPI_Comm);
    NEXT(PMPI_Bcast);
    calls[BCAST]++;
    return next(buffer, count, type, root, comm);
}

int PMPI_Iallreduce(const void *send, void *receive, int count, MPI_Datatype type, MPI_Op op, MPI_Comm comm,
                    MPI_Request *request)
{
    int (*next)(const void *, void *, int, MPI_Datatype, MPI_Op, MPI_Comm, MPI_Request *);
    NEXT(PMPI_Iallreduce);
    calls[IALLREDUCE]++;
    return next(send, receive, count, type, op, comm, request);
}

int PMPI_Allgather(const void *send, int send_count, MPI_Datatype send_type, void *receive, int count, MPI_Datatype type,
                   MPI_Comm comm)
{
    int (*next)(const void *, int, MPI_Datatype, void *, int, MPI_Datatype, MPI_Comm);
    NEXT(PMPI_Allgather);
    calls[ALLGATHER]++;
    return next(send, send_count, send_type, receive, count, type, comm);
}

int PMPI_Comm_set_attr(MPI_Comm comm, int key, void *value)
{
    int (*next)(MPI_Comm, int, void *);
    NEXT(PMPI_Comm_set_attr);
    calls[SET_ATTR]++;
    return next(comm, key, value);
}

int main(int argc, char **argv)
{
    const int count = 1 < argc ? atoi(argv[1]) : 0;
    int rank, size;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    for (int i = 0; i < count; i++) {
        int value = rank, sum = -1;
        if (i % 2) {
            MPI_Bcast(&value, 1, MPI_INT, size - 1, MPI_COMM_WORLD);
            CHECK_EQUAL(value, size - 1);
        } else {
            MPI_Allreduce(&value, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
            CHECK_EQUAL(sum, size * (size - 1) / 2);
        }
    }
    MPI_Finalize();
    if (0 == rank) {
        printf("allreduce %ld, bcast %ld, iallreduce %ld, allgather %ld, set_attr %ld\n", calls[ALLREDUCE], calls[BCAST],
               calls[IALLREDUCE], calls[ALLGATHER], calls[SET_ATTR]);
    }
    return 0;
}
