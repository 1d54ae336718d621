/* Receives, including those of messages that MPI_Mprobe matched. */
#include "module.h"

int cableway_pml_irecv_init(void *address, size_t count, ompi_datatype_t *datatype, int source, int tag,
                            ompi_communicator_t *communicator, ompi_request_t **out)
{
    cableway_request_t *request = cableway_request_new(communicator, address, count, datatype, source, tag, true);
    request->ompi.req_start = cableway_pml_start;
    request->kind = CABLEWAY_RECEIVE;
    *out = &request->ompi;
    return OMPI_SUCCESS;
}

int cableway_pml_irecv(void *address, size_t count, ompi_datatype_t *datatype, int source, int tag,
                       ompi_communicator_t *communicator, ompi_request_t **out)
{
    cableway_request_t *request = cableway_request_new(communicator, address, count, datatype, source, tag, false);
    int rc;
    request->kind = CABLEWAY_RECEIVE;
    rc = cableway_request_begin(request, NULL);
    if (OMPI_SUCCESS != rc) {
        cableway_request_fail(request, rc);
    }
    *out = &request->ompi;
    return OMPI_SUCCESS;
}

static int finish_receive(const struct cableway_status *result, ompi_status_public_t *status)
{
    if (MPI_STATUS_IGNORE != status) {
        cableway_set_status(status, result);
    }
    return cableway_error(result->code);
}

int cableway_pml_recv(void *address, size_t count, ompi_datatype_t *datatype, int source, int tag,
                      ompi_communicator_t *communicator, ompi_status_public_t *status)
{
    struct cableway_buffer buffer;
    struct cableway_status result;
    int rc = cableway_describe(&buffer, address, count, datatype);
    if (OMPI_SUCCESS != rc) {
        return rc;
    }
    cableway_recv(cableway_handle(communicator), source, tag, &buffer, &result);
    return finish_receive(&result, status);
}

/* Unwraps the engine's message and frees Open MPI's wrapper. The wrapper's reference to the communicator passes to the
 * caller. */
static void *take_message(ompi_message_t **message)
{
    void *taken = (*message)->req_ptr;
    ompi_message_return(*message);
    *message = MPI_MESSAGE_NULL;
    return taken;
}

int cableway_pml_imrecv(void *address, size_t count, ompi_datatype_t *datatype, ompi_message_t **message,
                        ompi_request_t **out)
{
    ompi_communicator_t *communicator = (*message)->comm;
    struct cableway_buffer buffer;
    cableway_request_t *request;
    int rc = cableway_describe(&buffer, address, count, datatype);
    if (OMPI_SUCCESS != rc) {
        return rc;
    }
    request = cableway_request_new(communicator, address, count, datatype, (*message)->peer, MPI_ANY_TAG, false);
    request->kind = CABLEWAY_RECEIVE;
    request->ompi.req_state = OMPI_REQUEST_ACTIVE;
    (void) OPAL_THREAD_ADD_FETCH32(&request->references, 1);
    rc = cableway_imrecv(take_message(message), &buffer, request->engine);
    if (OPAL_UNLIKELY(rc < 0)) {
        cableway_request_release(request);
        cableway_request_fail(request, cableway_error(-rc));
    }
    /* The request holds its own reference. */
    cableway_release_communicator(communicator, OMPI_SUCCESS);
    *out = &request->ompi;
    return OMPI_SUCCESS;
}

int cableway_pml_mrecv(void *address, size_t count, ompi_datatype_t *datatype, ompi_message_t **message,
                       ompi_status_public_t *status)
{
    ompi_communicator_t *communicator = (*message)->comm;
    struct cableway_buffer buffer;
    struct cableway_status result;
    int rc = cableway_describe(&buffer, address, count, datatype);
    if (OMPI_SUCCESS != rc) {
        return rc;
    }
    cableway_mrecv(take_message(message), &buffer, &result);
    rc = finish_receive(&result, status);
    cableway_release_communicator(communicator, rc);
    return rc;
}
