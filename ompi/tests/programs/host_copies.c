/* Calls that run on host copies of device memory if Open MPI's modules perform all collectives: reductions by the program's
 * operation, of long double, and a call that Open MPI passes to no component. The memory of the copies is allocated in the first rounds only.
 * CABLEWAY_CUDA_LIBDIR names the driver. */
#include "collectives/counters.h"
#include "collectives/memory.h"

/* Sizes are rounded up: LARGE and a little more are alike. */
enum { LARGE = (5 << 20) - 100, ROUNDS = 4 };

static struct memory out, in;

static void add(void *from, void *to, int *count, MPI_Datatype *type)
{
    (void) type;
    for (int i = 0; i < *count; i++) {
        ((int *) to)[i] += ((int *) from)[i];
    }
}

static void put_integers(int integers, int round)
{
    memory_use(&out, true, 0, (size_t) integers * sizeof(int), 0);
    memory_use(&in, true, 0, (size_t) integers * sizeof(int), 0);
    for (int i = 0; i < integers; i++) {
        ((int *) data(&out, out.before))[i] = i + test.rank + round;
    }
    memory_put(&out);
    memory_put(&in);
}

static void check_sums(int integers, int round)
{
    memory_get(&in);
    for (int i = 0; i < integers; i++) {
        CHECK_EQUAL(((const int *) data(&in, in.got))[i], test.size * (i + round) + test.size * (test.size - 1) / 2);
    }
    count_check();
}

static void reduce_integers(MPI_Op op, int integers, int round)
{
    MPI_Request request;
    put_integers(integers, round);
    MPI_Allreduce(memory_at(&out), memory_at(&in), integers, MPI_INT, op, MPI_COMM_WORLD);
    check_sums(integers, round);
    put_integers(integers, round + 1);
    MPI_Iallreduce(memory_at(&out), memory_at(&in), integers, MPI_INT, op, MPI_COMM_WORLD, &request);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    check_sums(integers, round + 1);
}

static void reduce_long_doubles(int numbers, int round)
{
    memory_use(&out, true, 0, (size_t) numbers * sizeof(long double), 0);
    memory_use(&in, true, 0, (size_t) numbers * sizeof(long double), 0);
    for (int i = 0; i < numbers; i++) {
        ((long double *) data(&out, out.before))[i] = i + round + test.rank / 4.0L;
    }
    memory_put(&out);
    memory_put(&in);
    MPI_Allreduce(memory_at(&out), memory_at(&in), numbers, MPI_LONG_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    memory_get(&in);
    for (int i = 0; i < numbers; i++) {
        CHECK(((const long double *) data(&in, in.got))[i] == i + round + (test.size - 1) / 4.0L);
    }
    count_check();
}

/* Around a ring. */
static void replace(int integers, int round)
{
    const int next = (test.rank + 1) % test.size, previous = (test.rank + test.size - 1) % test.size;
    put_integers(integers, round);
    MPI_Sendrecv_replace(memory_at(&out), integers, MPI_INT, next, 1, previous, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    memory_get(&out);
    for (int i = 0; i < integers; i++) {
        CHECK_EQUAL(((const int *) data(&out, out.got))[i], i + previous + round);
    }
    count_check();
}

int main(int argc, char **argv)
{
    MPI_T_pvar_handle calls, allocations;
    unsigned long long calls_before, allocations_before = 0;
    MPI_Op op;
    set_up(argc, argv, MPI_THREAD_SINGLE);
    open_counters();
    calls = counter("pml_cableway_calls_on_host_copies");
    allocations = counter("pml_cableway_host_copy_allocations");
    calls_before = read_counter(calls);
    MPI_Op_create(add, 1, &op);
    for (int round = 0; round < ROUNDS; round++) {
        reduce_integers(op, LARGE + round, round);
        reduce_integers(op, 1000, round);
        reduce_long_doubles(LARGE / 8, round);
        replace(LARGE / 2 - round, round);
        if (0 == round) {
            allocations_before = read_counter(allocations);
        }
    }
    MPI_Op_free(&op);
    CHECK(read_counter(calls) - calls_before >= ROUNDS * 5);
    CHECK(0 < allocations_before);
    CHECK_EQUAL(read_counter(allocations), allocations_before);
    memory_discard(&out);
    memory_discard(&in);
    close_counters();
    tear_down();
    return 0;
}
