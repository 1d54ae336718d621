/* The functions of the test's objects. */
#ifndef OBJECT_H
#define OBJECT_H

#include <mpi.h>

/* Packs ints. Returns MPI's error code. */
typedef int pack_fn(void *from, int count, void *to, int bytes);
/* Returns the address that calls of MPI_Pack reach. */
typedef void *target_fn(void);

#endif
