/* Times MPI's collectives on host or device memory.
 *
 *   mpirun -np N collectives PLACE SECONDS SIZE[,SIZE...] [OPERATION...]
 *
 * PLACE is `host`; `beside`, host memory in a process that uses a device; `device`, where ranks share devices if there are
 * fewer; or `nccl`, which calls NCCL's operations (nccl.h) in place of MPI's, each rank on a device of its own; or
 * `nccl-queued`, where QUEUED of them are in the stream before it is waited for. SIZE is the bytes of each rank's buffer; of an allgather and a reduce-scatter, of all ranks' shares together. Prints one line for each
 * operation and size: the median of the times of single calls, of the rank that took longest, in microseconds. Each call, or
 * the first of those that are queued, begins after a barrier.
 */
#include <mpi.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LONGEST_RUN = 10000, SHORTEST_RUN = 5, WARM_UP = 16, QUEUED = 20 };

static int rank, ranks;

static void give_up(const char *why)
{
    fprintf(stderr, "%s\n", why);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

#include "device.h"
#include "nccl.h"

/* Whether NCCL performs the operations, and so many of them before the stream is waited for. */
static bool by_nccl;
static int queued = 1;

static int device_count(void)
{
    int count = 0;
    if (((int (*)(unsigned))driver("cuInit"))(0) != 0 || ((int (*)(int *))driver("cuDeviceGetCount"))(&count) != 0)
        give_up("the devices cannot be counted");
    return count;
}

/* A buffer that holds the floats 1, so that sums stay finite. */
static char *buffer(bool on_device, size_t size)
{
    float *host = malloc(size);
    if (host == NULL)
        give_up("no memory for a buffer");
    for (size_t i = 0; i < size / sizeof *host; i++)
        host[i] = 1;
    if (!on_device)
        return (char *)host;
    char *device = device_buffer(size);
    if (((int (*)(unsigned long long, const void *, size_t))driver("cuMemcpyHtoD_v2"))((unsigned long long)device, host,
                                                                                      size) != 0)
        give_up("a copy to the device failed");
    free(host);
    return device;
}

static void release(bool on_device, char *memory)
{
    if (on_device)
        device_release(memory);
    else
        free(memory);
}

/* Whether a rank's part of an operation is at least one element. */
static bool is_something(const char *operation, int floats)
{
    const bool shared = strcmp(operation, "allgather") == 0 || strcmp(operation, "alltoall") == 0 ||
                        strcmp(operation, "alltoallw") == 0 || strcmp(operation, "reduce-scatter") == 0;
    const bool pairs = strcmp(operation, "allreduce-double") == 0 || strcmp(operation, "allreduce-complex") == 0 ||
                       strcmp(operation, "allreduce-minloc") == 0;
    return floats >= (shared ? ranks : pairs ? 2 : 1);
}

/* Redistributes a matrix of which each rank has whole rows, so that each rank has whole columns: an FFT's transposition, or
 * Heat's `resplit`. The types of the blocks are made for each call, as these programs do. */
static void redistribute(char *send, char *receive, int floats)
{
    int columns = ranks, zeros[ranks], ones[ranks];
    while (columns * 2 <= floats / columns)
        columns *= 2;
    const int rows = floats / columns;
    MPI_Datatype from[ranks], to[ranks];
    for (int i = 0; i < ranks; i++) {
        const int block[2] = {rows, columns / ranks}, mine[2] = {rows, columns}, theirs[2] = {rows * ranks, columns / ranks};
        const int at_column[2] = {0, i * (columns / ranks)}, at_row[2] = {i * rows, 0};
        zeros[i] = 0, ones[i] = 1;
        MPI_Type_create_subarray(2, mine, block, at_column, MPI_ORDER_C, MPI_FLOAT, &from[i]);
        MPI_Type_create_subarray(2, theirs, block, at_row, MPI_ORDER_C, MPI_FLOAT, &to[i]);
        MPI_Type_commit(&from[i]);
        MPI_Type_commit(&to[i]);
    }
    MPI_Alltoallw(send, ones, zeros, from, receive, ones, zeros, to, MPI_COMM_WORLD);
    for (int i = 0; i < ranks; i++) {
        MPI_Type_free(&from[i]);
        MPI_Type_free(&to[i]);
    }
}

static void call(const char *operation, char *send, char *receive, int floats)
{
    const int share = floats / ranks;
    if (by_nccl) {
        for (int i = 0; i < queued; i++)
            nccl_call(operation, send, receive, floats);
        nccl_wait();
    } else if (strcmp(operation, "allreduce") == 0)
        MPI_Allreduce(send, receive, floats, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    else if (strcmp(operation, "allreduce-double") == 0)
        MPI_Allreduce(send, receive, floats / 2, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    else if (strcmp(operation, "allreduce-int") == 0)
        MPI_Allreduce(send, receive, floats, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
    else if (strcmp(operation, "allreduce-complex") == 0)
        MPI_Allreduce(send, receive, floats / 2, MPI_C_FLOAT_COMPLEX, MPI_SUM, MPI_COMM_WORLD);
    else if (strcmp(operation, "allreduce-minloc") == 0)
        MPI_Allreduce(send, receive, floats / 2, MPI_2INT, MPI_MINLOC, MPI_COMM_WORLD);
    else if (strcmp(operation, "reduce") == 0)
        MPI_Reduce(send, receive, floats, MPI_FLOAT, MPI_SUM, 0, MPI_COMM_WORLD);
    else if (strcmp(operation, "bcast") == 0)
        MPI_Bcast(send, floats, MPI_FLOAT, 0, MPI_COMM_WORLD);
    else if (strcmp(operation, "allgather") == 0)
        MPI_Allgather(send, share, MPI_FLOAT, receive, share, MPI_FLOAT, MPI_COMM_WORLD);
    else if (strcmp(operation, "alltoall") == 0)
        MPI_Alltoall(send, share, MPI_FLOAT, receive, share, MPI_FLOAT, MPI_COMM_WORLD);
    else if (strcmp(operation, "alltoallw") == 0)
        redistribute(send, receive, floats);
    else if (strcmp(operation, "reduce-scatter") == 0)
        MPI_Reduce_scatter_block(send, receive, share, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    else
        give_up("the operations are allreduce, allreduce-double, allreduce-int, allreduce-complex, allreduce-minloc, "
                "reduce, bcast, allgather, alltoall, alltoallw, reduce-scatter");
}

static int by_size(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static void run(const char *operation, char *send, char *receive, size_t bytes, double seconds)
{
    static double times[LONGEST_RUN];
    const int floats = (int)(bytes / sizeof(float));
    int calls = 0, more = 1;
    for (int i = 0; i < WARM_UP; i++)
        call(operation, send, receive, floats);
    const double begun = MPI_Wtime();
    while (more) {
        MPI_Barrier(MPI_COMM_WORLD);
        const double from = MPI_Wtime();
        call(operation, send, receive, floats);
        double took = (MPI_Wtime() - from) / queued;
        MPI_Allreduce(MPI_IN_PLACE, &took, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
        times[calls++] = took;
        more = calls < LONGEST_RUN && (calls < SHORTEST_RUN || MPI_Wtime() - begun < seconds);
        MPI_Bcast(&more, 1, MPI_INT, 0, MPI_COMM_WORLD);
    }
    qsort(times, (size_t)calls, sizeof *times, by_size);
    if (rank == 0) {
        printf("%-18s %12zu %12.3f  (%d calls)\n", operation, bytes, 1e6 * times[calls / 2], calls);
        fflush(stdout);
    }
}

int main(int count, char **arguments)
{
    static char *all[] = {"allreduce", "allreduce-double", "allreduce-int", "allreduce-complex", "allreduce-minloc",
                          "reduce", "bcast", "allgather", "alltoall", "alltoallw", "reduce-scatter"};
    MPI_Init(&count, &arguments);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (count < 4)
        give_up("usage: collectives PLACE SECONDS SIZE[,SIZE...] [OPERATION...]");
    by_nccl = strncmp(arguments[1], "nccl", 4) == 0;
    if (strcmp(arguments[1], "nccl-queued") == 0)
        queued = QUEUED;
    const bool on_device = by_nccl || strcmp(arguments[1], "device") == 0;
    if (on_device || strcmp(arguments[1], "beside") == 0)
        use_device(rank % device_count());
    if (by_nccl)
        nccl_open();
    const int operations = count > 4 ? count - 4 : (int)(sizeof all / sizeof *all);
    for (char *size = strtok(arguments[3], ","); size != NULL; size = strtok(NULL, ",")) {
        const size_t bytes = strtoull(size, NULL, 10);
        char *send = buffer(on_device, bytes), *receive = buffer(on_device, bytes);
        for (int i = 0; i < operations; i++) {
            const char *operation = count > 4 ? arguments[4 + i] : all[i];
            if (is_something(operation, (int)(bytes / sizeof(float))) && (!by_nccl || nccl_has(operation)))
                run(operation, send, receive, bytes, atof(arguments[2]));
        }
        release(on_device, send);
        release(on_device, receive);
    }
    MPI_Finalize();
    return 0;
}
