/* Collectives among the neighbours of grids and graphs: without neighbours, with the same one several times, with the
 * process itself. Every block says which block of which process it is. CABLEWAY_CUDA_LIBDIR names the driver.
 *
 * Each process computes what it must receive from the neighbours of all processes, which it gathers first. The last line
 * says how many operations of processes were verified. */
#include "collectives/memory.h"

#include <mpi-ext.h>

/* MPI has persistent collectives since Open MPI 5.0. Open MPI 4.1 has them under another name. */
#if OMPI_MAJOR_VERSION < 5
#define INIT(Name) MPIX_##Name##_init
#else
#define INIT(Name) MPI_##Name##_init
#endif

enum { RANKS = 5, MOST = 12, STARTS = 3, GAP = 7 };
enum call { ALLGATHER, ALLGATHERV, ALLTOALL, ALLTOALLV, ALLTOALLW, CALLS };
enum form { BLOCKING, NONBLOCKING, PERSISTENT, FORMS };
enum placement { HOST, DEVICE, EVEN_RANKS, PLACEMENTS };

struct lists {
    int in, out, sources[MOST], targets[MOST];
};

struct topology {
    const char *name;
    MPI_Comm comm;
    bool grid;
    struct lists all[RANKS]; /* of all processes */
};

static struct memory out, in;

/* --- topologies --- */

static void gather_lists(struct topology *topology, const struct lists *own)
{
    MPI_Allgather(own, sizeof *own, MPI_BYTE, topology->all, sizeof *own, MPI_BYTE, MPI_COMM_WORLD);
}

static struct topology grid(const char *name, int count, const int *dimensions, const int *periodic)
{
    struct topology topology = {.name = name, .grid = true};
    struct lists own = {.in = 2 * count, .out = 2 * count};
    MPI_Cart_create(MPI_COMM_WORLD, count, dimensions, periodic, 0, &topology.comm);
    for (int i = 0; i < count; i++) {
        MPI_Cart_shift(topology.comm, i, 1, &own.sources[2 * i], &own.sources[2 * i + 1]);
    }
    memcpy(own.targets, own.sources, sizeof own.targets);
    gather_lists(&topology, &own);
    return topology;
}

/* Each process has two edges to the next one and back, and one to itself. */
static struct topology graph(void)
{
    struct topology topology = {.name = "graph"};
    struct lists own = {.in = 5, .out = 5};
    int index[RANKS], edges[RANKS * 5];
    for (int i = 0; i < test.size; i++) {
        const int next = (i + 1) % test.size, previous = (i + test.size - 1) % test.size;
        const int to[5] = {next, i, previous, previous, next};
        index[i] = 5 * (i + 1);
        memcpy(edges + 5 * i, to, sizeof to);
    }
    MPI_Graph_create(MPI_COMM_WORLD, test.size, index, edges, 0, &topology.comm);
    memcpy(own.sources, edges + 5 * test.rank, 5 * sizeof *edges);
    memcpy(own.targets, own.sources, sizeof own.targets);
    gather_lists(&topology, &own);
    return topology;
}

/* Each process sends three times to the next one. The last one sends twice to itself. Rank 0 receives nothing, unless it
 * is alone. */
static struct topology distributed(void)
{
    struct topology topology = {.name = "distributed graph"};
    struct lists own = {.in = 0};
    const int weights[MOST] = {0};
    const int last = test.size - 1;
    for (int i = 0; i < 3; i++) {
        if (test.rank < last) {
            own.targets[own.out++] = test.rank + 1;
        }
        if (0 < test.rank) {
            own.sources[own.in++] = test.rank - 1;
        }
        if (test.rank == last && i < 2) {
            own.targets[own.out++] = own.sources[own.in++] = last;
        }
    }
    MPI_Dist_graph_create_adjacent(MPI_COMM_WORLD, own.in, own.sources, weights, own.out, own.targets, weights,
                                   MPI_INFO_NULL, 0, &topology.comm);
    gather_lists(&topology, &own);
    return topology;
}

/* --- what must arrive --- */

/* Returns the block that a process receives as its block number `at`: which block its neighbour sends. */
static int sent_as(const struct topology *topology, int at)
{
    const struct lists *mine = &topology->all[test.rank];
    const struct lists *theirs = &topology->all[mine->sources[at]];
    int before = 0;
    if (topology->grid) {
        return at ^ 1; /* what goes one way comes from the other */
    }
    for (int i = 0; i < at; i++) {
        before += mine->sources[i] == mine->sources[at];
    }
    for (int i = 0; i < theirs->out; i++) {
        if (theirs->targets[i] == test.rank && 0 == before--) {
            return i;
        }
    }
    CHECK(!"an edge");
    return 0;
}

/* The integers of a block. Some have none. */
static int length(enum call call, int count, int from, int block)
{
    return ALLGATHER == call || ALLTOALL == call ? count
           : ALLGATHERV == call                  ? count + from
           : (from + block) % 3                  ? count + 3 * from + block
                                                 : 0;
}

static int value(int from, int block, int i, int round)
{
    return 10000000 * (from + 1) + 100000 * (block + 1) + 1000 * (round + 1) + i % 1000;
}

struct side {
    int counts[MOST], places[MOST], bytes_from[MOST], integers;
    MPI_Aint wide[MOST];
    MPI_Datatype types[MOST];
};

static void add_block(struct side *side, int block, int count)
{
    side->counts[block] = count;
    side->places[block] = side->integers;
    side->wide[block] = (MPI_Aint) side->integers * (MPI_Aint) sizeof(int);
    side->types[block] = MPI_INT;
    side->integers += count;
}

static bool shares_block(enum call call)
{
    return ALLGATHER == call || ALLGATHERV == call;
}

static struct side sent(const struct lists *mine, enum call call, int count)
{
    struct side side = {.integers = 0};
    for (int i = 0; i < (shares_block(call) ? 1 : mine->out); i++) {
        add_block(&side, i, length(call, count, test.rank, i));
    }
    return side;
}

static struct side received(const struct topology *topology, enum call call, int count)
{
    const struct lists *mine = &topology->all[test.rank];
    struct side side = {.integers = 0};
    for (int i = 0; i < mine->in; i++) {
        const bool none = MPI_PROC_NULL == mine->sources[i];
        const int block = none || shares_block(call) ? 0 : sent_as(topology, i);
        add_block(&side, i, none ? count : length(call, count, mine->sources[i], block));
        if (ALLGATHER != call && ALLTOALL != call) {
            side.integers += GAP;
        }
    }
    return side;
}

static void fill(const struct side *side, enum call call, const struct lists *mine, int round)
{
    int *image = (int *) data(&out, out.before);
    for (int block = 0; block < (shares_block(call) ? 1 : mine->out); block++) {
        for (int i = 0; i < side->counts[block]; i++) {
            image[side->places[block] + i] = value(test.rank, block, i, round);
        }
    }
    memory_put(&out);
    memset(in.before, RECV_GAP, memory_whole(&in));
    memory_put(&in);
}

static void verify(const struct side *side, const struct topology *topology, enum call call, int round)
{
    const struct lists *mine = &topology->all[test.rank];
    int *image = (int *) data(&in, in.want);
    memset(in.want, RECV_GAP, memory_whole(&in));
    for (int block = 0; block < mine->in; block++) {
        for (int i = 0; i < side->counts[block] && MPI_PROC_NULL != mine->sources[block]; i++) {
            image[side->places[block] + i] =
                value(mine->sources[block], shares_block(call) ? 0 : sent_as(topology, block), i, round);
        }
    }
    memory_get(&in);
    const long at = memory_differs(&in);
    if (0 <= at) {
        fprintf(stderr, "rank %d of %d: call %d on a %s: differs at byte %ld of %zu (guards have %d)\n", test.rank,
                test.size, call, topology->name, at, in.bytes, GUARD);
    }
    CHECK(at < 0);
    count_check();
}

/* --- calls --- */

#define CALL(NAME, Name, name, ...)                                                                                    \
    case NAME:                                                                                                         \
        switch (form) {                                                                                                \
        case NONBLOCKING: MPI_I##name(__VA_ARGS__, request); break;                                                    \
        case PERSISTENT: INIT(Name)(__VA_ARGS__, MPI_INFO_NULL, request); break;                                       \
        default: MPI_##Name(__VA_ARGS__);                                                                              \
        }                                                                                                              \
        break;

static void issue(enum call call, enum form form, int count, const struct side *S, const struct side *R, MPI_Comm comm,
                  MPI_Request *request)
{
    void *from = memory_at(&out), *to = memory_at(&in);
    const int equal = ALLGATHERV == call ? count + test.rank : count;
    switch (call) {
        CALL(ALLGATHER, Neighbor_allgather, neighbor_allgather, from, count, MPI_INT, to, count, MPI_INT, comm)
        CALL(ALLGATHERV, Neighbor_allgatherv, neighbor_allgatherv, from, equal, MPI_INT, to, R->counts, R->places, MPI_INT,
             comm)
        CALL(ALLTOALL, Neighbor_alltoall, neighbor_alltoall, from, count, MPI_INT, to, count, MPI_INT, comm)
        CALL(ALLTOALLV, Neighbor_alltoallv, neighbor_alltoallv, from, S->counts, S->places, MPI_INT, to, R->counts,
             R->places, MPI_INT, comm)
        CALL(ALLTOALLW, Neighbor_alltoallw, neighbor_alltoallw, from, S->counts, S->wide, S->types, to, R->counts, R->wide,
             R->types, comm)
    default: CHECK(!"a call");
    }
}

static void run(const struct topology *topology, enum call call, enum form form, int count, enum placement placement)
{
    const struct lists *mine = &topology->all[test.rank];
    const struct side send = sent(mine, call, count), recv = received(topology, call, count);
    const bool on_device = DEVICE == placement || (EVEN_RANKS == placement && 0 == test.rank % 2);
    MPI_Request request = MPI_REQUEST_NULL;
    memory_use(&out, on_device, 0, (size_t) send.integers * sizeof(int), SEND_GAP);
    memory_use(&in, on_device, 0, (size_t) recv.integers * sizeof(int), RECV_GAP);
    fill(&send, call, mine, 0);
    issue(call, form, count, &send, &recv, topology->comm, &request);
    for (int round = 0; round < (PERSISTENT == form ? STARTS : 1); round++) {
        if (PERSISTENT == form) {
            fill(&send, call, mine, round);
            MPI_Start(&request);
        }
        MPI_Wait(&request, MPI_STATUS_IGNORE);
        verify(&recv, topology, call, round);
    }
    if (PERSISTENT == form) {
        MPI_Request_free(&request);
    }
}

/* Two operations of each process are under way at the same time, and complete in the other order. */
static void run_two(const struct topology *topology)
{
    const struct lists *mine = &topology->all[test.rank];
    const struct side send = sent(mine, ALLTOALL, 50), recv = received(topology, ALLTOALL, 50);
    struct memory sends[2] = {{0}}, receives[2] = {{0}};
    MPI_Request requests[2];
    for (int i = 0; i < 2; i++) {
        memory_use(&sends[i], true, 0, (size_t) send.integers * sizeof(int), SEND_GAP);
        memory_use(&receives[i], 0 == i, 0, (size_t) recv.integers * sizeof(int), RECV_GAP);
        out = sends[i], in = receives[i];
        fill(&send, ALLTOALL, mine, i);
        issue(ALLTOALL, NONBLOCKING, 50, &send, &recv, topology->comm, &requests[i]);
    }
    for (int i = 1; 0 <= i; i--) {
        MPI_Wait(&requests[i], MPI_STATUS_IGNORE);
        in = receives[i];
        verify(&recv, topology, ALLTOALL, i);
    }
    for (int i = 0; i < 2; i++) {
        memory_discard(&sends[i]);
        memory_discard(&receives[i]);
    }
    memset(&out, 0, sizeof out);
    memset(&in, 0, sizeof in);
}

int main(int argc, char **argv)
{
    static const int counts[] = {0, 1, 100, 30000}, yes[] = {1, 1, 1}, mixed[] = {0, 1, 0};
    set_up(argc, argv, MPI_THREAD_SINGLE);
    CHECK(test.size <= RANKS);
    const int ring[] = {test.size}, flat[] = {1, test.size, 1};
    const int two[] = {0 == test.size % 2 ? 2 : test.size, 0 == test.size % 2 ? test.size / 2 : 1, 1};
    struct topology topologies[] = {
        grid("ring", 1, ring, yes),          grid("line", 1, ring, mixed), grid("flat torus", 3, flat, yes),
        grid("flat cylinder", 3, flat, mixed), grid("torus", 3, two, yes),   grid("cylinder", 3, two, mixed),
        graph(),                             distributed(),
    };
    for (size_t t = 0; t < sizeof topologies / sizeof *topologies; t++) {
        for (int i = 0; i < CALLS * FORMS * PLACEMENTS * 4; i++) {
            run(&topologies[t], (enum call) (i % CALLS), (enum form) (i / CALLS % FORMS), counts[i / (CALLS * FORMS) % 4],
                (enum placement) (i / (CALLS * FORMS * 4)));
        }
        memory_discard(&out);
        memory_discard(&in);
        run_two(&topologies[t]);
        MPI_Comm_free(&topologies[t].comm);
    }
    tear_down();
    return 0;
}
