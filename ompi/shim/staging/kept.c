/* Keeps datatypes and operations alive. Predefined ones are never freed. */
#include "kept.h"

#include <stdlib.h>

int cableway_keep_type(struct cableway_kept *kept, ompi_datatype_t *datatype)
{
    /* Most calls have one type. */
    if (ompi_datatype_is_predefined(datatype) || (0 != kept->count && datatype == kept->types[kept->count - 1])) {
        return OMPI_SUCCESS;
    }
    if (kept->count == kept->room) {
        size_t room = 2 * kept->room + 2;
        ompi_datatype_t **types = realloc(kept->types, room * sizeof *types);
        if (NULL == types) {
            return OMPI_ERR_OUT_OF_RESOURCE;
        }
        kept->types = types;
        kept->room = room;
    }
    OBJ_RETAIN(datatype);
    kept->types[kept->count++] = datatype;
    return OMPI_SUCCESS;
}

void cableway_keep_op(struct cableway_kept *kept, ompi_op_t *op)
{
    if (!ompi_op_is_intrinsic(op)) {
        OBJ_RETAIN(op);
        kept->op = op;
    }
}

void cableway_kept_release(struct cableway_kept *kept)
{
    for (size_t i = 0; i < kept->count; i++) {
        OBJ_RELEASE(kept->types[i]);
    }
    free(kept->types);
    if (NULL != kept->op) {
        OBJ_RELEASE(kept->op);
    }
    memset(kept, 0, sizeof *kept);
}
