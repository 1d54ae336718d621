/* Probes. */
#include "module.h"

#include "opal/runtime/opal_progress.h"

static int look(int source, int tag, ompi_communicator_t *communicator, int *found, ompi_message_t **message,
                ompi_status_public_t *status)
{
    struct cableway_status result;
    void *taken = NULL;
    int rc = cableway_iprobe(cableway_handle(communicator), source, tag, &result, NULL != message ? &taken : NULL);
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
        ompi_message_t *made = ompi_message_alloc();
        if (NULL == made) {
            return OMPI_ERR_OUT_OF_RESOURCE;
        }
        cableway_hold_communicator(communicator);
        made->comm = communicator;
        made->req_ptr = taken;
        made->peer = result.source;
        made->count = result.len;
        *message = made;
    }
    return OMPI_SUCCESS;
}

int cableway_pml_iprobe(int source, int tag, ompi_communicator_t *communicator, int *found,
                        ompi_status_public_t *status)
{
    int rc = look(source, tag, communicator, found, NULL, status);
    if (OMPI_SUCCESS == rc && !*found) {
        opal_progress();
        rc = look(source, tag, communicator, found, NULL, status);
    }
    return rc;
}

int cableway_pml_probe(int source, int tag, ompi_communicator_t *communicator, ompi_status_public_t *status)
{
    int rc, found = 0;
    while (OMPI_SUCCESS == (rc = look(source, tag, communicator, &found, NULL, status)) && !found) {
        opal_progress();
    }
    return rc;
}

int cableway_pml_improbe(int source, int tag, ompi_communicator_t *communicator, int *found, ompi_message_t **message,
                         ompi_status_public_t *status)
{
    int rc = look(source, tag, communicator, found, message, status);
    if (OMPI_SUCCESS == rc && !*found) {
        opal_progress();
        rc = look(source, tag, communicator, found, message, status);
    }
    return rc;
}

int cableway_pml_mprobe(int source, int tag, ompi_communicator_t *communicator, ompi_message_t **message,
                        ompi_status_public_t *status)
{
    int rc, found = 0;
    while (OMPI_SUCCESS == (rc = look(source, tag, communicator, &found, message, status)) && !found) {
        opal_progress();
    }
    return rc;
}
