/* Describes collective calls of intracommunicators to the engine. */
#include "described.h"

#include <stdlib.h>

void cableway_described_release(struct cableway_described *described)
{
    free(described->send);
    free(described->receive);
    free(described->edges);
    free(described->counts);
}

static void begin(struct cableway_described *d, enum cableway_collective_kind kind, int root)
{
    memset(d, 0, sizeof *d);
    d->call.kind = kind;
    d->call.root = root;
}

static int send_one(struct cableway_described *d, const void *address, int count, ompi_datatype_t *datatype)
{
    d->call.send = &d->one_send;
    d->call.sends = 1;
    return cableway_describe(&d->one_send, address, (size_t) count, datatype);
}

static int receive_one(struct cableway_described *d, void *address, int count, ompi_datatype_t *datatype)
{
    d->call.receive = &d->one_receive;
    d->call.receives = 1;
    return cableway_describe(&d->one_receive, address, (size_t) count, datatype);
}

/* Where the blocks of a list are: the first of these that is not NULL, else `count` elements behind each other. */
struct places {
    const int *displacements; /* in extents */
    const int *bytes;
};

/* A list of `n` blocks: of one type, or of one type each. */
static int list(struct cableway_buffer **out, const void *base, int n, const int *counts, int count,
                struct places places, ompi_datatype_t *datatype, ompi_datatype_t *const *datatypes)
{
    struct cableway_buffer *blocks = calloc((size_t) (n ? n : 1), sizeof *blocks);
    ptrdiff_t extent = 0;
    int rc = NULL != blocks ? OMPI_SUCCESS : OMPI_ERR_OUT_OF_RESOURCE;
    *out = blocks;
    if (NULL == datatypes) {
        ompi_datatype_type_extent(datatype, &extent);
    }
    for (int i = 0; OMPI_SUCCESS == rc && i < n; i++) {
        int elements = NULL != counts ? counts[i] : count;
        ptrdiff_t at = NULL != places.bytes           ? places.bytes[i]
                       : NULL != places.displacements ? places.displacements[i] * extent
                                                      : (ptrdiff_t) i * count * extent;
        /* The datatype of an empty block may be invalid. */
        if (0 != elements) {
            rc = cableway_describe(&blocks[i], (const char *) base + at, (size_t) elements,
                                   NULL != datatypes ? datatypes[i] : datatype);
        }
    }
    return rc;
}

static int send_list(struct cableway_described *d, const void *base, ompi_communicator_t *comm, const int *counts,
                     int count, struct places places, ompi_datatype_t *datatype, ompi_datatype_t *const *datatypes)
{
    int n = ompi_comm_size(comm);
    int rc = list(&d->send, base, n, counts, count, places, datatype, datatypes);
    d->call.send = d->send;
    d->call.sends = (size_t) n;
    return rc;
}

static int receive_list(struct cableway_described *d, const void *base, ompi_communicator_t *comm, const int *counts,
                        int count, struct places places, ompi_datatype_t *datatype, ompi_datatype_t *const *datatypes)
{
    int n = ompi_comm_size(comm);
    int rc = list(&d->receive, base, n, counts, count, places, datatype, datatypes);
    d->call.receive = d->receive;
    d->call.receives = (size_t) n;
    return rc;
}

static const struct places in_order = {NULL, NULL};

static struct places at(const int *displacements)
{
    struct places places = {.displacements = displacements};
    return places;
}

static struct places at_bytes(const int *bytes)
{
    struct places places = {.bytes = bytes};
    return places;
}

/* Evaluates `other` only if `one` succeeded. */
#define both(one, other)                                                                                               \
    ({                                                                                                                 \
        int first_ = (one);                                                                                            \
        OMPI_SUCCESS != first_ ? first_ : (other);                                                                     \
    })

int cableway_describe_allgather(struct cableway_described *d, const void *sbuf, int scount, ompi_datatype_t *sdtype,
                                void *rbuf, int rcount, ompi_datatype_t *rdtype, ompi_communicator_t *comm)
{
    begin(d, CABLEWAY_ALLGATHER, 0);
    return both(MPI_IN_PLACE == sbuf ? OMPI_SUCCESS : send_one(d, sbuf, scount, sdtype),
                receive_list(d, rbuf, comm, NULL, rcount, in_order, rdtype, NULL));
}

int cableway_describe_allgatherv(struct cableway_described *d, const void *sbuf, int scount, ompi_datatype_t *sdtype,
                                 void *rbuf, const int *rcounts, const int *displs, ompi_datatype_t *rdtype,
                                 ompi_communicator_t *comm)
{
    begin(d, CABLEWAY_ALLGATHER, 0);
    return both(MPI_IN_PLACE == sbuf ? OMPI_SUCCESS : send_one(d, sbuf, scount, sdtype),
                receive_list(d, rbuf, comm, rcounts, 0, at(displs), rdtype, NULL));
}

int cableway_describe_alltoall(struct cableway_described *d, const void *sbuf, int scount, ompi_datatype_t *sdtype,
                               void *rbuf, int rcount, ompi_datatype_t *rdtype, ompi_communicator_t *comm)
{
    begin(d, CABLEWAY_ALLTOALL, 0);
    d->call.in_place = MPI_IN_PLACE == sbuf;
    return both(d->call.in_place ? OMPI_SUCCESS : send_list(d, sbuf, comm, NULL, scount, in_order, sdtype, NULL),
                receive_list(d, rbuf, comm, NULL, rcount, in_order, rdtype, NULL));
}

int cableway_describe_alltoallv(struct cableway_described *d, const void *sbuf, const int *scounts, const int *sdisps,
                                ompi_datatype_t *sdtype, void *rbuf, const int *rcounts, const int *rdisps,
                                ompi_datatype_t *rdtype, ompi_communicator_t *comm)
{
    begin(d, CABLEWAY_ALLTOALL, 0);
    d->call.in_place = MPI_IN_PLACE == sbuf;
    return both(d->call.in_place ? OMPI_SUCCESS : send_list(d, sbuf, comm, scounts, 0, at(sdisps), sdtype, NULL),
                receive_list(d, rbuf, comm, rcounts, 0, at(rdisps), rdtype, NULL));
}

int cableway_describe_alltoallw(struct cableway_described *d, const void *sbuf, const int *scounts, const int *sdisps,
                                ompi_datatype_t *const *sdtypes, void *rbuf, const int *rcounts, const int *rdisps,
                                ompi_datatype_t *const *rdtypes, ompi_communicator_t *comm)
{
    begin(d, CABLEWAY_ALLTOALL, 0);
    d->call.in_place = MPI_IN_PLACE == sbuf;
    return both(d->call.in_place ? OMPI_SUCCESS : send_list(d, sbuf, comm, scounts, 0, at_bytes(sdisps), NULL, sdtypes),
                receive_list(d, rbuf, comm, rcounts, 0, at_bytes(rdisps), NULL, rdtypes));
}

int cableway_describe_bcast(struct cableway_described *d, void *buffer, int count, ompi_datatype_t *dtype, int root)
{
    begin(d, CABLEWAY_BROADCAST, root);
    return receive_one(d, buffer, count, dtype);
}

int cableway_describe_gather(struct cableway_described *d, const void *sbuf, int scount, ompi_datatype_t *sdtype,
                             void *rbuf, int rcount, ompi_datatype_t *rdtype, int root, ompi_communicator_t *comm)
{
    int rc;
    begin(d, CABLEWAY_GATHER, root);
    rc = MPI_IN_PLACE == sbuf ? OMPI_SUCCESS : send_one(d, sbuf, scount, sdtype);
    return root != ompi_comm_rank(comm)
               ? rc
               : both(rc, receive_list(d, rbuf, comm, NULL, rcount, in_order, rdtype, NULL));
}

int cableway_describe_gatherv(struct cableway_described *d, const void *sbuf, int scount, ompi_datatype_t *sdtype,
                              void *rbuf, const int *rcounts, const int *displs, ompi_datatype_t *rdtype, int root,
                              ompi_communicator_t *comm)
{
    int rc;
    begin(d, CABLEWAY_GATHER, root);
    rc = MPI_IN_PLACE == sbuf ? OMPI_SUCCESS : send_one(d, sbuf, scount, sdtype);
    return root != ompi_comm_rank(comm)
               ? rc
               : both(rc, receive_list(d, rbuf, comm, rcounts, 0, at(displs), rdtype, NULL));
}

int cableway_describe_scatter(struct cableway_described *d, const void *sbuf, int scount, ompi_datatype_t *sdtype,
                              void *rbuf, int rcount, ompi_datatype_t *rdtype, int root, ompi_communicator_t *comm)
{
    int rc;
    begin(d, CABLEWAY_SCATTER, root);
    rc = MPI_IN_PLACE == rbuf ? OMPI_SUCCESS : receive_one(d, rbuf, rcount, rdtype);
    return root != ompi_comm_rank(comm)
               ? rc
               : both(rc, send_list(d, sbuf, comm, NULL, scount, in_order, sdtype, NULL));
}

int cableway_describe_scatterv(struct cableway_described *d, const void *sbuf, const int *scounts, const int *displs,
                               ompi_datatype_t *sdtype, void *rbuf, int rcount, ompi_datatype_t *rdtype, int root,
                               ompi_communicator_t *comm)
{
    int rc;
    begin(d, CABLEWAY_SCATTER, root);
    rc = MPI_IN_PLACE == rbuf ? OMPI_SUCCESS : receive_one(d, rbuf, rcount, rdtype);
    return root != ompi_comm_rank(comm)
               ? rc
               : both(rc, send_list(d, sbuf, comm, scounts, 0, at(displs), sdtype, NULL));
}

int cableway_describe_reduction(struct cableway_described *d, enum cableway_collective_kind kind, const void *sbuf,
                                void *rbuf, size_t count, ompi_datatype_t *dtype, ompi_op_t *op, int root)
{
    begin(d, kind, root);
    d->call.in_place = MPI_IN_PLACE == sbuf;
    d->call.input = sbuf;
    d->call.output = rbuf;
    d->call.count = count;
    return cableway_reduces(op, dtype, &d->call.operation, &d->call.element) ? OMPI_SUCCESS : CABLEWAY_NOT_OURS;
}

int cableway_describe_reduce_scatter(struct cableway_described *d, const void *sbuf, void *rbuf, const int *rcounts,
                                     int rcount, ompi_datatype_t *dtype, ompi_op_t *op, ompi_communicator_t *comm)
{
    int n = ompi_comm_size(comm);
    size_t count = 0;
    int rc = cableway_describe_reduction(d, CABLEWAY_REDUCE_SCATTER, sbuf, rbuf, 0, dtype, op, 0);
    d->counts = malloc(sizeof *d->counts * (size_t) n);
    if (OMPI_SUCCESS != rc || NULL == d->counts) {
        return OMPI_SUCCESS != rc ? rc : OMPI_ERR_OUT_OF_RESOURCE;
    }
    for (int i = 0; i < n; i++) {
        d->counts[i] = NULL != rcounts ? rcounts[i] : rcount;
        count += (size_t) d->counts[i];
    }
    d->call.count = count;
    d->call.counts = d->counts;
    d->call.ranks = (size_t) n;
    return OMPI_SUCCESS;
}
