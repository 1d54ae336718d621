/* One-sided operations on a window, from rank 0 on rank 1's memory, which waits in a barrier meanwhile.
 *
 *   mpirun -np 2 windows WINDOW ORIGIN SECONDS SIZE[,SIZE...] [LABEL]
 *
 * WINDOW and ORIGIN are where rank 1's window and rank 0's buffers are: `host`, or a device's number. A line for each size
 * and operation: LABEL, the operation, both places, bytes, the microseconds of one operation and its flush, and those of one
 * of 64 operations with one flush behind them. Accumulates add doubles. Fetch-and-op and compare-and-swap have 8 bytes.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TARGET = 1, BURST = 64, WARM_UP = 8 };

static int device = -1;

static void give_up(const char *why)
{
    fprintf(stderr, "%s\n", why);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

#include "device.h"

static char *buffer(size_t size)
{
    char *memory = device >= 0 ? device_buffer(size) : calloc(1, size);
    if (!memory)
        give_up("no memory for a window");
    return memory;
}

static void release(char *memory)
{
    if (device >= 0)
        device_release(memory);
    else
        free(memory);
}

enum operation { PUT, GET, ACCUMULATE, GET_ACCUMULATE, FETCH_AND_OP, COMPARE_AND_SWAP, OPERATIONS };

static const char *const names[OPERATIONS] = {"put", "get", "accumulate", "get-accumulate", "fetch-and-op", "compare-and-swap"};

/* What an operation uses in this process. */
struct origin {
    char *data, *result;
    int size;
    MPI_Win window;
};

static void start(const struct origin *origin, enum operation operation)
{
    const int size = origin->size, count = size / (int)sizeof(double);
    switch (operation) {
    case PUT: MPI_Put(origin->data, size, MPI_BYTE, TARGET, 0, size, MPI_BYTE, origin->window); break;
    case GET: MPI_Get(origin->result, size, MPI_BYTE, TARGET, 0, size, MPI_BYTE, origin->window); break;
    case ACCUMULATE:
        MPI_Accumulate(origin->data, count, MPI_DOUBLE, TARGET, 0, count, MPI_DOUBLE, MPI_SUM, origin->window);
        break;
    case GET_ACCUMULATE:
        MPI_Get_accumulate(origin->data, count, MPI_DOUBLE, origin->result, count, MPI_DOUBLE, TARGET, 0, count, MPI_DOUBLE,
                           MPI_SUM, origin->window);
        break;
    case FETCH_AND_OP: MPI_Fetch_and_op(origin->data, origin->result, MPI_LONG, TARGET, 0, MPI_SUM, origin->window); break;
    default: MPI_Compare_and_swap(origin->data, origin->data, origin->result, MPI_LONG, TARGET, 0, origin->window);
    }
}

static double timed(const struct origin *origin, enum operation operation, int burst, long rounds)
{
    double began = MPI_Wtime();
    for (long i = 0; i < rounds; i++) {
        for (int k = 0; k < burst; k++)
            start(origin, operation);
        MPI_Win_flush(TARGET, origin->window);
    }
    return MPI_Wtime() - began;
}

/* Microseconds of one operation, without the first ones, which map memory and load kernels. */
static double measure(const struct origin *origin, enum operation operation, int burst, double seconds)
{
    timed(origin, operation, burst, WARM_UP);
    long rounds = 1;
    double taken = timed(origin, operation, burst, rounds);
    while (taken < seconds / 8) {
        rounds *= 2;
        taken = timed(origin, operation, burst, rounds);
    }
    rounds = (long)((double)rounds * seconds / taken) + 1;
    return timed(origin, operation, burst, rounds) * 1e6 / (double)(rounds * burst);
}

int main(int argc, char **argv)
{
    int rank, size;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (argc < 5 || size != 2)
        give_up("usage: mpirun -np 2 windows WINDOW ORIGIN SECONDS SIZE[,SIZE...] [LABEL]");
    const char *place = argv[rank == TARGET ? 1 : 2];
    if (strcmp(place, "host") != 0) {
        device = atoi(place);
        use_device(device);
    }
    const double seconds = atof(argv[3]);
    for (char *at = strtok(argv[4], ","); at; at = strtok(NULL, ",")) {
        struct origin origin = {.size = atoi(at)};
        const size_t bytes = origin.size > 8 ? (size_t)origin.size : 8;
        origin.data = buffer(bytes);
        origin.result = buffer(bytes);
        MPI_Win_create(origin.result, rank == TARGET ? (MPI_Aint)bytes : 0, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &origin.window);
        if (rank != TARGET) {
            MPI_Win_lock_all(0, origin.window);
            for (enum operation operation = PUT; operation < OPERATIONS; operation++) {
                if (operation >= FETCH_AND_OP && origin.size != 8)
                    continue;
                double one = measure(&origin, operation, 1, seconds);
                double many = measure(&origin, operation, BURST, seconds);
                printf("%s %s %s %s %d %.3f %.3f\n", argc > 5 ? argv[5] : "-", names[operation], argv[1], argv[2],
                       origin.size, one, many);
                fflush(stdout);
            }
            MPI_Win_unlock_all(origin.window);
        }
        MPI_Barrier(MPI_COMM_WORLD);
        MPI_Win_free(&origin.window);
        release(origin.data);
        release(origin.result);
    }
    MPI_Finalize();
    return 0;
}
