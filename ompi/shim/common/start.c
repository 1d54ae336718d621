/* Starts the operations of requests, persistent or not. */
#include "module.h"

#include "ompi/errhandler/errcode-internal.h"

/* Copies a buffered send to the program's attached buffer, and sends the copy by a request of its own. An empty message
 * takes no space in the attached buffer, as in Open MPI's own PMLs. */
static int begin_buffered(cableway_request_t *request, struct cableway_buffer *buffer)
{
    uint64_t len = buffer->len;
    void *bsend_buffer = NULL;
    cableway_request_t *copy;
    int rc;
    if (0 != len) {
        bsend_buffer = mca_pml_base_bsend_request_alloc_buf(len);
        if (NULL == bsend_buffer) {
            return MPI_ERR_BUFFER;
        }
        rc = cableway_pack(buffer, bsend_buffer, len);
        if (CABLEWAY_OK != rc) {
            (void) mca_pml_base_bsend_request_free(bsend_buffer);
            return cableway_error(rc);
        }
    }
    *buffer = (struct cableway_buffer){.address = bsend_buffer, .len = len};
    copy = cableway_request_new(request->communicator, bsend_buffer, len, &ompi_mpi_byte.dt, request->peer,
                                request->tag, false);
    copy->kind = CABLEWAY_BUFFERED;
    copy->bsend_buffer = bsend_buffer;
    rc = cableway_isend(cableway_handle(copy->communicator), copy->peer, copy->tag, buffer, NULL, CABLEWAY_STANDARD,
                        copy->engine);
    if (0 != rc) {
        cableway_buffered_release(copy);
        cableway_request_release(copy);
    }
    return rc < 0 ? cableway_error(-rc) : OMPI_SUCCESS;
}

/* Returns whether this is a message between MPI_Finalize and a process of another job. Open MPI exchanges such messages
 * with connected processes before a process exits. They are not sent: some of the peers may have exited before, Open
 * MPI 5.0 has closed its modex by then, and no process depends on them. */
static bool is_disconnect_message(const cableway_request_t *request)
{
    return cableway_is_finalizing() && 0 <= request->peer
           && OMPI_PROC_MY_NAME->jobid
                  != ompi_group_get_proc_name(request->communicator->c_remote_group, request->peer).jobid;
}

int cableway_request_begin(cableway_request_t *request, const struct cableway_location *location)
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
        /* MPI defines no status for sends, but osc/pt2pt reads the tag from it. */
        request->ompi.req_status.MPI_SOURCE = ompi_comm_rank(request->communicator);
        request->ompi.req_status.MPI_TAG = request->tag;
        request->ompi.req_status._ucount = buffer.len;
    }
    if (OPAL_UNLIKELY(is_disconnect_message(request))) {
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
        rc = cableway_isend(communicator, request->peer, request->tag, &buffer, location,
                            cableway_mode_of(request->mode), request->engine);
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
    cableway_count_failure();
}

/* Errors complete the requests: Open MPI calls no error handler for this function, and MPI_Startall ignores its
 * result. */
int cableway_pml_start(size_t count, ompi_request_t **requests)
{
    for (size_t i = 0; i < count; i++) {
        if (NULL == requests[i] || OMPI_REQUEST_PML != requests[i]->req_type) {
            continue;
        }
        int rc = cableway_request_begin((cableway_request_t *) requests[i], NULL);
        if (OMPI_SUCCESS != rc) {
            cableway_request_fail((cableway_request_t *) requests[i], rc);
        }
    }
    return OMPI_SUCCESS;
}
