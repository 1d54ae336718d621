/* Communicators, datatypes and operations that the program frees while collectives use them: MPI keeps them until the
 * operation is complete, or the persistent request is freed. CABLEWAY_CUDA_LIBDIR names the driver.
 *
 * The last line says how many operations of processes were verified. */
#include "collectives/memory.h"

enum { LARGE = 1 << 18, ROUNDS = 3, RANKS = 5 };

static struct memory out, in;

/* A communicator that this function's caller frees. */
static MPI_Comm duplicate(void)
{
    MPI_Comm comm;
    MPI_Comm_dup(MPI_COMM_WORLD, &comm);
    return comm;
}

/* A type that this function's caller frees: every other integer. */
static MPI_Datatype every_other(int integers)
{
    MPI_Datatype type;
    MPI_Type_vector(integers, 1, 2, MPI_INT, &type);
    MPI_Type_commit(&type);
    return type;
}

/* Has Open MPI and the component use the memory of what was freed. */
static void reuse_memory(void)
{
    for (int i = 0; i < 20; i++) {
        MPI_Datatype type;
        int values[4] = {1, 2, 3, 4};
        MPI_Type_vector(3 + i, 2, 5, MPI_SHORT, &type);
        MPI_Type_commit(&type);
        MPI_Sendrecv_replace(values, 0, type, MPI_PROC_NULL, 0, MPI_PROC_NULL, 0, MPI_COMM_SELF, MPI_STATUS_IGNORE);
        MPI_Type_free(&type);
    }
}

/* The other ranks have begun an operation and freed what it uses before rank 0 begins it: they call this before, and
 * rank 0 after. Without this the operation might be complete before something is freed. */
static void rank_0_is_last(bool before)
{
    if (before == (0 == test.rank)) {
        MPI_Barrier(MPI_COMM_WORLD);
    }
}

static int value(int from, int i)
{
    return 1000000 * (from + 1) + i;
}

static void put(struct memory *memory, int integers, int seed)
{
    memory_use(memory, true, 0, (size_t) integers * sizeof(int), 0);
    for (int i = 0; i < integers; i++) {
        ((int *) data(memory, memory->before))[i] = value(seed, i);
    }
    memory_put(memory);
}

static const int *got(struct memory *memory)
{
    memory_get(memory);
    count_check();
    return (const int *) data(memory, memory->got);
}

static void broadcast(bool disconnects)
{
    MPI_Comm comm = duplicate();
    MPI_Request request;
    put(&in, LARGE, test.rank);
    if (!disconnects) {
        rank_0_is_last(true);
    }
    MPI_Ibcast(memory_at(&in), LARGE, MPI_INT, 0, comm, &request);
    if (disconnects) {
        MPI_Comm_disconnect(&comm);
    } else {
        MPI_Comm_free(&comm);
        rank_0_is_last(false);
    }
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    const int *result = got(&in);
    for (int i = 0; i < LARGE; i++) {
        CHECK_EQUAL(result[i], value(0, i));
    }
}

/* An alltoall of a type with gaps. */
static void exchange(int integers)
{
    MPI_Comm comm = duplicate();
    MPI_Datatype type = every_other(integers), types[RANKS];
    int counts[RANKS], places[RANKS];
    MPI_Request request;
    put(&out, 2 * integers * test.size, test.rank);
    put(&in, 2 * integers * test.size, 90);
    for (int i = 0; i < test.size; i++) {
        types[i] = type, counts[i] = 1, places[i] = i * 2 * integers * (int) sizeof(int);
    }
    rank_0_is_last(true);
    MPI_Ialltoallw(memory_at(&out), counts, places, types, memory_at(&in), counts, places, types, comm, &request);
    MPI_Comm_free(&comm);
    MPI_Type_free(&type);
    reuse_memory();
    rank_0_is_last(false);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    const int *result = got(&in);
    for (int from = 0; from < test.size; from++) {
        const int *block = result + 2 * integers * from;
        for (int i = 0; i < 2 * integers - 1; i++) {
            CHECK_EQUAL(block[i], i % 2 ? value(90, 2 * integers * from + i) : value(from, 2 * integers * test.rank + i));
        }
    }
}

static void add(void *from, void *to, int *count, MPI_Datatype *type)
{
    (void) type;
    for (int i = 0; i < *count; i++) {
        ((int *) to)[i] += ((int *) from)[i];
    }
}

static void check_sum(int integers)
{
    const int *result = got(&in);
    for (int i = 0; i < integers; i++) {
        int sum = 0;
        for (int from = 0; from < test.size; from++) {
            sum += value(from, i);
        }
        CHECK_EQUAL(result[i], sum);
    }
}

/* A reduction by MPI's operation, or by the program's own. */
static void reduce(bool own)
{
    MPI_Comm comm = duplicate();
    MPI_Op op = MPI_SUM;
    MPI_Request request;
    put(&out, LARGE, test.rank);
    put(&in, LARGE, 90);
    if (own) {
        MPI_Op_create(add, 1, &op);
    }
    rank_0_is_last(true);
    MPI_Iallreduce(memory_at(&out), memory_at(&in), LARGE, MPI_INT, op, comm, &request);
    MPI_Comm_free(&comm);
    if (own) {
        MPI_Op_free(&op);
    }
    rank_0_is_last(false);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    check_sum(LARGE);
}

/* MPI has persistent collectives since Open MPI 5.0. Open MPI 4.1 has them under another name. */
#if OMPI_MAJOR_VERSION < 5
#include <mpi-ext.h>
#define PERSISTENT(Name) MPIX_##Name##_init
#else
#define PERSISTENT(Name) MPI_##Name##_init
#endif

/* What a persistent operation uses is freed before it is started for the first time. */
static void persistent_broadcast(int integers)
{
    MPI_Comm comm = duplicate();
    MPI_Datatype type = every_other(integers);
    MPI_Request request;
    put(&in, 2 * integers, test.rank);
    PERSISTENT(Bcast)(memory_at(&in), 1, type, 0, comm, MPI_INFO_NULL, &request);
    MPI_Comm_free(&comm);
    MPI_Type_free(&type);
    reuse_memory();
    for (int round = 0; round < ROUNDS; round++) {
        put(&in, 2 * integers, test.rank + 10 * round);
        MPI_Start(&request);
        MPI_Wait(&request, MPI_STATUS_IGNORE);
        const int *result = got(&in);
        for (int i = 0; i < 2 * integers - 1; i++) {
            CHECK_EQUAL(result[i], value((i % 2 ? test.rank : 0) + 10 * round, i));
        }
    }
    MPI_Request_free(&request);
}

static void persistent_reduction(bool own)
{
    MPI_Comm comm = duplicate();
    MPI_Op op = MPI_SUM;
    MPI_Request request;
    if (own) {
        MPI_Op_create(add, 1, &op);
    }
    put(&out, LARGE, test.rank);
    put(&in, LARGE, 90);
    PERSISTENT(Allreduce)(memory_at(&out), memory_at(&in), LARGE, MPI_INT, op, comm, MPI_INFO_NULL, &request);
    MPI_Comm_free(&comm);
    if (own) {
        MPI_Op_free(&op);
    }
    reuse_memory();
    for (int round = 0; round < ROUNDS; round++) {
        put(&in, LARGE, 90);
        MPI_Start(&request);
        MPI_Wait(&request, MPI_STATUS_IGNORE);
        check_sum(LARGE);
    }
    MPI_Request_free(&request);
}

int main(int argc, char **argv)
{
    set_up(argc, argv, MPI_THREAD_SINGLE);
    CHECK(test.size <= RANKS);
    for (int round = 0; round < ROUNDS; round++) {
        broadcast(false);
        broadcast(true);
        exchange(300);
        exchange(30000);
        reduce(false);
        reduce(true);
        persistent_broadcast(400);
        persistent_broadcast(50000);
        persistent_reduction(false);
        persistent_reduction(true);
    }
    memory_discard(&out);
    memory_discard(&in);
    tear_down();
    return 0;
}
