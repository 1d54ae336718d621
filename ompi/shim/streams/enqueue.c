/* Sends and receives in the order of a stream, and waits of the stream for them. */
#include "streams.h"

#include "opal/util/output.h"

#include <stdlib.h>

/* Checks the arguments, but the communicator, as MPI's own calls do. */
static int check(const struct cableway_mpix_call *arguments, bool receive, bool nonblocking)
{
    ompi_communicator_t *communicator = arguments->communicator;
    ompi_datatype_t *datatype = arguments->datatype;
    const bool any_peer = receive && MPI_ANY_SOURCE == arguments->peer;
    const bool any_tag = receive && MPI_ANY_TAG == arguments->tag;
    if (0 > arguments->count) {
        return MPI_ERR_COUNT;
    }
    if (NULL == datatype || MPI_DATATYPE_NULL == datatype || !opal_datatype_is_committed(&datatype->super)) {
        return MPI_ERR_TYPE;
    }
    if (MPI_PROC_NULL != arguments->peer && !any_peer && ompi_comm_peer_invalid(communicator, arguments->peer)) {
        return MPI_ERR_RANK;
    }
    if (0 > arguments->tag && !any_tag) {
        return MPI_ERR_TAG;
    }
    return nonblocking && NULL == arguments->request ? MPI_ERR_REQUEST : MPI_SUCCESS;
}

int cableway_mpix_enqueue(const char *call, const struct cableway_mpix_call *arguments)
{
    const bool receive = CABLEWAY_MPIX_RECV == arguments->kind || CABLEWAY_MPIX_IRECV == arguments->kind;
    const bool nonblocking = CABLEWAY_MPIX_ISEND == arguments->kind || CABLEWAY_MPIX_IRECV == arguments->kind;
    ompi_communicator_t *communicator = arguments->communicator;
    struct cableway_stream_call message = {.peer = arguments->peer, .tag = arguments->tag, .receive = receive};
    const char *reason;
    MPIX_Stream stream;
    cableway_enqueued_t *self;
    int rc;
    if (ompi_comm_invalid(communicator)) {
        return cableway_mpix_failed(NULL, MPI_ERR_COMM, call);
    }
    rc = check(arguments, receive, nonblocking);
    if (MPI_SUCCESS != rc) {
        return cableway_mpix_failed(communicator, rc, call);
    }
    stream = cableway_mpix_stream_of(communicator, &reason);
    if (NULL == stream) {
        opal_output(0, "cableway: %s: %s", call, reason);
        return cableway_mpix_failed(communicator, MPI_ERR_COMM, call);
    }
    if (MPI_PROC_NULL != arguments->peer) {
        rc = cableway_describe(&message.buffer, arguments->buffer, (size_t) arguments->count, arguments->datatype);
        if (OMPI_SUCCESS != rc) {
            return cableway_mpix_failed(communicator, rc, call);
        }
    }
    self = cableway_enqueued_new(communicator, arguments->datatype, receive, stream);
    if (NULL == self) {
        return cableway_mpix_failed(communicator, MPI_ERR_NO_MEM, call);
    }
    message.communicator = cableway_handle(communicator);
    message.wait = !nonblocking;
    message.owner = self;
    message.status = receive && !nonblocking && MPI_STATUS_IGNORE != arguments->status ? arguments->status : NULL;
    /* A thread that makes progress may complete it before the call returns. */
    self->references++;
    rc = cableway_stream_start(stream->engine, &message);
    if (NULL == message.message) {
        self->references--;
    }
    self->message = message.message;
    if (CABLEWAY_OK == rc && nonblocking) {
        *arguments->request = &self->super;
        return MPI_SUCCESS;
    }
    cableway_enqueued_release(self);
    return CABLEWAY_OK == rc ? MPI_SUCCESS : cableway_mpix_failed(communicator, cableway_error(rc), call);
}

/* Returns the message of a request, or NULL if it is of another kind. */
static cableway_enqueued_t *enqueued_of(ompi_request_t *request)
{
    return ((opal_object_t *) request)->obj_class == OBJ_CLASS(cableway_enqueued_t) ? (cableway_enqueued_t *) request : NULL;
}

/* Requests that are no message, and are complete: the null request, and those of calls that needed none. */
static bool is_nothing(const ompi_request_t *request)
{
    return MPI_REQUEST_NULL == request || &ompi_request_empty == request;
}

/* Lists the messages of requests, which must be on one stream. Returns MPI_SUCCESS or an error. */
static int list(int64_t count, ompi_request_t **requests, ompi_status_public_t *statuses, void **messages, void **filled,
                size_t *listed, cableway_enqueued_t **first)
{
    *listed = 0;
    *first = NULL;
    for (int64_t i = 0; i < count; i++) {
        cableway_enqueued_t *one;
        if (NULL == requests[i]) {
            return MPI_ERR_REQUEST;
        }
        if (is_nothing(requests[i])) {
            continue;
        }
        one = enqueued_of(requests[i]);
        if (NULL == one || (NULL != *first && one->stream != (*first)->stream)) {
            return MPI_ERR_REQUEST;
        }
        *first = NULL != *first ? *first : one;
        messages[*listed] = one->message;
        filled[(*listed)++] = NULL != statuses ? &statuses[i] : NULL;
    }
    return MPI_SUCCESS;
}

/* The stream has the requests. The program has none any more. */
static void hand_over(int64_t count, ompi_request_t **requests, ompi_status_public_t *statuses)
{
    for (int64_t i = 0; i < count; i++) {
        if (is_nothing(requests[i])) {
            if (NULL != statuses) {
                statuses[i] = ompi_status_empty;
            }
        } else {
            cableway_enqueued_release((cableway_enqueued_t *) requests[i]);
        }
        requests[i] = MPI_REQUEST_NULL;
    }
}

int cableway_mpix_wait(const char *call, int64_t count, void **handles, void *status)
{
    ompi_request_t **requests = (ompi_request_t **) handles;
    ompi_status_public_t *statuses = MPI_STATUSES_IGNORE == status ? NULL : status;
    ompi_communicator_t *communicator;
    void **messages;
    cableway_enqueued_t *first;
    size_t listed;
    int rc;
    if (0 > count || (0 != count && NULL == requests)) {
        return cableway_mpix_failed(NULL, 0 > count ? MPI_ERR_COUNT : MPI_ERR_REQUEST, call);
    }
    messages = calloc(2 * (size_t) count + 1, sizeof *messages);
    if (NULL == messages) {
        return cableway_mpix_failed(NULL, MPI_ERR_NO_MEM, call);
    }
    rc = list(count, requests, statuses, messages, messages + count, &listed, &first);
    communicator = NULL != first ? first->super.req_mpi_object.comm : NULL;
    if (MPI_ERR_REQUEST == rc) {
        opal_output(0, "cableway: %s: a request is not of MPIX_Isend_enqueue or MPIX_Irecv_enqueue on one stream", call);
    } else if (0 != listed) {
        rc = cableway_stream_wait(first->stream->engine, messages, messages + count, listed);
        rc = CABLEWAY_OK == rc ? MPI_SUCCESS : cableway_error(rc);
    }
    if (MPI_SUCCESS == rc) {
        hand_over(count, requests, statuses);
    } else {
        rc = cableway_mpix_failed(communicator, rc, call);
    }
    free(messages);
    return rc;
}
