/* Blocking collectives from and to host and device memory under MPICH, each result compared with what the program computes
 * itself. The data and the checks are those of Open MPI's tests. CABLEWAY_CUDA_LIBDIR names the driver.
 *
 *   collectives shapes N [PLACEMENT]         each call with each pair of types, or each type and operation, in N drawn shapes
 *   collectives random COUNT [THREADS]       on communicators that are made and freed on the way
 *
 * The last line says how many operations of processes were verified. */
#include <mpi.h>

#define OMPI_MAJOR_VERSION 5 /* the standard's names */
#undef MPIX_C_FLOAT16        /* Debian 12's MPICH 4.0.2 aborts where it reduces these */
#undef MPI_REAL16            /* in Open MPI the same as C's long double, which the tests expect */
#undef MPI_COMPLEX32
#include "collectives/draw.h"
#include "collectives/run.h"

#include <pthread.h>

enum { GROUPS = 4, SLOTS = 4, MOST_THREADS = 4 };

/* Only blocking calls are served, and not those among neighbours nor MPI_Reduce_local. */
static bool is_served(enum call call)
{
    return !is_neighbor(call) && REDUCE_LOCAL != call;
}

/* Removes operations that this MPICH computes wrongly on the host: 4.0.2 takes the elements of MPI_UNSIGNED_CHAR as signed. */
static void remove_wrong(void)
{
    for (int i = 0; i < type_count; i++) {
        const struct kind *kind = types[i].kind;
        for (int op = 0; op < OPS; op++) {
            bool is_right = true;
            for (int trial = 0; types[i].ops & BIT(op) && trial < 32; trial++) {
                unsigned char left[64] __attribute__((aligned(16))), right[64] __attribute__((aligned(16)));
                unsigned char wanted[64] __attribute__((aligned(16)));
                kind->make((enum op) op, mix((uint64_t) trial, 1, 5), left);
                kind->make((enum op) op, mix((uint64_t) trial, 2, 5), right);
                memcpy(wanted, left, sizeof wanted);
                kind->fold((enum op) op, wanted, right);
                MPI_Reduce_local(left, right, 1, types[i].type, ops[op]);
                is_right = is_right && kind->same(wanted, right);
            }
            if (!is_right) {
                types[i].ops &= ~BIT(op);
                if (0 == test.rank) {
                    printf("MPICH computes a wrong %s of %s\n", op_names[op], types[i].name);
                }
            }
        }
    }
}

/* What MPICH 4.0.2 cannot do on host memory either: it reads the address MPI_IN_PLACE in an MPI_Reduce to another rank than
 * 0, and calls memcpy on overlapping memory in a large MPI_Reduce_scatter in place. */
static void avoid_faults(struct shape *shape)
{
    enum { LARGE = 2000 };
    if (REDUCE == shape->call && shape->in_place) {
        shape->root = 0;
    }
    if (REDUCE_SCATTER == shape->call && shape->in_place && LARGE < shape->count) {
        shape->count = LARGE;
    }
}

/* --- shapes --- */

static int placement = PLACEMENTS; /* all */

static void run_drawn(struct job *job, const struct group *group, enum call call, uint64_t salt, const struct layout *layout,
                      const struct type *type, enum op op)
{
    struct shape shape = draw_shape(salt, group, call);
    shape.form = BLOCKING;
    if (NULL != layout) {
        shape.layout = layout;
    } else {
        shape.type = type;
        shape.op = op;
    }
    if (PLACEMENTS != placement) {
        shape.placement = (enum placement) placement;
    }
    avoid_faults(&shape);
    if (group->inter) {
        shape.in_place = false;
        shape.first_has_root = mix(salt, 5, 3) % 2;
        /* They are undefined between groups. */
        shape.call = SCAN == call || EXSCAN == call ? ALLREDUCE : call;
        if (NULL != layout && layout->sent.per_unit != layout->received.per_unit) {
            shape.layout = &layouts[0]; /* MPICH 4.0.2 gives both groups the counts of one */
        }
    }
    run(job, &shape, group);
}

static void make_groups(struct group *groups, int *made)
{
    MPI_Comm comm, half, between;
    groups[0] = group_of(MPI_COMM_WORLD);
    MPI_Comm_split(MPI_COMM_WORLD, 0, -test.rank, &comm);
    groups[1] = group_of(comm);
    MPI_Comm_split(MPI_COMM_WORLD, test.rank % 2, test.rank, &half);
    groups[2] = group_of(half);
    *made = 3;
    if (0 == test.size % 2) {
        MPI_Intercomm_create(half, 0, MPI_COMM_WORLD, 1 - test.rank % 2, 3, &between);
        groups[3] = group_of(between);
        groups[3].my_base = 0 == test.rank % 2 ? 0 : OTHER_GROUP;
        groups[3].their_base = OTHER_GROUP - groups[3].my_base;
        *made = 4;
    }
}

static void run_shapes(int drawings)
{
    static struct group groups[GROUPS];
    static struct job job;
    int made;
    make_groups(groups, &made);
    for (int call = 0; call < CALLS; call++) {
        const int kinds = is_reduction((enum call) call) ? type_count * OPS : LAYOUTS;
        for (int kind = 0; is_served((enum call) call) && kind < kinds; kind++) {
            const bool reduces = is_reduction((enum call) call);
            const struct type *type = reduces ? &types[kind / OPS] : NULL;
            if (reduces && !(type->ops & BIT(kind % OPS))) {
                continue;
            }
            for (int number = 0; number < drawings; number++) {
                const uint64_t salt = mix((uint64_t) (call * 1000 + kind), (uint64_t) number, 127);
                run_drawn(&job, &groups[salt % (uint64_t) made], (enum call) call, salt, reduces ? NULL : &layouts[kind], type,
                          (enum op) (kind % OPS));
            }
        }
    }
    for (int i = 1; i < made; i++) {
        MPI_Comm_free(&groups[i].comm);
    }
    job_discard(&job);
}

/* --- random --- */

struct walk {
    int count;
    bool keeps_groups;
    uint64_t salt;
    struct group groups[SLOTS];
    struct job job;
};

static void replace(struct walk *walk, int slot, uint64_t salt)
{
    MPI_Comm comm;
    if (MPI_COMM_NULL != walk->groups[slot].comm) {
        MPI_Comm_free(&walk->groups[slot].comm);
    }
    if (0 == pick(salt, 2, 3)) {
        MPI_Comm_dup(MPI_COMM_WORLD, &comm);
    } else {
        const int color = (int) (mix(salt, (uint64_t) test.rank, 97) % 3);
        MPI_Comm_split(MPI_COMM_WORLD, color, pick(salt, 3, 2) ? test.rank : -test.rank, &comm);
    }
    walk->groups[slot] = group_of(comm);
}

static void *go(void *argument)
{
    struct walk *walk = argument;
    CHECK_EQUAL(cuda.set_current(test.context), 0);
    for (int number = 0; number < walk->count; number++) {
        const uint64_t salt = mix(walk->salt, (uint64_t) number, 101);
        const int slot = (int) pick(salt, 50, SLOTS);
        if (!walk->keeps_groups && 0 == pick(salt, 52, 20)) {
            replace(walk, slot, salt);
            continue;
        }
        const struct group *group = &walk->groups[slot];
        const enum call drawn = draw_call(salt, group);
        struct shape shape = draw_shape(salt, group, is_served(drawn) ? drawn : ALLREDUCE);
        shape.form = BLOCKING;
        avoid_faults(&shape);
        run(&walk->job, &shape, group);
    }
    job_discard(&walk->job);
    return NULL;
}

static void run_random(int count, int used)
{
    static struct walk walks[MOST_THREADS];
    pthread_t threads[MOST_THREADS];
    for (int i = 0; i < used; i++) {
        walks[i].count = count;
        walks[i].keeps_groups = 1 < used;
        walks[i].salt = mix(1, (uint64_t) i, 103);
        for (int slot = 0; slot < SLOTS; slot++) {
            walks[i].groups[slot].comm = MPI_COMM_NULL;
            replace(&walks[i], slot, mix(walks[i].salt, (uint64_t) slot, 113));
        }
    }
    for (int i = 1; i < used; i++) {
        CHECK(0 == pthread_create(&threads[i], NULL, go, &walks[i]));
    }
    go(&walks[0]);
    for (int i = 1; i < used; i++) {
        CHECK(0 == pthread_join(threads[i], NULL));
    }
    for (int i = 0; i < used; i++) {
        for (int slot = 0; slot < SLOTS; slot++) {
            MPI_Comm_free(&walks[i].groups[slot].comm);
        }
    }
}

int main(int argc, char **argv)
{
    const bool shapes = 2 < argc && 0 == strcmp(argv[1], "shapes");
    const bool random = 2 < argc && 0 == strcmp(argv[1], "random");
    const int threads = random && 3 < argc ? atoi(argv[3]) : 1;
    CHECK(1 <= threads && threads <= MOST_THREADS);
    begin(argc, argv, 1 < threads ? MPI_THREAD_MULTIPLE : MPI_THREAD_SINGLE);
    remove_wrong();
    CHECK((shapes || random) && 0 < atoi(argv[2]));
    if (shapes && 3 < argc) {
        placement = atoi(argv[3]);
    }
    if (shapes) {
        run_shapes(atoi(argv[2]));
    } else {
        run_random(atoi(argv[2]), threads);
    }
    finish();
    return 0;
}
