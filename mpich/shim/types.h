/* Types and operations of MPI, as Rust knows them. */
#ifndef CABLEWAY_TYPES_H
#define CABLEWAY_TYPES_H

#include "shim.h"

/* Describes `count` elements at an address. Returns false if the type cannot be described. */
bool types_describe(struct cableway_memory *memory, const void *address, int count, MPI_Datatype type);
/* Returns whether Rust reduces elements of this type, and the numbers of both. */
bool types_reduce(MPI_Op op, MPI_Datatype type, int *operation, int *element);

#endif
