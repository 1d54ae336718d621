/* Requests of operations on windows in device memory. */
#include "exposed.h"

int cableway_exposed_error(int code)
{
    switch (code) {
    case CABLEWAY_WINDOW_RANGE: return MPI_ERR_RMA_RANGE;
    case CABLEWAY_WINDOW_EPOCH: return MPI_ERR_RMA_SYNC;
    case CABLEWAY_WINDOW_ATTACH: return MPI_ERR_RMA_ATTACH;
    case CABLEWAY_WINDOW_OPERATION: return MPI_ERR_OP;
    default: return cableway_error(code);
    }
}

struct window_request {
    ompi_request_t super;
    volatile int32_t references; /* the program's until it frees the request, and that of the operation */
};
typedef struct window_request window_request_t;

static void release(window_request_t *self)
{
    if (0 == OPAL_THREAD_ADD_FETCH32(&self->references, -1)) {
        OMPI_REQUEST_FINI(&self->super);
        OBJ_RELEASE(self);
    }
}

void shim_window_completed(void *owner, int code)
{
    window_request_t *self = owner;
    self->super.req_status.MPI_ERROR = cableway_exposed_error(code);
    (void) ompi_request_complete(&self->super, true);
    release(self);
}

static int request_free(ompi_request_t **handle)
{
    window_request_t *self = (window_request_t *) *handle;
    *handle = MPI_REQUEST_NULL;
    release(self);
    return OMPI_SUCCESS;
}

static int request_cancel(ompi_request_t *handle, int flag)
{
    (void) handle, (void) flag;
    return MPI_ERR_REQUEST;
}

static void construct(window_request_t *self)
{
    self->super.req_type = OMPI_REQUEST_WIN;
    self->super.req_free = request_free;
    self->super.req_cancel = request_cancel;
    self->references = 2;
}

static OBJ_CLASS_INSTANCE(window_request_t, ompi_request_t, construct, NULL);

ompi_request_t *cableway_exposed_request(ompi_win_t *win)
{
    window_request_t *self = OBJ_NEW(window_request_t);
    if (NULL == self) {
        return NULL;
    }
    OMPI_REQUEST_INIT(&self->super, false);
    self->super.req_mpi_object.win = win;
    self->super.req_status = ompi_status_empty;
    self->super.req_complete = REQUEST_PENDING;
    self->super.req_state = OMPI_REQUEST_ACTIVE;
    return &self->super;
}

void cableway_exposed_request_discard(ompi_request_t *request)
{
    release((window_request_t *) request);
    release((window_request_t *) request);
}
