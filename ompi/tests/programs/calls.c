/* Runs MPI's calls on device memory; see calls/calls.h.
 *
 *   calls [NAME...]      all rows, or those of the calls that are named, with their variants or without (NAME:VARIANT)
 *   calls -NAME...       all but those
 *
 * Rank 0 prints a line `ok NAME` for each. */
#include "calls/calls.h"
#include "calls/staged.h"

#include "calls/point_to_point.h"

#include "calls/collectives.h"

#include "calls/windows.h"

#include "calls/intercepted.h"

/* The placement of the buffers in a run. */
enum place { HOST, DEVICE };
static const struct {
    enum place send, recv;
    bool even_ranks; /* all other ranks have host memory */
} placements[] = {{DEVICE, DEVICE, false}, {DEVICE, HOST, false}, {HOST, DEVICE, false}, {DEVICE, DEVICE, true}};

struct buffers {
    unsigned char *host, *device, *before, *after;
};
static struct buffers sends, receives;
static size_t bytes;

static void make(struct buffers *buffers, int salt)
{
    buffers->host = malloc(bytes);
    buffers->before = malloc(bytes);
    buffers->after = malloc(bytes);
    buffers->device = device_memory(bytes);
    CHECK(NULL != buffers->host && NULL != buffers->before && NULL != buffers->after);
    for (size_t i = 0; i < bytes; i++) {
        buffers->before[i] = (unsigned char) (salt + 37 * rank + i + i / 251);
    }
}

static void *fill(struct buffers *buffers, enum place place)
{
    if (HOST == place) {
        return memcpy(buffers->host, buffers->before, bytes);
    }
    to_device(buffers->device, buffers->before, bytes);
    return buffers->device;
}

static void fetch(struct buffers *buffers, enum place place, unsigned char *into)
{
    if (HOST == place) {
        memcpy(into, buffers->host, bytes);
    } else {
        from_device(into, buffers->device, bytes);
    }
}

static void compare(const char *name, const char *which, int placement, const unsigned char *got,
                    const unsigned char *wanted)
{
    for (size_t i = 0; i < bytes; i++) {
        if (got[i] != wanted[i]) {
            fprintf(stderr, "%s: rank %d of %d, %s buffer, placement %d, count %d, extent %ld: byte %zu is %d, not %d\n", name,
                    rank, size, which, placement, C, (long) extent, i, got[i], wanted[i]);
            MPI_Abort(MPI_COMM_WORLD, 1);
        }
    }
}

static void run(const struct row *row)
{
    static unsigned char *got;
    if (NULL == got) {
        got = malloc(bytes);
    }
    row->run(fill(&sends, HOST), fill(&receives, HOST));
    fetch(&sends, HOST, sends.after);
    fetch(&receives, HOST, receives.after);
    for (int i = 0; i < (int) (sizeof placements / sizeof *placements); i++) {
        bool host = placements[i].even_ranks && rank % 2;
        enum place send = host ? HOST : placements[i].send, recv = host ? HOST : placements[i].recv;
        void *S = fill(&sends, send), *R = fill(&receives, recv);
        row->run(S, R);
        fetch(&sends, send, got);
        compare(row->name, "send", i, got, sends.after);
        fetch(&receives, recv, got);
        compare(row->name, "receive", i, got, receives.after);
    }
}

/* --- types and operations --- */

enum { BLOCK = 2, STRIDE = 3 };

static void add_strided(void *in, void *inout, int *len, MPI_Datatype *type)
{
    (void) type;
    for (int i = 0; i < *len; i++) {
        for (int j = 0; j < 2; j++) {
            for (int k = 0; k < BLOCK; k++) {
                int at = i * (2 * STRIDE) + j * STRIDE + k;
                ((unsigned *) inout)[at] += ((unsigned *) in)[at];
            }
        }
    }
}

static bool is_named(const char *row, const char *name)
{
    size_t length = strlen(name);
    return 0 == strncmp(row, name, length) && ('\0' == row[length] || ':' == row[length]);
}

/* Checks whether the arguments select a row. Without arguments all rows are selected. */
static bool wanted(const char *row, int count, char **names)
{
    bool chosen = 0 == count || '-' == names[0][0];
    for (int i = 0; i < count; i++) {
        bool without = '-' == names[i][0];
        if (is_named(row, names[i] + without)) {
            chosen = !without;
        }
    }
    return chosen;
}

static void use(MPI_Datatype type, MPI_Op op)
{
    MPI_Aint lower;
    T = type;
    OP = op;
    MPI_Type_get_extent(type, &lower, &extent);
}

int main(int argc, char **argv)
{
    MPI_Datatype vector_of_two, strided;
    MPI_Op strided_sum;
    int provided;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_SINGLE, &provided);
    comm = MPI_COMM_WORLD;
    MPI_Comm_rank(comm, &rank);
    MPI_Comm_size(comm, &size);
    CHECK(size < SLOTS);
    next = (rank + 1) % size;
    previous = (rank + size - 1) % size;
    open_driver();
    open_counter();
    /* Two blocks of two ints, each followed by a gap of one int. */
    MPI_Type_vector(2, BLOCK, STRIDE, MPI_INT, &vector_of_two);
    MPI_Type_create_resized(vector_of_two, 0, 2 * STRIDE * sizeof(int), &strided);
    MPI_Type_commit(&strided);
    MPI_Op_create(add_strided, 1, &strided_sum);
    bytes = (size_t) (LARGE + 2) * 2 * STRIDE * sizeof(int) * SLOTS;
    make(&sends, 1);
    make(&receives, 101);
    device_receive = receives.device;
    device_bytes = bytes;

    for (int i = 0; i < row_count; i++) {
        if (!wanted(rows[i].name, argc - 1, argv + 1)) {
            continue;
        }
        if (NULL != getenv("CALLS_VERBOSE")) {
            fprintf(stderr, "rank %d: %s\n", rank, rows[i].name);
        }
        bool staged = false;
        for (C = 5; C <= LARGE; C += LARGE - 5) {
            const unsigned long long before = host_copies();
            use(MPI_INT, MPI_SUM);
            run(&rows[i]);
            staged = staged || before != host_copies();
            use(strided, strided_sum);
            run(&rows[i]);
        }
        MPI_Barrier(comm);
        if (0 == rank) {
            printf("ok %s\n%s%s%s", rows[i].name, staged ? "staged " : "", staged ? rows[i].name : "",
                   staged ? "\n" : "");
            fflush(stdout);
        }
    }
    MPI_Op_free(&strided_sum);
    MPI_Type_free(&vector_of_two);
    MPI_Type_free(&strided);
    MPI_Finalize();
    return 0;
}
