/* LibMP's calls on a stream beside host-synchronous ones, in device memory.
 *
 *   mpirun -np 2 mp_bench PATTERN [--kernel US] [--batch N] [--sizes A,B] [--seconds S] [--check]
 *
 * PATTERN is pingpong, sendrecv, produce-consume, put or get. A kernel of US microseconds (10) is between the messages in two
 * of the four columns; 0 leaves these out. The stream gets batches of N steps (16), and four batches are in flight. Each
 * figure takes about S seconds (0.2). Sizes are in bytes, multiples of 4. A line has the pattern, a size, and the
 * microseconds of a step: a message one way and its kernel, an exchange, a put or a get. LibMP has no get that a stream starts:
 * the host starts gets in all columns, and the stream waits for them in two.
 *
 * --check compares every word of every step instead, and prints how many columns were right. */
#include <mp.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

static int rank, ranks;

static void give_up(const char *why)
{
    fprintf(stderr, "%s\n", why);
    MPI_Abort(MPI_COMM_WORLD, 1);
    exit(1);
}

#include "work.h"

#include "patterns.h"

static struct {
    const struct pattern *pattern;
    double kernel, seconds;
    long batch;
    int check;
    const char *sizes;
} options = {.kernel = 10, .seconds = 0.2, .batch = 16, .sizes = "8,1024,65536,1048576"};

static void read_options(int argc, char **argv)
{
    for (size_t i = 0; argc > 1 && i < sizeof patterns / sizeof *patterns; i++)
        if (strcmp(patterns[i].name, argv[1]) == 0)
            options.pattern = &patterns[i];
    if (options.pattern == NULL)
        give_up("name a pattern: pingpong, sendrecv, produce-consume, put or get");
    for (int i = 2; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : "";
        if (strcmp(argv[i], "--check") == 0) {
            options.check = 1;
            continue;
        }
        if (strcmp(argv[i], "--kernel") == 0)
            options.kernel = atof(value);
        else if (strcmp(argv[i], "--batch") == 0)
            options.batch = atol(value);
        else if (strcmp(argv[i], "--sizes") == 0)
            options.sizes = value;
        else if (strcmp(argv[i], "--seconds") == 0)
            options.seconds = atof(value);
        else
            give_up("the options are --kernel, --batch, --sizes, --seconds and --check");
        i++;
    }
    if (options.batch < 1 || options.kernel < 0)
        give_up("--batch is at least 1, and --kernel is not negative");
}

/* What the words of a step hold at first. */
static uint32_t stamp(int of, long step) { return 1000000u * (uint32_t)(of + 1) + 3u * (uint32_t)step; }

/* Makes the buffers of a size. */
static void allocate(size_t size, long slots)
{
    memory.size = size;
    memory.slots = slots;
    memory.in = device_buffer(size * (size_t)slots);
    memory.out = device_buffer(size * (size_t)slots);
    memory.ready = device_buffer(4 * FLIGHT);
    memory.sends = calloc((size_t)slots, sizeof *memory.sends);
    memory.receives = calloc((size_t)slots, sizeof *memory.receives);
    memory.readies = calloc(FLIGHT, sizeof *memory.readies);
    if (memory.sends == NULL || memory.receives == NULL || memory.readies == NULL)
        give_up("no memory for requests");
    must(mp_register(memory.in, size * (size_t)slots, &memory.in_reg));
    must(mp_register(memory.out, size * (size_t)slots, &memory.out_reg));
    must(mp_register(memory.ready, 4 * FLIGHT, &memory.ready_reg));
    if (options.pattern->puts || options.pattern->gets)
        must(mp_window_create(options.pattern->puts ? memory.in : memory.out, size * (size_t)slots, &memory.window));
}

static void release(void)
{
    if (options.pattern->puts || options.pattern->gets)
        must(mp_window_destroy(&memory.window));
    must(mp_deregister(&memory.in_reg));
    must(mp_deregister(&memory.out_reg));
    must(mp_deregister(&memory.ready_reg));
    device_release(memory.in);
    device_release(memory.out);
    device_release(memory.ready);
    free(memory.sends);
    free(memory.receives);
    free(memory.readies);
}

/* Gives every word a value that tells its rank and step. */
static void prepare(void)
{
    const size_t words = memory.size / 4, all = words * (size_t)memory.slots;
    uint32_t *values = malloc(4 * all);
    if (values == NULL)
        give_up("no memory for values");
    for (size_t word = 0; word < all; word++)
        values[word] = stamp(rank, (long)(word / words));
    if (device.to_device((size_t)memory.out, values, 4 * all) != 0)
        give_up("the driver did not copy");
    memset(values, 0xee, 4 * all);
    if (device.to_device((size_t)memory.in, values, 4 * all) != 0)
        give_up("the driver did not copy");
    /* Such copies may end after they have returned, and our stream does not follow the default stream. */
    if (device.synchronize(NULL) != 0)
        give_up("the driver did not copy");
    free(values);
}

/* What kernels made of the first words of the message that this rank got in a step. */
static uint32_t received(const struct run *run, long step)
{
    if (run->kernel == 0 || options.pattern->gets)
        return stamp(1 - rank, step);
    if (options.pattern->step == pingpong)
        return stamp(0, 0) + 1 + 2 * (uint32_t)step + (rank == 0 ? 1 : 0);
    /* Each value goes back and forth, and grows by 1. */
    if (options.pattern->step == sendrecv)
        return stamp(step % 2 == 0 ? 1 - rank : rank, 0) + 1 + (uint32_t)step;
    return stamp(1 - rank, step) + 1;
}

/* Compares the words of a step: the first ones, and the others, which are as rank `of` sent them. */
static void compare(const struct run *run, const char *from, int of, long step, uint32_t first)
{
    const size_t words = memory.size / 4;
    uint32_t *values = malloc(memory.size);
    if (values == NULL || device.to_host(values, (size_t)from, memory.size) != 0)
        give_up("the driver did not copy");
    for (size_t word = 0; word < words; word++) {
        uint32_t expected = word < kernel_words(memory.size) ? first : stamp(of, step);
        if (values[word] != expected) {
            fprintf(stderr, "rank %d, %s, %zu bytes, kernel %g, step %ld, word %zu: %u, not %u\n", rank,
                    run->ordered ? "on a stream" : "by the host", memory.size, run->kernel, step, word, values[word],
                    expected);
            give_up("wrong data");
        }
    }
    free(values);
}

/* Compares every word of every step. */
static void verify(const struct run *run)
{
    const struct pattern *pattern = options.pattern;
    const int gets = (pattern->receives >> rank & 1) || (pattern->puts && rank == 1) || (pattern->gets && rank == 0);
    const int consumes = run->kernel != 0 && gets && (pattern->gets || pattern->step == produce_consume);
    for (long step = 0; step < run->steps; step++) {
        if (gets)
            compare(run, in_of(step), 1 - rank, step, received(run, step));
        if (consumes)
            compare(run, out_of(step), rank, step, received(run, step) + 1);
    }
}

/* Returns the microseconds of a step. */
static double measure(struct run run)
{
    double seconds = 0, longest;
    run.steps = (options.check ? 6 : FLIGHT) * run.batch;
    if (options.check) {
        prepare();
        MPI_Barrier(MPI_COMM_WORLD);
        run_steps(options.pattern, &run);
        MPI_Barrier(MPI_COMM_WORLD);
        verify(&run);
        return 0;
    }
    /* The first run warms up, the second says how long the third is. */
    for (int round = 0; round < 3; round++) {
        MPI_Barrier(MPI_COMM_WORLD);
        double begun = MPI_Wtime();
        run_steps(options.pattern, &run);
        seconds = MPI_Wtime() - begun;
        MPI_Allreduce(&seconds, &longest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
        if (round == 1) {
            long batches = (long)(options.seconds / (longest / (double)run.steps) / (double)run.batch);
            run.steps = (batches < FLIGHT ? FLIGHT : batches) * run.batch;
        }
    }
    return longest / (double)run.steps / options.pattern->each * 1e6;
}

int main(int argc, char **argv)
{
    int peer, right = 0;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    read_options(argc, argv);
    if (ranks != 2)
        give_up("start two processes");
    peer = 1 - rank;
    open_device(rank);
    must(mp_init(MPI_COMM_WORLD, &peer, 1, MP_INIT_DEFAULT, 0));
    const int kernels = device.kernel != NULL && options.kernel > 0;
    if (rank == 0) {
        printf("# a kernel of %g us, batches of %ld, %d in flight; microseconds a step\n", options.kernel, options.batch,
               FLIGHT);
        if (!kernels)
            printf("# the columns with a kernel are left out: %s\n",
                   device.kernel == NULL ? "the driver did not load it" : "--kernel is 0");
        printf("%-16s %9s %10s %10s%s\n", "# pattern", "bytes", "host", "stream", kernels ? "     host+k   stream+k" : "");
    }
    for (const char *at = options.sizes; *at != 0; at += *at == ',') {
        char *end;
        const long size = strtol(at, &end, 10);
        if (end == at || size < 4 || size % 4 != 0 || size > INT32_MAX)
            give_up("--sizes are multiples of 4, with commas between them");
        at = end;
        allocate((size_t)size, (options.check ? 6 : FLIGHT) * options.batch);
        if (rank == 0 && !options.check)
            printf("%-16s %9ld", options.pattern->name, size);
        for (int column = 0; column < (kernels ? 4 : 2); column++) {
            const double kernel = column < 2 ? 0 : options.kernel;
            const double time = measure((struct run){0, options.batch, column % 2, kernel});
            right++;
            if (rank == 0 && !options.check)
                printf(" %10.2f", time);
        }
        if (rank == 0 && !options.check)
            printf("\n");
        release();
    }
    if (rank == 0 && options.check)
        printf("%s: %d columns are right\n", options.pattern->name, right);
    mp_finalize();
    MPI_Finalize();
    return 0;
}
