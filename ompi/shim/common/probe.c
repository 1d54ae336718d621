/* Probes: MPI_Iprobe, MPI_Probe, MPI_Improbe and MPI_Mprobe. */
#include "module.h"

#include "opal/runtime/opal_progress.h"

/* Looks for a message once. If `message` is not NULL, matches the message and wraps it for Open MPI. */
static int probe_once(int source, int tag, ompi_communicator_t *communicator, int *found, ompi_message_t **message,
                      ompi_status_public_t *status)
{
    struct cableway_status result;
    void *matched = NULL;
    int rc = cableway_iprobe(cableway_handle(communicator), source, tag, &result, NULL != message ? &matched : NULL);
    if (rc < 0) {
        return cableway_error(-rc);
    }
    *found = rc;
    if (!rc) {
        return OMPI_SUCCESS;
    }
    if (MPI_STATUS_IGNORE != status) {
        cableway_set_status(status, &result);
    }
    if (NULL != message) {
        ompi_message_t *wrapper = ompi_message_alloc();
        if (NULL == wrapper) {
            return OMPI_ERR_OUT_OF_RESOURCE;
        }
        cableway_retain_communicator(communicator);
        wrapper->comm = communicator;
        wrapper->req_ptr = matched;
        wrapper->peer = result.source;
        wrapper->count = result.len;
        *message = wrapper;
    }
    return OMPI_SUCCESS;
}

int cableway_pml_improbe(int source, int tag, ompi_communicator_t *communicator, int *found, ompi_message_t **message,
                         ompi_status_public_t *status)
{
    int rc = probe_once(source, tag, communicator, found, message, status);
    if (OMPI_SUCCESS == rc && !*found) {
        opal_progress();
        rc = probe_once(source, tag, communicator, found, message, status);
    }
    return rc;
}

int cableway_pml_iprobe(int source, int tag, ompi_communicator_t *communicator, int *found,
                        ompi_status_public_t *status)
{
    return cableway_pml_improbe(source, tag, communicator, found, NULL, status);
}

int cableway_pml_mprobe(int source, int tag, ompi_communicator_t *communicator, ompi_message_t **message,
                        ompi_status_public_t *status)
{
    int rc, found = 0;
    while (OMPI_SUCCESS == (rc = probe_once(source, tag, communicator, &found, message, status)) && !found) {
        opal_progress();
    }
    return rc;
}

int cableway_pml_probe(int source, int tag, ompi_communicator_t *communicator, ompi_status_public_t *status)
{
    return cableway_pml_mprobe(source, tag, communicator, NULL, status);
}
