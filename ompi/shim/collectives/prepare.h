/* Stages the arguments of each collective operation, according to what the operation reads and writes in this process.
 *
 * Each process decides for itself whether to stage, since others may pass host memory. So only arguments that are
 * significant in this process may be examined. Each function serves all forms of one operation, and replaces the
 * buffers in `call`. */
#ifndef CABLEWAY_PREPARE_H
#define CABLEWAY_PREPARE_H

#include "collectives.h"

#include "ompi/mca/topo/base/base.h"

#define READ CABLEWAY_READ
#define WRITE CABLEWAY_WRITE

#define SEND_ONE(count, datatype) cableway_stage_block(call, (void **) &call->send, count, datatype, READ)
#define RECV_ONE(count, datatype, access) cableway_stage_block(call, &call->recv, count, datatype, access)

static inline int peers(ompi_communicator_t *communicator)
{
    return OMPI_COMM_IS_INTER(communicator) ? ompi_comm_remote_size(communicator) : ompi_comm_size(communicator);
}

/* Returns whether this process is the root. */
static inline bool is_root(ompi_communicator_t *communicator, int root)
{
    return OMPI_COMM_IS_INTER(communicator) ? MPI_ROOT == root : ompi_comm_rank(communicator) == root;
}

/* Returns whether this process contributes or receives a block. In an intercommunicator the root's group does not. */
static inline bool is_part(ompi_communicator_t *communicator, int root)
{
    return !OMPI_COMM_IS_INTER(communicator) || (MPI_ROOT != root && MPI_PROC_NULL != root);
}

/* Evaluates `other` only if `one` succeeded. */
#define first_error(one, other)                                                                                        \
    ({                                                                                                                 \
        int first_ = (one);                                                                                            \
        OMPI_SUCCESS != first_ ? first_ : (other);                                                                     \
    })

/* Keeps the operation of a persistent call alive. */
static inline void keep_op(struct cableway_call *call, ompi_op_t *op)
{
    if (call->persistent) {
        cableway_keep_op(&call->kept, op);
    }
}

/* Stages a receive buffer of which the call reads `in` elements and writes `out`. */
static inline int recv_in_place(struct cableway_call *call, size_t in, size_t out, ompi_datatype_t *datatype)
{
    struct cableway_block blocks[2];
    int rc = cableway_call_keep(call, datatype);
    rc = first_error(rc, cableway_block(&blocks[0], call->recv, in, datatype, READ));
    rc = first_error(rc, cableway_block(&blocks[1], call->recv, out, datatype, WRITE));
    return first_error(rc, cableway_error(cableway_staging_add(&call->staging, &call->recv, blocks, 2)));
}

static inline int prepare_allgather(struct cableway_call *call, int scount, ompi_datatype_t *sdtype, int rcount,
                                    ompi_datatype_t *rdtype, ompi_communicator_t *comm)
{
    bool in_place = MPI_IN_PLACE == call->send;
    int rc = in_place ? OMPI_SUCCESS : SEND_ONE(scount, sdtype);
    return first_error(rc, RECV_ONE((size_t) rcount * peers(comm), rdtype, in_place ? READ | WRITE : WRITE));
}

static inline int prepare_allgatherv(struct cableway_call *call, int scount, ompi_datatype_t *sdtype,
                                     const int *rcounts, const int *displs, ompi_datatype_t *rdtype,
                                     ompi_communicator_t *comm)
{
    bool in_place = MPI_IN_PLACE == call->send;
    int rc = in_place ? OMPI_SUCCESS : SEND_ONE(scount, sdtype);
    return first_error(rc, cableway_stage_vector(call, &call->recv, peers(comm), rcounts, displs, rdtype,
                                                 in_place ? READ | WRITE : WRITE));
}

static inline int prepare_allreduce(struct cableway_call *call, int count, ompi_datatype_t *dtype)
{
    bool in_place = MPI_IN_PLACE == call->send;
    int rc = in_place ? OMPI_SUCCESS : SEND_ONE(count, dtype);
    return first_error(rc, RECV_ONE(count, dtype, in_place ? READ | WRITE : WRITE));
}

static inline int prepare_alltoall(struct cableway_call *call, int scount, ompi_datatype_t *sdtype, int rcount,
                                   ompi_datatype_t *rdtype, ompi_communicator_t *comm)
{
    bool in_place = MPI_IN_PLACE == call->send;
    int rc = in_place ? OMPI_SUCCESS : SEND_ONE((size_t) scount * peers(comm), sdtype);
    return first_error(rc, RECV_ONE((size_t) rcount * peers(comm), rdtype, in_place ? READ | WRITE : WRITE));
}

static inline int prepare_alltoallv(struct cableway_call *call, const int *scounts, const int *sdisps,
                                    ompi_datatype_t *sdtype, const int *rcounts, const int *rdisps,
                                    ompi_datatype_t *rdtype, ompi_communicator_t *comm)
{
    bool in_place = MPI_IN_PLACE == call->send;
    int rc = in_place ? OMPI_SUCCESS
                      : cableway_stage_vector(call, (void **) &call->send, peers(comm), scounts, sdisps,
                                              sdtype, READ);
    return first_error(rc, cableway_stage_vector(call, &call->recv, peers(comm), rcounts, rdisps, rdtype,
                                                 in_place ? READ | WRITE : WRITE));
}

static inline int prepare_alltoallw(struct cableway_call *call, const int *scounts, const int *sdisps,
                                    ompi_datatype_t *const *sdtypes, const int *rcounts, const int *rdisps,
                                    ompi_datatype_t *const *rdtypes, ompi_communicator_t *comm)
{
    bool in_place = MPI_IN_PLACE == call->send;
    int rc = in_place ? OMPI_SUCCESS
                      : cableway_stage_types(call, (void **) &call->send, peers(comm), scounts, sdisps, NULL,
                                             sdtypes, READ);
    return first_error(rc, cableway_stage_types(call, &call->recv, peers(comm), rcounts, rdisps, NULL,
                                                rdtypes, in_place ? READ | WRITE : WRITE));
}

static inline int prepare_bcast(struct cableway_call *call, int count, ompi_datatype_t *dtype, int root,
                                ompi_communicator_t *comm)
{
    if (is_root(comm, root)) {
        return RECV_ONE(count, dtype, READ);
    }
    return is_part(comm, root) ? RECV_ONE(count, dtype, WRITE) : OMPI_SUCCESS;
}

static inline int prepare_gather(struct cableway_call *call, int scount, ompi_datatype_t *sdtype, int rcount,
                                 ompi_datatype_t *rdtype, int root, ompi_communicator_t *comm)
{
    bool in_place = MPI_IN_PLACE == call->send;
    int rc = OMPI_SUCCESS;
    if (is_part(comm, root) && !in_place) {
        rc = SEND_ONE(scount, sdtype);
    }
    if (OMPI_SUCCESS == rc && is_root(comm, root)) {
        rc = RECV_ONE((size_t) rcount * peers(comm), rdtype, in_place ? READ | WRITE : WRITE);
    }
    return rc;
}

static inline int prepare_gatherv(struct cableway_call *call, int scount, ompi_datatype_t *sdtype, const int *rcounts,
                                  const int *displs, ompi_datatype_t *rdtype, int root, ompi_communicator_t *comm)
{
    bool in_place = MPI_IN_PLACE == call->send;
    int rc = OMPI_SUCCESS;
    if (is_part(comm, root) && !in_place) {
        rc = SEND_ONE(scount, sdtype);
    }
    if (OMPI_SUCCESS == rc && is_root(comm, root)) {
        rc = cableway_stage_vector(call, &call->recv, peers(comm), rcounts, displs, rdtype,
                                   in_place ? READ | WRITE : WRITE);
    }
    return rc;
}

static inline int prepare_scatter(struct cableway_call *call, int scount, ompi_datatype_t *sdtype, int rcount,
                                  ompi_datatype_t *rdtype, int root, ompi_communicator_t *comm)
{
    int rc = OMPI_SUCCESS;
    if (is_root(comm, root)) {
        rc = SEND_ONE((size_t) scount * peers(comm), sdtype);
    }
    if (OMPI_SUCCESS == rc && is_part(comm, root) && MPI_IN_PLACE != call->recv) {
        rc = RECV_ONE(rcount, rdtype, WRITE);
    }
    return rc;
}

static inline int prepare_scatterv(struct cableway_call *call, const int *scounts, const int *displs,
                                   ompi_datatype_t *sdtype, int rcount, ompi_datatype_t *rdtype, int root,
                                   ompi_communicator_t *comm)
{
    int rc = OMPI_SUCCESS;
    if (is_root(comm, root)) {
        rc = cableway_stage_vector(call, (void **) &call->send, peers(comm), scounts, displs, sdtype, READ);
    }
    if (OMPI_SUCCESS == rc && is_part(comm, root) && MPI_IN_PLACE != call->recv) {
        rc = RECV_ONE(rcount, rdtype, WRITE);
    }
    return rc;
}

static inline int prepare_reduce(struct cableway_call *call, int count, ompi_datatype_t *dtype, int root,
                                 ompi_communicator_t *comm)
{
    bool in_place = MPI_IN_PLACE == call->send;
    int rc = OMPI_SUCCESS;
    if (is_part(comm, root) && !in_place) {
        rc = SEND_ONE(count, dtype);
    }
    if (OMPI_SUCCESS == rc && is_root(comm, root)) {
        rc = RECV_ONE(count, dtype, in_place ? READ | WRITE : WRITE);
    }
    return rc;
}

static inline int prepare_reduce_scatter(struct cableway_call *call, const int *rcounts, ompi_datatype_t *dtype,
                                         ompi_communicator_t *comm)
{
    size_t all = 0, mine = (size_t) rcounts[ompi_comm_rank(comm)];
    for (int i = 0; i < ompi_comm_size(comm); i++) {
        all += (size_t) rcounts[i];
    }
    if (MPI_IN_PLACE == call->send) {
        return recv_in_place(call, all, mine, dtype);
    }
    return first_error(SEND_ONE(all, dtype), RECV_ONE(mine, dtype, WRITE));
}

static inline int prepare_reduce_scatter_block(struct cableway_call *call, int rcount, ompi_datatype_t *dtype,
                                               ompi_communicator_t *comm)
{
    size_t all = (size_t) rcount * ompi_comm_size(comm);
    if (MPI_IN_PLACE == call->send) {
        return recv_in_place(call, all, (size_t) rcount, dtype);
    }
    return first_error(SEND_ONE(all, dtype), RECV_ONE(rcount, dtype, WRITE));
}

/* Rank 0 of an exclusive scan receives nothing, and no data comes from a neighbor that is MPI_PROC_NULL. The buffer
 * must then keep its contents, so it is copied in before it is copied back. */
static inline int prepare_exscan(struct cableway_call *call, int count, ompi_datatype_t *dtype)
{
    int rc = MPI_IN_PLACE == call->send ? OMPI_SUCCESS : SEND_ONE(count, dtype);
    return first_error(rc, RECV_ONE(count, dtype, READ | WRITE));
}

static inline int prepare_neighbor_allgather(struct cableway_call *call, int scount, ompi_datatype_t *sdtype,
                                             int rcount, ompi_datatype_t *rdtype, ompi_communicator_t *comm)
{
    int in, out, rc = mca_topo_base_neighbor_count(comm, &in, &out);
    rc = first_error(rc, SEND_ONE(scount, sdtype));
    return first_error(rc, RECV_ONE((size_t) rcount * in, rdtype, READ | WRITE));
}

static inline int prepare_neighbor_allgatherv(struct cableway_call *call, int scount, ompi_datatype_t *sdtype,
                                              const int *rcounts, const int *displs, ompi_datatype_t *rdtype,
                                              ompi_communicator_t *comm)
{
    int in, out, rc = mca_topo_base_neighbor_count(comm, &in, &out);
    rc = first_error(rc, SEND_ONE(scount, sdtype));
    return first_error(rc, cableway_stage_vector(call, &call->recv, in, rcounts, displs, rdtype,
                                                 READ | WRITE));
}

static inline int prepare_neighbor_alltoall(struct cableway_call *call, int scount, ompi_datatype_t *sdtype,
                                            int rcount, ompi_datatype_t *rdtype, ompi_communicator_t *comm)
{
    int in, out, rc = mca_topo_base_neighbor_count(comm, &in, &out);
    rc = first_error(rc, SEND_ONE((size_t) scount * out, sdtype));
    return first_error(rc, RECV_ONE((size_t) rcount * in, rdtype, READ | WRITE));
}

static inline int prepare_neighbor_alltoallv(struct cableway_call *call, const int *scounts, const int *sdisps,
                                             ompi_datatype_t *sdtype, const int *rcounts, const int *rdisps,
                                             ompi_datatype_t *rdtype, ompi_communicator_t *comm)
{
    int in, out, rc = mca_topo_base_neighbor_count(comm, &in, &out);
    rc = first_error(rc, cableway_stage_vector(call, (void **) &call->send, out, scounts, sdisps, sdtype,
                                               READ));
    return first_error(rc, cableway_stage_vector(call, &call->recv, in, rcounts, rdisps, rdtype,
                                                 READ | WRITE));
}

static inline int prepare_neighbor_alltoallw(struct cableway_call *call, const int *scounts, const MPI_Aint *sdisps,
                                             ompi_datatype_t *const *sdtypes, const int *rcounts,
                                             const MPI_Aint *rdisps, ompi_datatype_t *const *rdtypes,
                                             ompi_communicator_t *comm)
{
    int in, out, rc = mca_topo_base_neighbor_count(comm, &in, &out);
    rc = first_error(rc, cableway_stage_types(call, (void **) &call->send, out, scounts, NULL, sdisps,
                                              sdtypes, READ));
    return first_error(rc, cableway_stage_types(call, &call->recv, in, rcounts, NULL, rdisps, rdtypes,
                                                READ | WRITE));
}

#endif
