/* Shared by the test programs: a check that prints the failed condition and ends the job. */
#ifndef CHECK_H
#define CHECK_H

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(condition)                                                                                              \
    do {                                                                                                              \
        if (!(condition)) {                                                                                           \
            fprintf(stderr, "%s:%d: does not hold: %s\n", __FILE__, __LINE__, #condition);                            \
            MPI_Abort(MPI_COMM_WORLD, 1);                                                                             \
        }                                                                                                             \
    } while (0)

#define CHECK_EQUAL(one, other)                                                                                       \
    do {                                                                                                              \
        long long one_ = (long long) (one), other_ = (long long) (other);                                             \
        if (one_ != other_) {                                                                                         \
            fprintf(stderr, "%s:%d: %s is %lld, %s is %lld\n", __FILE__, __LINE__, #one, one_, #other, other_);       \
            MPI_Abort(MPI_COMM_WORLD, 1);                                                                             \
        }                                                                                                             \
    } while (0)

#endif
