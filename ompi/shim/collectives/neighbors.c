/* The neighbours of a process in a topology, as messages to and from them. */
#include "described.h"

#include "ompi/mca/topo/base/base.h"

#include <stdlib.h>

/* The ranks of neighbours, in the order of the blocks of a call. MPI_PROC_NULL stands for none. */
struct neighbors {
    const int *sources, *targets;
    int in, out;
    int *own; /* the memory of both lists, or NULL */
};

/* In each dimension, first the process before this one, then the one behind it. */
static int of_grid(ompi_communicator_t *comm, struct neighbors *neighbors)
{
    int dimensions = comm->c_topo->mtc.cart->ndims, rc = OMPI_SUCCESS;
    int *ranks = malloc(sizeof *ranks * (size_t) (2 * dimensions + 1));
    if (NULL == ranks) {
        return OMPI_ERR_OUT_OF_RESOURCE;
    }
    for (int i = 0; OMPI_SUCCESS == rc && i < dimensions; i++) {
        rc = comm->c_topo->topo.cart.cart_shift(comm, i, 1, &ranks[2 * i], &ranks[2 * i + 1]);
    }
    *neighbors = (struct neighbors){.sources = ranks, .targets = ranks, .in = 2 * dimensions, .out = 2 * dimensions,
                                    .own = ranks};
    return rc;
}

static int of_graph(ompi_communicator_t *comm, struct neighbors *neighbors)
{
    const int *index = comm->c_topo->mtc.graph->index;
    int rank = ompi_comm_rank(comm), first = 0 < rank ? index[rank - 1] : 0, degree = index[rank] - first;
    const int *ranks = comm->c_topo->mtc.graph->edges + first;
    *neighbors = (struct neighbors){.sources = ranks, .targets = ranks, .in = degree, .out = degree};
    return OMPI_SUCCESS;
}

static int of_distributed_graph(ompi_communicator_t *comm, struct neighbors *neighbors)
{
    const mca_topo_base_comm_dist_graph_2_2_0_t *graph = comm->c_topo->mtc.dist_graph;
    *neighbors = (struct neighbors){.sources = graph->in, .targets = graph->out, .in = graph->indegree,
                                    .out = graph->outdegree};
    return OMPI_SUCCESS;
}

/* In a grid, what goes to the process before this one comes from the one behind, also if both are the same process:
 * block 2i of one process belongs to block 2i + 1 of the other. */
static void number_directions(struct cableway_edge *sends, struct cableway_edge *receives, int blocks)
{
    for (int i = 0; i < blocks; i++) {
        sends[i].message = (uint32_t) (i ^ 1);
        receives[i].message = (uint32_t) i;
    }
}

/* In a graph, several edges between the same two processes have the same order on both sides. `seen` holds a zero for
 * each process. */
static void number_occurrences(struct cableway_edge *edges, int count, uint32_t *seen, int processes)
{
    for (int i = 0; i < count; i++) {
        if (CABLEWAY_NO_NEIGHBOR != edges[i].rank) {
            edges[i].message = seen[edges[i].rank]++;
        }
    }
    memset(seen, 0, sizeof *seen * (size_t) processes);
}

static int number_graph(ompi_communicator_t *comm, struct cableway_edge *sends, struct cableway_edge *receives,
                        const struct neighbors *neighbors)
{
    int processes = ompi_comm_size(comm);
    uint32_t *seen = calloc((size_t) processes, sizeof *seen);
    if (NULL == seen) {
        return OMPI_ERR_OUT_OF_RESOURCE;
    }
    number_occurrences(sends, neighbors->out, seen, processes);
    number_occurrences(receives, neighbors->in, seen, processes);
    free(seen);
    return OMPI_SUCCESS;
}

static void add_ranks(struct cableway_edge *edges, const int *ranks, int count)
{
    for (int i = 0; i < count; i++) {
        edges[i].rank = MPI_PROC_NULL == ranks[i] ? CABLEWAY_NO_NEIGHBOR : (uint32_t) ranks[i];
    }
}

static int add_edges(struct cableway_described *d, ompi_communicator_t *comm, const struct neighbors *neighbors)
{
    struct cableway_edge *sends, *receives;
    d->edges = calloc((size_t) (neighbors->in + neighbors->out + 1), sizeof *d->edges);
    if (NULL == d->edges) {
        return OMPI_ERR_OUT_OF_RESOURCE;
    }
    d->call.send = (struct cableway_side){.count = (size_t) neighbors->out, .edges = sends = d->edges};
    d->call.receive =
        (struct cableway_side){.count = (size_t) neighbors->in, .edges = receives = d->edges + neighbors->out};
    add_ranks(sends, neighbors->targets, neighbors->out);
    add_ranks(receives, neighbors->sources, neighbors->in);
    if (OMPI_COMM_IS_CART(comm)) {
        number_directions(sends, receives, neighbors->in);
        return OMPI_SUCCESS;
    }
    return number_graph(comm, sends, receives, neighbors);
}

int cableway_describe_edges(struct cableway_described *d, ompi_communicator_t *comm)
{
    struct neighbors neighbors = {.own = NULL};
    int rc = OMPI_COMM_IS_CART(comm)         ? of_grid(comm, &neighbors)
             : OMPI_COMM_IS_GRAPH(comm)      ? of_graph(comm, &neighbors)
             : OMPI_COMM_IS_DIST_GRAPH(comm) ? of_distributed_graph(comm, &neighbors)
                                             : OMPI_ERR_NOT_SUPPORTED;
    if (OMPI_SUCCESS == rc) {
        rc = add_edges(d, comm, &neighbors);
    }
    free(neighbors.own);
    return rc;
}
