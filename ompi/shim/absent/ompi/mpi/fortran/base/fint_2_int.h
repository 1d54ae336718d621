/* Replaces a header that Open MPI's op.h includes, but distributions leave out. It converts C's integers to Fortran's,
 * which are the same on the supported systems. */
#ifndef OMPI_INT_2_FINT
#define OMPI_INT_2_FINT(value) (value)
#endif
