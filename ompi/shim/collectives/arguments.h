/* The parameters of each collective operation, and what is made of them. */
#ifndef CABLEWAY_ARGUMENTS_H
#define CABLEWAY_ARGUMENTS_H

#include "described.h"

/* For each operation:
 * PARAMETERS_  the parameters as Open MPI declares them
 * PREPARE_     the call that stages the buffers
 * ARGUMENTS_   the arguments for the lower module, with the staged buffers
 * BUFFERS_     the initial `struct cableway_call`
 * COUNTED_     whether this is a call that all members make: Open MPI passes no empty calls on, and members may differ
 *              in what is empty for them
 * BETWEEN_     the same for an intercommunicator
 * SIZE_        the bytes of an intracommunicator's call, if they are equal in all processes, else UINT64_MAX
 * DESCRIBE_    the call that describes it to the engine */
#define TWO {.send = sbuf, .recv = rbuf}
#define ONE {.recv = rbuf}
#define EQUAL_OUT cableway_equal(sbuf, scount, sdtype)
#define SHARED_OUT cableway_shared(sbuf, scount, sdtype)
#define EQUAL_IN cableway_equal(rbuf, rcount, rdtype)

#define PARAMETERS_allgather                                                                                           \
    const void *sbuf, int scount, ompi_datatype_t *sdtype, void *rbuf, int rcount, ompi_datatype_t *rdtype,            \
    ompi_communicator_t *comm
#define PREPARE_allgather prepare_allgather(&call, scount, sdtype, rcount, rdtype, comm)
#define ARGUMENTS_allgather call.send, scount, sdtype, call.recv, rcount, rdtype, comm
#define BUFFERS_allgather TWO
#define SIZE_allgather (all_bytes(rcount, rdtype, comm))
#define COUNTED_allgather (has_data(rcount, rdtype))
#define BETWEEN_allgather (has_data(scount, sdtype) && has_data(rcount, rdtype))
#define DESCRIBE_allgather cableway_describe_allgather(&d, EQUAL_OUT, EQUAL_IN, comm)

#define PARAMETERS_allgatherv                                                                                          \
    const void *sbuf, int scount, ompi_datatype_t *sdtype, void *rbuf, const int *rcounts, const int *displs,          \
    ompi_datatype_t *rdtype, ompi_communicator_t *comm
#define PREPARE_allgatherv prepare_allgatherv(&call, scount, sdtype, rcounts, displs, rdtype, comm)
#define ARGUMENTS_allgatherv call.send, scount, sdtype, call.recv, rcounts, displs, rdtype, comm
#define BUFFERS_allgatherv TWO
#define SIZE_allgatherv UINT64_MAX
#define COUNTED_allgatherv (any_data(rcounts, rdtype, comm))
#define BETWEEN_allgatherv (false)
#define DESCRIBE_allgatherv                                                                                            \
    cableway_describe_allgather(&d, EQUAL_OUT, cableway_varied(rbuf, rcounts, displs, rdtype), comm)

#define PARAMETERS_allreduce                                                                                           \
    const void *sbuf, void *rbuf, int count, ompi_datatype_t *dtype, struct ompi_op_t *op, ompi_communicator_t *comm
#define PREPARE_allreduce (keep_op(&call, op), prepare_allreduce(&call, count, dtype))
#define ARGUMENTS_allreduce call.send, call.recv, count, dtype, op, comm
#define BUFFERS_allreduce TWO
#define SIZE_allreduce (bytes_of(count, dtype))
#define COUNTED_allreduce (has_data(count, dtype))
#define BETWEEN_allreduce (has_data(count, dtype))
#define DESCRIBE_allreduce cableway_describe_reduction(&d, CABLEWAY_ALLREDUCE, sbuf, rbuf, count, dtype, op, 0, comm)

#define PARAMETERS_alltoall                                                                                            \
    const void *sbuf, int scount, ompi_datatype_t *sdtype, void *rbuf, int rcount, ompi_datatype_t *rdtype,            \
    ompi_communicator_t *comm
#define PREPARE_alltoall prepare_alltoall(&call, scount, sdtype, rcount, rdtype, comm)
#define ARGUMENTS_alltoall call.send, scount, sdtype, call.recv, rcount, rdtype, comm
#define BUFFERS_alltoall TWO
#define SIZE_alltoall (all_bytes(rcount, rdtype, comm))
#define COUNTED_alltoall (has_data(rcount, rdtype))
#define BETWEEN_alltoall (has_data(scount, sdtype) && has_data(rcount, rdtype))
#define DESCRIBE_alltoall cableway_describe_alltoall(&d, EQUAL_OUT, EQUAL_IN, comm)

#define PARAMETERS_alltoallv                                                                                           \
    const void *sbuf, const int *scounts, const int *sdisps, ompi_datatype_t *sdtype, void *rbuf,                      \
    const int *rcounts, const int *rdisps, ompi_datatype_t *rdtype, ompi_communicator_t *comm
#define PREPARE_alltoallv prepare_alltoallv(&call, scounts, sdisps, sdtype, rcounts, rdisps, rdtype, comm)
#define ARGUMENTS_alltoallv call.send, scounts, sdisps, sdtype, call.recv, rcounts, rdisps, rdtype, comm
#define BUFFERS_alltoallv TWO
#define SIZE_alltoallv UINT64_MAX
#define COUNTED_alltoallv (true)
#define BETWEEN_alltoallv (true)
#define DESCRIBE_alltoallv                                                                                             \
    cableway_describe_alltoall(&d, cableway_varied(sbuf, scounts, sdisps, sdtype),                                     \
                               cableway_varied(rbuf, rcounts, rdisps, rdtype), comm)

#define PARAMETERS_alltoallw                                                                                           \
    const void *sbuf, const int *scounts, const int *sdisps, ompi_datatype_t *const *sdtypes, void *rbuf,              \
    const int *rcounts, const int *rdisps, ompi_datatype_t *const *rdtypes, ompi_communicator_t *comm
#define PREPARE_alltoallw prepare_alltoallw(&call, scounts, sdisps, sdtypes, rcounts, rdisps, rdtypes, comm)
#define ARGUMENTS_alltoallw call.send, scounts, sdisps, sdtypes, call.recv, rcounts, rdisps, rdtypes, comm
#define BUFFERS_alltoallw TWO
#define SIZE_alltoallw UINT64_MAX
#define COUNTED_alltoallw (true)
#define BETWEEN_alltoallw (true)
#define DESCRIBE_alltoallw                                                                                             \
    cableway_describe_alltoall(&d, cableway_typed(sbuf, scounts, sdisps, sdtypes),                                     \
                               cableway_typed(rbuf, rcounts, rdisps, rdtypes), comm)

#define PARAMETERS_bcast void *rbuf, int count, ompi_datatype_t *dtype, int root, ompi_communicator_t *comm
#define PREPARE_bcast prepare_bcast(&call, count, dtype, root, comm)
#define ARGUMENTS_bcast call.recv, count, dtype, root, comm
#define BUFFERS_bcast ONE
#define SIZE_bcast (bytes_of(count, dtype))
#define COUNTED_bcast (has_data(count, dtype))
#define BETWEEN_bcast (false)
#define DESCRIBE_bcast cableway_describe_bcast(&d, cableway_equal(rbuf, count, dtype), root, comm)

#define PARAMETERS_exscan                                                                                              \
    const void *sbuf, void *rbuf, int count, ompi_datatype_t *dtype, struct ompi_op_t *op, ompi_communicator_t *comm
#define PREPARE_exscan (keep_op(&call, op), prepare_exscan(&call, count, dtype))
#define ARGUMENTS_exscan call.send, call.recv, count, dtype, op, comm
#define BUFFERS_exscan TWO
#define SIZE_exscan (bytes_of(count, dtype))
#define COUNTED_exscan (has_data(count, dtype))
#define BETWEEN_exscan (false)
#define DESCRIBE_exscan cableway_describe_reduction(&d, CABLEWAY_EXCLUSIVE_SCAN, sbuf, rbuf, count, dtype, op, 0, comm)

#define PARAMETERS_gather                                                                                              \
    const void *sbuf, int scount, ompi_datatype_t *sdtype, void *rbuf, int rcount, ompi_datatype_t *rdtype,            \
    int root, ompi_communicator_t *comm
#define PREPARE_gather prepare_gather(&call, scount, sdtype, rcount, rdtype, root, comm)
#define ARGUMENTS_gather call.send, scount, sdtype, call.recv, rcount, rdtype, root, comm
#define BUFFERS_gather TWO
#define SIZE_gather (MPI_IN_PLACE == sbuf ? all_bytes(rcount, rdtype, comm) : all_bytes(scount, sdtype, comm))
#define COUNTED_gather (MPI_IN_PLACE == sbuf ? has_data(rcount, rdtype) : has_data(scount, sdtype))
#define BETWEEN_gather (false)
#define DESCRIBE_gather cableway_describe_gather(&d, EQUAL_OUT, EQUAL_IN, root, comm)

#define PARAMETERS_gatherv                                                                                             \
    const void *sbuf, int scount, ompi_datatype_t *sdtype, void *rbuf, const int *rcounts, const int *displs,          \
    ompi_datatype_t *rdtype, int root, ompi_communicator_t *comm
#define PREPARE_gatherv prepare_gatherv(&call, scount, sdtype, rcounts, displs, rdtype, root, comm)
#define ARGUMENTS_gatherv call.send, scount, sdtype, call.recv, rcounts, displs, rdtype, root, comm
#define BUFFERS_gatherv TWO
#define SIZE_gatherv UINT64_MAX
#define COUNTED_gatherv (false)
#define BETWEEN_gatherv (false)
#define DESCRIBE_gatherv                                                                                               \
    cableway_describe_gather(&d, EQUAL_OUT, cableway_varied(rbuf, rcounts, displs, rdtype), root, comm)

#define PARAMETERS_reduce                                                                                              \
    const void *sbuf, void *rbuf, int count, ompi_datatype_t *dtype, struct ompi_op_t *op, int root,                   \
    ompi_communicator_t *comm
#define PREPARE_reduce (keep_op(&call, op), prepare_reduce(&call, count, dtype, root, comm))
#define ARGUMENTS_reduce call.send, call.recv, count, dtype, op, root, comm
#define BUFFERS_reduce TWO
#define SIZE_reduce (bytes_of(count, dtype))
#define COUNTED_reduce (has_data(count, dtype))
#define BETWEEN_reduce (false)
#define DESCRIBE_reduce cableway_describe_reduction(&d, CABLEWAY_REDUCE, sbuf, rbuf, count, dtype, op, root, comm)

#define PARAMETERS_reduce_scatter                                                                                      \
    const void *sbuf, void *rbuf, const int *rcounts, ompi_datatype_t *dtype, struct ompi_op_t *op,                    \
    ompi_communicator_t *comm
#define PREPARE_reduce_scatter (keep_op(&call, op), prepare_reduce_scatter(&call, rcounts, dtype, comm))
#define ARGUMENTS_reduce_scatter call.send, call.recv, rcounts, dtype, op, comm
#define BUFFERS_reduce_scatter TWO
#define SIZE_reduce_scatter UINT64_MAX
#define COUNTED_reduce_scatter (any_data(rcounts, dtype, comm))
#define BETWEEN_reduce_scatter (false)
#define DESCRIBE_reduce_scatter cableway_describe_reduce_scatter(&d, sbuf, rbuf, rcounts, 0, dtype, op, comm)

#define PARAMETERS_reduce_scatter_block                                                                                \
    const void *sbuf, void *rbuf, int rcount, ompi_datatype_t *dtype, struct ompi_op_t *op, ompi_communicator_t *comm
#define PREPARE_reduce_scatter_block (keep_op(&call, op), prepare_reduce_scatter_block(&call, rcount, dtype, comm))
#define ARGUMENTS_reduce_scatter_block call.send, call.recv, rcount, dtype, op, comm
#define BUFFERS_reduce_scatter_block TWO
#define SIZE_reduce_scatter_block (all_bytes(rcount, dtype, comm))
#define COUNTED_reduce_scatter_block (has_data(rcount, dtype))
#define BETWEEN_reduce_scatter_block (false)
#define DESCRIBE_reduce_scatter_block cableway_describe_reduce_scatter(&d, sbuf, rbuf, NULL, rcount, dtype, op, comm)

#define PARAMETERS_scan                                                                                                \
    const void *sbuf, void *rbuf, int count, ompi_datatype_t *dtype, struct ompi_op_t *op, ompi_communicator_t *comm
#define PREPARE_scan (keep_op(&call, op), prepare_allreduce(&call, count, dtype))
#define ARGUMENTS_scan call.send, call.recv, count, dtype, op, comm
#define BUFFERS_scan TWO
#define SIZE_scan (bytes_of(count, dtype))
#define COUNTED_scan (has_data(count, dtype))
#define BETWEEN_scan (false)
#define DESCRIBE_scan cableway_describe_reduction(&d, CABLEWAY_SCAN, sbuf, rbuf, count, dtype, op, 0, comm)

#define PARAMETERS_scatter                                                                                             \
    const void *sbuf, int scount, ompi_datatype_t *sdtype, void *rbuf, int rcount, ompi_datatype_t *rdtype,            \
    int root, ompi_communicator_t *comm
#define PREPARE_scatter prepare_scatter(&call, scount, sdtype, rcount, rdtype, root, comm)
#define ARGUMENTS_scatter call.send, scount, sdtype, call.recv, rcount, rdtype, root, comm
#define BUFFERS_scatter TWO
#define SIZE_scatter (MPI_IN_PLACE == rbuf ? all_bytes(scount, sdtype, comm) : all_bytes(rcount, rdtype, comm))
#define COUNTED_scatter (MPI_IN_PLACE == rbuf ? has_data(scount, sdtype) : has_data(rcount, rdtype))
#define BETWEEN_scatter (false)
#define DESCRIBE_scatter cableway_describe_scatter(&d, EQUAL_OUT, EQUAL_IN, root, comm)

#define PARAMETERS_scatterv                                                                                            \
    const void *sbuf, const int *scounts, const int *displs, ompi_datatype_t *sdtype, void *rbuf, int rcount,          \
    ompi_datatype_t *rdtype, int root, ompi_communicator_t *comm
#define PREPARE_scatterv prepare_scatterv(&call, scounts, displs, sdtype, rcount, rdtype, root, comm)
#define ARGUMENTS_scatterv call.send, scounts, displs, sdtype, call.recv, rcount, rdtype, root, comm
#define BUFFERS_scatterv TWO
#define SIZE_scatterv UINT64_MAX
#define COUNTED_scatterv (false)
#define BETWEEN_scatterv (false)
#define DESCRIBE_scatterv                                                                                              \
    cableway_describe_scatter(&d, cableway_varied(sbuf, scounts, displs, sdtype), EQUAL_IN, root, comm)

#define PARAMETERS_neighbor_allgather                                                                                  \
    const void *sbuf, int scount, ompi_datatype_t *sdtype, void *rbuf, int rcount, ompi_datatype_t *rdtype,            \
    ompi_communicator_t *comm
#define PREPARE_neighbor_allgather prepare_neighbor_allgather(&call, scount, sdtype, rcount, rdtype, comm)
#define ARGUMENTS_neighbor_allgather call.send, scount, sdtype, call.recv, rcount, rdtype, comm
#define BUFFERS_neighbor_allgather TWO
#define SIZE_neighbor_allgather UINT64_MAX
#define COUNTED_neighbor_allgather (grid_has_data(scount, sdtype, rcount, rdtype, comm))
#define BETWEEN_neighbor_allgather (false)
#define DESCRIBE_neighbor_allgather cableway_describe_neighbors(&d, SHARED_OUT, EQUAL_IN, comm)

#define PARAMETERS_neighbor_allgatherv                                                                                 \
    const void *sbuf, int scount, ompi_datatype_t *sdtype, void *rbuf, const int *rcounts, const int *displs,          \
    ompi_datatype_t *rdtype, ompi_communicator_t *comm
#define PREPARE_neighbor_allgatherv prepare_neighbor_allgatherv(&call, scount, sdtype, rcounts, displs, rdtype, comm)
#define ARGUMENTS_neighbor_allgatherv call.send, scount, sdtype, call.recv, rcounts, displs, rdtype, comm
#define BUFFERS_neighbor_allgatherv TWO
#define SIZE_neighbor_allgatherv UINT64_MAX
#define COUNTED_neighbor_allgatherv (true)
#define BETWEEN_neighbor_allgatherv (false)
#define DESCRIBE_neighbor_allgatherv                                                                                   \
    cableway_describe_neighbors(&d, SHARED_OUT, cableway_varied(rbuf, rcounts, displs, rdtype), comm)

#define PARAMETERS_neighbor_alltoall                                                                                   \
    const void *sbuf, int scount, ompi_datatype_t *sdtype, void *rbuf, int rcount, ompi_datatype_t *rdtype,            \
    ompi_communicator_t *comm
#define PREPARE_neighbor_alltoall prepare_neighbor_alltoall(&call, scount, sdtype, rcount, rdtype, comm)
#define ARGUMENTS_neighbor_alltoall call.send, scount, sdtype, call.recv, rcount, rdtype, comm
#define BUFFERS_neighbor_alltoall TWO
#define SIZE_neighbor_alltoall UINT64_MAX
#define COUNTED_neighbor_alltoall (grid_has_data(scount, sdtype, rcount, rdtype, comm))
#define BETWEEN_neighbor_alltoall (false)
#define DESCRIBE_neighbor_alltoall cableway_describe_neighbors(&d, EQUAL_OUT, EQUAL_IN, comm)

#define PARAMETERS_neighbor_alltoallv                                                                                  \
    const void *sbuf, const int *scounts, const int *sdisps, ompi_datatype_t *sdtype, void *rbuf,                      \
    const int *rcounts, const int *rdisps, ompi_datatype_t *rdtype, ompi_communicator_t *comm
#define PREPARE_neighbor_alltoallv                                                                                     \
    prepare_neighbor_alltoallv(&call, scounts, sdisps, sdtype, rcounts, rdisps, rdtype, comm)
#define ARGUMENTS_neighbor_alltoallv call.send, scounts, sdisps, sdtype, call.recv, rcounts, rdisps, rdtype, comm
#define BUFFERS_neighbor_alltoallv TWO
#define SIZE_neighbor_alltoallv UINT64_MAX
#define COUNTED_neighbor_alltoallv (true)
#define BETWEEN_neighbor_alltoallv (false)
#define DESCRIBE_neighbor_alltoallv                                                                                    \
    cableway_describe_neighbors(&d, cableway_varied(sbuf, scounts, sdisps, sdtype),                                    \
                                cableway_varied(rbuf, rcounts, rdisps, rdtype), comm)

#define PARAMETERS_neighbor_alltoallw                                                                                  \
    const void *sbuf, const int *scounts, const MPI_Aint *sdisps, ompi_datatype_t *const *sdtypes, void *rbuf,         \
    const int *rcounts, const MPI_Aint *rdisps, ompi_datatype_t *const *rdtypes, ompi_communicator_t *comm
#define PREPARE_neighbor_alltoallw                                                                                     \
    prepare_neighbor_alltoallw(&call, scounts, sdisps, sdtypes, rcounts, rdisps, rdtypes, comm)
#define ARGUMENTS_neighbor_alltoallw call.send, scounts, sdisps, sdtypes, call.recv, rcounts, rdisps, rdtypes, comm
#define BUFFERS_neighbor_alltoallw TWO
#define SIZE_neighbor_alltoallw UINT64_MAX
#define COUNTED_neighbor_alltoallw (true)
#define BETWEEN_neighbor_alltoallw (false)
#define DESCRIBE_neighbor_alltoallw                                                                                    \
    cableway_describe_neighbors(&d, cableway_widely_typed(sbuf, scounts, sdisps, sdtypes),                             \
                                cableway_widely_typed(rbuf, rcounts, rdisps, rdtypes), comm)

static inline bool has_data(int count, const ompi_datatype_t *datatype)
{
    return 0 != count && 0 != datatype->super.size;
}

static inline uint64_t bytes_of(int count, const ompi_datatype_t *datatype)
{
    return (uint64_t) count * datatype->super.size;
}

static inline uint64_t all_bytes(int count, const ompi_datatype_t *datatype, ompi_communicator_t *comm)
{
    return bytes_of(count, datatype) * (uint64_t) ompi_comm_size(comm);
}

/* A blocking call of equal blocks among neighbours reaches this module only if this process has data both ways, which is
 * so at all processes of a grid, or at none. In a graph it may be so at some. */
static inline bool grid_has_data(int scount, const ompi_datatype_t *sdtype, int rcount, const ompi_datatype_t *rdtype,
                                 ompi_communicator_t *comm)
{
    return OMPI_COMM_IS_CART(comm) && has_data(scount, sdtype) && has_data(rcount, rdtype);
}

static bool any_data(const int *counts, const ompi_datatype_t *datatype, ompi_communicator_t *comm)
{
    for (int i = 0; i < ompi_comm_size(comm); i++) {
        if (has_data(counts[i], datatype)) {
            return true;
        }
    }
    return false;
}

#endif
