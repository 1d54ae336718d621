/* The functions that replace those in a window's table. */
#include "windows.h"

#define READ CABLEWAY_READ
#define WRITE CABLEWAY_WRITE

#define ENTER                                                                                                          \
    cableway_window_t *window = cableway_window_of(win);                                                               \
    void *staging = NULL;                                                                                              \
    int rc = OMPI_SUCCESS;

/* Replaces a device buffer by a host copy. */
#define STAGE(buffer, count, datatype, access)                                                                         \
    if (OPAL_UNLIKELY(cableway_devices_present()) && OMPI_SUCCESS == rc) {                                             \
        rc = cableway_stage_one(&staging, (void **) &(buffer), (size_t) (count), datatype, access);                    \
    }

#define FILL                                                                                                           \
    if (OPAL_UNLIKELY(NULL != staging) && OMPI_SUCCESS == rc) {                                                        \
        rc = cableway_error(cableway_staging_fill(staging));                                                           \
    }

/* Calls the lower function. Its host copies are in use until a synchronization. */
#define CALL(function, target, ...)                                                                                    \
    FILL                                                                                                               \
    if (OPAL_LIKELY(OMPI_SUCCESS == rc)) {                                                                             \
        rc = window->lower.osc_##function(__VA_ARGS__);                                                                \
    }                                                                                                                  \
    if (OPAL_UNLIKELY(NULL != staging)) {                                                                              \
        rc = OMPI_SUCCESS == rc ? cableway_window_track(window, target, staging) : rc;                                 \
        if (OMPI_SUCCESS != rc) {                                                                                      \
            cableway_staging_free(staging);                                                                            \
        }                                                                                                              \
    }                                                                                                                  \
    return rc;

/* Calls the lower function. Its host copies are in use until its request completes. */
#define REQUEST(function, ...)                                                                                         \
    FILL                                                                                                               \
    if (OPAL_LIKELY(OMPI_SUCCESS == rc)) {                                                                             \
        rc = window->lower.osc_##function(__VA_ARGS__, request);                                                       \
    }                                                                                                                  \
    if (OPAL_UNLIKELY(NULL != staging)) {                                                                              \
        if (OMPI_SUCCESS == rc) {                                                                                      \
            return cableway_staging_request(request, staging, NULL);                                                   \
        }                                                                                                              \
        cableway_staging_free(staging);                                                                                \
    }                                                                                                                  \
    return rc;

#define TARGET int target, ptrdiff_t at, int target_count, ompi_datatype_t *target_type
#define TARGET_ARGUMENTS target, at, target_count, target_type

/* MPI_NO_OP ignores the origin buffer. */
static bool has_origin(const struct ompi_op_t *op)
{
    return op != &ompi_mpi_op_no_op.op;
}

static int put(const void *origin, int count, ompi_datatype_t *type, TARGET, ompi_win_t *win)
{
    ENTER
    STAGE(origin, count, type, READ)
    CALL(put, target, origin, count, type, TARGET_ARGUMENTS, win)
}

static int rput(const void *origin, int count, ompi_datatype_t *type, TARGET, ompi_win_t *win,
                ompi_request_t **request)
{
    ENTER
    STAGE(origin, count, type, READ)
    REQUEST(rput, origin, count, type, TARGET_ARGUMENTS, win)
}

static int get(void *origin, int count, ompi_datatype_t *type, TARGET, ompi_win_t *win)
{
    ENTER
    STAGE(origin, count, type, WRITE)
    CALL(get, target, origin, count, type, TARGET_ARGUMENTS, win)
}

static int rget(void *origin, int count, ompi_datatype_t *type, TARGET, ompi_win_t *win, ompi_request_t **request)
{
    ENTER
    STAGE(origin, count, type, WRITE)
    REQUEST(rget, origin, count, type, TARGET_ARGUMENTS, win)
}

static int accumulate(const void *origin, int count, ompi_datatype_t *type, TARGET, struct ompi_op_t *op,
                      ompi_win_t *win)
{
    ENTER
    STAGE(origin, count, type, READ)
    CALL(accumulate, target, origin, count, type, TARGET_ARGUMENTS, op, win)
}

static int raccumulate(const void *origin, int count, ompi_datatype_t *type, TARGET, struct ompi_op_t *op,
                       ompi_win_t *win, ompi_request_t **request)
{
    ENTER
    STAGE(origin, count, type, READ)
    REQUEST(raccumulate, origin, count, type, TARGET_ARGUMENTS, op, win)
}

static int get_accumulate(const void *origin, int count, ompi_datatype_t *type, void *result, int result_count,
                          ompi_datatype_t *result_type, TARGET, struct ompi_op_t *op, ompi_win_t *win)
{
    ENTER
    if (has_origin(op)) {
        STAGE(origin, count, type, READ)
    }
    STAGE(result, result_count, result_type, WRITE)
    CALL(get_accumulate, target, origin, count, type, result, result_count, result_type, TARGET_ARGUMENTS, op, win)
}

static int rget_accumulate(const void *origin, int count, ompi_datatype_t *type, void *result, int result_count,
                           ompi_datatype_t *result_type, TARGET, struct ompi_op_t *op, ompi_win_t *win,
                           ompi_request_t **request)
{
    ENTER
    if (has_origin(op)) {
        STAGE(origin, count, type, READ)
    }
    STAGE(result, result_count, result_type, WRITE)
    REQUEST(rget_accumulate, origin, count, type, result, result_count, result_type, TARGET_ARGUMENTS, op, win)
}

static int fetch_and_op(const void *origin, void *result, ompi_datatype_t *type, int target, ptrdiff_t at,
                        struct ompi_op_t *op, ompi_win_t *win)
{
    ENTER
    if (has_origin(op)) {
        STAGE(origin, 1, type, READ)
    }
    STAGE(result, 1, type, WRITE)
    CALL(fetch_and_op, target, origin, result, type, target, at, op, win)
}

static int compare_and_swap(const void *origin, const void *compare, void *result, ompi_datatype_t *type, int target,
                            ptrdiff_t at, ompi_win_t *win)
{
    ENTER
    STAGE(origin, 1, type, READ)
    STAGE(compare, 1, type, READ)
    STAGE(result, 1, type, WRITE)
    CALL(compare_and_swap, target, origin, compare, result, type, target, at, win)
}

/* --- synchronization --- */

/* A synchronization completes the operations to one target, or to all. */
#define SYNCHRONIZE(name, completed, parameters, ...)                                                                  \
    static int name parameters                                                                                         \
    {                                                                                                                  \
        cableway_window_t *window = cableway_window_of(win);                                                           \
        int rc = window->lower.osc_##name(__VA_ARGS__);                                                                \
        return OMPI_SUCCESS == rc ? cableway_window_complete(window, completed) : rc;                                  \
    }

SYNCHRONIZE(fence, CABLEWAY_EVERY_TARGET, (int assertion, ompi_win_t *win), assertion, win)
SYNCHRONIZE(complete, CABLEWAY_EVERY_TARGET, (ompi_win_t *win), win)
SYNCHRONIZE(unlock, target, (int target, ompi_win_t *win), target, win)
SYNCHRONIZE(unlock_all, CABLEWAY_EVERY_TARGET, (ompi_win_t *win), win)
SYNCHRONIZE(flush, target, (int target, ompi_win_t *win), target, win)
SYNCHRONIZE(flush_all, CABLEWAY_EVERY_TARGET, (ompi_win_t *win), win)
SYNCHRONIZE(flush_local, target, (int target, ompi_win_t *win), target, win)
SYNCHRONIZE(flush_local_all, CABLEWAY_EVERY_TARGET, (ompi_win_t *win), win)

static int win_free(ompi_win_t *win)
{
    cableway_window_t *window = cableway_window_of(win);
    int rc = window->lower.osc_free(win);
    cableway_window_remove(window);
    return rc;
}

static int win_attach(ompi_win_t *win, void *base, size_t size)
{
    if (cableway_devices_present() && cableway_on_device(base, size)) {
        shim_log("cannot attach device memory to a window that was created when no process had a device driver; "
                 "create the window afterwards");
        return MPI_ERR_RMA_ATTACH;
    }
    return cableway_window_of(win)->lower.osc_win_attach(win, base, size);
}

void cableway_window_functions(ompi_osc_base_module_t *table)
{
    table->osc_put = put;
    table->osc_get = get;
    table->osc_accumulate = accumulate;
    table->osc_compare_and_swap = compare_and_swap;
    table->osc_fetch_and_op = fetch_and_op;
    table->osc_get_accumulate = get_accumulate;
    table->osc_rput = rput;
    table->osc_rget = rget;
    table->osc_raccumulate = raccumulate;
    table->osc_rget_accumulate = rget_accumulate;
    table->osc_fence = fence;
    table->osc_complete = complete;
    table->osc_unlock = unlock;
    table->osc_unlock_all = unlock_all;
    table->osc_flush = flush;
    table->osc_flush_all = flush_all;
    table->osc_flush_local = flush_local;
    table->osc_flush_local_all = flush_local_all;
    table->osc_free = win_free;
    table->osc_win_attach = win_attach;
}
