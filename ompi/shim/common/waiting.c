/* How threads wait for requests, where there may be several: the engine's way, through the table of functions that Open
 * MPI keeps for whoever stands between it and the program. What is not usual is left to Open MPI's own functions, which
 * find complete what was waited for here. */
#include "component.h"

static ompi_request_fns_t own;
static bool replaced;

/* Whether a request is one that may be waited for here, if it has to be. */
static inline bool is_ours(const ompi_request_t *request)
{
    return OMPI_REQUEST_PML == request->req_type;
}

static inline bool is_pending(const ompi_request_t *request)
{
    return OMPI_REQUEST_INACTIVE != request->req_state && !REQUEST_COMPLETE(request);
}

static int wait_one(ompi_request_t **request, ompi_status_public_t *status)
{
    if (is_pending(*request) && is_ours(*request)) {
        /* Nothing else ends this wait. */
        while (!cableway_await(&(*request)->req_complete, cableway_failures())) {
            continue;
        }
    }
    return own.req_wait(request, status);
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

/* The end of a wait for requests of which all are complete, or some have failed; what is pending then stays so. Open MPI's
 * own function is not asked: among threads it never returns if a request has failed before it is called. Requests that
 * failed are left as it leaves them, to the one who tells the error handler. */
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

/* The last first: mostly it is the last to complete, so that this thread is woken once. */
static int wait_all(size_t count, ompi_request_t **requests, ompi_status_public_t *statuses)
{
    for (size_t i = 0; i < count; i++) {
        /* Requests of the program's own making have a function to be asked for their status. */
        if (OPAL_UNLIKELY(is_pending(requests[i]) ? !is_ours(requests[i])
                                                  : OMPI_REQUEST_GEN == requests[i]->req_type)) {
            return own.req_wait_all(count, requests, statuses);
        }
    }
    for (size_t i = count; i-- > 0;) {
        while (is_pending(requests[i])) {
            uint32_t failures = cableway_failures();
            if (OPAL_UNLIKELY(any_failed(count, requests))) {
                return finish(count, requests, statuses);
            }
            (void) cableway_await(&requests[i]->req_complete, failures);
        }
    }
    opal_atomic_rmb();
    return finish(count, requests, statuses);
}

/* Polls for a moment until one of several requests is complete: a wait of Open MPI's own has then nothing to sleep for. */
static void look_for_one(size_t count, ompi_request_t **requests)
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
    look_for_one(count, requests);
    return own.req_wait_any(count, requests, index, status);
}

static int wait_some(size_t count, ompi_request_t **requests, int *completed, int *indices,
                     ompi_status_public_t *statuses)
{
    look_for_one(count, requests);
    return own.req_wait_some(count, requests, completed, indices, statuses);
}

void cableway_waiting_begin(bool threads)
{
    if (threads && !replaced) {
        own = ompi_request_functions;
        ompi_request_functions.req_wait = wait_one;
        ompi_request_functions.req_wait_any = wait_any;
        ompi_request_functions.req_wait_all = wait_all;
        ompi_request_functions.req_wait_some = wait_some;
        replaced = true;
    }
}

void cableway_waiting_end(void)
{
    if (replaced) {
        ompi_request_functions = own;
        replaced = false;
    }
}
