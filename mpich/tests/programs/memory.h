/* A process with one device, and a buffer of doubles on the host or on the device. CABLEWAY_CUDA_LIBDIR names the driver. */
#ifndef MPICH_MEMORY_H
#define MPICH_MEMORY_H

#include "driver.h"

static int rank, size;

static void begin_on_device(int *argc, char ***argv)
{
    void *context;
    int device;
    MPI_Init(argc, argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    load();
    CHECK_EQUAL(cuda.init(0), 0);
    CHECK_EQUAL(cuda.device_get(&device, 0), 0);
    CHECK_EQUAL(cuda.retain(&context, device), 0);
    CHECK_EQUAL(cuda.set_current(context), 0);
}

static double *on_device(int count)
{
    device_pointer made;
    CHECK_EQUAL(cuda.alloc(&made, (size_t) count * sizeof(double)), 0);
    return (double *) (uintptr_t) made;
}

static inline void put(double *device, int count, double value)
{
    double *values = malloc((size_t) count * sizeof(double));
    for (int i = 0; i < count; i++) {
        values[i] = value + i;
    }
    CHECK_EQUAL(cuda.to_device((uintptr_t) device, values, (size_t) count * sizeof(double)), 0);
    free(values);
}

/* Checks that element i is `value + i * step`. */
static inline void check(const double *device, int count, double value, double step)
{
    double *values = malloc((size_t) count * sizeof(double));
    CHECK_EQUAL(cuda.to_host(values, (uintptr_t) device, (size_t) count * sizeof(double)), 0);
    for (int i = 0; i < count; i++) {
        if (values[i] != value + i * step) {
            fprintf(stderr, "rank %d: element %d is %g, not %g\n", rank, i, values[i], value + i * step);
            MPI_Abort(MPI_COMM_WORLD, 1);
        }
    }
    free(values);
}

#endif
