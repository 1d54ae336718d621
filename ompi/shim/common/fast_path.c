/* The fast path: the commonest calls on contiguous buffers. A few nanoseconds are a considerable part of a small
 * message's latency, so these functions do only what such a message needs. */
#include "shim.h"

int cableway_fast_send(const void *address, size_t count, ompi_datatype_t *datatype, int dest, int tag,
                           mca_pml_base_send_mode_t mode, ompi_communicator_t *communicator)
{
    void *start;
    uint64_t len;
    int code;
    if (OPAL_UNLIKELY(MCA_PML_BASE_SEND_STANDARD != mode
                      || !cableway_contiguous(address, count, datatype, &start, &len))) {
        return cableway_pml_send(address, count, datatype, dest, tag, mode, communicator);
    }
    code = cableway_send_bytes(cableway_handle(communicator), dest, tag, start, len);
    return OPAL_LIKELY(0 == code) ? OMPI_SUCCESS : cableway_error(-code);
}

int cableway_fast_isend(const void *address, size_t count, ompi_datatype_t *datatype, int dest, int tag,
                            mca_pml_base_send_mode_t mode, ompi_communicator_t *communicator, ompi_request_t **out)
{
    struct cableway_location location;
    void *start;
    uint64_t len;
    int code;
    if (OPAL_UNLIKELY(MCA_PML_BASE_SEND_STANDARD != mode
                      || !cableway_contiguous(address, count, datatype, &start, &len))) {
        return cableway_pml_isend(address, count, datatype, dest, tag, mode, communicator, out);
    }
    code = cableway_send_bytes_now(cableway_handle(communicator), dest, tag, start, len, &location);
    if (OPAL_LIKELY(1 == code)) {
        *out = &ompi_request_empty;
        return OMPI_SUCCESS;
    }
    if (OPAL_UNLIKELY(code < 0)) {
        return cableway_isend_failed(cableway_error(-code), dest, tag, communicator, out);
    }
    return cableway_isend_at(address, count, datatype, dest, tag, mode, communicator, &location, out);
}

int cableway_fast_recv(void *address, size_t count, ompi_datatype_t *datatype, int source, int tag,
                           ompi_communicator_t *communicator, ompi_status_public_t *status)
{
    struct cableway_status result = {0};
    void *start;
    uint64_t len;
    int code;
    if (OPAL_UNLIKELY(!cableway_contiguous(address, count, datatype, &start, &len))) {
        return cableway_pml_recv(address, count, datatype, source, tag, communicator, status);
    }
    if (MPI_STATUS_IGNORE == status) {
        code = cableway_recv_bytes(cableway_handle(communicator), source, tag, start, len, NULL);
    } else {
        code = cableway_recv_bytes(cableway_handle(communicator), source, tag, start, len, &result);
        cableway_set_status(status, &result);
    }
    return OPAL_LIKELY(CABLEWAY_OK == code) ? OMPI_SUCCESS : cableway_error(code);
}

int cableway_fast_irecv(void *address, size_t count, ompi_datatype_t *datatype, int source, int tag,
                            ompi_communicator_t *communicator, ompi_request_t **out)
{
    cableway_request_t *request;
    void *start;
    uint64_t len;
    int code;
    if (OPAL_UNLIKELY(!cableway_contiguous(address, count, datatype, &start, &len)
                      || (0 == len && cableway_is_finalizing()))) {
        return cableway_pml_irecv(address, count, datatype, source, tag, communicator, out);
    }
    request = (cableway_request_t *) opal_free_list_wait(&cableway_requests);
    /* Sets what cableway_request_new and cableway_request_begin set, except for fields that only a restart reads, and
     * fields of the status that completion writes. */
    OMPI_REQUEST_INIT(&request->ompi, false);
    request->ompi.req_state = OMPI_REQUEST_ACTIVE;
    request->ompi.req_mpi_object.comm = communicator;
    request->ompi.req_status.MPI_ERROR = MPI_SUCCESS;
    request->references = CABLEWAY_UNCOUNTED;
    request->in_callback = false;
    request->kind = CABLEWAY_RECEIVE;
    request->communicator = communicator;
    request->datatype = datatype;
    cableway_retain_communicator(communicator);
    if (!ompi_datatype_is_predefined(datatype)) {
        OBJ_RETAIN(datatype);
    }
    code = cableway_irecv_bytes(cableway_handle(communicator), source, tag, start, len, request->engine);
    if (OPAL_UNLIKELY(0 != code)) {
        request->references = 1;
        cableway_request_fail(request, cableway_error(-code));
    }
    *out = &request->ompi;
    return OMPI_SUCCESS;
}
