/* The differences of Open MPI 4.1 that the version-independent files of the shim need. */
#ifndef CABLEWAY_VERSION_H
#define CABLEWAY_VERSION_H

#include "ompi/attribute/attribute.h"
#include "ompi/communicator/communicator.h"
#include "ompi/mca/pml/base/pml_base_bsend.h"
#include "ompi/mca/pml/pml.h"
#include "ompi/mca/rte/rte.h"
#include "opal/threads/mutex.h"
#include "opal/util/info.h"

#define CABLEWAY_PML_VERSION MCA_PML_BASE_VERSION_2_0_0
#define CABLEWAY_ERR_REVOKED OMPI_ERROR
#define CABLEWAY_COLL_VERSION MCA_COLL_BASE_VERSION_2_0_0

/* Returns the context id, which is the same in all processes of a communicator. */
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

/* Initializes Open MPI's own BTLs before the modex. Open MPI 4.1 does so itself. */
static inline int cableway_init_stock_btls(bool threads)
{
    (void) threads;
    return OMPI_SUCCESS;
}

/* The parameters of a datatype attribute's copy callback. */
#define CABLEWAY_TYPE_COPY_PARAMETERS                                                                                  \
    ompi_datatype_t *datatype, int key, void *state, void *value, void *copy, int *keep, ompi_datatype_t *duplicate

/* Copies the value of an info key, or an empty string. */
static inline void cableway_info_value(opal_info_t *info, const char *key, char *value, int size)
{
    int found = 0;
    if (NULL == info || OPAL_SUCCESS != opal_info_get(info, key, size - 1, value, &found) || !found) {
        value[0] = '\0';
    }
}

/* The module functions that only this version has. */
int cableway_ft_event(int state);
#define CABLEWAY_MODULE_FIELDS .pml_ft_event = cableway_ft_event,

/* Open MPI has selected and enabled this PML. */
static inline void cableway_on_enable(void)
{
}

/* Open MPI 4.1 has no sessions, so the engine starts and stops with MPI. */
static inline const char *cableway_session_begin(bool threads)
{
    (void) threads;
    return NULL;
}

static inline bool cableway_engine_persists(void)
{
    return false;
}

static inline void cableway_session_end(void)
{
    (void) cableway_stop();
}

#endif
