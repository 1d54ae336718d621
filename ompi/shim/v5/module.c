/* The module functions that only Open MPI 5.0 has. */
#include "shim.h"

#include <stdlib.h>

enum { TRANSPORTS = 8 };

/* Sets the flags by which Open MPI refuses new calls on the communicator. Pending operations end with an error, in this
 * process and at its peers. */
int cableway_revoke_comm(ompi_communicator_t *communicator, bool collectives_only)
{
    communicator->coll_revoked = true;
    communicator->comm_revoked = communicator->comm_revoked || !collectives_only;
    if (!collectives_only && NULL != communicator->c_pml_comm) {
        cableway_communicator_revoke(cableway_handle(communicator));
    }
    return OMPI_SUCCESS;
}

/* The caller frees the result and its entries. */
mca_pml_transports_t *cableway_get_transports(ompi_communicator_t *communicator, int rank)
{
    opal_process_name_t name = ompi_group_get_proc_name(communicator->c_remote_group, rank);
    const char *names[TRANSPORTS];
    size_t count = name.jobid == OMPI_PROC_MY_NAME->jobid ? cableway_transports(name.vpid, names, TRANSPORTS) : 0;
    mca_pml_transports_t *found;
    if (count > TRANSPORTS) {
        count = TRANSPORTS;
    }
    if (0 == count || NULL == (found = malloc(sizeof *found))) {
        return NULL;
    }
    found->count = (unsigned int) count;
    found->entries = calloc(count, sizeof *found->entries);
    if (NULL == found->entries) {
        free(found);
        return NULL;
    }
    for (size_t i = 0; i < count; i++) {
        found->entries[i].transport_name = names[i];
    }
    return found;
}
