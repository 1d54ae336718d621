/* Collective operations in the order of a stream. The engine performs them: Open MPI's own functions know no streams. */
#include "streams.h"

#include "opal/util/output.h"

#include <limits.h>
#include <stdlib.h>

static bool is_reduction(int kind)
{
    return CABLEWAY_ALLREDUCE == kind || CABLEWAY_REDUCE == kind || CABLEWAY_REDUCE_SCATTER == kind;
}

static bool has_root(int kind)
{
    return CABLEWAY_BROADCAST == kind || CABLEWAY_REDUCE == kind;
}

static bool is_usable(const ompi_datatype_t *datatype)
{
    return NULL != datatype && MPI_DATATYPE_NULL != datatype && opal_datatype_is_committed(&datatype->super);
}

/* Checks the arguments that all kinds have. Those of types and operations that the engine lacks are found later. */
static int check(const struct cableway_mpix_collective *arguments)
{
    const bool in_place = MPI_IN_PLACE == arguments->send;
    /* Only reductions without lists count further than an int. */
    const int64_t most =
        CABLEWAY_ALLREDUCE == arguments->kind || CABLEWAY_REDUCE == arguments->kind ? INT64_MAX : INT_MAX;
    if (has_root(arguments->kind)
        && (0 > arguments->root || arguments->root >= ompi_comm_size(arguments->communicator))) {
        return MPI_ERR_ROOT;
    }
    if (0 > arguments->receive_count || most < arguments->receive_count
        || (!in_place && (0 > arguments->send_count || INT_MAX < arguments->send_count))) {
        return MPI_ERR_COUNT;
    }
    if (!is_usable(arguments->receive_type) || (!in_place && !is_usable(arguments->send_type))) {
        return MPI_ERR_TYPE;
    }
    if (is_reduction(arguments->kind) && (NULL == arguments->operation || MPI_OP_NULL == arguments->operation)) {
        return MPI_ERR_OP;
    }
    /* The same rule as MPI's: only the root of a rooted reduction is in place. */
    if (in_place && CABLEWAY_REDUCE == arguments->kind
        && arguments->root != ompi_comm_rank(arguments->communicator)) {
        return MPI_ERR_ARG;
    }
    return MPI_SUCCESS;
}

/* Copies the counts of a reduce-scatter as integers. Returns MPI_SUCCESS or an error. */
static int narrow(const struct cableway_mpix_collective *arguments, int **out)
{
    const int size = ompi_comm_size(arguments->communicator);
    *out = NULL;
    if (NULL == arguments->counts && NULL == arguments->wide_counts) {
        return MPI_ERR_ARG;
    }
    *out = malloc(sizeof **out * (size_t) size);
    if (NULL == *out) {
        return MPI_ERR_NO_MEM;
    }
    for (int i = 0; i < size; i++) {
        const int64_t count = NULL != arguments->counts ? arguments->counts[i] : arguments->wide_counts[i];
        if (0 > count || INT_MAX < count) {
            return MPI_ERR_COUNT;
        }
        (*out)[i] = (int) count;
    }
    return MPI_SUCCESS;
}

/* Describes the call to the engine. */
static int describe(struct cableway_described *d, const struct cableway_mpix_collective *arguments)
{
    const struct cableway_argument out =
        cableway_equal(arguments->send, (int) arguments->send_count, arguments->send_type);
    const struct cableway_argument in =
        cableway_equal(arguments->receive, (int) arguments->receive_count, arguments->receive_type);
    ompi_communicator_t *comm = arguments->communicator;
    int *counts, rc;
    switch (arguments->kind) {
    case CABLEWAY_BROADCAST: return cableway_describe_bcast(d, in, arguments->root, comm);
    case CABLEWAY_ALLGATHER: return cableway_describe_allgather(d, out, in, comm);
    case CABLEWAY_ALLTOALL: return cableway_describe_alltoall(d, out, in, comm);
    case CABLEWAY_ALLREDUCE:
    case CABLEWAY_REDUCE:
        return cableway_describe_reduction(d, arguments->kind, arguments->send, arguments->receive,
                                           (size_t) arguments->receive_count, arguments->receive_type,
                                           arguments->operation, arguments->root, comm);
    default:
        rc = narrow(arguments, &counts);
        if (MPI_SUCCESS == rc) {
            rc = cableway_describe_reduce_scatter(d, arguments->send, arguments->receive, counts, 0,
                                                  arguments->receive_type, arguments->operation, comm);
        }
        free(counts);
        return rc;
    }
}

/* Enqueues a described call. Returns an MPI error. */
static int start(cableway_enqueued_t *self, struct cableway_mpix_group *group)
{
    void *message = NULL;
    int rc;
    self->group = group;
    (void) opal_atomic_add_fetch_32(&group->references, 1);
    /* A thread that makes progress may complete it before the call returns. */
    self->references++;
    rc = cableway_stream_collective(self->stream->engine, group->engine, &self->described.call, self, &message);
    if (NULL == message) {
        self->references--;
    }
    self->message = message;
    return cableway_error(rc);
}

int cableway_mpix_collective(const char *call, const struct cableway_mpix_collective *arguments)
{
    ompi_communicator_t *communicator = arguments->communicator;
    struct cableway_mpix_group *group;
    const char *reason;
    MPIX_Stream stream;
    cableway_enqueued_t *self;
    int rc;
    if (ompi_comm_invalid(communicator)) {
        return cableway_mpix_failed(NULL, MPI_ERR_COMM, call);
    }
    stream = cableway_mpix_stream_of(communicator, &reason);
    group = cableway_mpix_group_of(communicator);
    if (NULL == stream || NULL == group) {
        opal_output(0, "cableway: %s: %s", call,
                    NULL == stream ? reason : "an intercommunicator has no collective operations in a stream's order");
        return cableway_mpix_failed(communicator, MPI_ERR_COMM, call);
    }
    rc = check(arguments);
    if (MPI_SUCCESS != rc) {
        return cableway_mpix_failed(communicator, rc, call);
    }
    self = cableway_enqueued_new(communicator, arguments->receive_type, false, stream);
    if (NULL == self) {
        return cableway_mpix_failed(communicator, MPI_ERR_NO_MEM, call);
    }
    rc = describe(&self->described, arguments);
    if (OMPI_SUCCESS == rc && NULL != self->described.call.function.op) {
        opal_output(0, "cableway: %s: a stream reduces by MPI's own operations on their types only", call);
        rc = MPI_ERR_OP;
    } else if (OMPI_SUCCESS == rc) {
        rc = start(self, group);
    }
    cableway_enqueued_release(self);
    return MPI_SUCCESS == rc ? MPI_SUCCESS : cableway_mpix_failed(communicator, rc, call);
}
