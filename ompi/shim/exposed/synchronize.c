/* The synchronization of windows in device memory. Assertions are promises that nothing here needs, but
 * MPI_MODE_NOSUCCEED of a fence. */
#include "exposed.h"

#include <stdlib.h>

#define WINDOW cableway_exposed_of(win)->window

/* Passes a group to `call` as ranks of the window's communicator. */
static int with_ranks(ompi_group_t *group, ompi_win_t *win, int (*call)(void *window, const int *ranks, size_t count))
{
    const int count = ompi_group_size(group);
    int rc, *ranks = calloc(2 * (size_t) (count ? count : 1), sizeof *ranks);
    if (NULL == ranks) {
        return OMPI_ERR_OUT_OF_RESOURCE;
    }
    for (int i = 0; i < count; i++) {
        ranks[i] = i;
    }
    rc = ompi_group_translate_ranks(group, count, ranks, cableway_exposed_of(win)->communicator->c_local_group,
                                    ranks + count);
    if (OMPI_SUCCESS == rc) {
        rc = cableway_exposed_error(call(WINDOW, ranks + count, (size_t) count));
    }
    free(ranks);
    return rc;
}

static int win_start(ompi_group_t *group, int assertion, ompi_win_t *win)
{
    (void) assertion;
    return with_ranks(group, win, cableway_exposed_begin);
}

static int win_complete(ompi_win_t *win)
{
    return cableway_exposed_error(cableway_exposed_end(WINDOW));
}

static int win_post(ompi_group_t *group, int assertion, ompi_win_t *win)
{
    (void) assertion;
    return with_ranks(group, win, cableway_exposed_post);
}

static int win_wait(ompi_win_t *win)
{
    return cableway_exposed_error(cableway_exposed_wait(WINDOW));
}

static int win_test(ompi_win_t *win, int *flag)
{
    bool over = false;
    int rc = cableway_exposed_error(cableway_exposed_test(WINDOW, &over));
    *flag = over;
    return rc;
}

static int win_lock(int kind, int target, int assertion, ompi_win_t *win)
{
    (void) assertion;
    return cableway_exposed_error(cableway_exposed_lock(WINDOW, (uint32_t) target, MPI_LOCK_EXCLUSIVE == kind));
}

static int win_unlock(int target, ompi_win_t *win)
{
    return cableway_exposed_error(cableway_exposed_unlock(WINDOW, (uint32_t) target));
}

static int win_lock_all(int assertion, ompi_win_t *win)
{
    (void) assertion;
    return cableway_exposed_error(cableway_exposed_lock_all(WINDOW));
}

static int win_unlock_all(ompi_win_t *win)
{
    return cableway_exposed_error(cableway_exposed_unlock_all(WINDOW));
}

/* What an origin has completed is in the memory, so there is nothing to synchronize. */
static int win_sync(ompi_win_t *win)
{
    (void) win;
    opal_atomic_mb();
    return OMPI_SUCCESS;
}

static int win_flush(int target, ompi_win_t *win)
{
    return cableway_exposed_error(cableway_exposed_flush(WINDOW, (uint32_t) target));
}

static int win_flush_all(ompi_win_t *win)
{
    return cableway_exposed_error(cableway_exposed_flush_all(WINDOW));
}

void cableway_exposed_synchronization(ompi_osc_base_module_t *table)
{
    table->osc_start = win_start;
    table->osc_complete = win_complete;
    table->osc_post = win_post;
    table->osc_wait = win_wait;
    table->osc_test = win_test;
    table->osc_lock = win_lock;
    table->osc_unlock = win_unlock;
    table->osc_lock_all = win_lock_all;
    table->osc_unlock_all = win_unlock_all;
    table->osc_sync = win_sync;
    table->osc_flush = win_flush;
    table->osc_flush_all = win_flush_all;
    /* Completion at the origin is noticed with that at the target. */
    table->osc_flush_local = win_flush;
    table->osc_flush_local_all = win_flush_all;
}
