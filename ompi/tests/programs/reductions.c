/* Reductions of every type by every predefined operation, and by operations of the program, from and into host and
 * device memory. CABLEWAY_CUDA_LIBDIR names the driver.
 *
 *   reductions sample N    each call with every type and operation, in N shapes that are drawn
 *   reductions whole       in every shape
 *
 * Shapes are: in place or not, counts around a power of two, roots, alignments and placements of the buffers. The last
 * line says how many operations of processes were verified. */
#include "collectives/run.h"

enum { BASE = 1024, LARGE = 150001 };
static const int counts[] = {0, 1, 2, 3, BASE - 1, BASE, BASE + 1, BASE + 3};
enum { COUNTS = sizeof counts / sizeof *counts };

static struct group world;
static struct job job;

static void run_whole(struct shape shape)
{
    const int roots = REDUCE == shape.call ? test.size : 1;
    for (int in_place = 0; in_place <= can_be_in_place(shape.call); in_place++) {
        for (int i = 0; i < COUNTS; i++) {
            for (int placement = HOST; placement <= EVEN_RANKS; placement++) {
                for (int turn = 0; turn < 2 * roots; turn++) {
                    shape.in_place = in_place;
                    shape.count = counts[i];
                    shape.placement = (enum placement) placement;
                    shape.misaligned = turn % 2;
                    shape.root = turn / 2;
                    shape.form = BLOCKING;
                    shape.salt = mix(shape.salt, 1, 1);
                    run(&job, &shape, &world);
                }
            }
        }
    }
}

/* A shape that the salt draws. */
static struct shape drawn(struct shape shape, int number)
{
    shape.salt = mix(shape.salt, (uint64_t) number, 2);
    const uint64_t salt = shape.salt;
    shape.in_place = can_be_in_place(shape.call) && mix(salt, 1, 3) % 2;
    shape.count = counts[mix(salt, 2, 3) % COUNTS];
    shape.placement = (enum placement) (mix(salt, 3, 3) % PLACEMENTS);
    shape.misaligned = mix(salt, 4, 3) % 2;
    shape.root = (int) (mix(salt, 5, 3) % (uint64_t) test.size);
    shape.form = REDUCE_LOCAL == shape.call ? BLOCKING : (enum form) (mix(salt, 6, 3) % FORMS);
    return shape;
}

/* Long enough for the algorithms that split buffers. */
static void run_large(struct shape shape, int number)
{
    shape = drawn(shape, number);
    shape.count = REDUCE_SCATTER_BLOCK == shape.call || REDUCE_SCATTER == shape.call ? LARGE / test.size : LARGE;
    shape.placement = number % 2 ? DEVICE : EVEN_RANKS;
    shape.form = BLOCKING;
    run(&job, &shape, &world);
}

/* Sums and products whose bits depend on the order must be the same on all processes. */
static void compare_among_processes(MPI_Datatype type, int parts, bool is_double, MPI_Op op, int count, uint64_t salt)
{
    const size_t bytes = (size_t) count * (size_t) parts * (is_double ? sizeof(double) : sizeof(float));
    struct memory *send = &job.send, *recv = &job.recv;
    unsigned char *all = malloc(bytes * (size_t) test.size + 1);
    bool on_device = 0 == salt % 2 || 0 == test.rank % 2;
    memory_use(send, on_device, 0, bytes, SEND_GAP);
    memory_use(recv, on_device, 0, bytes, RECV_GAP);
    for (int i = 0; i < count * parts; i++) {
        uint64_t hash = mix(salt, (uint64_t) test.rank, (uint64_t) i);
        double value = (double) (int64_t) hash / 0x1p60 + 1e-3;
        float shorter = (float) value;
        if (is_double) {
            memcpy(data(send, send->before) + (size_t) i * sizeof value, &value, sizeof value);
        } else {
            memcpy(data(send, send->before) + (size_t) i * sizeof shorter, &shorter, sizeof shorter);
        }
    }
    memory_put(send);
    memory_put(recv);
    MPI_Allreduce(memory_at(send), memory_at(recv), count, type, op, MPI_COMM_WORLD);
    memory_get(recv);
    MPI_Gather(data(recv, recv->got), (int) bytes, MPI_BYTE, all, (int) bytes, MPI_BYTE, 0, MPI_COMM_WORLD);
    for (int other = 1; 0 == test.rank && other < test.size; other++) {
        if (0 != memcmp(all, all + (size_t) other * bytes, bytes)) {
            fprintf(stderr, "an Allreduce of %d elements gave ranks 0 and %d results with different bits\n", count, other);
            MPI_Abort(MPI_COMM_WORLD, 1);
        }
    }
    free(all);
    count_check();
}

static void compare_all_among_processes(void)
{
    const MPI_Datatype numbers[] = {MPI_FLOAT, MPI_DOUBLE, MPI_C_FLOAT_COMPLEX, MPI_C_DOUBLE_COMPLEX};
    const int lengths[] = {1, 3, 7, 100, BASE + 1, 20000, LARGE};
    for (int i = 0; i < 4; i++) {
        for (int length = 0; length < 7; length++) {
            for (uint64_t salt = 0; salt < 2; salt++) {
                compare_among_processes(numbers[i], 1 + i / 2, i % 2, MPI_SUM, lengths[length], salt);
                compare_among_processes(numbers[i], 1 + i / 2, i % 2, MPI_PROD, lengths[length], salt);
            }
        }
    }
}

int main(int argc, char **argv)
{
    const bool whole = 2 == argc && 0 == strcmp(argv[1], "whole");
    const int drawings = 3 == argc && 0 == strcmp(argv[1], "sample") ? atoi(argv[2]) : 0;
    int pairs = 0;
    begin(argc, argv, MPI_THREAD_SINGLE);
    CHECK(whole || 0 < drawings);
    world = group_of(MPI_COMM_WORLD);
    for (int i = 0; i < type_count; i++) {
        for (int op = 0; op < OPS; op++) {
            if (!(types[i].ops & BIT(op))) {
                continue;
            }
            pairs++;
            for (int call = ALLREDUCE; call <= REDUCE_LOCAL; call++) {
                struct shape shape = {.call = (enum call) call, .type = &types[i], .op = (enum op) op};
                shape.salt = mix((uint64_t) i, (uint64_t) op, (uint64_t) call);
                if (whole) {
                    run_whole(shape);
                }
                for (int number = 0; number < (whole ? FORMS * PLACEMENTS : drawings); number++) {
                    struct shape one = drawn(shape, number);
                    run(&job, &one, &world);
                }
                if (whole || 0 == shape.salt % 32) {
                    run_large(shape, pairs);
                }
            }
        }
    }
    compare_all_among_processes();
    if (0 == test.rank) {
        printf("types with operations: %d\n", pairs);
        printf("gap bytes of rank 0 that did not keep their contents: %ld\n", changed_gaps);
    }
    job_discard(&job);
    finish();
    return 0;
}
