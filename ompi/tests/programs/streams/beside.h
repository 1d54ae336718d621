/* What the host does while a stream waits for a message. */
#ifndef BESIDE_H
#define BESIDE_H

#include "stream.h"

#include <pthread.h>

enum { BESIDE_ROUNDS = 20, BESIDE_TAG = 7 };

/* No bits of two ranks are the same. */
static unsigned char beside_value(int round, int rank)
{
    return (unsigned char) ((round % 15 + 1) << (4 * rank));
}

/* While a stream waits for a message, the host sends, receives and reduces. The thread of streams makes progress for these
 * messages, too, and the host's requests end all the same. The first rounds use memory that no message has used. The default
 * stream waits for a blocking stream, but these messages do not.
 *
 * The buffer is filled in a second stream: a driver may hold up work in the default stream while another stream waits. */
static void host_beside_a_waiting_stream(int other, size_t bytes, unsigned flags)
{
    enum { BUFFERS = 4 };
    struct lane lane;
    void *beside;
    device_pointer waited = device_memory(bytes), reduced = device_memory(bytes), outs[BUFFERS], ins[BUFFERS];
    for (int i = 0; i < BUFFERS; i++) {
        outs[i] = device_memory(bytes);
        ins[i] = device_memory(bytes);
    }
    CHECK_EQUAL(work.create(&beside, NON_BLOCKING), 0);
    lane_open_as(&lane, flags);
    for (int round = 0; round < BESIDE_ROUNDS; round++) {
        const device_pointer out = outs[round % BUFFERS], in = ins[round % BUFFERS];
        long sum = 0, one = 1;
        MPI_Request requests[2];
        CHECK_EQUAL(MPIX_Recv_enqueue(at(waited), (int) bytes, MPI_BYTE, other, BESIDE_TAG, lane.comm,
                                      MPI_STATUS_IGNORE),
                    MPI_SUCCESS);
        CHECK_EQUAL(work.fill(out, beside_value(round, test.rank), bytes, beside), 0);
        CHECK_EQUAL(work.synchronize(beside), 0);
        CHECK_EQUAL(MPI_Irecv(at(in), (int) bytes, MPI_BYTE, other, 1, MPI_COMM_WORLD, &requests[0]), MPI_SUCCESS);
        CHECK_EQUAL(MPI_Isend(at(out), (int) bytes, MPI_BYTE, other, 1, MPI_COMM_WORLD, &requests[1]), MPI_SUCCESS);
        CHECK_EQUAL(MPI_Waitall(2, requests, MPI_STATUSES_IGNORE), MPI_SUCCESS);
        if (NON_BLOCKING == flags) {
            /* The program's own copy waits for a blocking stream. */
            check_bytes(in, bytes, beside_value(round, other));
        }
        CHECK_EQUAL(MPI_Allreduce(at(out), at(reduced), (int) bytes, MPI_BYTE, MPI_BOR, MPI_COMM_WORLD), MPI_SUCCESS);
        CHECK_EQUAL(MPI_Allreduce(&one, &sum, 1, MPI_LONG, MPI_SUM, MPI_COMM_WORLD), MPI_SUCCESS);
        CHECK_EQUAL(sum, 2);
        CHECK_EQUAL(work.query(lane.handle), NOT_READY);
        MPI_Barrier(MPI_COMM_WORLD);
        CHECK_EQUAL(MPI_Send(at(out), (int) bytes, MPI_BYTE, other, BESIDE_TAG, lane.comm), MPI_SUCCESS);
        CHECK_EQUAL(work.synchronize(lane.handle), 0);
        check_bytes(waited, bytes, beside_value(round, other));
        check_bytes(in, bytes, beside_value(round, other));
        check_bytes(reduced, bytes, beside_value(round, 0) | beside_value(round, 1));
    }
    lane_close(&lane);
    CHECK_EQUAL(work.destroy(beside), 0);
    for (int i = 0; i < BUFFERS; i++) {
        CHECK_EQUAL(cuda.free(outs[i]) | cuda.free(ins[i]), 0);
    }
    CHECK_EQUAL(cuda.free(waited) | cuda.free(reduced), 0);
}

static pthread_t deleter;
static volatile int deleted;

static int on_delete(MPI_Datatype type, int key, void *value, void *state)
{
    (void) type, (void) key, (void) value, (void) state;
    deleter = pthread_self();
    deleted = 1;
    return MPI_SUCCESS;
}

/* The thread of streams receives a message of the host, whose request and type were freed. What Open MPI does then, here
 * the callback of the type's attribute, is done on a thread of the program. */
static void completions_belong_to_the_program(void)
{
    struct lane lane;
    device_pointer buffer = device_memory(8);
    int key;
    lane_open(&lane);
    CHECK_EQUAL(MPI_Type_create_keyval(MPI_TYPE_NULL_COPY_FN, on_delete, &key, NULL), MPI_SUCCESS);
    for (int round = 0; round < BESIDE_ROUNDS; round++) {
        unsigned char host[16] = {0};
        int found;
        if (0 == test.rank) {
            MPI_Datatype type;
            MPI_Request request;
            CHECK_EQUAL(MPI_Type_vector(8, 1, 2, MPI_BYTE, &type), MPI_SUCCESS);
            CHECK_EQUAL(MPI_Type_commit(&type), MPI_SUCCESS);
            CHECK_EQUAL(MPI_Type_set_attr(type, key, host), MPI_SUCCESS);
            deleted = 0;
            CHECK_EQUAL(MPI_Irecv(host, 1, type, 1, 1, MPI_COMM_WORLD, &request), MPI_SUCCESS);
            CHECK_EQUAL(MPI_Request_free(&request), MPI_SUCCESS);
            CHECK_EQUAL(MPI_Type_free(&type), MPI_SUCCESS);
            CHECK(!deleted);
            CHECK_EQUAL(MPIX_Recv_enqueue(at(buffer), 8, MPI_BYTE, 1, 1, lane.comm, MPI_STATUS_IGNORE), MPI_SUCCESS);
            CHECK_EQUAL(MPI_Send(host, 1, MPI_BYTE, 1, 2, MPI_COMM_WORLD), MPI_SUCCESS);
            CHECK_EQUAL(work.synchronize(lane.handle), 0);
            while (!deleted) {
                CHECK_EQUAL(MPI_Iprobe(1, 9, MPI_COMM_WORLD, &found, MPI_STATUS_IGNORE), MPI_SUCCESS);
            }
            CHECK(pthread_equal(deleter, pthread_self()));
            CHECK_EQUAL(host[14], 7);
            count_check();
        } else {
            CHECK_EQUAL(MPI_Recv(host, 1, MPI_BYTE, 0, 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE), MPI_SUCCESS);
            memset(host, 7, sizeof host);
            CHECK_EQUAL(MPI_Send(host, 8, MPI_BYTE, 0, 1, MPI_COMM_WORLD), MPI_SUCCESS);
            CHECK_EQUAL(MPI_Send(host, 8, MPI_BYTE, 0, 1, lane.comm), MPI_SUCCESS);
        }
    }
    CHECK_EQUAL(MPI_Type_free_keyval(&key), MPI_SUCCESS);
    lane_close(&lane);
    CHECK_EQUAL(cuda.free(buffer), 0);
}

#endif
