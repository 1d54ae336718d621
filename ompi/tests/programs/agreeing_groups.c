/* Two groups, of which one passes device memory, agree to change to Cableway's collectives. CABLEWAY_CUDA_LIBDIR names the
 * driver. */
#include "collectives/counters.h"
#include "collectives/memory.h"

enum { MOST_CALLS = 10000, INTEGERS = 1000, LAST = 5, RANKS = 5 };

static struct memory out, in;

/* An intercommunicator of the first processes of MPI_COMM_WORLD and the others. */
static MPI_Comm between(int first)
{
    const bool in_first = test.rank < first;
    MPI_Comm own, both;
    MPI_Comm_split(MPI_COMM_WORLD, in_first, 0, &own);
    MPI_Intercomm_create(own, 0, MPI_COMM_WORLD, in_first ? first : 0, 7, &both);
    MPI_Comm_free(&own);
    return both;
}

static int value(int from, int i, int call)
{
    return 1000000 * (from + 1) + 2000 * (call % 100) + i;
}

static void gather_all(MPI_Comm comm, bool on_device, int first, int call)
{
    int partners;
    MPI_Comm_remote_size(comm, &partners);
    const int others = test.rank < first ? first : 0;
    memory_use(&out, on_device, 0, INTEGERS * sizeof(int), SEND_GAP);
    memory_use(&in, on_device, 0, (size_t) partners * INTEGERS * sizeof(int), RECV_GAP);
    for (int i = 0; i < INTEGERS; i++) {
        ((int *) data(&out, out.before))[i] = value(test.rank, i, call);
    }
    memory_put(&out);
    memory_put(&in);
    MPI_Allgather(memory_at(&out), INTEGERS, MPI_INT, memory_at(&in), INTEGERS, MPI_INT, comm);
    memory_get(&in);
    for (int from = 0; from < partners; from++) {
        for (int i = 0; i < INTEGERS; i++) {
            CHECK_EQUAL(((const int *) data(&in, in.got))[from * INTEGERS + i], value(others + from, i, call));
        }
    }
    count_check();
}

/* Calls until no process needs a host copy. All processes make the same calls: they ask each other. */
static void agree(MPI_Comm comm, MPI_T_pvar_handle copies, int first, bool first_has_devices)
{
    const bool on_device = first_has_devices == (test.rank < first);
    int waiting = 1, call = 0;
    for (; waiting && call < MOST_CALLS; call++) {
        const unsigned long long before = read_counter(copies);
        gather_all(comm, on_device, first, call);
        const int copied = before != read_counter(copies);
        MPI_Allreduce(&copied, &waiting, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
    }
    CHECK(!waiting);
    CHECK(1 < call); /* the first one was Open MPI's */
    const unsigned long long before = read_counter(copies);
    for (int i = 0; i < LAST; i++) {
        gather_all(comm, on_device, first, call++);
    }
    CHECK_EQUAL(read_counter(copies), before);
}

int main(int argc, char **argv)
{
    set_up(argc, argv, MPI_THREAD_SINGLE);
    CHECK(1 < test.size && test.size <= RANKS);
    open_counters();
    const MPI_T_pvar_handle copies = counter("pml_cableway_calls_on_host_copies");
    for (int first = 1; first < test.size; first++) {
        for (int first_has_devices = 0; first_has_devices < 2; first_has_devices++) {
            MPI_Comm comm = between(first);
            agree(comm, copies, first, first_has_devices);
            MPI_Comm_free(&comm);
        }
    }
    memory_discard(&out);
    memory_discard(&in);
    close_counters();
    tear_down();
    return 0;
}
