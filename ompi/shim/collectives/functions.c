/* The functions of the coll module. Macros define the three forms of each operation. */
#include "prepare.h"

#include "ompi/info/info.h"

/* For each operation:
 * PARAMETERS_  the parameters as Open MPI declares them
 * PREPARE_     the call that stages the buffers
 * ARGUMENTS_   the arguments for the lower module, with the staged buffers
 * BUFFERS_     the initial `struct cableway_call` */
#define TWO {.send = sbuf, .recv = rbuf}
#define ONE {.recv = rbuf}

#define PARAMETERS_allgather                                                                                           \
    const void *sbuf, int scount, ompi_datatype_t *sdtype, void *rbuf, int rcount, ompi_datatype_t *rdtype,            \
    ompi_communicator_t *comm
#define PREPARE_allgather prepare_allgather(&call, scount, sdtype, rcount, rdtype, comm)
#define ARGUMENTS_allgather call.send, scount, sdtype, call.recv, rcount, rdtype, comm
#define BUFFERS_allgather TWO

#define PARAMETERS_allgatherv                                                                                          \
    const void *sbuf, int scount, ompi_datatype_t *sdtype, void *rbuf, const int *rcounts, const int *displs,          \
    ompi_datatype_t *rdtype, ompi_communicator_t *comm
#define PREPARE_allgatherv prepare_allgatherv(&call, scount, sdtype, rcounts, displs, rdtype, comm)
#define ARGUMENTS_allgatherv call.send, scount, sdtype, call.recv, rcounts, displs, rdtype, comm
#define BUFFERS_allgatherv TWO

#define PARAMETERS_allreduce                                                                                           \
    const void *sbuf, void *rbuf, int count, ompi_datatype_t *dtype, struct ompi_op_t *op, ompi_communicator_t *comm
#define PREPARE_allreduce prepare_allreduce(&call, count, dtype)
#define ARGUMENTS_allreduce call.send, call.recv, count, dtype, op, comm
#define BUFFERS_allreduce TWO

#define PARAMETERS_alltoall                                                                                            \
    const void *sbuf, int scount, ompi_datatype_t *sdtype, void *rbuf, int rcount, ompi_datatype_t *rdtype,            \
    ompi_communicator_t *comm
#define PREPARE_alltoall prepare_alltoall(&call, scount, sdtype, rcount, rdtype, comm)
#define ARGUMENTS_alltoall call.send, scount, sdtype, call.recv, rcount, rdtype, comm
#define BUFFERS_alltoall TWO

#define PARAMETERS_alltoallv                                                                                           \
    const void *sbuf, const int *scounts, const int *sdisps, ompi_datatype_t *sdtype, void *rbuf,                      \
    const int *rcounts, const int *rdisps, ompi_datatype_t *rdtype, ompi_communicator_t *comm
#define PREPARE_alltoallv prepare_alltoallv(&call, scounts, sdisps, sdtype, rcounts, rdisps, rdtype, comm)
#define ARGUMENTS_alltoallv call.send, scounts, sdisps, sdtype, call.recv, rcounts, rdisps, rdtype, comm
#define BUFFERS_alltoallv TWO

#define PARAMETERS_alltoallw                                                                                           \
    const void *sbuf, const int *scounts, const int *sdisps, ompi_datatype_t *const *sdtypes, void *rbuf,              \
    const int *rcounts, const int *rdisps, ompi_datatype_t *const *rdtypes, ompi_communicator_t *comm
#define PREPARE_alltoallw prepare_alltoallw(&call, scounts, sdisps, sdtypes, rcounts, rdisps, rdtypes, comm)
#define ARGUMENTS_alltoallw call.send, scounts, sdisps, sdtypes, call.recv, rcounts, rdisps, rdtypes, comm
#define BUFFERS_alltoallw TWO

#define PARAMETERS_bcast void *rbuf, int count, ompi_datatype_t *dtype, int root, ompi_communicator_t *comm
#define PREPARE_bcast prepare_bcast(&call, count, dtype, root, comm)
#define ARGUMENTS_bcast call.recv, count, dtype, root, comm
#define BUFFERS_bcast ONE

#define PARAMETERS_exscan                                                                                              \
    const void *sbuf, void *rbuf, int count, ompi_datatype_t *dtype, struct ompi_op_t *op, ompi_communicator_t *comm
#define PREPARE_exscan prepare_exscan(&call, count, dtype)
#define ARGUMENTS_exscan call.send, call.recv, count, dtype, op, comm
#define BUFFERS_exscan TWO

#define PARAMETERS_gather                                                                                              \
    const void *sbuf, int scount, ompi_datatype_t *sdtype, void *rbuf, int rcount, ompi_datatype_t *rdtype,            \
    int root, ompi_communicator_t *comm
#define PREPARE_gather prepare_gather(&call, scount, sdtype, rcount, rdtype, root, comm)
#define ARGUMENTS_gather call.send, scount, sdtype, call.recv, rcount, rdtype, root, comm
#define BUFFERS_gather TWO

#define PARAMETERS_gatherv                                                                                             \
    const void *sbuf, int scount, ompi_datatype_t *sdtype, void *rbuf, const int *rcounts, const int *displs,          \
    ompi_datatype_t *rdtype, int root, ompi_communicator_t *comm
#define PREPARE_gatherv prepare_gatherv(&call, scount, sdtype, rcounts, displs, rdtype, root, comm)
#define ARGUMENTS_gatherv call.send, scount, sdtype, call.recv, rcounts, displs, rdtype, root, comm
#define BUFFERS_gatherv TWO

#define PARAMETERS_reduce                                                                                              \
    const void *sbuf, void *rbuf, int count, ompi_datatype_t *dtype, struct ompi_op_t *op, int root,                   \
    ompi_communicator_t *comm
#define PREPARE_reduce prepare_reduce(&call, count, dtype, root, comm)
#define ARGUMENTS_reduce call.send, call.recv, count, dtype, op, root, comm
#define BUFFERS_reduce TWO

#define PARAMETERS_reduce_scatter                                                                                      \
    const void *sbuf, void *rbuf, const int *rcounts, ompi_datatype_t *dtype, struct ompi_op_t *op,                    \
    ompi_communicator_t *comm
#define PREPARE_reduce_scatter prepare_reduce_scatter(&call, rcounts, dtype, comm)
#define ARGUMENTS_reduce_scatter call.send, call.recv, rcounts, dtype, op, comm
#define BUFFERS_reduce_scatter TWO

#define PARAMETERS_reduce_scatter_block                                                                                \
    const void *sbuf, void *rbuf, int rcount, ompi_datatype_t *dtype, struct ompi_op_t *op, ompi_communicator_t *comm
#define PREPARE_reduce_scatter_block prepare_reduce_scatter_block(&call, rcount, dtype, comm)
#define ARGUMENTS_reduce_scatter_block call.send, call.recv, rcount, dtype, op, comm
#define BUFFERS_reduce_scatter_block TWO

#define PARAMETERS_scan                                                                                                \
    const void *sbuf, void *rbuf, int count, ompi_datatype_t *dtype, struct ompi_op_t *op, ompi_communicator_t *comm
#define PREPARE_scan prepare_allreduce(&call, count, dtype)
#define ARGUMENTS_scan call.send, call.recv, count, dtype, op, comm
#define BUFFERS_scan TWO

#define PARAMETERS_scatter                                                                                             \
    const void *sbuf, int scount, ompi_datatype_t *sdtype, void *rbuf, int rcount, ompi_datatype_t *rdtype,            \
    int root, ompi_communicator_t *comm
#define PREPARE_scatter prepare_scatter(&call, scount, sdtype, rcount, rdtype, root, comm)
#define ARGUMENTS_scatter call.send, scount, sdtype, call.recv, rcount, rdtype, root, comm
#define BUFFERS_scatter TWO

#define PARAMETERS_scatterv                                                                                            \
    const void *sbuf, const int *scounts, const int *displs, ompi_datatype_t *sdtype, void *rbuf, int rcount,          \
    ompi_datatype_t *rdtype, int root, ompi_communicator_t *comm
#define PREPARE_scatterv prepare_scatterv(&call, scounts, displs, sdtype, rcount, rdtype, root, comm)
#define ARGUMENTS_scatterv call.send, scounts, displs, sdtype, call.recv, rcount, rdtype, root, comm
#define BUFFERS_scatterv TWO

#define PARAMETERS_neighbor_allgather                                                                                  \
    const void *sbuf, int scount, ompi_datatype_t *sdtype, void *rbuf, int rcount, ompi_datatype_t *rdtype,            \
    ompi_communicator_t *comm
#define PREPARE_neighbor_allgather prepare_neighbor_allgather(&call, scount, sdtype, rcount, rdtype, comm)
#define ARGUMENTS_neighbor_allgather call.send, scount, sdtype, call.recv, rcount, rdtype, comm
#define BUFFERS_neighbor_allgather TWO

#define PARAMETERS_neighbor_allgatherv                                                                                 \
    const void *sbuf, int scount, ompi_datatype_t *sdtype, void *rbuf, const int *rcounts, const int *displs,          \
    ompi_datatype_t *rdtype, ompi_communicator_t *comm
#define PREPARE_neighbor_allgatherv prepare_neighbor_allgatherv(&call, scount, sdtype, rcounts, displs, rdtype, comm)
#define ARGUMENTS_neighbor_allgatherv call.send, scount, sdtype, call.recv, rcounts, displs, rdtype, comm
#define BUFFERS_neighbor_allgatherv TWO

#define PARAMETERS_neighbor_alltoall                                                                                   \
    const void *sbuf, int scount, ompi_datatype_t *sdtype, void *rbuf, int rcount, ompi_datatype_t *rdtype,            \
    ompi_communicator_t *comm
#define PREPARE_neighbor_alltoall prepare_neighbor_alltoall(&call, scount, sdtype, rcount, rdtype, comm)
#define ARGUMENTS_neighbor_alltoall call.send, scount, sdtype, call.recv, rcount, rdtype, comm
#define BUFFERS_neighbor_alltoall TWO

#define PARAMETERS_neighbor_alltoallv                                                                                  \
    const void *sbuf, const int *scounts, const int *sdisps, ompi_datatype_t *sdtype, void *rbuf,                      \
    const int *rcounts, const int *rdisps, ompi_datatype_t *rdtype, ompi_communicator_t *comm
#define PREPARE_neighbor_alltoallv                                                                                     \
    prepare_neighbor_alltoallv(&call, scounts, sdisps, sdtype, rcounts, rdisps, rdtype, comm)
#define ARGUMENTS_neighbor_alltoallv call.send, scounts, sdisps, sdtype, call.recv, rcounts, rdisps, rdtype, comm
#define BUFFERS_neighbor_alltoallv TWO

#define PARAMETERS_neighbor_alltoallw                                                                                  \
    const void *sbuf, const int *scounts, const MPI_Aint *sdisps, ompi_datatype_t *const *sdtypes, void *rbuf,         \
    const int *rcounts, const MPI_Aint *rdisps, ompi_datatype_t *const *rdtypes, ompi_communicator_t *comm
#define PREPARE_neighbor_alltoallw                                                                                     \
    prepare_neighbor_alltoallw(&call, scounts, sdisps, sdtypes, rcounts, rdisps, rdtypes, comm)
#define ARGUMENTS_neighbor_alltoallw call.send, scounts, sdisps, sdtypes, call.recv, rcounts, rdisps, rdtypes, comm
#define BUFFERS_neighbor_alltoallw TWO

/* Begins each function: stages the buffers if a driver is loaded. */
#define PREPARE(name)                                                                                                  \
    struct cableway_call call = BUFFERS_##name;                                                                        \
    mca_coll_base_comm_coll_t *lower = &((cableway_collectives_t *) module)->lower;                                    \
    int rc;                                                                                                            \
    if (OPAL_UNLIKELY(cableway_devices_present()) && OMPI_SUCCESS != (rc = PREPARE_##name)) {                          \
        cableway_staging_free(call.staging);                                                                           \
        return rc;                                                                                                     \
    }

#define FILL()                                                                                                         \
    if (OMPI_SUCCESS != (rc = cableway_error(cableway_staging_fill(call.staging)))) {                                  \
        cableway_staging_free(call.staging);                                                                           \
        return rc;                                                                                                     \
    }

#define RETURN_STAGED_REQUEST(persistent)                                                                              \
    if (OMPI_SUCCESS != rc) {                                                                                          \
        cableway_staging_free(call.staging);                                                                           \
        return rc;                                                                                                     \
    }                                                                                                                  \
    return cableway_staging_request(request, call.staging, persistent);

#define DEFINE(name)                                                                                                   \
    static int name(PARAMETERS_##name, mca_coll_base_module_t *module)                                                 \
    {                                                                                                                  \
        PREPARE(name)                                                                                                  \
        if (OPAL_LIKELY(NULL == call.staging)) {                                                                       \
            return lower->coll_##name(ARGUMENTS_##name, lower->coll_##name##_module);                                  \
        }                                                                                                              \
        FILL()                                                                                                         \
        rc = lower->coll_##name(ARGUMENTS_##name, lower->coll_##name##_module);                                        \
        return cableway_staging_finish(call.staging, rc);                                                              \
    }                                                                                                                  \
                                                                                                                       \
    static int i##name(PARAMETERS_##name, ompi_request_t **request, mca_coll_base_module_t *module)                    \
    {                                                                                                                  \
        PREPARE(name)                                                                                                  \
        if (OPAL_LIKELY(NULL == call.staging)) {                                                                       \
            return lower->coll_i##name(ARGUMENTS_##name, request, lower->coll_i##name##_module);                       \
        }                                                                                                              \
        FILL()                                                                                                         \
        rc = lower->coll_i##name(ARGUMENTS_##name, request, lower->coll_i##name##_module);                             \
        RETURN_STAGED_REQUEST(false)                                                                                   \
    }                                                                                                                  \
                                                                                                                       \
    static int name##_init(PARAMETERS_##name, ompi_info_t *info, ompi_request_t **request,                             \
                           mca_coll_base_module_t *module)                                                             \
    {                                                                                                                  \
        PREPARE(name)                                                                                                  \
        rc = lower->coll_##name##_init(ARGUMENTS_##name, info, request, lower->coll_##name##_init_module);             \
        if (OPAL_LIKELY(NULL == call.staging)) {                                                                       \
            return rc;                                                                                                 \
        }                                                                                                              \
        RETURN_STAGED_REQUEST(true)                                                                                    \
    }

CABLEWAY_COLLECTIVES(DEFINE)

/* Open MPI calls this function of MPI_COMM_SELF's module. */
static int reduce_local(const void *in, void *inout, int count, ompi_datatype_t *dtype, struct ompi_op_t *op,
                        mca_coll_base_module_t *module)
{
    struct cableway_call call_ = {.send = in, .recv = inout}, *call = &call_;
    mca_coll_base_comm_coll_t *lower = &((cableway_collectives_t *) module)->lower;
    int rc = OMPI_SUCCESS;
    if (OPAL_UNLIKELY(cableway_devices_present())) {
        rc = first_error(SEND_ONE(count, dtype), RECV_ONE(count, dtype, READ | WRITE));
        rc = first_error(rc, cableway_error(cableway_staging_fill(call->staging)));
    }
    if (OMPI_SUCCESS == rc) {
        rc = lower->coll_reduce_local(call->send, call->recv, count, dtype, op, lower->coll_reduce_local_module);
    }
    return cableway_staging_finish(call->staging, rc);
}

void cableway_collectives_functions(mca_coll_base_module_t *module)
{
#define SET(name)                                                                                                      \
    module->coll_##name = name;                                                                                        \
    module->coll_i##name = i##name;                                                                                    \
    module->coll_##name##_init = name##_init;
    CABLEWAY_COLLECTIVES(SET)
    module->coll_reduce_local = reduce_local;
}
