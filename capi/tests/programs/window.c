/* Windows of nonblocking messages of many sizes, ended by every function that ends a request. */
#include "job.h"

enum { DEPTH = 16 };

static const size_t SIZES[] = {0, 1, 8, 1000, 5000, 70000, 1 << 20};

/* Each sends a window to the other one. */
static void exchange(size_t bytes, int synchronous)
{
    int peer = 1 - rank, at;
    unsigned char *out[DEPTH], *in[DEPTH];
    cableway_request *requests[2 * DEPTH];
    cableway_status statuses[2 * DEPTH];

    for (at = 0; at < DEPTH; at++) {
        out[at] = allocate(bytes);
        in[at] = allocate(bytes + 3);
        fill(out[at], bytes, rank * DEPTH + at);
        CALL(cableway_irecv(in[at], bytes + 3, CABLEWAY_BYTE, peer, at, everyone, &requests[at]));
    }
    /* In another order than that of the receives. */
    for (at = DEPTH - 1; at >= 0; at--) {
        cableway_request **request = &requests[DEPTH + at];
        if (synchronous) {
            CALL(cableway_issend(out[at], bytes, CABLEWAY_BYTE, peer, at, everyone, request));
        } else {
            CALL(cableway_isend(out[at], bytes, CABLEWAY_BYTE, peer, at, everyone, request));
        }
    }
    CALL(cableway_waitall(2 * DEPTH, requests, statuses));
    for (at = 0; at < DEPTH; at++) {
        CHECK(NULL == requests[at] && NULL == requests[DEPTH + at]);
        CHECK_EQUAL(statuses[at].source, peer);
        CHECK_EQUAL(statuses[at].tag, at);
        CHECK_EQUAL(statuses[at].bytes, bytes);
        CHECK_EQUAL(statuses[at].error, CABLEWAY_SUCCESS);
        CHECK_EQUAL(statuses[DEPTH + at].bytes, bytes);
        CHECK(holds(in[at], bytes, peer * DEPTH + at));
        free(out[at]);
        free(in[at]);
    }
}

/* Ends requests one by one as they complete. */
static void any(void)
{
    int peer = 1 - rank, left, seen[DEPTH] = {0}, values[DEPTH], at;
    cableway_request *requests[DEPTH + 1];
    size_t index;
    cableway_status status;

    requests[DEPTH] = NULL;
    for (at = 0; at < DEPTH; at++) {
        CALL(cableway_irecv(&values[at], sizeof(int), CABLEWAY_BYTE, peer, at, everyone, &requests[at]));
    }
    CALL(cableway_barrier(everyone));
    for (at = 0; at < DEPTH; at++) {
        int value = 100 * rank + at;
        CALL(cableway_send(&value, sizeof value, CABLEWAY_BYTE, peer, at, everyone));
    }
    for (left = DEPTH; left > 0; left--) {
        CALL(cableway_waitany(DEPTH + 1, requests, &index, &status));
        CHECK(index < DEPTH && NULL == requests[index]);
        CHECK_EQUAL(seen[index]++, 0);
        CHECK_EQUAL(status.tag, index);
        CHECK_EQUAL(values[index], 100 * peer + (int) index);
    }
    CALL(cableway_waitany(DEPTH + 1, requests, &index, &status));
    CHECK_EQUAL(index, DEPTH + 1);
    CALL(cableway_waitany(0, NULL, &index, NULL));
    CHECK_EQUAL(index, 0);
}

/* A request that is tested, one that is cancelled, one that is freed, and none. */
static void others(void)
{
    int peer = 1 - rank, value = 0, done = 1;
    cableway_request *request = NULL;
    cableway_status status;

    CALL(cableway_test(&request, &done, &status));
    CHECK_EQUAL(done, 1);
    CHECK_EQUAL(status.source, CABLEWAY_ANY_SOURCE);
    CALL(cableway_wait(&request, NULL));
    CALL(cableway_request_free(&request));

    CALL(cableway_irecv(&value, sizeof value, CABLEWAY_BYTE, peer, 40, everyone, &request));
    CALL(cableway_test(&request, &done, &status));
    CHECK_EQUAL(done, 0);
    CHECK(NULL != request);
    CALL(cableway_barrier(everyone));
    CALL(cableway_send(&rank, sizeof rank, CABLEWAY_BYTE, peer, 40, everyone));
    while (!done) {
        CALL(cableway_test(&request, &done, &status));
    }
    CHECK(NULL == request);
    CHECK_EQUAL(value, peer);
    CHECK_EQUAL(status.tag, 40);
    CHECK_EQUAL(status.cancelled, 0);

    CALL(cableway_irecv(&value, sizeof value, CABLEWAY_BYTE, peer, 41, everyone, &request));
    CALL(cableway_cancel(request));
    CALL(cableway_wait(&request, &status));
    CHECK_EQUAL(status.cancelled, 1);
    CHECK_EQUAL(status.error, CABLEWAY_SUCCESS);

    /* Nobody sends this; and a synchronous send ends after the receive that matches it. */
    CALL(cableway_irecv(&value, sizeof value, CABLEWAY_BYTE, peer, 42, everyone, &request));
    CALL(cableway_request_free(&request));
    CHECK(NULL == request);
    CALL(cableway_barrier(everyone));
    CALL(cableway_issend(&rank, sizeof rank, CABLEWAY_BYTE, peer, 43, everyone, &request));
    if (0 == rank) {
        CALL(cableway_recv(&value, sizeof value, CABLEWAY_BYTE, peer, 43, everyone, NULL));
        CALL(cableway_request_free(&request));
    } else {
        CALL(cableway_progress(world));
        CALL(cableway_recv(&value, sizeof value, CABLEWAY_BYTE, peer, 43, everyone, NULL));
        CALL(cableway_wait(&request, NULL));
    }
    CHECK_EQUAL(value, peer);
}

int main(void)
{
    size_t at;
    begin();
    for (at = 0; at < sizeof SIZES / sizeof SIZES[0]; at++) {
        exchange(SIZES[at], 0);
        exchange(SIZES[at], 1);
    }
    any();
    others();
    end();
    return 0;
}
