/* Collective operations on device memory. A call with device buffers is passed to the next lower coll module with host
 * copies of them. Other calls are passed on unchanged. */
#ifndef CABLEWAY_COLLECTIVES_H
#define CABLEWAY_COLLECTIVES_H

#include "shim.h"

#include "ompi/mca/coll/base/base.h"
#include "ompi/mca/coll/coll.h"

#include "../staging/staged.h"

/* The operations that have blocking, nonblocking and persistent forms. */
#define CABLEWAY_COLLECTIVES(EACH)                                                                                     \
    EACH(allgather)                                                                                                    \
    EACH(allgatherv)                                                                                                   \
    EACH(allreduce)                                                                                                    \
    EACH(alltoall)                                                                                                     \
    EACH(alltoallv)                                                                                                    \
    EACH(alltoallw)                                                                                                    \
    EACH(bcast)                                                                                                        \
    EACH(exscan)                                                                                                       \
    EACH(gather)                                                                                                       \
    EACH(gatherv)                                                                                                      \
    EACH(reduce)                                                                                                       \
    EACH(reduce_scatter)                                                                                               \
    EACH(reduce_scatter_block)                                                                                         \
    EACH(scan)                                                                                                         \
    EACH(scatter)                                                                                                      \
    EACH(scatterv)                                                                                                     \
    EACH(neighbor_allgather)                                                                                           \
    EACH(neighbor_allgatherv)                                                                                          \
    EACH(neighbor_alltoall)                                                                                            \
    EACH(neighbor_alltoallv)                                                                                           \
    EACH(neighbor_alltoallw)

/* The coll module of one communicator. */
struct cableway_collectives {
    mca_coll_base_module_t super;
    mca_coll_base_comm_coll_t lower; /* the functions that this module replaced, and their modules */
    void *members;                   /* the engine's operations, or NULL */
};
typedef struct cableway_collectives cableway_collectives_t;
OBJ_CLASS_DECLARATION(cableway_collectives_t);

/* Sets the function pointers of a module. */
void cableway_collectives_functions(mca_coll_base_module_t *module);

#endif
