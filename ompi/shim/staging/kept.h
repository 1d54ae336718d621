/* What an operation uses and the program may free meanwhile. */
#ifndef CABLEWAY_KEPT_H
#define CABLEWAY_KEPT_H

#include "shim.h"

#include "ompi/op/op.h"

struct cableway_kept {
    ompi_datatype_t **types;
    size_t count, room;
    ompi_op_t *op; /* or NULL */
};

/* Keeps a datatype alive. Returns OMPI_SUCCESS, or an error if there is no memory. */
int cableway_keep_type(struct cableway_kept *kept, ompi_datatype_t *datatype);
void cableway_keep_op(struct cableway_kept *kept, ompi_op_t *op);
void cableway_kept_release(struct cableway_kept *kept);

#endif
