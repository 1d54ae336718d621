/* Collectives that move data, from and to host and device memory, with equal and different types on the two sides.
 * CABLEWAY_CUDA_LIBDIR names the driver.
 *
 *   movement sample N    each call with each pair of types in N shapes that are drawn
 *   movement whole       in every shape
 *
 * Shapes are: blocking, non-blocking or persistent, in place or not, short and long, roots, alignments and placements of
 * the buffers. Then several operations at once, beside messages. The last line says how many operations of processes
 * were verified. */
#include "collectives/draw.h"
#include "collectives/graphs.h"
#include "collectives/run.h"

enum { GRAPHS = 4, AT_ONCE = 8 };

static const int counts[] = {0, 1, 3, 100, 2000};
enum { COUNTS = sizeof counts / sizeof *counts };

static struct group world, graphs[GRAPHS];
static struct job job;

static const struct group *group_for(enum call call, uint64_t salt)
{
    return is_neighbor(call) ? &graphs[salt % GRAPHS] : &world;
}

static void run_whole(struct shape shape)
{
    const int roots = has_root(shape.call) ? test.size : 1;
    for (int in_place = 0; in_place <= can_be_in_place(shape.call); in_place++) {
        for (int turn = 0; turn < 2 * roots * FORMS; turn++) {
            for (int i = 0; i < COUNTS; i++) {
                for (int placement = HOST; placement < PLACEMENTS; placement++) {
                    shape.in_place = in_place;
                    shape.form = (enum form) (turn % FORMS);
                    shape.misaligned = turn / FORMS % 2;
                    shape.root = turn / (2 * FORMS);
                    shape.count = counts[i];
                    shape.placement = (enum placement) placement;
                    shape.salt = mix(shape.salt, 1, 1);
                    run(&job, &shape, group_for(shape.call, shape.salt));
                }
            }
        }
    }
}

/* Some MiB in all. */
static void run_large(enum call call, const struct layout *layout, uint64_t salt)
{
    struct shape shape = draw_shape(salt, &world, call);
    shape.layout = layout;
    shape.count = 3 * (1 << 20) / test.size / (layout->sent.per_unit * layout->sent.size);
    shape.placement = salt % 2 ? DEVICE : ANYWHERE;
    run(&job, &shape, group_for(call, salt));
}

/* --- several at once --- */

/* A message to the next process, between the same or other kinds of memory. */
struct message {
    struct memory out, in;
    MPI_Request requests[2];
};

static void send_around(struct message *message, uint64_t salt)
{
    const int next = (test.rank + 1) % test.size, previous = (test.rank + test.size - 1) % test.size;
    const int bytes = (int) (salt % 3 ? salt % 5000 : 300000);
    memory_use(&message->out, mix(salt, (uint64_t) test.rank, 1) % 2, 0, (size_t) bytes, SEND_GAP);
    memory_use(&message->in, mix(salt, (uint64_t) test.rank, 2) % 2, 0, (size_t) bytes, RECV_GAP);
    write_part(data(&message->out, message->out.before), &layouts[0].sent, bytes, salt, test.rank, next);
    write_part(data(&message->in, message->in.want), &layouts[0].sent, bytes, salt, previous, test.rank);
    memory_put(&message->out);
    memory_put(&message->in);
    MPI_Irecv(memory_at(&message->in), bytes, MPI_BYTE, previous, 9, MPI_COMM_WORLD, &message->requests[0]);
    MPI_Isend(memory_at(&message->out), bytes, MPI_BYTE, next, 9, MPI_COMM_WORLD, &message->requests[1]);
}

static void verify_message(struct message *message)
{
    memory_get(&message->in);
    CHECK_EQUAL(memory_differs(&message->in), -1);
    count_check();
}

/* Operations of all kinds are under way together with messages. Each process waits for them in an order of its own. */
static void run_at_once(uint64_t salt)
{
    static struct job jobs[AT_ONCE];
    static struct message messages[AT_ONCE];
    MPI_Request requests[3 * AT_ONCE];
    for (int i = 0; i < AT_ONCE; i++) {
        const uint64_t own = mix(salt, (uint64_t) i, 73);
        const struct group *group = 0 == own % 4 ? &graphs[own / 4 % GRAPHS] : &world;
        const enum call drawn = draw_call(own, group);
        struct shape shape = draw_shape(own, group, REDUCE_LOCAL == drawn ? BCAST : drawn);
        shape.form = own % 3 ? NONBLOCKING : PERSISTENT;
        start(&jobs[i], &shape, group);
        send_around(&messages[i], own);
    }
    const int first = (int) (mix(salt, (uint64_t) test.rank, 79) % AT_ONCE), step = test.rank % 2 ? 3 : 5;
    if (salt % 2) {
        for (int i = 0; i < AT_ONCE; i++) {
            const int chosen = (first + i * step) % AT_ONCE;
            MPI_Waitall(2, messages[(chosen + 1) % AT_ONCE].requests, MPI_STATUSES_IGNORE);
            verify_message(&messages[(chosen + 1) % AT_ONCE]);
            wait_for(&jobs[chosen]);
        }
    } else {
        for (int i = 0; i < AT_ONCE; i++) {
            const int chosen = (first + i * step) % AT_ONCE;
            requests[3 * i] = jobs[chosen].request;
            requests[3 * i + 1] = messages[chosen].requests[0];
            requests[3 * i + 2] = messages[chosen].requests[1];
        }
        MPI_Waitall(3 * AT_ONCE, requests, MPI_STATUSES_IGNORE);
        for (int i = 0; i < AT_ONCE; i++) {
            verify(&jobs[i]);
            verify_message(&messages[i]);
        }
    }
    for (int i = 0; i < AT_ONCE; i++) {
        end(&jobs[i]);
    }
}

int main(int argc, char **argv)
{
    const bool whole = 2 == argc && 0 == strcmp(argv[1], "whole");
    const int drawings = 3 == argc && 0 == strcmp(argv[1], "sample") ? atoi(argv[2]) : 0;
    begin(argc, argv, MPI_THREAD_SINGLE);
    CHECK(whole || 0 < drawings);
    world = group_of(MPI_COMM_WORLD);
    graphs[0] = make_grid(MPI_COMM_WORLD);
    for (int i = 1; i < GRAPHS; i++) {
        graphs[i] = make_graph(MPI_COMM_WORLD, (uint64_t) i);
    }
    for (int call = ALLGATHER; call <= NEIGHBOR_ALLTOALLW; call++) {
        for (int i = 0; i < LAYOUTS; i++) {
            const uint64_t salt = mix((uint64_t) call, (uint64_t) i, 83);
            if (whole) {
                run_whole((struct shape){.call = (enum call) call, .layout = &layouts[i], .salt = salt});
            }
            for (int number = 0; number < (whole ? 50 : drawings); number++) {
                const uint64_t own = mix(salt, (uint64_t) number, 89);
                const struct group *group = group_for((enum call) call, own);
                struct shape shape = draw_shape(own, group, (enum call) call);
                shape.layout = &layouts[i];
                run(&job, &shape, group);
            }
            if (whole || 0 == salt % 8) {
                run_large((enum call) call, &layouts[i], salt);
            }
        }
    }
    for (int round = 0; round < (whole ? 200 : 4 * drawings); round++) {
        run_at_once((uint64_t) round);
    }
    for (int i = 0; i < GRAPHS; i++) {
        MPI_Comm_free(&graphs[i].comm);
    }
    job_discard(&job);
    finish();
    return 0;
}
