/* Requests of non-blocking and persistent collective operations that the engine performs. */
#include "performed.h"

#include "ompi/mca/coll/base/coll_base_util.h"

#include <stdlib.h>

struct collective_request {
    ompi_coll_base_nbc_request_t super; /* MPI's bindings keep a collective's datatypes and operation alive in it */
    struct cableway_described described;
    cableway_collectives_t *module;
    volatile int32_t references; /* the program's until it frees the request, and that of a running operation */
};
typedef struct collective_request collective_request_t;
OBJ_CLASS_DECLARATION(collective_request_t);

static void release(collective_request_t *self)
{
    if (0 == OPAL_THREAD_ADD_FETCH32(&self->references, -1)) {
        cableway_described_release(&self->described);
        OBJ_RELEASE(self->module);
        cableway_release_communicator(self->super.super.req_mpi_object.comm, self->super.super.req_status.MPI_ERROR);
        OMPI_REQUEST_FINI(&self->super.super);
        OBJ_RELEASE(self);
    }
}

void shim_collective_completed(void *owner, int code)
{
    collective_request_t *self = owner;
    self->super.super.req_status.MPI_ERROR = cableway_error(code);
    (void) ompi_request_complete(&self->super.super, true);
    release(self);
}

static int start_one(collective_request_t *self)
{
    ompi_request_t *request = &self->super.super;
    int code;
    (void) OPAL_THREAD_ADD_FETCH32(&self->references, 1);
    request->req_status = ompi_status_empty;
    request->req_complete = REQUEST_PENDING;
    request->req_state = OMPI_REQUEST_ACTIVE;
    code = cableway_collectives_start(self->module->members, &self->described.call, self);
    if (CABLEWAY_OK != code) {
        request->req_complete = REQUEST_COMPLETED;
        request->req_state = OMPI_REQUEST_INACTIVE;
        release(self);
    }
    return cableway_error(code);
}

static int start(size_t count, ompi_request_t **requests)
{
    int rc = OMPI_SUCCESS;
    for (size_t i = 0; OMPI_SUCCESS == rc && i < count; i++) {
        rc = start_one((collective_request_t *) requests[i]);
    }
    return rc;
}

static int request_free(ompi_request_t **handle)
{
    collective_request_t *self = (collective_request_t *) *handle;
    *handle = MPI_REQUEST_NULL;
    release(self);
    return OMPI_SUCCESS;
}

static int request_cancel(ompi_request_t *handle, int flag)
{
    (void) handle, (void) flag;
    return MPI_ERR_REQUEST;
}

static void construct(collective_request_t *self)
{
    self->super.super.req_type = OMPI_REQUEST_COLL;
    self->super.super.req_start = start;
    self->super.super.req_free = request_free;
    self->super.super.req_cancel = request_cancel;
    self->references = 1;
}

OBJ_CLASS_INSTANCE(collective_request_t, ompi_coll_base_nbc_request_t, construct, NULL);

/* Moves a description. Pointers to its own members change. */
static void move(struct cableway_described *to, const struct cableway_described *from)
{
    *to = *from;
    if (&from->send.one == from->call.send.buffers) {
        to->call.send.buffers = &to->send.one;
    }
    if (&from->receive.one == from->call.receive.buffers) {
        to->call.receive.buffers = &to->receive.one;
    }
}

int cableway_collective_request(cableway_collectives_t *module, struct cableway_described *described,
                                ompi_communicator_t *communicator, bool persistent, ompi_request_t **request)
{
    collective_request_t *self = OBJ_NEW(collective_request_t);
    int rc = OMPI_SUCCESS;
    if (NULL == self) {
        cableway_described_release(described);
        return OMPI_ERR_OUT_OF_RESOURCE;
    }
    OMPI_REQUEST_INIT(&self->super.super, persistent);
    /* The program may free the communicator before the request. */
    cableway_retain_communicator(communicator);
    self->super.super.req_mpi_object.comm = communicator;
    self->super.super.req_status = ompi_status_empty;
    move(&self->described, described);
    OBJ_RETAIN(module);
    self->module = module;
    *request = &self->super.super;
    if (!persistent && OMPI_SUCCESS != (rc = start_one(self))) {
        *request = MPI_REQUEST_NULL;
        release(self);
    }
    return rc;
}
