/* Prepares, starts and verifies jobs. */
#ifndef RUN_H
#define RUN_H

#include "issue.h"
#include "moved.h"
#include "reduced.h"

/* Starts a program, and makes its types. */
static inline void begin(int argc, char **argv, int threads)
{
    set_up(argc, argv, threads);
    CHECK(test.size <= MOST);
    make_types();
    make_layouts();
}

static inline void finish(void)
{
    free_types();
    free_layouts();
    tear_down();
}

static void fill(struct job *job)
{
    if (is_reduction(job->shape.call)) {
        fill_reduction(job);
    } else {
        fill_movement(job);
    }
    memory_put(&job->send);
    memory_put(&job->recv);
}

/* Makes buffers and starts the operation. A blocking one has completed afterwards. */
static void start(struct job *job, const struct shape *shape, const struct group *group)
{
    job->shape = *shape;
    job->group = group;
    job->round = 0;
    job->request = MPI_REQUEST_NULL;
    find_role(job);
    if (is_reduction(shape->call)) {
        arrange_reduction(job);
    } else {
        arrange_movement(job);
    }
    fill(job);
    CHECK_EQUAL(issue(job), MPI_SUCCESS);
    if (PERSISTENT == shape->form) {
        CHECK_EQUAL(MPI_Start(&job->request), MPI_SUCCESS);
    }
}

/* Starts a persistent operation once more, with other data. */
static inline void start_again(struct job *job)
{
    job->round++;
    fill(job);
    CHECK_EQUAL(MPI_Start(&job->request), MPI_SUCCESS);
}

/* Compares both buffers, when the operation has completed. */
static void verify(struct job *job)
{
    memory_get(&job->send);
    memory_get(&job->recv);
    long at = memory_differs(&job->send);
    if (0 <= at) {
        fail(job, "send buffer", at, job->send.got + at, job->send.want + at);
    }
    at = memory_differs(&job->recv);
    if (0 <= at && (!is_reduction(job->shape.call) || result_differs(job, &at))) {
        fail(job, "receive buffer", at, job->recv.got + at, job->recv.want + at);
    }
    count_check();
}

static void wait_for(struct job *job)
{
    if (BLOCKING != job->shape.form) {
        CHECK_EQUAL(MPI_Wait(&job->request, MPI_STATUS_IGNORE), MPI_SUCCESS);
    }
    verify(job);
}

/* Frees a persistent operation. */
static void end(struct job *job)
{
    if (PERSISTENT == job->shape.form) {
        MPI_Request_free(&job->request);
    }
}

/* Does all of it. A persistent operation is started several times. */
static inline void run(struct job *job, const struct shape *shape, const struct group *group)
{
    start(job, shape, group);
    wait_for(job);
    for (int again = 0; PERSISTENT == shape->form && again < 2; again++) {
        start_again(job);
        wait_for(job);
    }
    end(job);
}

static inline void job_discard(struct job *job)
{
    memory_discard(&job->send);
    memory_discard(&job->recv);
}

#endif
