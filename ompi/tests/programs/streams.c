/* Two processes send and receive in the order of streams, by MPICH's stream extensions. The first argument is the thread
 * level: single, serialized or multiple. CABLEWAY_CUDA_LIBDIR names the driver. */
#include "streams/beside.h"

enum { ROUNDS = 20, TAG = 7 };

static int other;

/* Each round trip has work of both streams between the messages: a value is written, sent, copied by the other stream, and
 * sent back. Nothing of the host waits between rounds. */
static void ping_pong(size_t bytes)
{
    struct lane lane;
    device_pointer out = device_memory(bytes), in = device_memory(bytes), all = device_memory(ROUNDS * bytes);
    MPI_Status statuses[ROUNDS];
    memset(statuses, 0xff, sizeof statuses);
    lane_open(&lane);
    for (int round = 0; round < ROUNDS; round++) {
        if (0 == test.rank) {
            CHECK_EQUAL(work.fill(out, (unsigned char) (round + 1), bytes, lane.handle), 0);
            CHECK_EQUAL(MPIX_Send_enqueue(at(out), (int) bytes, MPI_BYTE, 1, TAG, lane.comm), MPI_SUCCESS);
        }
        CHECK_EQUAL(MPIX_Recv_enqueue(at(in), (int) bytes, MPI_BYTE, other, TAG, lane.comm, &statuses[round]),
                    MPI_SUCCESS);
        CHECK_EQUAL(work.copy(all + round * bytes, in, bytes, lane.handle), 0);
        if (1 == test.rank) {
            CHECK_EQUAL(work.copy(out, in, bytes, lane.handle), 0);
            CHECK_EQUAL(MPIX_Send_enqueue_c(at(out), (MPI_Count) bytes, MPI_BYTE, 0, TAG, lane.comm), MPI_SUCCESS);
        }
    }
    CHECK_EQUAL(work.synchronize(lane.handle), 0);
    for (int round = 0; round < ROUNDS; round++) {
        check_bytes(all + round * bytes, bytes, round + 1);
        check_status(&statuses[round], other, TAG, (int) bytes);
    }
    lane_close(&lane);
    CHECK_EQUAL(cuda.free(out) | cuda.free(in) | cuda.free(all), 0);
}

/* Host memory is sent and received in the stream's order as well. */
static void host_memory(void)
{
    struct lane lane;
    int sent[ROUNDS], got[ROUNDS] = {0};
    MPI_Request requests[ROUNDS];
    lane_open(&lane);
    for (int i = 0; i < ROUNDS; i++) {
        sent[i] = 100 * test.rank + i;
        CHECK_EQUAL(MPIX_Isend_enqueue(&sent[i], 1, MPI_INT, other, i, lane.comm, &requests[i]), MPI_SUCCESS);
        CHECK_EQUAL(MPIX_Recv_enqueue_c(&got[i], 1, MPI_INT, other, i, lane.comm, MPI_STATUS_IGNORE), MPI_SUCCESS);
    }
    CHECK_EQUAL(work.synchronize(lane.handle), 0);
    for (int i = 0; i < ROUNDS; i++) {
        CHECK_EQUAL(got[i], 100 * other + i);
    }
    CHECK_EQUAL(MPI_Waitall(ROUNDS, requests, MPI_STATUSES_IGNORE), MPI_SUCCESS);
    lane_close(&lane);
}

/* Exchanges with requests that the stream waits for, null requests among them. */
static void nonblocking(size_t bytes)
{
    struct lane lane;
    device_pointer out = device_memory(2 * bytes), in = device_memory(2 * bytes), copy = device_memory(2 * bytes);
    MPI_Request requests[6];
    MPI_Status statuses[6], status;
    lane_open(&lane);
    for (int round = 0; round < ROUNDS; round++) {
        const int value = 100 * test.rank + 2 * round;
        memset(statuses, 0xff, sizeof statuses);
        CHECK_EQUAL(work.fill(out, (unsigned char) value, bytes, lane.handle), 0);
        CHECK_EQUAL(work.fill(out + bytes, (unsigned char) (value + 1), bytes, lane.handle), 0);
        requests[0] = requests[5] = MPI_REQUEST_NULL;
        /* The later one is received first. */
        CHECK_EQUAL(MPIX_Irecv_enqueue(at(in + bytes), (int) bytes, MPI_BYTE, other, 2, lane.comm, &requests[1]),
                    MPI_SUCCESS);
        CHECK_EQUAL(MPIX_Irecv_enqueue_c(at(in), (MPI_Count) bytes, MPI_BYTE, other, 1, lane.comm, &requests[2]),
                    MPI_SUCCESS);
        CHECK_EQUAL(MPIX_Isend_enqueue(at(out), (int) bytes, MPI_BYTE, other, 1, lane.comm, &requests[3]),
                    MPI_SUCCESS);
        CHECK_EQUAL(MPIX_Isend_enqueue_c(at(out + bytes), (MPI_Count) bytes, MPI_BYTE, other, 2, lane.comm,
                                         &requests[4]),
                    MPI_SUCCESS);
        CHECK_EQUAL(MPIX_Waitall_enqueue(6, requests, statuses), MPI_SUCCESS);
        for (int i = 0; i < 6; i++) {
            CHECK(MPI_REQUEST_NULL == requests[i]);
        }
        CHECK_EQUAL(work.copy(copy, in, 2 * bytes, lane.handle), 0);
        CHECK_EQUAL(work.synchronize(lane.handle), 0);
        check_bytes(copy, bytes, 100 * other + 2 * round);
        check_bytes(copy + bytes, bytes, 100 * other + 2 * round + 1);
        check_status(&statuses[1], other, 2, (int) bytes);
        check_status(&statuses[2], other, 1, (int) bytes);
        check_status(&statuses[0], MPI_ANY_SOURCE, MPI_ANY_TAG, 0);
    }
    /* One request, with and without a status, and none. */
    CHECK_EQUAL(MPIX_Isend_enqueue(at(out), (int) bytes, MPI_BYTE, other, 3, lane.comm, &requests[0]), MPI_SUCCESS);
    CHECK_EQUAL(MPIX_Irecv_enqueue(at(in), (int) bytes, MPI_BYTE, other, 3, lane.comm, &requests[1]), MPI_SUCCESS);
    CHECK_EQUAL(MPIX_Wait_enqueue(&requests[0], MPI_STATUS_IGNORE), MPI_SUCCESS);
    CHECK_EQUAL(MPIX_Wait_enqueue(&requests[1], &status), MPI_SUCCESS);
    CHECK(MPI_REQUEST_NULL == requests[0] && MPI_REQUEST_NULL == requests[1]);
    CHECK_EQUAL(MPIX_Wait_enqueue(&requests[1], MPI_STATUS_IGNORE), MPI_SUCCESS);
    CHECK_EQUAL(MPIX_Waitall_enqueue(2, requests, MPI_STATUSES_IGNORE), MPI_SUCCESS);
    CHECK_EQUAL(MPIX_Waitall_enqueue(0, NULL, MPI_STATUSES_IGNORE), MPI_SUCCESS);
    CHECK_EQUAL(work.synchronize(lane.handle), 0);
    check_status(&status, other, 3, (int) bytes);
    lane_close(&lane);
    CHECK_EQUAL(cuda.free(out) | cuda.free(in) | cuda.free(copy), 0);
}

/* The host waits for requests of enqueued messages, with those of others among them. */
static void waits_of_the_host(size_t bytes)
{
    struct lane lane;
    device_pointer out = device_memory(bytes), in = device_memory(bytes), plain = device_memory(bytes);
    MPI_Request requests[4];
    MPI_Status statuses[4];
    int done;
    lane_open(&lane);
    for (int round = 0; round < ROUNDS; round++) {
        CHECK_EQUAL(work.fill(out, (unsigned char) (round + 1), bytes, lane.handle), 0);
        CHECK_EQUAL(MPI_Irecv(at(plain), (int) bytes, MPI_BYTE, other, 9, MPI_COMM_WORLD, &requests[0]), MPI_SUCCESS);
        CHECK_EQUAL(MPIX_Irecv_enqueue(at(in), (int) bytes, MPI_BYTE, other, 5, lane.comm, &requests[1]), MPI_SUCCESS);
        CHECK_EQUAL(MPIX_Isend_enqueue(at(out), (int) bytes, MPI_BYTE, other, 5, lane.comm, &requests[2]),
                    MPI_SUCCESS);
        switch (round % 4) {
        case 0: CHECK_EQUAL(MPI_Wait(&requests[2], MPI_STATUS_IGNORE), MPI_SUCCESS); break;
        case 1:
            do {
                CHECK_EQUAL(MPI_Test(&requests[2], &done, MPI_STATUS_IGNORE), MPI_SUCCESS);
            } while (!done);
            break;
        case 2: CHECK_EQUAL(MPI_Request_free(&requests[2]), MPI_SUCCESS); break;
        }
        CHECK_EQUAL(work.synchronize(lane.handle), 0);
        CHECK_EQUAL(MPI_Isend(at(out), (int) bytes, MPI_BYTE, other, 9, MPI_COMM_WORLD, &requests[3]), MPI_SUCCESS);
        CHECK_EQUAL(MPI_Waitall(4, requests, statuses), MPI_SUCCESS);
        for (int i = 0; i < 4; i++) {
            CHECK(MPI_REQUEST_NULL == requests[i]);
        }
        check_status(&statuses[0], other, 9, (int) bytes);
        check_status(&statuses[1], other, 5, (int) bytes);
        check_bytes(in, bytes, round + 1);
        check_bytes(plain, bytes, round + 1);
        /* A freed request says nothing of the message's end. */
        MPI_Barrier(MPI_COMM_WORLD);
    }
    lane_close(&lane);
    CHECK_EQUAL(cuda.free(out) | cuda.free(in) | cuda.free(plain), 0);
}

/* Two streams have no order between them: the first waits for a message that is sent after one that the second needs. */
static void two_streams(size_t bytes)
{
    struct lane first, second;
    device_pointer one = device_memory(bytes), two = device_memory(bytes);
    lane_open(&first);
    lane_open(&second);
    for (int round = 0; round < ROUNDS; round++) {
        if (0 == test.rank) {
            CHECK_EQUAL(MPIX_Recv_enqueue(at(one), (int) bytes, MPI_BYTE, 1, TAG, first.comm, MPI_STATUS_IGNORE),
                        MPI_SUCCESS);
            CHECK_EQUAL(work.fill(two, (unsigned char) (round + 1), bytes, second.handle), 0);
            CHECK_EQUAL(MPIX_Send_enqueue(at(two), (int) bytes, MPI_BYTE, 1, TAG, second.comm), MPI_SUCCESS);
        } else {
            CHECK_EQUAL(MPIX_Recv_enqueue(at(one), (int) bytes, MPI_BYTE, 0, TAG, second.comm, MPI_STATUS_IGNORE),
                        MPI_SUCCESS);
            CHECK_EQUAL(work.synchronize(second.handle), 0);
            check_bytes(one, bytes, round + 1);
            CHECK_EQUAL(work.copy(two, one, bytes, first.handle), 0);
            CHECK_EQUAL(MPIX_Send_enqueue(at(two), (int) bytes, MPI_BYTE, 0, TAG, first.comm), MPI_SUCCESS);
        }
        CHECK_EQUAL(work.synchronize(first.handle), 0);
        check_bytes(0 == test.rank ? one : two, bytes, round + 1);
    }
    lane_close(&second);
    lane_close(&first);
    CHECK_EQUAL(cuda.free(one) | cuda.free(two), 0);
}

/* Wildcards match what comes first, and the status tells what it was. */
static void wildcards(void)
{
    struct lane lane;
    device_pointer buffer = device_memory(ROUNDS);
    MPI_Status statuses[ROUNDS];
    lane_open(&lane);
    if (0 == test.rank) {
        for (int i = 0; i < ROUNDS; i++) {
            CHECK_EQUAL(work.fill(buffer + i, (unsigned char) i, 1, lane.handle), 0);
            CHECK_EQUAL(MPIX_Send_enqueue(at(buffer + i), 1, MPI_BYTE, 1, 3 * i, lane.comm), MPI_SUCCESS);
        }
    } else {
        for (int i = 0; i < ROUNDS; i++) {
            CHECK_EQUAL(MPIX_Recv_enqueue(at(buffer + i), ROUNDS - i, MPI_BYTE, MPI_ANY_SOURCE, MPI_ANY_TAG, lane.comm,
                                          &statuses[i]),
                        MPI_SUCCESS);
        }
    }
    CHECK_EQUAL(work.synchronize(lane.handle), 0);
    for (int i = 0; i < ROUNDS && 1 == test.rank; i++) {
        check_bytes(buffer + i, 1, i);
        check_status(&statuses[i], 0, 3 * i, 1);
    }
    lane_close(&lane);
    CHECK_EQUAL(cuda.free(buffer), 0);
}

/* A peer without streams sends and receives by MPI's own calls, on the same communicator. */
static void plain_peer(size_t bytes)
{
    struct lane lane = {.stream = MPIX_STREAM_NULL};
    device_pointer buffer = device_memory(bytes);
    if (0 == test.rank) {
        lane_open(&lane);
    } else {
        CHECK_EQUAL(MPIX_Stream_comm_create(MPI_COMM_WORLD, MPIX_STREAM_NULL, &lane.comm), MPI_SUCCESS);
    }
    for (int round = 0; round < ROUNDS; round++) {
        if (0 == test.rank) {
            CHECK_EQUAL(work.fill(buffer, (unsigned char) (round + 1), bytes, lane.handle), 0);
            CHECK_EQUAL(MPIX_Send_enqueue(at(buffer), (int) bytes, MPI_BYTE, 1, TAG, lane.comm), MPI_SUCCESS);
            CHECK_EQUAL(work.fill(buffer, 0xff, bytes, lane.handle), 0);
            CHECK_EQUAL(MPIX_Recv_enqueue(at(buffer), (int) bytes, MPI_BYTE, 1, TAG, lane.comm, MPI_STATUS_IGNORE),
                        MPI_SUCCESS);
            CHECK_EQUAL(work.synchronize(lane.handle), 0);
        } else {
            CHECK_EQUAL(MPI_Recv(at(buffer), (int) bytes, MPI_BYTE, 0, TAG, lane.comm, MPI_STATUS_IGNORE),
                        MPI_SUCCESS);
            CHECK_EQUAL(MPI_Send(at(buffer), (int) bytes, MPI_BYTE, 0, TAG, lane.comm), MPI_SUCCESS);
        }
        check_bytes(buffer, bytes, round + 1);
    }
    if (0 == test.rank) {
        lane_close(&lane);
    } else {
        CHECK_EQUAL(MPI_Comm_free(&lane.comm), MPI_SUCCESS);
    }
    CHECK_EQUAL(cuda.free(buffer), 0);
}

/* A derived type: every other byte. */
static void blocks(void)
{
    enum { COUNT = 1000 };
    struct lane lane;
    device_pointer out = device_memory(2 * COUNT), in = device_memory(2 * COUNT);
    unsigned char got[2 * COUNT];
    MPI_Datatype type;
    CHECK_EQUAL(MPI_Type_vector(COUNT, 1, 2, MPI_BYTE, &type), MPI_SUCCESS);
    CHECK_EQUAL(MPI_Type_commit(&type), MPI_SUCCESS);
    lane_open(&lane);
    CHECK_EQUAL(work.fill(out, 3, 2 * COUNT, lane.handle), 0);
    CHECK_EQUAL(work.fill(in, 4, 2 * COUNT, lane.handle), 0);
    if (0 == test.rank) {
        CHECK_EQUAL(MPIX_Send_enqueue(at(out), 1, type, 1, TAG, lane.comm), MPI_SUCCESS);
    } else {
        CHECK_EQUAL(MPIX_Recv_enqueue(at(in), 1, type, 0, TAG, lane.comm, MPI_STATUS_IGNORE), MPI_SUCCESS);
    }
    /* The message keeps it. */
    CHECK_EQUAL(MPI_Type_free(&type), MPI_SUCCESS);
    CHECK_EQUAL(work.synchronize(lane.handle), 0);
    CHECK_EQUAL(cuda.to_host(got, in, sizeof got), 0);
    for (int i = 0; i < 2 * COUNT; i++) {
        CHECK_EQUAL(got[i], 1 == test.rank && 0 == i % 2 ? 3 : 4);
    }
    count_check();
    lane_close(&lane);
    CHECK_EQUAL(cuda.free(out) | cuda.free(in), 0);
}

static void no_process(void)
{
    struct lane lane;
    MPI_Status status, statuses[2];
    MPI_Request requests[2];
    lane_open(&lane);
    memset(&status, 0xff, sizeof status);
    memset(statuses, 0xff, sizeof statuses);
    CHECK_EQUAL(MPIX_Send_enqueue(NULL, 1, MPI_BYTE, MPI_PROC_NULL, TAG, lane.comm), MPI_SUCCESS);
    CHECK_EQUAL(MPIX_Recv_enqueue(NULL, 1, MPI_BYTE, MPI_PROC_NULL, TAG, lane.comm, &status), MPI_SUCCESS);
    CHECK_EQUAL(MPIX_Isend_enqueue(NULL, 1, MPI_BYTE, MPI_PROC_NULL, TAG, lane.comm, &requests[0]), MPI_SUCCESS);
    CHECK_EQUAL(MPIX_Irecv_enqueue(NULL, 1, MPI_BYTE, MPI_PROC_NULL, TAG, lane.comm, &requests[1]), MPI_SUCCESS);
    CHECK_EQUAL(MPIX_Waitall_enqueue(2, requests, statuses), MPI_SUCCESS);
    CHECK_EQUAL(work.synchronize(lane.handle), 0);
    check_status(&status, MPI_PROC_NULL, MPI_ANY_TAG, 0);
    check_status(&statuses[1], MPI_PROC_NULL, MPI_ANY_TAG, 0);
    lane_close(&lane);
}

int main(int argc, char **argv)
{
    static const size_t sizes[] = {8, 5000, 300000};
    set_up(argc, argv, level_of(argc, argv));
    load_streams();
    CHECK_EQUAL(test.size, 2);
    other = 1 - test.rank;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        ping_pong(sizes[i]);
        nonblocking(sizes[i]);
        waits_of_the_host(sizes[i]);
        two_streams(sizes[i]);
        plain_peer(sizes[i]);
        host_beside_a_waiting_stream(other, sizes[i], NON_BLOCKING);
        host_beside_a_waiting_stream(other, sizes[i], BLOCKING);
    }
    host_memory();
    wildcards();
    completions_belong_to_the_program();
    blocks();
    no_process();
    tear_down();
    return 0;
}
