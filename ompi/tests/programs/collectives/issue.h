/* The calls of MPI, in their three forms. */
#ifndef ISSUE_H
#define ISSUE_H

#include "job.h"

/* MPI has persistent collectives since Open MPI 5.0. Open MPI 4.1 has them under another name. */
#if OMPI_MAJOR_VERSION < 5
#define INIT(Name) MPIX_##Name##_init
#else
#define INIT(Name) MPI_##Name##_init
#endif

#define CALL(NAME, Name, name, ...)                                                                                    \
    case NAME:                                                                                                         \
        switch (shape->form) {                                                                                         \
        case NONBLOCKING: code = MPI_I##name(__VA_ARGS__, &job->request); break;                                       \
        case PERSISTENT: code = INIT(Name)(__VA_ARGS__, MPI_INFO_NULL, &job->request); break;                          \
        default: code = MPI_##Name(__VA_ARGS__);                                                                       \
        }                                                                                                              \
        break;

#define OUT out->count, out->view->type
#define IN in->count, in->view->type
#define OUT_PARTS out->counts, out->places, out->view->type
#define IN_PARTS in->counts, in->places, in->view->type

/* Calls MPI. A persistent operation is made, not started. Returns MPI's code. */
static int issue(struct job *job)
{
    const struct shape *shape = &job->shape;
    const struct side *out = &job->out, *in = &job->in;
    const int root = job->root;
    MPI_Comm comm = job->group->comm;
    void *S = memory_at(&job->send), *R = memory_at(&job->recv);
    MPI_Datatype type = is_reduction(shape->call) ? shape->type->type : MPI_DATATYPE_NULL;
    MPI_Op op = is_reduction(shape->call) ? ops[shape->op] : MPI_OP_NULL;
    int code = MPI_SUCCESS;
    if (shape->in_place && is_scatter(shape->call)) {
        R = job->is_root ? MPI_IN_PLACE : R;
    } else if (shape->in_place && (!has_root(shape->call) || job->is_root)) {
        S = MPI_IN_PLACE;
    }
    /* What only the root uses. */
    if (REDUCE == shape->call || is_gather(shape->call)) {
        R = job->is_root ? R : NULL;
    } else if (is_scatter(shape->call)) {
        S = job->is_root ? S : NULL;
    }
    switch (shape->call) {
        CALL(ALLGATHER, Allgather, allgather, S, OUT, R, IN, comm)
        CALL(ALLGATHERV, Allgatherv, allgatherv, S, OUT, R, IN_PARTS, comm)
        CALL(ALLTOALL, Alltoall, alltoall, S, OUT, R, IN, comm)
        CALL(ALLTOALLV, Alltoallv, alltoallv, S, OUT_PARTS, R, IN_PARTS, comm)
        CALL(ALLTOALLW, Alltoallw, alltoallw, S, out->counts, out->bytes_from, out->types, R, in->counts, in->bytes_from,
             in->types, comm)
        CALL(BCAST, Bcast, bcast, R, IN, root, comm)
        CALL(GATHER, Gather, gather, S, OUT, R, IN, root, comm)
        CALL(GATHERV, Gatherv, gatherv, S, OUT, R, IN_PARTS, root, comm)
        CALL(SCATTER, Scatter, scatter, S, OUT, R, IN, root, comm)
        CALL(SCATTERV, Scatterv, scatterv, S, OUT_PARTS, R, IN, root, comm)
        CALL(NEIGHBOR_ALLGATHER, Neighbor_allgather, neighbor_allgather, S, OUT, R, IN, comm)
        CALL(NEIGHBOR_ALLGATHERV, Neighbor_allgatherv, neighbor_allgatherv, S, OUT, R, IN_PARTS, comm)
        CALL(NEIGHBOR_ALLTOALL, Neighbor_alltoall, neighbor_alltoall, S, OUT, R, IN, comm)
        CALL(NEIGHBOR_ALLTOALLV, Neighbor_alltoallv, neighbor_alltoallv, S, OUT_PARTS, R, IN_PARTS, comm)
        CALL(NEIGHBOR_ALLTOALLW, Neighbor_alltoallw, neighbor_alltoallw, S, out->counts, out->wide, out->types, R,
             in->counts, in->wide, in->types, comm)
        CALL(ALLREDUCE, Allreduce, allreduce, S, R, in->count, type, op, comm)
        CALL(REDUCE, Reduce, reduce, S, R, in->count, type, op, root, comm)
        CALL(REDUCE_SCATTER, Reduce_scatter, reduce_scatter, S, R, in->counts, type, op, comm)
        CALL(REDUCE_SCATTER_BLOCK, Reduce_scatter_block, reduce_scatter_block, S, R, in->count, type, op, comm)
        CALL(SCAN, Scan, scan, S, R, in->count, type, op, comm)
        CALL(EXSCAN, Exscan, exscan, S, R, in->count, type, op, comm)
    case REDUCE_LOCAL: code = MPI_Reduce_local(S, R, in->count, type, op); break;
    default: CHECK(!"a call");
    }
    return code;
}

#endif
