/* Collective calls that the engine performs. */
#ifndef CABLEWAY_PERFORMED_H
#define CABLEWAY_PERFORMED_H

#include "collectives.h"
#include "described.h"

#include "opal/runtime/opal_progress.h"

/* Performs a call, and frees the description. */
static inline int cableway_perform(cableway_collectives_t *module, struct cableway_described *described, int rc)
{
    if (OMPI_SUCCESS == rc) {
        rc = cableway_error(cableway_collectives_run(module->members, &described->call));
    }
    cableway_described_release(described);
    return rc;
}

/* Returns a request for a call, which begins now unless it is persistent. Takes the description. */
int cableway_collective_request(cableway_collectives_t *module, struct cableway_described *described,
                                ompi_communicator_t *communicator, bool persistent, ompi_request_t **request);

static inline int cableway_perform_later(cableway_collectives_t *module, struct cableway_described *described, int rc,
                                         ompi_communicator_t *communicator, bool persistent, ompi_request_t **request)
{
    if (OMPI_SUCCESS != rc) {
        cableway_described_release(described);
        return rc;
    }
    return cableway_collective_request(module, described, communicator, persistent, request);
}

/* Returns whether the engine may perform calls of a communicator. If not, no argument of a call may be examined. */
static inline bool cableway_engine_may_perform(const cableway_collectives_t *module, ompi_communicator_t *communicator)
{
    return NULL != module->members
           && (1 != ompi_comm_size(communicator) || OMPI_COMM_IS_INTER(communicator) || cableway_devices_present());
}

/* Returns whether the engine performs a call. `counted` and `bytes` are as for cableway_collectives_begin. */
static inline bool cableway_engine_performs(cableway_collectives_t *module, bool counted, uint64_t bytes)
{
    int performer;
    while (OPAL_UNLIKELY(CABLEWAY_UNDECIDED
                         == (performer = cableway_collectives_begin(module->members, counted, bytes)))) {
        opal_progress();
    }
    return CABLEWAY_BY_ENGINE == performer;
}

#endif
