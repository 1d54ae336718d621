/* Replaces the device buffers of MPI calls by host copies. */
#ifndef CABLEWAY_STAGED_H
#define CABLEWAY_STAGED_H

#include "shim.h"

#include "../staging.h"
#include "kept.h"

/* The buffer arguments of a call. Staging replaces device addresses by those of the host copies. */
struct cableway_call {
    const void *send;
    void *recv;
    void *staging;             /* NULL if no buffer is in device memory */
    bool persistent;           /* keeps what it uses alive: Open MPI does so for other calls only */
    struct cableway_kept kept;
};

/* Describes one block of an argument: `count` elements at `address`. */
static inline int cableway_block(struct cableway_block *block, const void *address, size_t count,
                                 ompi_datatype_t *datatype, int access)
{
    block->access = access;
    return cableway_describe(&block->buffer, address, count, datatype);
}

/* Keeps a datatype alive if the call is persistent. */
int cableway_call_keep(struct cableway_call *call, ompi_datatype_t *datatype);
/* Stages an argument of one block. */
int cableway_stage_one(void **staging, void **base, size_t count, ompi_datatype_t *datatype, int access);
/* Stages an argument of a collective, given by its address in `call`: one block. */
int cableway_stage_block(struct cableway_call *call, void **base, size_t count, ompi_datatype_t *datatype, int access);
/* `n` blocks of one datatype, at displacements in units of its extent. */
int cableway_stage_vector(struct cableway_call *call, void **base, int n, const int *counts, const int *displacements,
                          ompi_datatype_t *datatype, int access);
/* `n` blocks with a datatype each, at displacements in bytes: `wide`, or `narrow` if it is NULL. */
int cableway_stage_types(struct cableway_call *call, void **base, int n, const int *counts, const int *narrow,
                         const MPI_Aint *wide, ompi_datatype_t *const *datatypes, int access);

/* Frees what a call holds that was not made. */
void cableway_call_discard(struct cableway_call *call);
/* Ends a blocking call that returned `rc`: copies back what it wrote if it succeeded, and frees the copies. */
int cableway_staging_finish(void *staging, int rc);

/* Replaces the request of a call on host copies by one that copies back what the call wrote when it completes. It
 * keeps the communicator, unless that is NULL. Takes ownership of `staging`, also on failure. */
int cableway_staging_request(ompi_request_t **request, void *staging, ompi_communicator_t *communicator);
/* The same for a persistent request: each start copies in. Takes what `call` holds, also on failure. */
int cableway_staging_persistent(ompi_request_t **request, struct cableway_call *call,
                                ompi_communicator_t *communicator);

#endif
