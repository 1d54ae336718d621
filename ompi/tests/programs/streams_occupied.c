/* Kernels of the program fill the device before, between and after messages in the order of a stream, and beside them: there
 * messages and calls pass them. What needs kernels itself waits for their end. CABLEWAY_CUDA_LIBDIR names the driver. */
#include "streams/occupant.h"

enum { ROUNDS = 3, TAG = 1, LARGEST = 1 << 20 };

static struct lane lane;
static struct occupant occupant;
static device_pointer out, in;

/* The bytes of a round's message from a rank. */
static int content(int round, int rank)
{
    return 1 + 16 * round + rank;
}

/* Each rank sends to the other one, rank 0 first. With `between`, a kernel runs between a rank's two calls. */
static void exchange(int bytes, bool between)
{
    const int peer = 1 - test.rank;
    for (int call = 0; call < 2; call++) {
        if (call == test.rank) {
            CHECK_EQUAL(MPIX_Send_enqueue(at(out), bytes, MPI_BYTE, peer, TAG, lane.comm), MPI_SUCCESS);
        } else {
            CHECK_EQUAL(MPIX_Recv_enqueue(at(in), bytes, MPI_BYTE, peer, TAG, lane.comm, MPI_STATUS_IGNORE), MPI_SUCCESS);
        }
        if (0 == call && between) {
            occupant_begin(&occupant, lane.handle);
        }
    }
}

static void fill(int bytes, int round)
{
    CHECK_EQUAL(work.fill(out, (unsigned char) content(round, test.rank), (size_t) bytes, lane.handle), 0);
    CHECK_EQUAL(work.fill(in, 0, (size_t) bytes, lane.handle), 0);
}

static void check(int bytes, int round)
{
    CHECK_EQUAL(work.synchronize(lane.handle), 0);
    check_bytes(in, (size_t) bytes, content(round, 1 - test.rank));
}

/* The stream's own kernels fill the device before, between and after its messages. */
static void in_the_stream(int bytes, int round)
{
    fill(bytes, round);
    occupant_begin(&occupant, lane.handle);
    exchange(bytes, false);
    CHECK_EQUAL(work.query(lane.handle), NOT_READY);
    occupant_end(&occupant);
    check(bytes, round);

    fill(bytes, round + 1);
    exchange(bytes, true);
    CHECK_EQUAL(work.query(lane.handle), NOT_READY);
    occupant_end(&occupant);
    check(bytes, round + 1);

    fill(bytes, round + 2);
    exchange(bytes, false);
    occupant_begin(&occupant, lane.handle);
    CHECK_EQUAL(work.query(lane.handle), NOT_READY);
    occupant_end(&occupant);
    check(bytes, round + 2);
}

/* Another stream's kernel fills the device until the messages have passed. */
static void beside_the_stream(int bytes, int round)
{
    const int peer = 1 - test.rank;
    fill(bytes, round);
    CHECK_EQUAL(work.synchronize(lane.handle), 0);
    occupant_begin(&occupant, occupant.stream);
    exchange(bytes, false);
    check(bytes, round);
    /* The same by a call. */
    CHECK_EQUAL(MPI_Sendrecv(at(out), bytes, MPI_BYTE, peer, TAG, at(in), bytes, MPI_BYTE, peer, TAG, lane.comm,
                             MPI_STATUS_IGNORE), MPI_SUCCESS);
    CHECK_EQUAL(work.query(occupant.stream), NOT_READY);
    count_check();
    occupant_end(&occupant);
    CHECK_EQUAL(work.synchronize(occupant.stream), 0);
}

/* Blocks that kernels pack, and a sum that kernels make, wait until the program's kernel has ended. */
static void by_kernels(int round)
{
    enum { BLOCK = 8, EVERY = 32, COUNT = 4096, BYTES = BLOCK * COUNT };
    MPI_Datatype blocks;
    device_pointer values = device_memory(COUNT * sizeof(int)), sums = device_memory(COUNT * sizeof(int));
    const int peer = 1 - test.rank;
    int *host = malloc(COUNT * sizeof *host);
    CHECK(NULL != host);
    CHECK_EQUAL(MPI_Type_vector(COUNT, BLOCK, EVERY, MPI_BYTE, &blocks), MPI_SUCCESS);
    CHECK_EQUAL(MPI_Type_commit(&blocks), MPI_SUCCESS);
    for (int i = 0; i < COUNT; i++) {
        host[i] = i + test.rank;
    }
    CHECK_EQUAL(cuda.to_device(values, host, COUNT * sizeof *host), 0);
    fill(EVERY * COUNT, round);
    CHECK_EQUAL(work.synchronize(lane.handle), 0);
    occupant_begin(&occupant, occupant.stream);
    if (0 == test.rank) {
        CHECK_EQUAL(MPIX_Send_enqueue(at(out), 1, blocks, peer, TAG, lane.comm), MPI_SUCCESS);
    } else {
        CHECK_EQUAL(MPIX_Recv_enqueue(at(in), BYTES, MPI_BYTE, peer, TAG, lane.comm, MPI_STATUS_IGNORE), MPI_SUCCESS);
    }
    CHECK_EQUAL(MPIX_Allreduce_enqueue(at(values), at(sums), COUNT, MPI_INT, MPI_SUM, lane.comm), MPI_SUCCESS);
    occupant_end(&occupant);
    CHECK_EQUAL(work.synchronize(lane.handle), 0);
    if (1 == test.rank) {
        check_bytes(in, BYTES, content(round, 0));
    }
    CHECK_EQUAL(cuda.to_host(host, sums, COUNT * sizeof *host), 0);
    for (int i = 0; i < COUNT; i++) {
        CHECK_EQUAL(host[i], 2 * i + 1);
    }
    count_check();
    CHECK_EQUAL(work.synchronize(occupant.stream), 0);
    CHECK_EQUAL(MPI_Type_free(&blocks), MPI_SUCCESS);
    CHECK_EQUAL(cuda.free(values), 0);
    CHECK_EQUAL(cuda.free(sums), 0);
    free(host);
}

int main(int argc, char **argv)
{
    static const int sizes[] = {8, 65536, LARGEST};
    set_up(argc, argv, MPI_THREAD_SINGLE);
    load_streams();
    out = device_memory(LARGEST);
    in = device_memory(LARGEST);
    occupant_load(&occupant);
    lane_open(&lane);
    for (int round = 0; round < ROUNDS; round++) {
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            in_the_stream(sizes[i], round);
            beside_the_stream(sizes[i], round + 3);
        }
        by_kernels(round);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    lane_close(&lane);
    CHECK_EQUAL(work.destroy(occupant.stream), 0);
    tear_down();
    return 0;
}
