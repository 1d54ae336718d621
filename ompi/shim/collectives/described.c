/* Describes collective calls to the engine. */
#include "described.h"

#include <stdlib.h>

void cableway_described_release(struct cableway_described *described)
{
    free(described->send.many);
    free(described->receive.many);
    free(described->edges);
    free(described->counts);
    cableway_kept_release(&described->kept);
}

static void begin(struct cableway_described *d, enum cableway_collective_kind kind, int root)
{
    memset(d, 0, sizeof *d);
    d->call.kind = kind;
    d->call.root = root;
}

/* Returns how many bytes behind the base a block begins. */
static ptrdiff_t place(const struct cableway_argument *of, int block, ptrdiff_t extent)
{
    return of->shared                   ? 0
           : NULL != of->wide           ? of->wide[block]
           : NULL != of->bytes          ? of->bytes[block]
           : NULL != of->displacements  ? of->displacements[block] * extent
                                        : (ptrdiff_t) block * of->count * extent;
}

/* Describes the `n` blocks of one side. */
static int describe(struct cableway_described *d, struct cableway_side *side, struct cableway_blocks *blocks,
                    struct cableway_argument of, int n)
{
    struct cableway_buffer *out = &blocks->one;
    ptrdiff_t extent = 0;
    int rc = OMPI_SUCCESS;
    if (1 < n) {
        out = blocks->many = calloc((size_t) n, sizeof *out);
        if (NULL == out) {
            return OMPI_ERR_OUT_OF_RESOURCE;
        }
    }
    side->buffers = out;
    side->count = (size_t) n;
    if (0 < n && NULL != of.datatype) {
        ompi_datatype_type_extent(of.datatype, &extent);
    }
    for (int i = 0; OMPI_SUCCESS == rc && i < n; i++) {
        int elements = NULL != of.counts ? of.counts[i] : of.count;
        if (NULL != side->edges && CABLEWAY_NO_NEIGHBOR == side->edges[i].rank) {
            continue;
        }
        /* The datatype of an empty block may be invalid. */
        if (0 != elements) {
            ompi_datatype_t *datatype = NULL != of.datatypes ? of.datatypes[i] : of.datatype;
            const char *address = (const char *) of.base + place(&of, i, extent);
            rc = cableway_describe(&out[i], address, (size_t) elements, datatype);
            if (OMPI_SUCCESS == rc && NULL != out[i].layout) {
                rc = cableway_keep_type(&d->kept, datatype);
            }
        }
    }
    return rc;
}

static int describe_send(struct cableway_described *d, struct cableway_argument of, int n)
{
    return describe(d, &d->call.send, &d->send, of, n);
}

static int describe_receive(struct cableway_described *d, struct cableway_argument of, int n)
{
    return describe(d, &d->call.receive, &d->receive, of, n);
}

/* Evaluates `other` only if `one` succeeded. */
#define both(one, other)                                                                                               \
    ({                                                                                                                 \
        int first_ = (one);                                                                                            \
        OMPI_SUCCESS != first_ ? first_ : (other);                                                                     \
    })

/* Describes messages to and from so many members of the other group, beginning with `first`. */
static int between(struct cableway_described *d, struct cableway_argument out, int sends, struct cableway_argument in,
                   int receives, int first)
{
    begin(d, CABLEWAY_NEIGHBORS, 0);
    d->edges = calloc((size_t) (sends + receives + 1), sizeof *d->edges);
    if (NULL == d->edges) {
        return OMPI_ERR_OUT_OF_RESOURCE;
    }
    for (int i = 0; i < sends + receives; i++) {
        d->edges[i].rank = (uint32_t) (first + (i < sends ? i : i - sends));
    }
    d->call.send.edges = d->edges;
    d->call.receive.edges = d->edges + sends;
    return both(describe_send(d, out, sends), describe_receive(d, in, receives));
}

enum direction { FROM_ROOT, TO_ROOT };

/* The same between the root, which has `all`, and the members of the other group, which have `one` each. */
static int between_root(struct cableway_described *d, enum direction direction, struct cableway_argument all,
                        struct cableway_argument one, int root, ompi_communicator_t *comm)
{
    bool sends = (FROM_ROOT == direction) == (MPI_ROOT == root);
    struct cableway_argument own = MPI_ROOT == root ? all : one;
    int n = MPI_ROOT == root ? ompi_comm_remote_size(comm) : MPI_PROC_NULL == root ? 0 : 1;
    return between(d, own, sends ? n : 0, own, sends ? 0 : n, MPI_ROOT == root || MPI_PROC_NULL == root ? 0 : root);
}

int cableway_describe_allgather(struct cableway_described *d, struct cableway_argument out,
                                struct cableway_argument in, ompi_communicator_t *comm)
{
    if (OMPI_COMM_IS_INTER(comm)) {
        out.shared = true;
        return between(d, out, ompi_comm_remote_size(comm), in, ompi_comm_remote_size(comm), 0);
    }
    begin(d, CABLEWAY_ALLGATHER, 0);
    return both(MPI_IN_PLACE == out.base ? OMPI_SUCCESS : describe_send(d, out, 1),
                describe_receive(d, in, ompi_comm_size(comm)));
}

int cableway_describe_alltoall(struct cableway_described *d, struct cableway_argument out, struct cableway_argument in,
                               ompi_communicator_t *comm)
{
    int n = ompi_comm_size(comm);
    if (OMPI_COMM_IS_INTER(comm)) {
        return between(d, out, ompi_comm_remote_size(comm), in, ompi_comm_remote_size(comm), 0);
    }
    begin(d, CABLEWAY_ALLTOALL, 0);
    d->call.in_place = MPI_IN_PLACE == out.base;
    d->call.even = NULL == in.counts && NULL == in.datatypes;
    return both(d->call.in_place ? OMPI_SUCCESS : describe_send(d, out, n), describe_receive(d, in, n));
}

int cableway_describe_bcast(struct cableway_described *d, struct cableway_argument data, int root,
                            ompi_communicator_t *comm)
{
    if (OMPI_COMM_IS_INTER(comm)) {
        struct cableway_argument all = data;
        all.shared = true;
        return between_root(d, FROM_ROOT, all, data, root, comm);
    }
    begin(d, CABLEWAY_BROADCAST, root);
    return describe_receive(d, data, 1);
}

int cableway_describe_gather(struct cableway_described *d, struct cableway_argument out, struct cableway_argument in,
                             int root, ompi_communicator_t *comm)
{
    bool at_root = root == ompi_comm_rank(comm);
    if (OMPI_COMM_IS_INTER(comm)) {
        return between_root(d, TO_ROOT, in, out, root, comm);
    }
    begin(d, CABLEWAY_GATHER, root);
    return both(MPI_IN_PLACE == out.base ? OMPI_SUCCESS : describe_send(d, out, 1),
                at_root ? describe_receive(d, in, ompi_comm_size(comm)) : OMPI_SUCCESS);
}

int cableway_describe_scatter(struct cableway_described *d, struct cableway_argument out, struct cableway_argument in,
                              int root, ompi_communicator_t *comm)
{
    bool at_root = root == ompi_comm_rank(comm);
    if (OMPI_COMM_IS_INTER(comm)) {
        return between_root(d, FROM_ROOT, out, in, root, comm);
    }
    begin(d, CABLEWAY_SCATTER, root);
    return both(MPI_IN_PLACE == in.base ? OMPI_SUCCESS : describe_receive(d, in, 1),
                at_root ? describe_send(d, out, ompi_comm_size(comm)) : OMPI_SUCCESS);
}

int cableway_describe_neighbors(struct cableway_described *d, struct cableway_argument out,
                                struct cableway_argument in, ompi_communicator_t *comm)
{
    begin(d, CABLEWAY_NEIGHBORS, 0);
    return both(cableway_describe_edges(d, comm), both(describe_send(d, out, (int) d->call.send.count),
                                                       describe_receive(d, in, (int) d->call.receive.count)));
}

/* Describes how the host combines elements of a type. */
static int describe_function(struct cableway_described *d, ompi_op_t *op, ompi_datatype_t *dtype)
{
    char *const origin = (char *) ((uintptr_t) 1 << 46); /* never accessed */
    struct cableway_function *function = &d->call.function;
    struct cableway_buffer two;
    int rc = cableway_describe(&two, origin, 2, dtype);
    if (OMPI_SUCCESS != rc) {
        return rc;
    }
    function->op = op;
    function->datatype = dtype;
    function->layout = two.layout;
    function->size = dtype->super.size;
    function->offset = (char *) two.address - origin;
    cableway_keep_op(&d->kept, op);
    return cableway_keep_type(&d->kept, dtype);
}

void shim_combine(const void *function, const void *in, void *inout, uint64_t elements)
{
    const struct cableway_function *by = function;
    ompi_op_reduce(by->op, (void *) in, inout, (size_t) elements, by->datatype);
}

int cableway_describe_reduction(struct cableway_described *d, enum cableway_collective_kind kind, const void *sbuf,
                                void *rbuf, size_t count, ompi_datatype_t *dtype, ompi_op_t *op, int root,
                                ompi_communicator_t *comm)
{
    begin(d, kind, root);
    /* At some processes an intercommunicator's call has no valid type. */
    if (OMPI_COMM_IS_INTER(comm)) {
        return CABLEWAY_NOT_OURS;
    }
    d->call.in_place = MPI_IN_PLACE == sbuf;
    d->call.input = sbuf;
    d->call.output = rbuf;
    d->call.count = count;
    return cableway_reduces(op, dtype, &d->call.operation, &d->call.element) ? OMPI_SUCCESS
                                                                             : describe_function(d, op, dtype);
}

int cableway_describe_reduce_scatter(struct cableway_described *d, const void *sbuf, void *rbuf, const int *rcounts,
                                     int rcount, ompi_datatype_t *dtype, ompi_op_t *op, ompi_communicator_t *comm)
{
    int n = ompi_comm_size(comm);
    size_t count = 0;
    int rc = cableway_describe_reduction(d, CABLEWAY_REDUCE_SCATTER, sbuf, rbuf, 0, dtype, op, 0, comm);
    if (OMPI_SUCCESS != rc) {
        return rc;
    }
    d->counts = malloc(sizeof *d->counts * (size_t) n);
    if (NULL == d->counts) {
        return OMPI_ERR_OUT_OF_RESOURCE;
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
