/* Requests of nonblocking calls that run on host copies.
 *
 * The program gets an outer request. The inner request is that of the call on the host copies. The completion callback
 * of the inner request copies back what the call wrote, and completes the outer request. The callback cannot free the
 * inner request, which its owner still holds. It is freed with the outer request. If the program has freed the outer
 * request before, both become orphans, and creating the next staged request frees them. */
#include "staged.h"

#include "ompi/mca/coll/base/coll_base_util.h"
#include "ompi/request/grequest.h"

struct staged_request {
    ompi_coll_base_nbc_request_t super; /* MPI's bindings keep a collective's datatypes and operation alive in it */
    ompi_request_t *inner;
    ompi_communicator_t *communicator; /* NULL of a call without one */
    void *staging;
    struct cableway_kept kept; /* what a persistent call uses */
    volatile int32_t references; /* the program's until it frees the request, and that of a running call */
    volatile int32_t running;
};
typedef struct staged_request staged_request_t;
OBJ_CLASS_DECLARATION(staged_request_t);

static opal_mutex_t lock = OPAL_MUTEX_STATIC_INIT;
static opal_list_t *orphans;

static int completed(ompi_request_t *inner);

/* Frees the outer request. Its inner request is free. */
static void discard(staged_request_t *self)
{
    if (NULL != self->communicator) {
        cableway_release_communicator(self->communicator, self->super.super.req_status.MPI_ERROR);
    }
    cableway_kept_release(&self->kept);
    OMPI_REQUEST_FINI(&self->super.super);
    OBJ_RELEASE(self);
}

static void free_orphans(void)
{
    opal_list_item_t *item;
    while (NULL != orphans) {
        opal_mutex_atomic_lock(&lock);
        item = opal_list_remove_first(orphans);
        opal_mutex_atomic_unlock(&lock);
        if (NULL == item) {
            return;
        }
        staged_request_t *self = (staged_request_t *) item;
        (void) ompi_request_free(&self->inner);
        discard(self);
    }
}

static void release(staged_request_t *self, bool inner_is_free)
{
    if (0 != OPAL_THREAD_ADD_FETCH32(&self->references, -1)) {
        return;
    }
    cableway_staging_free(self->staging);
    self->staging = NULL;
    if (inner_is_free) {
        if (MPI_REQUEST_NULL != self->inner) {
            (void) ompi_request_free(&self->inner);
        }
        discard(self);
        return;
    }
    opal_mutex_atomic_lock(&lock);
    if (NULL == orphans) {
        orphans = OBJ_NEW(opal_list_t);
    }
    opal_list_append(orphans, (opal_list_item_t *) self);
    opal_mutex_atomic_unlock(&lock);
}

static int completed(ompi_request_t *inner)
{
    staged_request_t *self = inner->req_complete_cb_data;
    ompi_request_t *outer = &self->super.super;
    int32_t running = 1;
    int rc;
    if (!OPAL_ATOMIC_COMPARE_EXCHANGE_STRONG_32(&self->running, &running, 0)) {
        return 1;
    }
    if (OMPI_REQUEST_GEN == inner->req_type) {
        (void) ompi_grequest_invoke_query(inner, &inner->req_status);
    }
    rc = inner->req_status.MPI_ERROR;
    if (OMPI_SUCCESS == rc) {
        rc = cableway_error(cableway_staging_drain(self->staging));
    }
    outer->req_status = inner->req_status;
    outer->req_status.MPI_ERROR = rc;
    /* Complete the inner request first: once the outer one is complete, both may be freed at any moment. */
    if (inner->req_persistent) {
        inner->req_state = OMPI_REQUEST_INACTIVE;
    }
    inner->req_complete = REQUEST_COMPLETED;
    (void) ompi_request_complete(outer, true);
    release(self, false);
    return 1;
}

/* Makes the outer request active until `completed` is called. */
static void mark_active(staged_request_t *self)
{
    (void) OPAL_THREAD_ADD_FETCH32(&self->references, 1);
    self->running = 1;
    self->super.super.req_status = ompi_status_empty;
    self->super.super.req_complete = REQUEST_PENDING;
    self->super.super.req_state = OMPI_REQUEST_ACTIVE;
}

static int start(size_t count, ompi_request_t **requests)
{
    for (size_t i = 0; i < count; i++) {
        staged_request_t *self = (staged_request_t *) requests[i];
        int rc = cableway_error(cableway_staging_fill(self->staging));
        if (OMPI_SUCCESS != rc) {
            return rc;
        }
        mark_active(self);
        self->inner->req_complete_cb_data = self;
        if (OMPI_REQUEST_NOOP == self->inner->req_type) {
            /* The call has nothing to do, for example in a group of one process, and no start function. */
            (void) completed(self->inner);
            continue;
        }
        self->inner->req_complete_cb = completed;
        rc = self->inner->req_start(1, &self->inner);
        if (OMPI_SUCCESS != rc) {
            self->inner->req_complete_cb = NULL;
            self->running = 0;
            self->super.super.req_complete = REQUEST_COMPLETED;
            self->super.super.req_state = OMPI_REQUEST_INACTIVE;
            release(self, true);
            return rc;
        }
    }
    return OMPI_SUCCESS;
}

static int request_free(ompi_request_t **handle)
{
    staged_request_t *self = (staged_request_t *) *handle;
    *handle = MPI_REQUEST_NULL;
    release(self, true);
    return OMPI_SUCCESS;
}

static int request_cancel(ompi_request_t *handle, int flag)
{
    staged_request_t *self = (staged_request_t *) handle;
    return NULL != self->inner->req_cancel ? self->inner->req_cancel(self->inner, flag) : MPI_ERR_REQUEST;
}

static void construct(staged_request_t *self)
{
    self->super.super.req_type = OMPI_REQUEST_COLL;
    self->super.super.req_start = start;
    self->super.super.req_free = request_free;
    self->super.super.req_cancel = request_cancel;
    self->references = 1;
    self->running = 0;
    memset(&self->kept, 0, sizeof self->kept);
}

OBJ_CLASS_INSTANCE(staged_request_t, ompi_coll_base_nbc_request_t, construct, NULL);

static void create(ompi_request_t **request, void *staging, ompi_communicator_t *communicator, bool persistent)
{
    staged_request_t *self = OBJ_NEW(staged_request_t);
    OMPI_REQUEST_INIT(&self->super.super, persistent);
    self->super.super.req_mpi_object = (*request)->req_mpi_object;
    self->super.super.req_status = ompi_status_empty;
    self->inner = *request;
    self->communicator = communicator;
    self->staging = staging;
    if (NULL != communicator) {
        /* The program may free it before the request. Open MPI's own requests of collectives do not keep it. */
        cableway_retain_communicator(communicator);
    }
    *request = &self->super.super;
}

int cableway_staging_request(ompi_request_t **request, void *staging, ompi_communicator_t *communicator)
{
    ompi_request_t *inner = *request;
    free_orphans();
    if (REQUEST_COMPLETE(inner)) {
        int rc = cableway_error(cableway_staging_drain(staging));
        cableway_staging_free(staging);
        return rc;
    }
    create(request, staging, communicator, false);
    mark_active((staged_request_t *) *request);
    (void) ompi_request_set_callback(inner, completed, *request);
    return OMPI_SUCCESS;
}

int cableway_staging_persistent(ompi_request_t **request, struct cableway_call *call,
                                ompi_communicator_t *communicator)
{
    free_orphans();
    create(request, call->staging, communicator, true);
    ((staged_request_t *) *request)->kept = call->kept;
    return OMPI_SUCCESS;
}
