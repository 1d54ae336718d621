/* Sends. */
#include "module.h"

int cableway_pml_isend_init(const void *address, size_t count, ompi_datatype_t *datatype, int dest, int tag,
                            mca_pml_base_send_mode_t mode, ompi_communicator_t *communicator, ompi_request_t **out)
{
    cableway_request_t *request = cableway_request_new(communicator, address, count, datatype, dest, tag, true);
    request->ompi.req_start = cableway_pml_start;
    request->kind = CABLEWAY_SEND;
    request->mode = mode;
    *out = &request->ompi;
    return OMPI_SUCCESS;
}

int cableway_pml_isend(const void *address, size_t count, ompi_datatype_t *datatype, int dest, int tag,
                       mca_pml_base_send_mode_t mode, ompi_communicator_t *communicator, ompi_request_t **out)
{
    struct cableway_location location;
    bool tried = MCA_PML_BASE_SEND_STANDARD == mode || MCA_PML_BASE_SEND_READY == mode;
    if (tried) {
        struct cableway_buffer buffer;
        int rc = cableway_describe(&buffer, address, count, datatype);
        if (OMPI_SUCCESS != rc) {
            return rc;
        }
        rc = cableway_send_now(cableway_handle(communicator), dest, tag, &buffer, &location);
        if (1 == rc) {
            *out = &ompi_request_empty;
            return OMPI_SUCCESS;
        }
        if (rc < 0) {
            return cableway_isend_failed(cableway_error(-rc), dest, tag, communicator, out);
        }
    }
    return cableway_isend_at(address, count, datatype, dest, tag, mode, communicator, tried ? &location : NULL, out);
}

int cableway_isend_at(const void *address, size_t count, ompi_datatype_t *datatype, int dest, int tag,
                      mca_pml_base_send_mode_t mode, ompi_communicator_t *communicator,
                      const struct cableway_location *location, ompi_request_t **out)
{
    cableway_request_t *request = cableway_request_new(communicator, address, count, datatype, dest, tag, false);
    int rc;
    request->kind = CABLEWAY_SEND;
    request->mode = mode;
    rc = cableway_request_begin(request, location);
    if (OMPI_SUCCESS != rc && MCA_PML_BASE_SEND_BUFFERED == mode) {
        /* MPI_Bsend does not wait for the request, so the call itself must return the error. */
        cableway_request_release(request);
        return rc;
    }
    if (OMPI_SUCCESS != rc) {
        cableway_request_fail(request, rc);
    }
    *out = &request->ompi;
    return OMPI_SUCCESS;
}

int cableway_isend_failed(int error, int dest, int tag, ompi_communicator_t *communicator, ompi_request_t **out)
{
    cableway_request_t *request =
        cableway_request_new(communicator, NULL, 0, &ompi_mpi_byte.dt, dest, tag, false);
    request->kind = CABLEWAY_SEND;
    cableway_request_fail(request, error);
    *out = &request->ompi;
    return OMPI_SUCCESS;
}

int cableway_pml_send(const void *address, size_t count, ompi_datatype_t *datatype, int dest, int tag,
                      mca_pml_base_send_mode_t mode, ompi_communicator_t *communicator)
{
    struct cableway_buffer buffer;
    int rc;
    if (OPAL_UNLIKELY(MCA_PML_BASE_SEND_BUFFERED == mode)) {
        ompi_request_t *request;
        rc = cableway_pml_isend(address, count, datatype, dest, tag, mode, communicator, &request);
        if (OMPI_SUCCESS == rc) {
            (void) ompi_request_free(&request);
        }
        return rc;
    }
    rc = cableway_describe(&buffer, address, count, datatype);
    if (OMPI_SUCCESS != rc) {
        return rc;
    }
    rc = cableway_send(cableway_handle(communicator), dest, tag, &buffer, cableway_mode_of(mode));
    return rc < 0 ? cableway_error(-rc) : OMPI_SUCCESS;
}
