/* Describes collective calls to the engine. */
#ifndef CABLEWAY_DESCRIBED_H
#define CABLEWAY_DESCRIBED_H

#include "shim.h"

#include "ompi/op/op.h"

#include "../staging/kept.h"
#include "operations.h"

/* A buffer argument: one block, or one for each rank or neighbour. */
struct cableway_argument {
    const void *base;
    const int *counts; /* of elements; NULL if each block has `count` */
    int count;
    bool shared;                         /* all blocks are the first one */
    const int *displacements;            /* in extents; NULL if the blocks lie behind each other */
    const int *bytes;                    /* displacements in bytes, if not NULL */
    const MPI_Aint *wide;                /* the same */
    ompi_datatype_t *datatype;           /* of all blocks, or NULL */
    ompi_datatype_t *const *datatypes;   /* of each block */
};

/* One block, or equal blocks behind each other. */
static inline struct cableway_argument cableway_equal(const void *base, int count, ompi_datatype_t *datatype)
{
    return (struct cableway_argument){.base = base, .count = count, .datatype = datatype};
}

static inline struct cableway_argument cableway_varied(const void *base, const int *counts, const int *displacements,
                                                       ompi_datatype_t *datatype)
{
    return (struct cableway_argument){
        .base = base, .counts = counts, .displacements = displacements, .datatype = datatype};
}

static inline struct cableway_argument cableway_typed(const void *base, const int *counts, const int *bytes,
                                                      ompi_datatype_t *const *datatypes)
{
    return (struct cableway_argument){.base = base, .counts = counts, .bytes = bytes, .datatypes = datatypes};
}

static inline struct cableway_argument cableway_widely_typed(const void *base, const int *counts, const MPI_Aint *wide,
                                                             ompi_datatype_t *const *datatypes)
{
    return (struct cableway_argument){.base = base, .counts = counts, .wide = wide, .datatypes = datatypes};
}

/* The same block for each neighbour. */
static inline struct cableway_argument cableway_shared(const void *base, int count, ompi_datatype_t *datatype)
{
    return (struct cableway_argument){.base = base, .count = count, .datatype = datatype, .shared = true};
}

/* The blocks of one side of a call. */
struct cableway_blocks {
    struct cableway_buffer one, *many; /* many: allocated, or NULL */
};

/* A call, and what it needs as long as it may be started: the memory of its lists, and the datatypes whose layouts it
 * uses, which the program may free meanwhile. It must not move. */
struct cableway_described {
    struct cableway_collective call;
    struct cableway_blocks send, receive;
    struct cableway_edge *edges; /* allocated, or NULL */
    int *counts;                 /* allocated, or NULL */
    struct cableway_kept kept;
};

/* The functions below fill in a call. Of an intercommunicator, that is an exchange with the other group. They return
 * OMPI_SUCCESS, an error, or this, for what the engine does not do: reductions between groups. All members get the same
 * answer. */
enum { CABLEWAY_NOT_OURS = 1 };

/* Returns whether the engine reduces such elements itself, and their numbers. */
bool cableway_reduces(ompi_op_t *op, ompi_datatype_t *datatype, int *operation, int *element);
/* Implemented in Rust. */
bool cableway_reduction_defined(int operation, int element);

void cableway_described_release(struct cableway_described *described);

int cableway_describe_allgather(struct cableway_described *d, struct cableway_argument send,
                                struct cableway_argument receive, ompi_communicator_t *comm);
int cableway_describe_alltoall(struct cableway_described *d, struct cableway_argument send,
                               struct cableway_argument receive, ompi_communicator_t *comm);
int cableway_describe_bcast(struct cableway_described *d, struct cableway_argument data, int root,
                            ompi_communicator_t *comm);
int cableway_describe_gather(struct cableway_described *d, struct cableway_argument send,
                             struct cableway_argument receive, int root, ompi_communicator_t *comm);
int cableway_describe_scatter(struct cableway_described *d, struct cableway_argument send,
                              struct cableway_argument receive, int root, ompi_communicator_t *comm);
/* `send` holds a block for each process to which this one sends in the topology, `receive` one for each from which it
 * receives. */
int cableway_describe_neighbors(struct cableway_described *d, struct cableway_argument send,
                                struct cableway_argument receive, ompi_communicator_t *comm);
/* Fills in the edges of a call among neighbours, and their numbers. */
int cableway_describe_edges(struct cableway_described *d, ompi_communicator_t *comm);
/* A reduction without lists. */
int cableway_describe_reduction(struct cableway_described *d, enum cableway_collective_kind kind, const void *sbuf,
                                void *rbuf, size_t count, ompi_datatype_t *dtype, ompi_op_t *op, int root,
                                ompi_communicator_t *comm);
/* With `rcounts` == NULL each rank gets `rcount` elements. */
int cableway_describe_reduce_scatter(struct cableway_described *d, const void *sbuf, void *rbuf, const int *rcounts,
                                     int rcount, ompi_datatype_t *dtype, ompi_op_t *op, ompi_communicator_t *comm);

#endif
