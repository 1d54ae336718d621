/* Stands for Open MPI's header: MPICH's mpi.h declares what MPICH adds to MPI. Open MPI's headers include this one. */
#include <stddef.h>
