/* Starts the operations of requests, new ones and persistent ones alike. */
#include "module.h"

#include "ompi/errhandler/errcode-internal.h"

/* Copies a buffered send into the program's attached buffer; the copy then goes out by itself, however long its receiver
 * takes. An empty message needs no room there, as with Open MPI's own components, but a request of its own as well. */
static int begin_buffered(cableway_request_t *request, struct cableway_buffer *buffer)
{
    uint64_t len = buffer->len;
    void *attached = NULL;
    cableway_request_t *copy;
    int rc;
    if (0 != len) {
        attached = mca_pml_base_bsend_request_alloc_buf(len);
        if (NULL == attached) {
            return MPI_ERR_BUFFER;
        }
        rc = cableway_pack(buffer, attached, len);
        if (CABLEWAY_OK != rc) {
            (void) mca_pml_base_bsend_request_free(attached);
            return cableway_error(rc);
        }
    }
    *buffer = (struct cableway_buffer){.address = attached, .len = len};
    copy = cableway_request_new(request->communicator, attached, len, &ompi_mpi_byte.dt, request->peer, request->tag,
                                false);
    copy->kind = CABLEWAY_BUFFERED;
    copy->attached = attached;
    rc = cableway_isend(cableway_handle(copy->communicator), copy->peer, copy->tag, buffer, NULL, CABLEWAY_STANDARD,
                        copy->engine);
    if (0 != rc) {
        cableway_buffered_left(copy);
        cableway_request_release(copy);
    }
    return rc < 0 ? cableway_error(-rc) : OMPI_SUCCESS;
}

/* Whether a message of MPI_Finalize is for a process of another job, or from one. Open MPI tells those that are still
 * connected that this process leaves. Some may have left before, and 5.0 does so when it has given up its modex. Nobody
 * needs to be told: a process may leave at any time after that. */
static bool is_farewell(const cableway_request_t *request)
{
    return cableway_is_ending() && 0 <= request->peer
           && OMPI_PROC_MY_NAME->jobid
                  != ompi_group_get_proc_name(request->communicator->c_remote_group, request->peer).jobid;
}

/* Starts a request's operation. It becomes complete by itself, at once perhaps. If it cannot be started, nobody completes
 * the request. */
int cableway_request_begin(cableway_request_t *request)
{
    return cableway_request_begin_at(request, NULL);
}

int cableway_request_begin_at(cableway_request_t *request, const struct cableway_place *place)
{
    struct cableway_buffer buffer;
    void *communicator = cableway_handle(request->communicator);
    int rc = cableway_describe(&buffer, request->address, request->count, request->datatype);
    if (OMPI_SUCCESS != rc) {
        return rc;
    }
    request->ompi.req_complete = REQUEST_PENDING;
    request->ompi.req_state = OMPI_REQUEST_ACTIVE;
    request->ompi.req_status = ompi_status_empty;
    if (CABLEWAY_RECEIVE != request->kind) {
        /* MPI defines no such thing for sends, but osc/pt2pt reads the tag of what it has sent. */
        request->ompi.req_status.MPI_SOURCE = ompi_comm_rank(request->communicator);
        request->ompi.req_status.MPI_TAG = request->tag;
        request->ompi.req_status._ucount = buffer.len;
    }
    if (OPAL_UNLIKELY(is_farewell(request))) {
        (void) ompi_request_complete(&request->ompi, false);
        return OMPI_SUCCESS;
    }
    if (CABLEWAY_RECEIVE == request->kind) {
        (void) OPAL_THREAD_ADD_FETCH32(&request->references, 1);
        rc = cableway_irecv(communicator, request->peer, request->tag, &buffer, request->engine);
    } else if (MCA_PML_BASE_SEND_BUFFERED == request->mode) {
        rc = begin_buffered(request, &buffer);
        if (OMPI_SUCCESS == rc) {
            (void) ompi_request_complete(&request->ompi, false);
        }
        return rc;
    } else {
        (void) OPAL_THREAD_ADD_FETCH32(&request->references, 1);
        rc = cableway_isend(communicator, request->peer, request->tag, &buffer, place, cableway_mode_of(request->mode),
                            request->engine);
        if (1 == rc) {
            (void) ompi_request_complete(&request->ompi, false);
        }
    }
    if (0 != rc) {
        cableway_request_release(request);
    }
    return rc < 0 ? cableway_error(-rc) : OMPI_SUCCESS;
}

void cableway_request_fail(cableway_request_t *request, int error)
{
    request->ompi.req_state = OMPI_REQUEST_ACTIVE;
    request->ompi.req_status = ompi_status_empty;
    request->ompi.req_status.MPI_ERROR = ompi_errcode_get_mpi_code(error);
    (void) ompi_request_complete(&request->ompi, false);
    cableway_note_failure();
}

/* Open MPI passes no error to an error handler here, and MPI_Startall ignores what this returns. */
int cableway_pml_start(size_t count, ompi_request_t **requests)
{
    for (size_t i = 0; i < count; i++) {
        if (NULL == requests[i] || OMPI_REQUEST_PML != requests[i]->req_type) {
            continue;
        }
        int rc = cableway_request_begin((cableway_request_t *) requests[i]);
        if (OMPI_SUCCESS != rc) {
            cableway_request_fail((cableway_request_t *) requests[i], rc);
        }
    }
    return OMPI_SUCCESS;
}
