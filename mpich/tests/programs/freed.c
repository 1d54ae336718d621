/* Communicators that are made, used on device memory, and freed, many times. The process must not grow.
 *
 *   freed COUNT */
#include "memory.h"

#include <unistd.h>

enum { ELEMENTS = 100, CALLS = 3, WARM = 100, ALLOWED = 16 << 20 };

static long resident(void)
{
    long all, pages;
    FILE *file = fopen("/proc/self/statm", "r");
    CHECK(NULL != file && 2 == fscanf(file, "%ld %ld", &all, &pages));
    fclose(file);
    return pages * sysconf(_SC_PAGESIZE);
}

int main(int argc, char **argv)
{
    const int count = 1 < argc ? atoi(argv[1]) : 0;
    double *values, *sums;
    long before = 0;
    begin_on_device(&argc, &argv);
    CHECK(WARM < count);
    values = on_device(ELEMENTS), sums = on_device(ELEMENTS);
    put(values, ELEMENTS, 1);
    for (int i = 0; i < count; i++) {
        MPI_Comm comm;
        if (i % 2) {
            MPI_Comm_dup(MPI_COMM_WORLD, &comm);
        } else {
            MPI_Comm_split(MPI_COMM_WORLD, 0, -rank, &comm);
        }
        for (int call = 0; call < CALLS; call++) {
            put(sums, ELEMENTS, 0);
            MPI_Allreduce(values, sums, ELEMENTS, MPI_DOUBLE, MPI_SUM, comm);
            check(sums, ELEMENTS, size, size);
        }
        MPI_Comm_free(&comm);
        before = WARM == i ? resident() : before;
    }
    CHECK(resident() - before < ALLOWED);
    MPI_Finalize();
    if (0 == rank) {
        printf("communicators: %d\n", count);
    }
    return 0;
}
