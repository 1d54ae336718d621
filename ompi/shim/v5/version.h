/* The differences of Open MPI 5.0 that the version-independent files of the shim need. */
#ifndef CABLEWAY_VERSION_H
#define CABLEWAY_VERSION_H

#include "ompi/attribute/attribute.h"
#include "ompi/communicator/communicator.h"
#include "ompi/mca/bml/base/base.h"
#include "ompi/mca/pml/base/pml_base_bsend.h"
#include "ompi/mca/pml/pml.h"
#include "ompi/runtime/ompi_rte.h"
#include "opal/mca/threads/mutex.h"
#include "opal/class/opal_cstring.h"
#include "opal/util/info.h"

#include <stdio.h>

#define CABLEWAY_PML_VERSION MCA_PML_BASE_VERSION_2_1_0
#define CABLEWAY_ERR_REVOKED MPI_ERR_REVOKED
#define CABLEWAY_COLL_VERSION MCA_COLL_BASE_VERSION_2_4_0

/* Contexts below this one are indices that all processes of a communicator agree on. Those above stand for
 * communicators made from groups, which have a local index and a 128-bit name from the runtime. */
#define CABLEWAY_NAMED_CONTEXTS 0x80000000u

/* Returns the context id, which is the same in all processes of a communicator. The 128-bit name of a communicator made
 * from a group is hashed. The runtime counts names in the low 32 bits, so two names of one process collide only if they
 * are 2^31 apart. The engine refuses a second communicator with the same context id. */
static inline uint32_t cableway_context(const ompi_communicator_t *communicator)
{
    uint64_t name;
    if (OMPI_COMM_IS_GLOBAL_INDEX(communicator)) {
        return communicator->c_index;
    }
    name = communicator->c_contextid.cid_base ^ (communicator->c_contextid.cid_sub.u64 * 0x9e3779b97f4a7c15u);
    return CABLEWAY_NAMED_CONTEXTS | (uint32_t) (name ^ (name >> 32));
}

static inline int cableway_bsend_init(bool threads)
{
    (void) threads;
    return mca_pml_base_bsend_init();
}

/* Open MPI 5.0 finalizes buffered sends itself. */
static inline void cableway_bsend_fini(void)
{
}

/* Initializes Open MPI's own BTLs before the modex. Otherwise only ob1 would do so. The osc components need them:
 * without them MPI_Win_create fails. */
static inline int cableway_init_stock_btls(bool threads)
{
    return mca_bml_base_inited() ? OMPI_SUCCESS : mca_bml_base_init(false, threads);
}

/* The parameters of a datatype attribute's copy callback. */
#define CABLEWAY_TYPE_COPY_PARAMETERS                                                                                  \
    ompi_datatype_t *datatype, int key, void *state, void *value, void *copy, int *keep

/* Copies the value of an info key, or an empty string. */
static inline void cableway_info_value(opal_info_t *info, const char *key, char *value, int size)
{
    opal_cstring_t *text = NULL;
    int found = 0;
    value[0] = '\0';
    if (NULL != info && OPAL_SUCCESS == opal_info_get(info, key, &text, &found) && found) {
        snprintf(value, (size_t) size, "%s", text->string);
        OBJ_RELEASE(text);
    }
}

/* The module functions that only this version has. */
int cableway_revoke_comm(ompi_communicator_t *communicator, bool collectives_only);
mca_pml_transports_t *cableway_get_transports(ompi_communicator_t *communicator, int rank);
#define CABLEWAY_MODULE_FIELDS                                                                                         \
    .pml_revoke_comm = cableway_revoke_comm, .pml_flags = MCA_PML_BASE_FLAG_SUPPORTS_EXT_CID,                          \
    .pml_get_transports = cableway_get_transports,

/* Open MPI has selected and enabled this PML. */
void cableway_on_enable(void);

/* Each session initializes the PML again: see sessions.c. Returns NULL, or the reason why this session cannot use the
 * engine. */
const char *cableway_session_begin(bool threads);
/* Returns whether an earlier session has started the engine. */
bool cableway_engine_persists(void);
/* Returns whether the engine must support MPI_THREAD_MULTIPLE. */
bool cableway_session_threads(void);
void cableway_session_end(void);

#endif
