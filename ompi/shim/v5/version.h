/* Open MPI 5.0 as the files in common/ know it. */
#ifndef CABLEWAY_VERSION_H
#define CABLEWAY_VERSION_H

#include "ompi/attribute/attribute.h"
#include "ompi/communicator/communicator.h"
#include "ompi/mca/bml/base/base.h"
#include "ompi/mca/pml/base/pml_base_bsend.h"
#include "ompi/mca/pml/pml.h"
#include "ompi/runtime/ompi_rte.h"
#include "opal/mca/threads/mutex.h"

#define CABLEWAY_PML_VERSION MCA_PML_BASE_VERSION_2_1_0
#define CABLEWAY_ERR_REVOKED MPI_ERR_REVOKED
#define CABLEWAY_COLL_VERSION MCA_COLL_BASE_VERSION_2_4_0

/* Indices that all processes of a communicator agree on stay below this; above it are communicators made from groups,
 * whose index is each process's own and whose 128-bit name is the runtime's. */
#define CABLEWAY_NAMED_CONTEXTS 0x80000000u

/* The number that all processes of a communicator know it by. A named communicator's is folded from its name: the
 * runtime counts names in the low 32 bits, so that names fold to one number only if 2^31 apart; the engine refuses a
 * second communicator of the same number in a process. */
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

/* The library ends buffered sends by itself. */
static inline void cableway_bsend_fini(void)
{
}

/* What must be ready before processes tell each other their addresses. Only ob1 sets the stock transports up by itself;
 * without them no one-sided component finds a way to its peers, and every MPI_Win_create fails. */
static inline int cableway_before_modex(bool threads)
{
    return mca_bml_base_inited() ? OMPI_SUCCESS : mca_bml_base_init(false, threads);
}

/* Of the callback that decides whether a duplicate of a type has an attribute, too. */
#define CABLEWAY_TYPE_COPY_PARAMETERS                                                                                  \
    ompi_datatype_t *datatype, int key, void *state, void *value, void *copy, int *keep

/* What the module has that other versions' have not. */
int cableway_revoke_comm(ompi_communicator_t *communicator, bool collectives_only);
mca_pml_transports_t *cableway_get_transports(ompi_communicator_t *communicator, int rank);
#define CABLEWAY_MODULE_FIELDS                                                                                         \
    .pml_revoke_comm = cableway_revoke_comm, .pml_flags = MCA_PML_BASE_FLAG_SUPPORTS_EXT_CID,                          \
    .pml_get_transports = cableway_get_transports,

/* This PML is the one that was chosen. */
void cableway_enabled(void);

/* Sessions come one after another, and each initialises the PML again: see sessions.c. */
/* NULL, or why this session cannot use the engine. */
const char *cableway_enter(bool threads);
bool cableway_entered(void);
bool cableway_with_threads(void);
void cableway_leave(void);
/* Remembers what this process has published. */
int cableway_remember(const char *key, const uint8_t *bytes, size_t len);

#endif
