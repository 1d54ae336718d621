/* Calls whose device buffers are replaced by host copies. */
#ifndef CABLEWAY_STAGED_H
#define CABLEWAY_STAGED_H

#include "component.h"

#include "../staging.h"

/* The arguments of a call as the host is to see them. */
struct cableway_call {
    const void *send;
    void *recv;
    void *staging; /* NULL where nothing had to be copied */
};

/* A part of an argument: `count` elements at `address`. */
static inline int cableway_block(struct cableway_block *block, const void *address, size_t count,
                                 ompi_datatype_t *datatype, int access)
{
    block->access = access;
    return cableway_describe(&block->buffer, address, count, datatype);
}

/* Stages an argument that is one part. */
int cableway_stage_one(void **staging, void **base, size_t count, ompi_datatype_t *datatype, int access);
/* Stages an argument that is `n` parts, of one type at displacements in its extents. */
int cableway_stage_vector(void **staging, void **base, int n, const int *counts, const int *displacements,
                          ompi_datatype_t *datatype, int access);
/* Stages an argument that is `n` parts of a type each, at displacements in bytes, which are ints or MPI_Aints. */
int cableway_stage_types(void **staging, void **base, int n, const int *counts, const int *narrow,
                         const MPI_Aint *wide, ompi_datatype_t *const *datatypes, int access);

/* Ends a blocking call that answered `rc`: copies back what it wrote, and frees the copies. */
int cableway_staging_finish(void *staging, int rc);

/* Replaces the request of a call that was started on `staging`, which it takes over, by one that copies back what the
 * call wrote as it completes. Persistent: one that copies in as it starts, too. On failure the staging is freed. */
int cableway_staging_request(ompi_request_t **request, void *staging, bool persistent);

#endif
