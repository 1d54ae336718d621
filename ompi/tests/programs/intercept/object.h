/* What objects of the test offer. */
#ifndef OBJECT_H
#define OBJECT_H

#include <mpi.h>

/* Packs ints. The error of MPI. */
typedef int pack_fn(void *from, int count, void *to, int bytes);
/* Answers the address that calls of MPI_Pack go to. */
typedef void *target_fn(void);

#endif
