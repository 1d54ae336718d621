/* Device memory in calls without a component interface under 4.1: packing and unpacking, a local reduction, and
 * one-sided operations on the program's own buffers. argv[1] names the driver library. */
#include "check.h"

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef uint64_t device_address;

static int (*allocate)(device_address *, size_t);
static int (*to_device)(device_address, const void *, size_t);
static int (*to_host)(void *, device_address, size_t);

static void *find(void *library, const char *name)
{
    void *found = dlsym(library, name);
    CHECK(NULL != found);
    return found;
}

static void start_driver(const char *path)
{
    void *library = dlopen(path, RTLD_NOW | RTLD_GLOBAL), *context;
    CHECK(NULL != library);
    CHECK(0 == ((int (*)(unsigned)) find(library, "cuInit"))(0));
    CHECK(0 == ((int (*)(void **, int)) find(library, "cuDevicePrimaryCtxRetain"))(&context, 0));
    CHECK(0 == ((int (*)(void *)) find(library, "cuCtxSetCurrent"))(context));
    allocate = (int (*)(device_address *, size_t)) find(library, "cuMemAlloc_v2");
    to_device = (int (*)(device_address, const void *, size_t)) find(library, "cuMemcpyHtoD_v2");
    to_host = (int (*)(void *, device_address, size_t)) find(library, "cuMemcpyDtoH_v2");
}

enum { COUNT = 1000 };

static int numbers[COUNT], back[COUNT];

/* Device memory that contains first, first + 1, ... */
static int *on_device(int first)
{
    device_address address;
    CHECK(0 == allocate(&address, sizeof numbers));
    for (int i = 0; i < COUNT; i++) {
        numbers[i] = first + i;
    }
    CHECK(0 == to_device(address, numbers, sizeof numbers));
    return (int *) (uintptr_t) address;
}

static void look(const int *device)
{
    memset(back, 0, sizeof back);
    CHECK(0 == to_host(back, (device_address) (uintptr_t) device, sizeof back));
}

static void packing(void)
{
    int *from = on_device(10), *to = on_device(0), position = 0;
    MPI_Datatype vector;
    char packed[sizeof numbers];
    CHECK(MPI_SUCCESS == MPI_Pack(from, COUNT, MPI_INT, packed, sizeof packed, &position, MPI_COMM_WORLD));
    CHECK(sizeof packed == (size_t) position);
    position = 0;
    CHECK(MPI_SUCCESS == MPI_Unpack(packed, sizeof packed, &position, to, COUNT, MPI_INT, MPI_COMM_WORLD));
    look(to);
    for (int i = 0; i < COUNT; i++) {
        CHECK(10 + i == back[i]);
    }
    /* Every second number. */
    MPI_Type_vector(COUNT / 2, 1, 2, MPI_INT, &vector);
    MPI_Type_commit(&vector);
    position = 0;
    CHECK(MPI_SUCCESS == MPI_Pack(from, 1, vector, packed, sizeof packed, &position, MPI_COMM_WORLD));
    memcpy(back, packed, sizeof packed / 2);
    for (int i = 0; i < COUNT / 2; i++) {
        CHECK(10 + 2 * i == back[i]);
    }
    MPI_Type_free(&vector);
}

static void reducing(void)
{
    int *in = on_device(1), *inout = on_device(2);
    CHECK(MPI_SUCCESS == MPI_Reduce_local(in, inout, COUNT, MPI_INT, MPI_SUM));
    look(inout);
    for (int i = 0; i < COUNT; i++) {
        CHECK(3 + 2 * i == back[i]);
    }
}

static void replacing(int rank, int size)
{
    int *buffer = on_device(rank), previous = (rank + size - 1) % size;
    CHECK(MPI_SUCCESS
          == MPI_Sendrecv_replace(buffer, COUNT, MPI_INT, (rank + 1) % size, 5, previous, 5, MPI_COMM_WORLD,
                                  MPI_STATUS_IGNORE));
    look(buffer);
    for (int i = 0; i < COUNT; i++) {
        CHECK(previous + i == back[i]);
    }
}

int main(int argc, char **argv)
{
    int rank, size;
    CHECK(2 == argc);
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    start_driver(argv[1]);
    packing();
    reducing();
    replacing(rank, size);
    MPI_Barrier(MPI_COMM_WORLD);
    if (0 == rank) {
        printf("done\n");
    }
    MPI_Finalize();
    return 0;
}
