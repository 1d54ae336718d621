/* An object that calls MPI. */
#include "object.h"

pack_fn pack;
target_fn target;

int pack(void *from, int count, void *to, int bytes)
{
    int position = 0;
    return MPI_Pack(from, count, MPI_INT, to, bytes, &position, MPI_COMM_WORLD);
}

void *target(void)
{
    return (void *) MPI_Pack;
}
