/* Wildcards, statuses, probes, messages that are too long, and order. */
#include "job.h"

/* Rank 0 receives from any rank with any tag, and answers to whom the status names. */
static void wildcards(void)
{
    int count = size - 1, value, at;
    cableway_status status;
    if (0 != rank) {
        value = 1000 * rank;
        CALL(cableway_send(&value, sizeof value, CABLEWAY_BYTE, 0, 20 + rank, everyone));
        CALL(cableway_recv(&value, sizeof value, CABLEWAY_BYTE, 0, CABLEWAY_ANY_TAG, everyone, &status));
        CHECK_EQUAL(value, 1000 * rank + 1);
        CHECK_EQUAL(status.tag, 30 + rank);
        return;
    }
    for (at = 0; at < count; at++) {
        CALL(cableway_recv(&value, sizeof value, CABLEWAY_BYTE, CABLEWAY_ANY_SOURCE, CABLEWAY_ANY_TAG, everyone,
                           &status));
        CHECK(status.source > 0 && status.source < size);
        CHECK_EQUAL(status.tag, 20 + status.source);
        CHECK_EQUAL(value, 1000 * status.source);
        value++;
        CALL(cableway_send(&value, sizeof value, CABLEWAY_BYTE, status.source, 30 + status.source, everyone));
    }
}

/* Rank 0 finds out the length before it receives. */
static void probes(void)
{
    unsigned char bytes[3000];
    int found = 1;
    cableway_status status;
    if (1 == rank) {
        fill(bytes, sizeof bytes, 9);
        CALL(cableway_barrier(everyone));
        CALL(cableway_send(bytes, 1234, CABLEWAY_BYTE, 0, 50, everyone));
        CALL(cableway_send(bytes, 777, CABLEWAY_BYTE, 0, 51, everyone));
        return;
    }
    if (0 == rank) {
        CALL(cableway_iprobe(1, 50, everyone, &found, &status));
        CHECK_EQUAL(found, 0);
    }
    CALL(cableway_barrier(everyone));
    if (0 != rank) {
        return;
    }
    CALL(cableway_probe(CABLEWAY_ANY_SOURCE, 51, everyone, &status));
    CHECK_EQUAL(status.source, 1);
    CHECK_EQUAL(status.bytes, 777);
    while (!found) {
        CALL(cableway_iprobe(1, 50, everyone, &found, &status));
    }
    CHECK_EQUAL(status.bytes, 1234);
    CHECK_EQUAL(status.tag, 50);
    CALL(cableway_recv(bytes, status.bytes, CABLEWAY_BYTE, status.source, status.tag, everyone, NULL));
    CHECK(holds(bytes, 1234, 9));
    CALL(cableway_recv(bytes, sizeof bytes, CABLEWAY_BYTE, 1, 51, everyone, &status));
    CHECK_EQUAL(status.bytes, 777);
    CALL(cableway_iprobe(1, CABLEWAY_ANY_TAG, everyone, &found, NULL));
    CHECK_EQUAL(found, 0);
}

/* A message that is too long fills the buffer, and the next one is whole. */
static void truncated(size_t bytes)
{
    unsigned char *sent = allocate(bytes), received[65];
    cableway_request *requests[2];
    cableway_status statuses[2];
    fill(sent, bytes, 3);
    if (1 == rank) {
        int at;
        for (at = 0; at < 3; at++) {
            CALL(cableway_send(sent, bytes, CABLEWAY_BYTE, 0, 60, everyone));
            CALL(cableway_send(sent, 8, CABLEWAY_BYTE, 0, 60, everyone));
        }
    } else if (0 == rank) {
        received[64] = 77;
        FAILS(cableway_recv(received, 64, CABLEWAY_BYTE, 1, 60, everyone, &statuses[0]), CABLEWAY_ERR_TRUNCATED,
              "exceeds the receive buffer of 64 bytes");
        CHECK_EQUAL(statuses[0].bytes, bytes);
        CHECK_EQUAL(statuses[0].source, 1);
        CHECK_EQUAL(statuses[0].tag, 60);
        CHECK_EQUAL(statuses[0].error, CABLEWAY_ERR_TRUNCATED);
        CHECK(holds(received, 64, 3));
        CHECK_EQUAL(received[64], 77);
        CALL(cableway_recv(received, 64, CABLEWAY_BYTE, 1, 60, everyone, &statuses[0]));
        CHECK_EQUAL(statuses[0].bytes, 8);

        CALL(cableway_irecv(received, 64, CABLEWAY_BYTE, 1, 60, everyone, &requests[0]));
        CALL(cableway_irecv(received, 64, CABLEWAY_BYTE, 1, 60, everyone, &requests[1]));
        FAILS(cableway_waitall(2, requests, statuses), CABLEWAY_ERR_TRUNCATED, "receive of 64 bytes from rank 1");
        CHECK(NULL == requests[0] && NULL == requests[1]);
        CHECK_EQUAL(statuses[0].error, CABLEWAY_ERR_TRUNCATED);
        CHECK_EQUAL(statuses[0].bytes, bytes);
        CHECK_EQUAL(statuses[1].error, CABLEWAY_SUCCESS);
        CHECK_EQUAL(statuses[1].bytes, 8);

        CALL(cableway_irecv(received, 64, CABLEWAY_BYTE, 1, 60, everyone, &requests[0]));
        FAILS(cableway_wait(&requests[0], NULL), CABLEWAY_ERR_TRUNCATED, "exceeds");
        CALL(cableway_recv(received, 64, CABLEWAY_BYTE, 1, 60, everyone, NULL));
    }
    free(sent);
}

/* Messages of any length between two processes arrive in order, and a synchronous one arrives, too. */
static void order(void)
{
    static unsigned char bytes[100000];
    int at;
    cableway_status status;
    for (at = 0; at < 50 && rank < 2; at++) {
        size_t len = (size_t) (at * 1999);
        if (1 == rank && 0 == at % 3) {
            CALL(cableway_ssend(bytes, len, CABLEWAY_BYTE, 0, 70, everyone));
        } else if (1 == rank) {
            CALL(cableway_send(bytes, len, CABLEWAY_BYTE, 0, 70, everyone));
        } else {
            CALL(cableway_recv(bytes, sizeof bytes, CABLEWAY_BYTE, CABLEWAY_ANY_SOURCE, 70, everyone, &status));
            CHECK_EQUAL(status.bytes, len);
        }
    }
}

int main(void)
{
    begin();
    wildcards();
    CALL(cableway_barrier(everyone));
    probes();
    CALL(cableway_barrier(everyone));
    truncated(100);
    truncated(300000);
    order();
    end();
    return 0;
}
