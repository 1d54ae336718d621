/* The table of functions that libcableway_mp.so looks up, and what of them calls MPI. */
#include "mp.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

/* A window, and the communicator that carries its operations. */
struct window {
    void *engine;
    MPI_Comm communicator;
};

static bool active(void)
{
    return OMPI_MPI_STATE_INIT_COMPLETED <= ompi_mpi_state && !cableway_is_finalizing() && cableway_is_selected();
}

static int failed(char *why, size_t room, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    (void) vsnprintf(why, room, format, arguments);
    va_end(arguments);
    return 1;
}

/* Duplicates an intracommunicator. */
static int duplicate(MPI_Comm communicator, MPI_Comm *out, char *why, size_t room)
{
    int rc;
    if (ompi_comm_invalid(communicator) || OMPI_COMM_IS_INTER(communicator)) {
        return failed(why, room, "the communicator is not valid, or is an intercommunicator");
    }
    rc = PMPI_Comm_dup(communicator, out);
    return MPI_SUCCESS == rc ? 0 : failed(why, room, "MPI_Comm_dup answered %d", rc);
}

static int open_job(void *communicator, struct cableway_mp_job *out, char *why, size_t room)
{
    MPI_Comm duplicated;
    /* The first stream makes locks real, which no call of the program may hold now. */
    if (!opal_using_threads() && shim_is_completing()) {
        return failed(why, room, "it is called within a callback of MPI");
    }
    if (0 != duplicate(communicator, &duplicated, why, room)) {
        return 1;
    }
    if (0 != cableway_mp_prepare(why, room)) {
        (void) PMPI_Comm_free(&duplicated);
        return 1;
    }
    out->communicator = duplicated;
    out->handle = cableway_handle(duplicated);
    out->rank = ompi_comm_rank(duplicated);
    out->size = ompi_comm_size(duplicated);
    return 0;
}

static void close_job(struct cableway_mp_job *job)
{
    MPI_Comm communicator = job->communicator;
    (void) PMPI_Barrier(communicator);
    (void) PMPI_Comm_free(&communicator);
}

static int open_window(const struct cableway_mp_job *job, void *address, uint64_t len, void **out, char *why,
                       size_t room)
{
    struct window *window = calloc(1, sizeof *window);
    int ok = NULL != window, all = 0, rc;
    if (!ok) {
        (void) failed(why, room, "there is no memory");
    } else if (0 != duplicate(job->communicator, &window->communicator, why, room)) {
        /* The others wait in the same call, so this one cannot go on. */
        free(window);
        return 1;
    } else {
        ok = 0 == cableway_mp_window_new(cableway_handle(window->communicator), address, len, &window->engine, why, room);
    }
    /* No process reaches the window before all have it, or if one has not. */
    rc = PMPI_Allreduce(&ok, &all, 1, MPI_INT, MPI_MIN, job->communicator);
    if (MPI_SUCCESS == rc && all) {
        *out = window;
        return 0;
    }
    if (ok) {
        (void) failed(why, room, "another process could not create its part");
        cableway_mp_window_free(window->engine);
    }
    if (NULL != window) {
        (void) PMPI_Comm_free(&window->communicator);
        free(window);
    }
    return 1;
}

static void close_window(void *closed)
{
    struct window *window = closed;
    cableway_mp_window_finish(window->engine);
    /* Nobody has anything under way after this. */
    (void) PMPI_Barrier(window->communicator);
    cableway_mp_window_free(window->engine);
    (void) PMPI_Comm_free(&window->communicator);
    free(window);
}

static int post(const struct cableway_mp_job *job, const void *stream, struct cableway_mp_operation *operations,
                size_t count, char *why, size_t room)
{
    for (size_t i = 0; i < count; i++) {
        if (NULL != operations[i].window) {
            const struct window *window = operations[i].window;
            operations[i].window = window->engine;
        }
    }
    return cableway_mp_post(job, stream, operations, count, why, room);
}

static const struct cableway_mp table = {
    .version = 3,
    .active = active,
    .open = open_job,
    .close = close_job,
    .stream_open = cableway_mp_stream_open,
    .stream_close = cableway_stream_free,
    .window_open = open_window,
    .window_close = close_window,
    .memory_register = cableway_mp_memory_register,
    .memory_release = cableway_mp_memory_release,
    .on_host = cableway_mp_on_host,
    .post = post,
    .is_over = cableway_mp_is_over,
    .wait = cableway_mp_wait,
    .message_free = cableway_stream_message_free,
    .words_open = cableway_mp_words_open,
    .words_close = cableway_mp_words_close,
    .words_follow = cableway_mp_words_follow,
    .words_seen = cableway_mp_words_seen,
    .reaches = cableway_mp_reaches,
    .progress = cableway_mp_progress,
};

const struct cableway_mp *shim_mp(void)
{
    return &table;
}
