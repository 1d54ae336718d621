/* Processes of a grid and of a graph, of which one passes device memory, agree to change to Cableway's collectives, although
 * some calls have no data. CABLEWAY_CUDA_LIBDIR names the driver. */
#include "collectives/counters.h"
#include "collectives/memory.h"

enum { MOST_CALLS = 10000, INTEGERS = 1000, LAST = 5 };

static struct memory out, in;

static MPI_Comm make_ring(void)
{
    const int periodic = 1;
    MPI_Comm ring;
    MPI_Cart_create(MPI_COMM_WORLD, 1, &test.size, &periodic, 0, &ring);
    return ring;
}

/* The same ring. Block 0 comes from the previous process and goes to the next one. */
static MPI_Comm make_graph(void)
{
    const int neighbours[2] = {(test.rank + test.size - 1) % test.size, (test.rank + 1) % test.size}, weights[2] = {1, 1};
    const int targets[2] = {neighbours[1], neighbours[0]};
    MPI_Comm graph;
    MPI_Dist_graph_create_adjacent(MPI_COMM_WORLD, 2, neighbours, weights, 2, targets, weights, MPI_INFO_NULL, 0, &graph);
    return graph;
}

static int value(int from, int block, int i, int call)
{
    return 1000000 * (from + 1) + 100000 * block + 2000 * (call % 40) + i;
}

/* Block 0 goes to the previous process in a grid, and to the next one in the graph. */
static void exchange(MPI_Comm comm, bool grid, bool on_device, int call)
{
    const int previous = (test.rank + test.size - 1) % test.size, next = (test.rank + 1) % test.size;
    const int integers = 2 == call % 3 ? 0 : INTEGERS, counts[2] = {integers, integers}, places[2] = {0, integers};
    memory_use(&out, on_device, 0, (size_t) (2 * integers) * sizeof(int), SEND_GAP);
    memory_use(&in, on_device, 0, (size_t) (2 * integers) * sizeof(int), RECV_GAP);
    for (int i = 0; i < 2 * integers; i++) {
        ((int *) data(&out, out.before))[i] = value(test.rank, i / integers, i % integers, call);
    }
    memory_put(&out);
    memory_put(&in);
    if (grid) {
        MPI_Neighbor_alltoall(memory_at(&out), integers, MPI_INT, memory_at(&in), integers, MPI_INT, comm);
    } else {
        MPI_Neighbor_alltoallv(memory_at(&out), counts, places, MPI_INT, memory_at(&in), counts, places, MPI_INT, comm);
    }
    memory_get(&in);
    for (int i = 0; i < 2 * integers; i++) {
        const int block = i / integers, sent_as = grid ? 1 - block : block;
        CHECK_EQUAL(((const int *) data(&in, in.got))[i], value(block ? next : previous, sent_as, i % integers, call));
    }
    count_check();
}

/* Calls until no process needs a host copy. All processes make the same calls: they ask each other. */
static void agree(MPI_Comm comm, bool grid, int with_device, MPI_T_pvar_handle copies)
{
    int waiting = 1, call = 0;
    for (; waiting && call < MOST_CALLS; call += 3) {
        const unsigned long long before = read_counter(copies);
        for (int i = 0; i < 3; i++) {
            exchange(comm, grid, test.rank == with_device, call + i);
        }
        const int copied = before != read_counter(copies);
        MPI_Allreduce(&copied, &waiting, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
    }
    CHECK(!waiting);
    CHECK(3 < call || 1 == test.size); /* the first ones were Open MPI's */
    const unsigned long long before = read_counter(copies);
    for (int i = 0; i < LAST; i++) {
        exchange(comm, grid, true, call++);
    }
    CHECK_EQUAL(read_counter(copies), before);
}

int main(int argc, char **argv)
{
    set_up(argc, argv, MPI_THREAD_SINGLE);
    open_counters();
    const MPI_T_pvar_handle copies = counter("pml_cableway_calls_on_host_copies");
    for (int with_device = 0; with_device < test.size; with_device++) {
        MPI_Comm comms[2] = {make_ring(), make_graph()};
        for (int i = 0; i < 2; i++) {
            agree(comms[i], 0 == i, with_device, copies);
            MPI_Comm_free(&comms[i]);
        }
    }
    memory_discard(&out);
    memory_discard(&in);
    close_counters();
    tear_down();
    return 0;
}
