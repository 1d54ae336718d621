/* Replaces the device buffers of MPI calls by host copies. */
#ifndef CABLEWAY_STAGED_H
#define CABLEWAY_STAGED_H

#include "component.h"

#include "../staging.h"

/* The buffer arguments of a call. Staging replaces device addresses by those of the host copies. */
struct cableway_call {
    const void *send;
    void *recv;
    void *staging; /* NULL if no buffer is in device memory */
};

/* Describes one block of an argument: `count` elements at `address`. */
static inline int cableway_block(struct cableway_block *block, const void *address, size_t count,
                                 ompi_datatype_t *datatype, int access)
{
    block->access = access;
    return cableway_describe(&block->buffer, address, count, datatype);
}

/* Stages an argument of one block. */
int cableway_stage_one(void **staging, void **base, size_t count, ompi_datatype_t *datatype, int access);
/* Stages an argument of `n` blocks of one datatype, at displacements in units of its extent. */
int cableway_stage_vector(void **staging, void **base, int n, const int *counts, const int *displacements,
                          ompi_datatype_t *datatype, int access);
/* Stages an argument of `n` blocks with a datatype each, at displacements in bytes: `wide`, or `narrow` if it is
 * NULL. */
int cableway_stage_types(void **staging, void **base, int n, const int *counts, const int *narrow,
                         const MPI_Aint *wide, ompi_datatype_t *const *datatypes, int access);

/* Ends a blocking call that returned `rc`: copies back what it wrote if it succeeded, and frees the copies. */
int cableway_staging_finish(void *staging, int rc);

/* Replaces the request of a call on host copies by one that copies back what the call wrote when it completes. If
 * `persistent`, each start copies in. Takes ownership of `staging`, also on failure. */
int cableway_staging_request(ompi_request_t **request, void *staging, bool persistent);

#endif
