/* A profiling tool: counts calls and passes them on to the other name. */
#include <mpi.h>

int tool_calls(void);

static int calls;

int tool_calls(void)
{
    return calls;
}

int MPI_Pack(const void *from, int count, MPI_Datatype type, void *to, int bytes, int *position, MPI_Comm communicator)
{
    calls++;
    return PMPI_Pack(from, count, type, to, bytes, position, communicator);
}
