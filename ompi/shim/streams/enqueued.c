/* Messages and operations on streams as requests of Open MPI. */
#include "streams.h"

void cableway_enqueued_release(cableway_enqueued_t *self)
{
    if (0 != opal_atomic_add_fetch_32(&self->references, -1)) {
        return;
    }
    if (NULL != self->message) {
        cableway_stream_message_free(self->message);
    }
    if (!ompi_datatype_is_predefined(self->datatype)) {
        OBJ_RELEASE(self->datatype);
    }
    cableway_described_release(&self->described);
    if (NULL != self->group) {
        cableway_mpix_group_release(self->group);
    }
    cableway_mpix_stream_release(self->stream);
    cableway_release_communicator(self->super.req_mpi_object.comm, self->super.req_status.MPI_ERROR);
    OMPI_REQUEST_FINI(&self->super);
    OBJ_RELEASE(self);
}

void shim_stream_completed(void *owner, const struct cableway_status *result)
{
    cableway_enqueued_t *self = owner;
    if (self->receive) {
        cableway_set_status(&self->super.req_status, result);
    }
    self->super.req_status.MPI_ERROR = cableway_error(result->code);
    (void) ompi_request_complete(&self->super, true);
    cableway_enqueued_release(self);
}

/* The program frees the request itself, or through a call that has returned its error. */
static int request_free(ompi_request_t **handle)
{
    cableway_enqueued_t *self = (cableway_enqueued_t *) *handle;
    *handle = MPI_REQUEST_NULL;
    if (REQUEST_COMPLETE(&self->super) && MPI_SUCCESS != self->super.req_status.MPI_ERROR) {
        cableway_stream_message_told(self->message);
    }
    cableway_enqueued_release(self);
    return OMPI_SUCCESS;
}

static int request_cancel(ompi_request_t *handle, int flag)
{
    (void) flag;
    /* Receives only, as for other messages; and only those that the stream has reached. */
    cableway_stream_message_cancel(((cableway_enqueued_t *) handle)->message);
    return OMPI_SUCCESS;
}

static void construct(cableway_enqueued_t *self)
{
    self->super.req_type = OMPI_REQUEST_COLL;
    self->super.req_free = request_free;
    self->super.req_cancel = request_cancel;
    self->references = 1;
}

OBJ_CLASS_INSTANCE(cableway_enqueued_t, ompi_request_t, construct, NULL);

cableway_enqueued_t *cableway_enqueued_new(ompi_communicator_t *communicator, ompi_datatype_t *datatype, bool receive,
                                           MPIX_Stream stream)
{
    cableway_enqueued_t *self = OBJ_NEW(cableway_enqueued_t);
    if (NULL == self) {
        return NULL;
    }
    OMPI_REQUEST_INIT(&self->super, false);
    self->super.req_mpi_object.comm = communicator;
    self->super.req_status = ompi_status_empty;
    self->super.req_complete = REQUEST_PENDING;
    self->super.req_state = OMPI_REQUEST_ACTIVE;
    self->receive = receive;
    self->datatype = datatype;
    self->stream = stream;
    self->message = NULL;
    self->group = NULL;
    memset(&self->described, 0, sizeof self->described);
    cableway_retain_communicator(communicator);
    if (!ompi_datatype_is_predefined(datatype)) {
        OBJ_RETAIN(datatype);
    }
    (void) opal_atomic_add_fetch_32(&stream->references, 1);
    return self;
}
