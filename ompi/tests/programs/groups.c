/* Collectives in communicators of one process, and between two groups, with host and device memory.
 * CABLEWAY_CUDA_LIBDIR names the driver.
 *
 *   groups N    each call in N shapes that are drawn
 *
 * The last line says how many operations of processes were verified. */
#include "collectives/draw.h"
#include "collectives/graphs.h"
#include "collectives/run.h"

static struct job job;

static void run_drawn(const struct group *group, enum call call, uint64_t salt)
{
    struct shape shape = draw_shape(salt, group, call);
    run(&job, &shape, group);
}

static void run_alone(MPI_Comm comm, int drawings)
{
    const struct group group = group_of(comm);
    struct group graphs[] = {make_grid(comm), make_graph(comm, 1), make_graph(comm, 2)};
    CHECK_EQUAL(group.size, 1);
    for (int call = 0; call < CALLS; call++) {
        for (int number = 0; number < drawings; number++) {
            const uint64_t salt = mix((uint64_t) call, (uint64_t) number, 107);
            run_drawn(is_neighbor((enum call) call) ? &graphs[number % 3] : &group, (enum call) call, salt);
        }
    }
    for (int i = 0; i < 3; i++) {
        MPI_Comm_free(&graphs[i].comm);
    }
}

/* --- between two groups --- */

static bool works_between_groups(enum call call)
{
    return !is_neighbor(call) && SCAN != call && EXSCAN != call && REDUCE_LOCAL != call;
}

/* The first processes are one group, all others the other. */
static struct group make_two_groups(int in_first)
{
    const bool is_first = test.rank < in_first;
    MPI_Comm half, both;
    MPI_Comm_split(MPI_COMM_WORLD, is_first, 0, &half);
    MPI_Intercomm_create(half, 0, MPI_COMM_WORLD, is_first ? in_first : 0, 7, &both);
    MPI_Comm_free(&half);
    struct group group = group_of(both);
    group.my_base = is_first ? 0 : OTHER_GROUP;
    group.their_base = is_first ? OTHER_GROUP : 0;
    return group;
}

/* Open MPI 4.1 passes the root's counts on to the other group, where they count elements of the type there. */
static const struct layout *with_equal_counts(const struct layout *layout)
{
    return layout->sent.per_unit == layout->received.per_unit ? layout : &layouts[0];
}

static void run_between_groups(int in_first, int drawings)
{
    struct group group = make_two_groups(in_first);
    for (int call = 0; call < CALLS; call++) {
        for (int number = 0; works_between_groups((enum call) call) && number < 2 * drawings; number++) {
            struct shape shape = draw_shape(mix((uint64_t) call, (uint64_t) number, 109), &group, (enum call) call);
            shape.in_place = false;
            /* The root is in one of the groups. Both draw the same. */
            shape.first_has_root = number % 2;
            shape.root = (int) pick(shape.salt, 60, (uint64_t) (shape.first_has_root ? in_first : test.size - in_first));
            shape.form = pick(shape.salt, 61, 2) ? BLOCKING : NONBLOCKING;
            if (SCATTERV == call) {
                shape.layout = with_equal_counts(shape.layout);
            }
            run(&job, &shape, &group);
        }
    }
    MPI_Comm_free(&group.comm);
}

int main(int argc, char **argv)
{
    const int drawings = argc > 1 ? atoi(argv[1]) : 0;
    MPI_Comm alone;
    begin(argc, argv, MPI_THREAD_SINGLE);
    CHECK(0 < drawings);
    run_alone(MPI_COMM_SELF, drawings);
    MPI_Comm_split(MPI_COMM_WORLD, test.rank, 0, &alone);
    run_alone(alone, drawings);
    MPI_Comm_free(&alone);
    for (int in_first = 1; in_first < test.size; in_first++) {
        run_between_groups(in_first, drawings);
    }
    job_discard(&job);
    finish();
    return 0;
}
