/* Waits for requests under MPI_THREAD_MULTIPLE through the engine, by replacing entries of Open MPI's table of request
 * functions. Unusual cases are passed on to Open MPI's own functions. */
#include "shim.h"

static ompi_request_fns_t saved;
static bool replaced;

static inline bool is_pml_request(const ompi_request_t *request)
{
    return OMPI_REQUEST_PML == request->req_type;
}

static inline bool is_pending(const ompi_request_t *request)
{
    return OMPI_REQUEST_INACTIVE != request->req_state && !REQUEST_COMPLETE(request);
}

static int wait_one(ompi_request_t **request, ompi_status_public_t *status)
{
    if (is_pending(*request) && is_pml_request(*request)) {
        /* cableway_await also returns when another request fails. */
        while (!cableway_await(&(*request)->req_complete, cableway_failure_count())) {
            continue;
        }
    }
    return saved.req_wait(request, status);
}

static bool has_failed(const ompi_request_t *request)
{
    return OMPI_REQUEST_INACTIVE != request->req_state && REQUEST_COMPLETE(request)
           && MPI_SUCCESS != request->req_status.MPI_ERROR;
}

static bool any_failed(size_t count, ompi_request_t **requests)
{
    for (size_t i = 0; i < count; i++) {
        if (has_failed(requests[i])) {
            return true;
        }
    }
    return false;
}

/* Ends a wait when all requests are complete or one has failed, and fills in the statuses. Open MPI's own function
 * cannot be used: under MPI_THREAD_MULTIPLE it never returns if a request failed before the call. As in Open MPI,
 * failed requests are not freed here but by the caller, which calls the error handler. */
static int finish(size_t count, ompi_request_t **requests, ompi_status_public_t *statuses)
{
    int first = MPI_SUCCESS;
    for (size_t i = 0; i < count; i++) {
        ompi_request_t *request = requests[i];
        if (OMPI_REQUEST_INACTIVE == request->req_state) {
            if (MPI_STATUSES_IGNORE != statuses) {
                statuses[i] = ompi_status_empty;
            }
            continue;
        }
        if (OPAL_UNLIKELY(is_pending(request))) {
            if (MPI_STATUSES_IGNORE != statuses) {
                statuses[i].MPI_ERROR = MPI_ERR_PENDING;
            }
            continue;
        }
        if (MPI_STATUSES_IGNORE != statuses) {
            statuses[i] = request->req_status;
        }
        if (request->req_persistent) {
            request->req_state = OMPI_REQUEST_INACTIVE;
        }
        if (OPAL_UNLIKELY(MPI_SUCCESS != request->req_status.MPI_ERROR)) {
            first = MPI_SUCCESS == first ? request->req_status.MPI_ERROR : first;
        } else if (!request->req_persistent) {
            (void) ompi_request_free(&requests[i]);
        }
    }
    return MPI_SUCCESS == first || MPI_STATUSES_IGNORE == statuses ? first : MPI_ERR_IN_STATUS;
}

/* Waits for the last request first: it usually completes last, so that the thread wakes only once. */
static int wait_all(size_t count, ompi_request_t **requests, ompi_status_public_t *statuses)
{
    for (size_t i = 0; i < count; i++) {
        /* Only Open MPI's function queries the status of generalized requests. */
        if (OPAL_UNLIKELY(is_pending(requests[i]) ? !is_pml_request(requests[i])
                                                  : OMPI_REQUEST_GEN == requests[i]->req_type)) {
            return saved.req_wait_all(count, requests, statuses);
        }
    }
    for (size_t i = count; i-- > 0;) {
        while (is_pending(requests[i])) {
            uint32_t failures = cableway_failure_count();
            if (OPAL_UNLIKELY(any_failed(count, requests))) {
                return finish(count, requests, statuses);
            }
            (void) cableway_await(&requests[i]->req_complete, failures);
        }
    }
    opal_atomic_rmb();
    return finish(count, requests, statuses);
}

/* Polls briefly until one of the requests is complete, so that Open MPI's own wait function need not sleep. */
static void poll_for_any(size_t count, ompi_request_t **requests)
{
    enum { POLLS = 256 };
    for (int polls = 0; polls < POLLS; polls++) {
        bool pending = false;
        for (size_t i = 0; i < count; i++) {
            if (OMPI_REQUEST_INACTIVE != requests[i]->req_state) {
                if (REQUEST_COMPLETE(requests[i])) {
                    return;
                }
                pending = true;
            }
        }
        if (!pending) {
            return;
        }
        (void) cableway_progress();
    }
}

static int wait_any(size_t count, ompi_request_t **requests, int *index, ompi_status_public_t *status)
{
    poll_for_any(count, requests);
    return saved.req_wait_any(count, requests, index, status);
}

static int wait_some(size_t count, ompi_request_t **requests, int *completed, int *indices,
                     ompi_status_public_t *statuses)
{
    poll_for_any(count, requests);
    return saved.req_wait_some(count, requests, completed, indices, statuses);
}

void cableway_wait_functions_install(bool threads)
{
    if (threads && !replaced) {
        saved = ompi_request_functions;
        ompi_request_functions.req_wait = wait_one;
        ompi_request_functions.req_wait_any = wait_any;
        ompi_request_functions.req_wait_all = wait_all;
        ompi_request_functions.req_wait_some = wait_some;
        replaced = true;
    }
}

void cableway_wait_functions_restore(void)
{
    if (replaced) {
        ompi_request_functions = saved;
        replaced = false;
    }
}
