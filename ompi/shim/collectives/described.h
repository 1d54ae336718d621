/* Describes collective calls to the engine. */
#ifndef CABLEWAY_DESCRIBED_H
#define CABLEWAY_DESCRIBED_H

#include "component.h"

#include "ompi/op/op.h"

#include "operations.h"

/* A call, and the memory of its lists. It must not move. */
struct cableway_described {
    struct cableway_collective call;
    struct cableway_buffer one_send, one_receive;
    struct cableway_buffer *send, *receive; /* allocated, or NULL */
    struct cableway_edge *edges;            /* allocated, or NULL */
    int *counts;                            /* allocated, or NULL */
};

/* The functions below fill in a call. They return OMPI_SUCCESS, an error, or this, for what the engine does not do: a
 * program's own reductions, or types that no device has. All members get the same answer. */
enum { CABLEWAY_NOT_OURS = 1 };

/* Returns whether the engine reduces such elements, and their numbers. */
bool cableway_reduces(ompi_op_t *op, ompi_datatype_t *datatype, int *operation, int *element);
/* Implemented in Rust. */
bool cableway_reduction_defined(int operation, int element);

void cableway_described_release(struct cableway_described *described);

int cableway_describe_allgather(struct cableway_described *d, const void *sbuf, int scount, ompi_datatype_t *sdtype,
                                void *rbuf, int rcount, ompi_datatype_t *rdtype, ompi_communicator_t *comm);
int cableway_describe_allgatherv(struct cableway_described *d, const void *sbuf, int scount, ompi_datatype_t *sdtype,
                                 void *rbuf, const int *rcounts, const int *displs, ompi_datatype_t *rdtype,
                                 ompi_communicator_t *comm);
int cableway_describe_alltoall(struct cableway_described *d, const void *sbuf, int scount, ompi_datatype_t *sdtype,
                               void *rbuf, int rcount, ompi_datatype_t *rdtype, ompi_communicator_t *comm);
int cableway_describe_alltoallv(struct cableway_described *d, const void *sbuf, const int *scounts, const int *sdisps,
                                ompi_datatype_t *sdtype, void *rbuf, const int *rcounts, const int *rdisps,
                                ompi_datatype_t *rdtype, ompi_communicator_t *comm);
int cableway_describe_alltoallw(struct cableway_described *d, const void *sbuf, const int *scounts, const int *sdisps,
                                ompi_datatype_t *const *sdtypes, void *rbuf, const int *rcounts, const int *rdisps,
                                ompi_datatype_t *const *rdtypes, ompi_communicator_t *comm);
int cableway_describe_bcast(struct cableway_described *d, void *buffer, int count, ompi_datatype_t *dtype, int root);
int cableway_describe_gather(struct cableway_described *d, const void *sbuf, int scount, ompi_datatype_t *sdtype,
                             void *rbuf, int rcount, ompi_datatype_t *rdtype, int root, ompi_communicator_t *comm);
int cableway_describe_gatherv(struct cableway_described *d, const void *sbuf, int scount, ompi_datatype_t *sdtype,
                              void *rbuf, const int *rcounts, const int *displs, ompi_datatype_t *rdtype, int root,
                              ompi_communicator_t *comm);
int cableway_describe_scatter(struct cableway_described *d, const void *sbuf, int scount, ompi_datatype_t *sdtype,
                              void *rbuf, int rcount, ompi_datatype_t *rdtype, int root, ompi_communicator_t *comm);
int cableway_describe_scatterv(struct cableway_described *d, const void *sbuf, const int *scounts, const int *displs,
                               ompi_datatype_t *sdtype, void *rbuf, int rcount, ompi_datatype_t *rdtype, int root,
                               ompi_communicator_t *comm);
/* A reduction without lists. */
int cableway_describe_reduction(struct cableway_described *d, enum cableway_collective_kind kind, const void *sbuf,
                                void *rbuf, size_t count, ompi_datatype_t *dtype, ompi_op_t *op, int root);
/* With `rcounts` == NULL each rank gets `rcount` elements. */
int cableway_describe_reduce_scatter(struct cableway_described *d, const void *sbuf, void *rbuf, const int *rcounts,
                                     int rcount, ompi_datatype_t *dtype, ompi_op_t *op, ompi_communicator_t *comm);

#endif
