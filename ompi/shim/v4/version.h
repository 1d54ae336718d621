/* Open MPI 4.1 as the files in common/ know it. */
#ifndef CABLEWAY_VERSION_H
#define CABLEWAY_VERSION_H

#include "ompi/attribute/attribute.h"
#include "ompi/communicator/communicator.h"
#include "ompi/mca/pml/base/pml_base_bsend.h"
#include "ompi/mca/pml/pml.h"
#include "ompi/mca/rte/rte.h"
#include "opal/threads/mutex.h"

#define CABLEWAY_PML_VERSION MCA_PML_BASE_VERSION_2_0_0
#define CABLEWAY_ERR_REVOKED OMPI_ERROR
#define CABLEWAY_COLL_VERSION MCA_COLL_BASE_VERSION_2_0_0

/* The number that all processes of a communicator know it by. */
static inline uint32_t cableway_context(const ompi_communicator_t *communicator)
{
    return communicator->c_contextid;
}

static inline int cableway_bsend_init(bool threads)
{
    return mca_pml_base_bsend_init(threads);
}

static inline void cableway_bsend_fini(void)
{
    (void) mca_pml_base_bsend_fini();
}

/* What must be ready before processes tell each other their addresses. */
static inline int cableway_before_modex(bool threads)
{
    (void) threads;
    return OMPI_SUCCESS;
}

/* Of the callback that decides whether a duplicate of a type has an attribute, too. */
#define CABLEWAY_TYPE_COPY_PARAMETERS                                                                                  \
    ompi_datatype_t *datatype, int key, void *state, void *value, void *copy, int *keep, ompi_datatype_t *duplicate

/* What the module has that other versions' have not. */
int cableway_ft_event(int state);
#define CABLEWAY_MODULE_FIELDS .pml_ft_event = cableway_ft_event,

/* This PML is the one that was chosen. */
static inline void cableway_enabled(void)
{
}

/* MPI is initialised once, so that the engine begins and ends with it. */
static inline const char *cableway_enter(bool threads)
{
    (void) threads;
    return NULL;
}

static inline bool cableway_entered(void)
{
    return false;
}

static inline void cableway_leave(void)
{
    (void) cableway_stop();
}

#endif
