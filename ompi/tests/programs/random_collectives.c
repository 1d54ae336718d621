/* Random collectives in the same order on all processes, each verified: over communicators that are made and freed on the
 * way, blocking or several at once, with every buffer in host or device memory as drawn for each process.
 * CABLEWAY_CUDA_LIBDIR names the driver.
 *
 *   random_collectives COUNT SEED [THREADS]
 *
 * Each thread has its own communicators and jobs. With several threads, communicators are made before and freed after,
 * because Open MPI 4.1 hangs or crashes where threads make them concurrently, with its own components, too. The last line says how many operations of processes were verified. */
#include "collectives/draw.h"
#include "collectives/graphs.h"
#include "collectives/run.h"

#include <pthread.h>

enum { SLOTS = 5, AT_ONCE = 4, MOST_THREADS = 8 };

/* The state of a thread. */
struct walk {
    int count;
    bool keeps_groups;
    uint64_t salt;
    MPI_Comm base;
    struct group groups[SLOTS];
    struct job jobs[AT_ONCE];
    bool is_busy[AT_ONCE];
    int started_again[AT_ONCE];
};

static void complete(struct walk *walk, int i)
{
    struct job *job = &walk->jobs[i];
    if (walk->is_busy[i]) {
        wait_for(job);
        if (PERSISTENT == job->shape.form && walk->started_again[i] < 1) {
            walk->started_again[i]++;
            start_again(job);
            wait_for(job);
        }
        end(job);
        walk->is_busy[i] = false;
    }
}

static void complete_all(struct walk *walk)
{
    for (int i = 0; i < AT_ONCE; i++) {
        complete(walk, i);
    }
}

static void free_group(struct group *group)
{
    if (MPI_COMM_NULL != group->comm) {
        MPI_Comm_free(&group->comm);
    }
}

/* Puts another communicator in place of one, made from all processes or from those of a third. */
static void replace(struct walk *walk, int slot, uint64_t salt)
{
    const struct group *third = &walk->groups[pick(salt, 1, SLOTS)];
    MPI_Comm from = walk->base, comm;
    int rank;
    complete_all(walk);
    if (third != &walk->groups[slot] && MPI_COMM_NULL != third->comm && !third->is_graph) {
        from = third->comm;
    }
    MPI_Comm_rank(from, &rank);
    free_group(&walk->groups[slot]);
    switch (pick(salt, 2, 5)) {
    case 0:
        MPI_Comm_dup(from, &comm);
        walk->groups[slot] = group_of(comm);
        break;
    case 1: walk->groups[slot] = make_grid(from); break;
    case 2: walk->groups[slot] = make_graph(from, salt); break;
    default:
        MPI_Comm_split(from, (int) (mix(salt, (uint64_t) rank, 97) % 3), pick(salt, 3, 2) ? rank : -rank, &comm);
        walk->groups[slot] = group_of(comm);
    }
}

static void step(struct walk *walk, int number)
{
    const uint64_t salt = mix(walk->salt, (uint64_t) number, 101);
    const int slot = (int) pick(salt, 50, SLOTS), place = (int) pick(salt, 51, AT_ONCE);
    struct group *group = &walk->groups[slot];
    if (!walk->keeps_groups && 0 == pick(salt, 52, 20)) {
        replace(walk, slot, salt);
        return;
    }
    complete(walk, place);
    const struct shape shape = draw_shape(salt, group, draw_call(salt, group));
    start(&walk->jobs[place], &shape, group);
    walk->is_busy[place] = true;
    walk->started_again[place] = 0;
    if (BLOCKING == shape.form) {
        complete(walk, place);
    }
}

static void make_groups(struct walk *walk)
{
    MPI_Comm_dup(MPI_COMM_WORLD, &walk->base);
    for (int slot = 0; slot < SLOTS; slot++) {
        walk->groups[slot].comm = MPI_COMM_NULL;
    }
    for (int slot = 0; slot < SLOTS; slot++) {
        replace(walk, slot, mix(walk->salt, (uint64_t) slot, 113));
    }
}

static void free_groups(struct walk *walk)
{
    for (int slot = 0; slot < SLOTS; slot++) {
        free_group(&walk->groups[slot]);
    }
    MPI_Comm_free(&walk->base);
}

static void *go(void *argument)
{
    struct walk *walk = argument;
    CHECK_EQUAL(cuda.set_current(test.context), 0);
    for (int number = 0; number < walk->count; number++) {
        step(walk, number);
    }
    complete_all(walk);
    for (int i = 0; i < AT_ONCE; i++) {
        job_discard(&walk->jobs[i]);
    }
    return NULL;
}

int main(int argc, char **argv)
{
    static struct walk walks[MOST_THREADS];
    pthread_t threads[MOST_THREADS];
    const int count = argc > 2 ? atoi(argv[1]) : 0, used = argc > 3 ? atoi(argv[3]) : 1;
    begin(argc, argv, used > 1 ? MPI_THREAD_MULTIPLE : MPI_THREAD_SINGLE);
    CHECK(0 < count && 1 <= used && used <= MOST_THREADS);
    for (int i = 0; i < used; i++) {
        walks[i].count = count;
        walks[i].salt = mix(strtoull(argv[2], NULL, 10), (uint64_t) i, 103);
        walks[i].keeps_groups = 1 < used;
        make_groups(&walks[i]);
    }
    for (int i = 1; i < used; i++) {
        CHECK(0 == pthread_create(&threads[i], NULL, go, &walks[i]));
    }
    go(&walks[0]);
    for (int i = 1; i < used; i++) {
        CHECK(0 == pthread_join(threads[i], NULL));
    }
    for (int i = 0; i < used; i++) {
        free_groups(&walks[i]);
    }
    finish();
    return 0;
}
