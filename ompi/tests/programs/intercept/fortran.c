/* An object that calls MPI's bindings for Fortran, as a Fortran compiler would. They call MPI by the PMPI names. */
#include "object.h"

void mpi_pack_(void *from, const MPI_Fint *count, const MPI_Fint *type, void *to, const MPI_Fint *bytes,
               MPI_Fint *position, const MPI_Fint *communicator, MPI_Fint *error);

pack_fn pack;
target_fn target;

int pack(void *from, int count, void *to, int bytes)
{
    MPI_Fint size = count, type = MPI_Type_c2f(MPI_INT), room = bytes, position = 0, error = -1;
    MPI_Fint world = MPI_Comm_c2f(MPI_COMM_WORLD);
    mpi_pack_(from, &size, &type, to, &room, &position, &world, &error);
    return error;
}

void *target(void)
{
    return (void *) PMPI_Pack;
}
