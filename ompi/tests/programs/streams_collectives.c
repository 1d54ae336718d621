/* Collective operations in the order of streams, by any number of processes. The first argument is the thread level. */
#include "streams/stream.h"

#include <limits.h>

enum { ROUNDS = 6, TAG = 3 };

static struct lane lane;

static int sum_of_ranks(int add)
{
    int sum = 0;
    for (int rank = 0; rank < test.size; rank++) {
        sum += rank + add;
    }
    return sum;
}

static bool fill(device_pointer memory, int value, size_t bytes)
{
    CHECK_EQUAL(work.fill(memory, (unsigned char) value, bytes, lane.handle), 0);
    return true;
}

/* Each operation works on what the stream wrote before, and its result is what the stream copies after. */
static void in_order(size_t bytes)
{
    const int n = (int) bytes, size = test.size;
    device_pointer out = device_memory(size * bytes), in = device_memory(size * bytes);
    device_pointer all = device_memory(ROUNDS * size * bytes);
    int *counts = malloc(sizeof *counts * (size_t) size);
    for (int i = 0; i < size; i++) {
        counts[i] = n;
    }
#define ROUND(add) for (int round = 0; round < ROUNDS && fill(out, test.rank + round + (add), (size_t) size * bytes); round++)
#define KEEP(parts)                                                                                                    \
    CHECK_EQUAL(work.copy(all + (size_t) round * size * bytes, in, (size_t) (parts) * bytes, lane.handle), 0)
#define KEPT(round, part) (all + ((size_t) (round) *size + (size_t) (part)) * bytes)

    ROUND(1) {
        CHECK_EQUAL(MPIX_Allreduce_enqueue(at(out), at(in), n, MPI_UNSIGNED_CHAR, MPI_SUM, lane.comm), MPI_SUCCESS);
        KEEP(1);
    }
    CHECK_EQUAL(work.synchronize(lane.handle), 0);
    for (int round = 0; round < ROUNDS; round++) {
        check_bytes(KEPT(round, 0), bytes, sum_of_ranks(round + 1));
    }

    ROUND(1) {
        CHECK_EQUAL(work.copy(in, out, bytes, lane.handle), 0);
        CHECK_EQUAL(MPIX_Allreduce_enqueue_c(MPI_IN_PLACE, at(in), n, MPI_UNSIGNED_CHAR, MPI_MAX, lane.comm),
                    MPI_SUCCESS);
        KEEP(1);
    }
    CHECK_EQUAL(work.synchronize(lane.handle), 0);
    for (int round = 0; round < ROUNDS; round++) {
        check_bytes(KEPT(round, 0), bytes, size + round);
    }

    ROUND(5) {
        CHECK_EQUAL(work.copy(in, out, bytes, lane.handle), 0);
        CHECK_EQUAL(round % 2 ? MPIX_Bcast_enqueue(at(in), n, MPI_BYTE, round % size, lane.comm)
                              : MPIX_Bcast_enqueue_c(at(in), n, MPI_BYTE, round % size, lane.comm),
                    MPI_SUCCESS);
        KEEP(1);
    }
    CHECK_EQUAL(work.synchronize(lane.handle), 0);
    for (int round = 0; round < ROUNDS; round++) {
        check_bytes(KEPT(round, 0), bytes, round % size + round + 5);
    }

    ROUND(1) {
        CHECK_EQUAL(work.fill(in, 0xee, bytes, lane.handle), 0);
        CHECK_EQUAL(round % 2 ? MPIX_Reduce_enqueue(at(out), at(in), n, MPI_UNSIGNED_CHAR, MPI_SUM, round % size,
                                                    lane.comm)
                              : MPIX_Reduce_enqueue_c(at(out), at(in), n, MPI_UNSIGNED_CHAR, MPI_SUM, round % size,
                                                      lane.comm),
                    MPI_SUCCESS);
        KEEP(1);
    }
    CHECK_EQUAL(work.synchronize(lane.handle), 0);
    for (int round = 0; round < ROUNDS; round++) {
        check_bytes(KEPT(round, 0), bytes, test.rank == round % size ? sum_of_ranks(round + 1) : 0xee);
    }

    ROUND(2) {
        CHECK_EQUAL(round % 2 ? MPIX_Allgather_enqueue(at(out), n, MPI_BYTE, at(in), n, MPI_BYTE, lane.comm)
                              : MPIX_Allgather_enqueue_c(at(out), n, MPI_BYTE, at(in), n, MPI_BYTE, lane.comm),
                    MPI_SUCCESS);
        KEEP(size);
    }
    CHECK_EQUAL(work.synchronize(lane.handle), 0);
    for (int round = 0; round < ROUNDS; round++) {
        for (int rank = 0; rank < size; rank++) {
            check_bytes(KEPT(round, rank), bytes, rank + round + 2);
        }
    }

    ROUND(0) {
        for (int rank = 0; rank < size; rank++) {
            CHECK_EQUAL(work.fill(out + (size_t) rank * bytes, (unsigned char) (10 * test.rank + rank + round), bytes,
                                  lane.handle),
                        0);
        }
        CHECK_EQUAL(round % 2 ? MPIX_Alltoall_enqueue(at(out), n, MPI_BYTE, at(in), n, MPI_BYTE, lane.comm)
                              : MPIX_Alltoall_enqueue_c(at(out), n, MPI_BYTE, at(in), n, MPI_BYTE, lane.comm),
                    MPI_SUCCESS);
        KEEP(size);
    }
    CHECK_EQUAL(work.synchronize(lane.handle), 0);
    for (int round = 0; round < ROUNDS; round++) {
        for (int rank = 0; rank < size; rank++) {
            check_bytes(KEPT(round, rank), bytes, 10 * rank + test.rank + round);
        }
    }

    ROUND(1) {
        MPI_Count wide[64];
        for (int i = 0; i < size; i++) {
            wide[i] = n;
        }
        CHECK_EQUAL(round % 2 ? MPIX_Reduce_scatter_enqueue(at(out), at(in), counts, MPI_UNSIGNED_CHAR, MPI_SUM,
                                                            lane.comm)
                              : MPIX_Reduce_scatter_enqueue_c(at(out), at(in), wide, MPI_UNSIGNED_CHAR, MPI_SUM,
                                                              lane.comm),
                    MPI_SUCCESS);
        KEEP(1);
    }
    CHECK_EQUAL(work.synchronize(lane.handle), 0);
    for (int round = 0; round < ROUNDS; round++) {
        check_bytes(KEPT(round, 0), bytes, sum_of_ranks(round + 1));
    }
    free(counts);
    CHECK_EQUAL(cuda.free(out) | cuda.free(in) | cuda.free(all), 0);
}

/* One process's stream waits for a message while the others enqueue and the host reduces on the same communicator. */
static void beside_the_host(void)
{
    enum { COUNT = 1000 };
    device_pointer out = device_memory(COUNT), in = device_memory(COUNT);
    for (int round = 0; round < ROUNDS; round++) {
        int one = 1, all = 0;
        if (0 == test.rank) {
            CHECK_EQUAL(MPIX_Recv_enqueue(at(out), COUNT, MPI_BYTE, test.size - 1, TAG, lane.comm, MPI_STATUS_IGNORE),
                        MPI_SUCCESS);
        } else {
            CHECK_EQUAL(work.fill(out, (unsigned char) (round + 1), COUNT, lane.handle), 0);
        }
        CHECK_EQUAL(MPIX_Allreduce_enqueue(at(out), at(in), COUNT, MPI_UNSIGNED_CHAR, MPI_SUM, lane.comm), MPI_SUCCESS);
        CHECK_EQUAL(MPI_Allreduce(&one, &all, 1, MPI_INT, MPI_SUM, lane.comm), MPI_SUCCESS);
        CHECK_EQUAL(all, test.size);
        /* Nobody can have the sum before the message to rank 0. */
        CHECK_EQUAL(work.query(lane.handle), NOT_READY);
        MPI_Barrier(MPI_COMM_WORLD);
        if (test.rank == test.size - 1) {
            unsigned char data[COUNT];
            memset(data, round + 1, sizeof data);
            CHECK_EQUAL(MPI_Send(data, COUNT, MPI_BYTE, 0, TAG, lane.comm), MPI_SUCCESS);
        }
        CHECK_EQUAL(work.synchronize(lane.handle), 0);
        check_bytes(in, COUNT, test.size * (round + 1));
    }
    CHECK_EQUAL(cuda.free(out) | cuda.free(in), 0);
}

static void add(void *in, void *inout, int *count, MPI_Datatype *type)
{
    (void) in, (void) inout, (void) count, (void) type;
}

static void refused(void)
{
    char out = 0, in = 0;
    MPI_Op own;
    MPI_Count many[64] = {0};
    MPI_Comm_set_errhandler(lane.comm, MPI_ERRORS_RETURN);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    many[test.size - 1] = (MPI_Count) INT_MAX + 1;
    MPI_Op_create(add, 1, &own);
#define REFUSED(class, call)                                                                                           \
    do {                                                                                                               \
        int got_;                                                                                                      \
        MPI_Error_class(call, &got_);                                                                                  \
        CHECK_EQUAL(got_, class);                                                                                      \
        count_check();                                                                                                 \
    } while (0)
    REFUSED(MPI_ERR_COMM, MPIX_Allreduce_enqueue(&out, &in, 1, MPI_CHAR, MPI_SUM, MPI_COMM_WORLD));
    REFUSED(MPI_ERR_COUNT, MPIX_Allreduce_enqueue(&out, &in, -1, MPI_SIGNED_CHAR, MPI_SUM, lane.comm));
    REFUSED(MPI_ERR_OP, MPIX_Allreduce_enqueue(&out, &in, 1, MPI_SIGNED_CHAR, own, lane.comm));
    REFUSED(MPI_ERR_OP, MPIX_Allreduce_enqueue(&out, &in, 1, MPI_SIGNED_CHAR, MPI_OP_NULL, lane.comm));
    REFUSED(MPI_ERR_TYPE, MPIX_Bcast_enqueue(&in, 1, MPI_DATATYPE_NULL, 0, lane.comm));
    REFUSED(MPI_ERR_ROOT, MPIX_Bcast_enqueue(&in, 1, MPI_BYTE, test.size, lane.comm));
    REFUSED(MPI_ERR_ROOT, MPIX_Reduce_enqueue(&out, &in, 1, MPI_SIGNED_CHAR, MPI_SUM, -1, lane.comm));
    REFUSED(MPI_ERR_COUNT, MPIX_Bcast_enqueue_c(&in, (MPI_Count) INT_MAX + 1, MPI_BYTE, 0, lane.comm));
    REFUSED(MPI_ERR_COUNT, MPIX_Reduce_scatter_enqueue_c(&out, &in, many, MPI_SIGNED_CHAR, MPI_SUM, lane.comm));
    REFUSED(MPI_ERR_ARG, MPIX_Reduce_scatter_enqueue(&out, &in, NULL, MPI_SIGNED_CHAR, MPI_SUM, lane.comm));
    MPI_Op_free(&own);
}

int main(int argc, char **argv)
{
    static const size_t sizes[] = {1, 3000, 600000};
    set_up(argc, argv, level_of(argc, argv));
    load_streams();
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        lane_open(&lane);
        in_order(sizes[i]);
        lane_close(&lane);
    }
    lane_open(&lane);
    beside_the_host();
    refused();
    in_order(100);
    lane_close(&lane);
    tear_down();
    return 0;
}
