/* Stages the buffer arguments of MPI calls. */
#include "staged.h"

#include <stdlib.h>

int cableway_stage_one(void **staging, void **base, size_t count, ompi_datatype_t *datatype, int access)
{
    struct cableway_block block;
    int rc = cableway_block(&block, *base, count, datatype, access);
    return OMPI_SUCCESS != rc ? rc : cableway_error(cableway_staging_add(staging, base, &block, 1));
}

int cableway_call_keep(struct cableway_call *call, ompi_datatype_t *datatype)
{
    return call->persistent ? cableway_keep_type(&call->kept, datatype) : OMPI_SUCCESS;
}

int cableway_stage_block(struct cableway_call *call, void **base, size_t count, ompi_datatype_t *datatype, int access)
{
    int rc = cableway_call_keep(call, datatype);
    return OMPI_SUCCESS != rc ? rc : cableway_stage_one(&call->staging, base, count, datatype, access);
}

int cableway_stage_vector(struct cableway_call *call, void **base, int n, const int *counts, const int *displacements,
                          ompi_datatype_t *datatype, int access)
{
    struct cableway_block *blocks = malloc(sizeof *blocks * (size_t) (n ? n : 1));
    ptrdiff_t extent;
    int rc = NULL != blocks ? cableway_call_keep(call, datatype) : OMPI_ERR_OUT_OF_RESOURCE;
    ompi_datatype_type_extent(datatype, &extent);
    for (int i = 0; OMPI_SUCCESS == rc && i < n; i++) {
        rc = cableway_block(&blocks[i], (char *) *base + displacements[i] * extent, (size_t) counts[i], datatype,
                            access);
    }
    if (OMPI_SUCCESS == rc) {
        rc = cableway_error(cableway_staging_add(&call->staging, base, blocks, (size_t) n));
    }
    free(blocks);
    return rc;
}

int cableway_stage_types(struct cableway_call *call, void **base, int n, const int *counts, const int *narrow,
                         const MPI_Aint *wide, ompi_datatype_t *const *datatypes, int access)
{
    struct cableway_block *blocks = malloc(sizeof *blocks * (size_t) (n ? n : 1));
    size_t used = 0;
    int rc = NULL != blocks ? OMPI_SUCCESS : OMPI_ERR_OUT_OF_RESOURCE;
    for (int i = 0; OMPI_SUCCESS == rc && i < n; i++) {
        /* The datatype of an empty block may be invalid. */
        if (0 != counts[i]) {
            ptrdiff_t displacement = NULL != wide ? wide[i] : narrow[i];
            rc = cableway_call_keep(call, datatypes[i]);
            if (OMPI_SUCCESS == rc) {
                rc = cableway_block(&blocks[used++], (char *) *base + displacement, (size_t) counts[i], datatypes[i],
                                    access);
            }
        }
    }
    if (OMPI_SUCCESS == rc) {
        rc = cableway_error(cableway_staging_add(&call->staging, base, blocks, used));
    }
    free(blocks);
    return rc;
}

void cableway_call_discard(struct cableway_call *call)
{
    cableway_staging_free(call->staging);
    cableway_kept_release(&call->kept);
}

int cableway_staging_finish(void *staging, int rc)
{
    if (OMPI_SUCCESS == rc) {
        rc = cableway_error(cableway_staging_drain(staging));
    }
    cableway_staging_free(staging);
    return rc;
}
