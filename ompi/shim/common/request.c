/* Requests: their construction, release and completion. */
#include "shim.h"

opal_free_list_t cableway_requests;

static int request_free(ompi_request_t **handle);
static int request_cancel(ompi_request_t *handle, int flag);

static void construct(cableway_request_t *request)
{
    cableway_request_construct(request->engine, request);
    request->ompi.req_type = OMPI_REQUEST_PML;
    request->ompi.req_free = request_free;
    request->ompi.req_cancel = request_cancel;
}

static void destruct(cableway_request_t *request)
{
    cableway_request_destruct(request->engine);
}

OBJ_CLASS_INSTANCE(cableway_request_t, ompi_request_t, construct, destruct);

cableway_request_t *cableway_request_new(ompi_communicator_t *communicator, const void *address, size_t count,
                                         ompi_datatype_t *datatype, int peer, int tag, bool persistent)
{
    cableway_request_t *request = (cableway_request_t *) opal_free_list_wait(&cableway_requests);
    OMPI_REQUEST_INIT(&request->ompi, persistent);
    request->ompi.req_mpi_object.comm = communicator;
    request->ompi.req_status = ompi_status_empty;
    request->references = 1;
    request->communicator = communicator;
    request->datatype = datatype;
    request->address = (void *) address;
    request->count = count;
    request->peer = peer;
    request->tag = tag;
    request->bsend_buffer = NULL;
    cableway_retain_communicator(communicator);
    /* Predefined datatypes are never freed. */
    if (!ompi_datatype_is_predefined(datatype)) {
        OBJ_RETAIN(datatype);
    }
    return request;
}

static void recycle(cableway_request_t *request)
{
    if (!ompi_datatype_is_predefined(request->datatype)) {
        OBJ_RELEASE(request->datatype);
    }
    cableway_release_communicator(request->communicator, request->ompi.req_status.MPI_ERROR);
    OMPI_REQUEST_FINI(&request->ompi);
    opal_free_list_return(&cableway_requests, &request->ompi.super);
}

void cableway_request_release(cableway_request_t *request)
{
    if (0 == OPAL_THREAD_ADD_FETCH32(&request->references, -1)) {
        recycle(request);
    }
}

/* Returns whether req_free may recycle a plain receive now. If not, its completion will recycle it. */
static bool may_recycle(cableway_request_t *request)
{
    void *pending = REQUEST_PENDING;
    if (REQUEST_COMPLETE(&request->ompi)) {
        opal_atomic_rmb();
        return true;
    }
    return request->in_callback
           || !OPAL_ATOMIC_COMPARE_EXCHANGE_STRONG_PTR(&request->ompi.req_complete, &pending, CABLEWAY_FREED);
}

static int request_free(ompi_request_t **handle)
{
    cableway_request_t *request = (cableway_request_t *) *handle;
    *handle = MPI_REQUEST_NULL;
    if (CABLEWAY_UNCOUNTED != request->references) {
        cableway_request_release(request);
    } else if (may_recycle(request)) {
        recycle(request);
    }
    return OMPI_SUCCESS;
}

static int request_cancel(ompi_request_t *handle, int flag)
{
    cableway_request_t *request = (cableway_request_t *) handle;
    (void) flag;
    /* Cancelling a send has no effect, which MPI allows. */
    if (CABLEWAY_RECEIVE == request->kind) {
        cableway_cancel(request->engine);
    }
    return OMPI_SUCCESS;
}

/* Returns MPI's error classes rather than OMPI_ERR codes, because statuses hold them as well. */
int cableway_error(int code)
{
    switch (code) {
    case CABLEWAY_OK: return MPI_SUCCESS;
    case CABLEWAY_TRUNCATED: return MPI_ERR_TRUNCATE;
    case CABLEWAY_BAD_ARGUMENT: return MPI_ERR_ARG;
    case CABLEWAY_NO_SUCH_RANK: return MPI_ERR_RANK;
    case CABLEWAY_NO_MEMORY: return MPI_ERR_NO_MEM;
    case CABLEWAY_INTERNAL: return MPI_ERR_INTERN;
    case CABLEWAY_REVOKED: return CABLEWAY_ERR_REVOKED;
    /* Open MPI 4.1 has no error class for a failed process. The log names the process and the cause. */
    case CABLEWAY_PEER_FAILED:
    case CABLEWAY_UNREACHABLE:
    default: return MPI_ERR_OTHER;
    }
}

/* Does what ompi_request_complete does, and wakes the waiters of waiting.c. Afterwards the engine must not touch the
 * request unless its references are counted. */
static void complete(cableway_request_t *request)
{
    ompi_request_complete_fn_t report = request->ompi.req_complete_cb;
    int error = request->ompi.req_status.MPI_ERROR;
    void *waiter;
    if (OPAL_UNLIKELY(NULL != report)) {
        /* The callback may set another one. */
        request->ompi.req_complete_cb = NULL;
        request->in_callback = true;
        if (0 != report(&request->ompi)) {
            return;
        }
        request->in_callback = false;
    }
    waiter = (void *) OPAL_ATOMIC_SWAP_PTR(&request->ompi.req_complete, REQUEST_COMPLETED);
    if (OPAL_LIKELY(REQUEST_PENDING == waiter)) {
        return;
    }
    if (CABLEWAY_FREED == waiter) {
        recycle(request);
    } else if ((uintptr_t) waiter & CABLEWAY_WAITER) {
        cableway_wake(waiter);
    } else {
        wait_sync_update((ompi_wait_sync_t *) waiter, 1, error);
    }
}

void cableway_buffered_release(cableway_request_t *copy)
{
    if (NULL != copy->bsend_buffer) {
        (void) mca_pml_base_bsend_request_free(copy->bsend_buffer);
        copy->bsend_buffer = NULL;
    }
}

/* The number of shim_completed calls on the stack. */
static int completing;

bool shim_is_completing(void)
{
    return 0 != completing;
}

void shim_completed(void *owner, int source, int tag, uint64_t len, bool cancelled, int code)
{
    cableway_request_t *request = owner;
    const bool counted = CABLEWAY_UNCOUNTED != request->references;
    completing++;
    if (OPAL_UNLIKELY(CABLEWAY_BUFFERED == request->kind)) {
        /* The program's request completed when the copy was made. */
        cableway_buffered_release(request);
    } else {
        ompi_status_public_t *status = &request->ompi.req_status;
        if (CABLEWAY_RECEIVE == request->kind) {
            const struct cableway_status result = {.source = source, .tag = tag, .len = len, .cancelled = cancelled};
            cableway_set_status(status, &result);
        }
        status->MPI_ERROR = OPAL_LIKELY(CABLEWAY_OK == code) ? MPI_SUCCESS : cableway_error(code);
        complete(request);
        if (OPAL_UNLIKELY(CABLEWAY_OK != code)) {
            cableway_count_failure();
        }
    }
    if (counted) {
        cableway_request_release(request);
    }
    completing--;
}
