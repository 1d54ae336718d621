/* Open MPI's op.h asks for this header, which distributions leave out. It converts C's integers to Fortran's, which
 * are the same ones on the systems that are supported. */
#ifndef OMPI_INT_2_FINT
#define OMPI_INT_2_FINT(value) (value)
#endif
