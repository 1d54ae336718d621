/* Rows: collective operations in all their forms. */

/* MPI has persistent collectives since Open MPI 5.0. Open MPI 4.1 has them under another name. */
#if OMPI_MAJOR_VERSION < 5
#define PERSISTENT(Name) MPIX_##Name##_init
#else
#define PERSISTENT(Name) MPI_##Name##_init
#endif

/* A collective operation, blocking and non-blocking, with the same arguments. */
#define FORMS(Name, name, setup, ...)                                                                                  \
    ROW(MPI_##Name, { setup MPI_##Name(__VA_ARGS__); })                                                                \
    ROW(MPI_I##name, {                                                                                                 \
        MPI_Request request;                                                                                           \
        setup MPI_I##name(__VA_ARGS__, &request);                                                                      \
        WAIT(request);                                                                                                 \
    })                                                                                                                 \
    ROW(PERSISTENT(Name), {                                                                                            \
        MPI_Request request;                                                                                           \
        setup PERSISTENT(Name)(__VA_ARGS__, MPI_INFO_NULL, &request);                                                \
        for (int i = 0; i < 2; i++) {                                                                                  \
            MPI_Start(&request);                                                                                       \
            WAIT(request);                                                                                             \
        }                                                                                                              \
        MPI_Request_free(&request);                                                                                    \
    })
/* The same in place, on an intercommunicator, or with other variations. */
#define VARIANTS(Name, name, variant, setup, ...)                                                                      \
    VARIANT(MPI_##Name, variant, { setup MPI_##Name(__VA_ARGS__); })                                                   \
    VARIANT(MPI_I##name, variant, {                                                                                    \
        MPI_Request request;                                                                                           \
        setup MPI_I##name(__VA_ARGS__, &request);                                                                      \
        WAIT(request);                                                                                                 \
    })                                                                                                                 \
    VARIANT(PERSISTENT(Name), variant, {                                                                               \
        MPI_Request request;                                                                                           \
        setup PERSISTENT(Name)(__VA_ARGS__, MPI_INFO_NULL, &request);                                                \
        MPI_Start(&request);                                                                                           \
        WAIT(request);                                                                                                 \
        MPI_Request_free(&request);                                                                                    \
    })

/* Parts of different lengths, with gaps between them, in another order than the ranks'. */
static int counts[SLOTS], places[SLOTS], bytes_from[SLOTS];
static MPI_Aint wide[SLOTS];
static MPI_Datatype types[SLOTS];

static int part(int process)
{
    return process % 2 ? C : C - 2;
}

/* As many parts of each kind as this process has partners; every partner has part(process) elements. */
static void vector(int n)
{
    for (int i = 0; i < n; i++) {
        counts[i] = part(i);
        places[i] = (n - 1 - i) * (C + 1);
        bytes_from[i] = (int) (places[i] * extent);
        wide[i] = bytes_from[i];
        types[i] = T;
    }
}

/* The same, but every part has this process's length: what it sends to each of the others. */
static int mine[SLOTS], mine_at[SLOTS], mine_from[SLOTS];
static MPI_Aint mine_wide[SLOTS];
static void own_vector(int n, int length)
{
    for (int i = 0; i < n; i++) {
        mine[i] = length;
        mine_at[i] = i * C;
        mine_from[i] = (int) (mine_at[i] * extent);
        mine_wide[i] = mine_from[i];
    }
}

#define ROOT (size - 1)

FORMS(Allgather, allgather, , S, C, T, R, C, T, comm)
VARIANTS(Allgather, allgather, in_place, , MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, R, C, T, comm)
FORMS(Allgatherv, allgatherv, vector(size);, S, part(rank), T, R, counts, places, T, comm)
VARIANTS(Allgatherv, allgatherv, in_place, vector(size);, MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, R, counts, places, T, comm)
FORMS(Allreduce, allreduce, , S, R, C, T, OP, comm)
VARIANTS(Allreduce, allreduce, in_place, , MPI_IN_PLACE, R, C, T, OP, comm)
FORMS(Alltoall, alltoall, , S, C, T, R, C, T, comm)
VARIANTS(Alltoall, alltoall, in_place, , MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, R, C, T, comm)
#define BOTH_VECTORS                                                                                                   \
    vector(size);                                                                                                      \
    own_vector(size, part(rank));
FORMS(Alltoallv, alltoallv, BOTH_VECTORS, S, mine, mine_at, T, R, counts, places, T, comm)
FORMS(Alltoallw, alltoallw, BOTH_VECTORS, S, mine, mine_from, types, R, counts, bytes_from, types, comm)
#define EQUAL_VECTOR own_vector(size, C - 1);
VARIANTS(Alltoallv, alltoallv, in_place, EQUAL_VECTOR, MPI_IN_PLACE, NULL, NULL, MPI_DATATYPE_NULL, R, mine, mine_at, T, comm)
#define EQUAL_TYPES                                                                                                    \
    vector(size);                                                                                                      \
    own_vector(size, C - 1);
VARIANTS(Alltoallw, alltoallw, in_place, EQUAL_TYPES, MPI_IN_PLACE, NULL, NULL, NULL, R, mine, mine_from, types, comm)
FORMS(Bcast, bcast, , R, C, T, ROOT, comm)
FORMS(Exscan, exscan, , S, R, C, T, OP, comm)
VARIANTS(Exscan, exscan, in_place, , MPI_IN_PLACE, R, C, T, OP, comm)
FORMS(Gather, gather, , S, C, T, rank == ROOT ? R : NULL, C, T, ROOT, comm)
#define IN_PLACE_AT_ROOT (rank == ROOT ? MPI_IN_PLACE : S)
VARIANTS(Gather, gather, in_place, , IN_PLACE_AT_ROOT, C, T, R, C, T, ROOT, comm)
FORMS(Gatherv, gatherv, vector(size);, S, part(rank), T, R, counts, places, T, ROOT, comm)
VARIANTS(Gatherv, gatherv, in_place, vector(size);, IN_PLACE_AT_ROOT, part(rank), T, R, counts, places, T, ROOT, comm)
FORMS(Reduce, reduce, , S, rank == ROOT ? R : NULL, C, T, OP, ROOT, comm)
VARIANTS(Reduce, reduce, in_place, , IN_PLACE_AT_ROOT, R, C, T, OP, ROOT, comm)
FORMS(Reduce_scatter, reduce_scatter, vector(size);, S, R, counts, T, OP, comm)
VARIANTS(Reduce_scatter, reduce_scatter, in_place, vector(size);, MPI_IN_PLACE, R, counts, T, OP, comm)
FORMS(Reduce_scatter_block, reduce_scatter_block, , S, R, C, T, OP, comm)
VARIANTS(Reduce_scatter_block, reduce_scatter_block, in_place, , MPI_IN_PLACE, R, C, T, OP, comm)
FORMS(Scan, scan, , S, R, C, T, OP, comm)
VARIANTS(Scan, scan, in_place, , MPI_IN_PLACE, R, C, T, OP, comm)
FORMS(Scatter, scatter, , rank == ROOT ? S : NULL, C, T, R, C, T, ROOT, comm)
VARIANTS(Scatter, scatter, in_place, , S, C, T, rank == ROOT ? MPI_IN_PLACE : R, C, T, ROOT, comm)
FORMS(Scatterv, scatterv, vector(size);, S, counts, places, T, R, part(rank), T, ROOT, comm)
VARIANTS(Scatterv, scatterv, in_place, vector(size);, S, counts, places, T, rank == ROOT ? MPI_IN_PLACE : R, part(rank), T, ROOT, comm)
ROW(MPI_Reduce_local, { MPI_Reduce_local(S, R, C, T, OP); })

/* --- between two groups --- */

/* Rank 0 on one side, all others on the other. */
static MPI_Comm between = MPI_COMM_NULL;
static int others, inter_root;

static bool connect(void)
{
    MPI_Comm half;
    if (1 == size) {
        return false;
    }
    if (MPI_COMM_NULL == between) {
        MPI_Comm_split(MPI_COMM_WORLD, 0 != rank, 0, &half);
        MPI_Intercomm_create(half, 0, MPI_COMM_WORLD, 0 == rank ? 1 : 0, 7, &between);
        MPI_Comm_free(&half);
        MPI_Comm_remote_size(between, &others);
    }
    inter_root = 0 != rank ? 0 : MPI_ROOT;
    return true;
}
#define CONNECTED                                                                                                      \
    if (!connect()) {                                                                                                  \
        return;                                                                                                        \
    }
#define INTER(Name, name, setup, ...)                                                                                  \
    VARIANT(MPI_##Name, inter, { CONNECTED setup MPI_##Name(__VA_ARGS__); })                                           \
    VARIANT(MPI_I##name, inter, {                                                                                      \
        MPI_Request request;                                                                                           \
        CONNECTED setup MPI_I##name(__VA_ARGS__, &request);                                                            \
        WAIT(request);                                                                                                 \
    })

INTER(Allgather, allgather, , S, C, T, R, C, T, between)
INTER(Allgatherv, allgatherv, own_vector(others, C);, S, C, T, R, mine, mine_at, T, between)
INTER(Allreduce, allreduce, , S, R, C, T, OP, between)
INTER(Alltoall, alltoall, , S, C, T, R, C, T, between)
INTER(Alltoallv, alltoallv, own_vector(others, C);, S, mine, mine_at, T, R, mine, mine_at, T, between)
INTER(Bcast, bcast, , R, C, T, inter_root, between)
INTER(Gather, gather, , S, C, T, R, C, T, inter_root, between)
INTER(Gatherv, gatherv, own_vector(others, C);, S, C, T, R, mine, mine_at, T, inter_root, between)
INTER(Reduce, reduce, , S, R, C, T, OP, inter_root, between)
INTER(Scatter, scatter, , S, C, T, R, C, T, inter_root, between)
INTER(Scatterv, scatterv, own_vector(others, C);, S, mine, mine_at, T, R, C, T, inter_root, between)

/* --- between neighbours --- */

/* A line, whose ends have no neighbour; and a graph in which every process is a neighbour of all, including itself. */
static MPI_Comm line = MPI_COMM_NULL, graph = MPI_COMM_NULL;

static void topologies(void)
{
    int periodic = 0, neighbours[SLOTS];
    if (MPI_COMM_NULL != line) {
        return;
    }
    MPI_Cart_create(MPI_COMM_WORLD, 1, &size, &periodic, 0, &line);
    for (int i = 0; i < size; i++) {
        neighbours[i] = i;
    }
    MPI_Dist_graph_create_adjacent(MPI_COMM_WORLD, size, neighbours, neighbours, size, neighbours, neighbours,
                                   MPI_INFO_NULL, 0, &graph);
}
#define NEIGHBOURS(Name, name, setup, ...)                                                                             \
    FORMS(Neighbor_##Name, neighbor_##name, topologies(); setup, __VA_ARGS__, graph)                                   \
    VARIANTS(Neighbor_##Name, neighbor_##name, line, topologies(); own_vector(2, C); vector(2);, __VA_ARGS__, line)

NEIGHBOURS(allgather, allgather, , S, C, T, R, C, T)
#define EQUAL                                                                                                          \
    own_vector(size, C);                                                                                               \
    vector(size);
NEIGHBOURS(allgatherv, allgatherv, EQUAL, S, C, T, R, mine, mine_at, T)
NEIGHBOURS(alltoall, alltoall, , S, C, T, R, C, T)
NEIGHBOURS(alltoallv, alltoallv, EQUAL, S, mine, mine_at, T, R, mine, mine_at, T)
NEIGHBOURS(alltoallw, alltoallw, EQUAL, S, mine, mine_wide, types, R, mine, mine_wide, types)
