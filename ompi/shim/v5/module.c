/* What 5.0 asks of a module that 4.1 does not. */
#include "component.h"

#include <stdlib.h>

enum { TRANSPORTS = 8 };

/* Called under fault tolerance (mpirun --with-ft ulfm) alone, where the program revokes a communicator. */
int cableway_revoke_comm(ompi_communicator_t *communicator, bool collectives_only)
{
    (void) communicator, (void) collectives_only;
    opal_output(0, "cableway: revoking a communicator is not supported; run fault-tolerant programs with --mca pml ob1");
    return OMPI_ERR_NOT_SUPPORTED;
}

/* The caller frees the entries and what holds them. */
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
