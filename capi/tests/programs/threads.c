/* Several threads of two processes exchange messages at the same time; each has its own last error. */
#include "job.h"

#include <pthread.h>

enum { THREADS = 4, ROUNDS = 200 };

static void *exchange(void *argument)
{
    int tag = *(int *) argument, peer = 1 - rank, round;
    static const size_t SIZES[] = {8, 3000, 40000};
    unsigned char *out = allocate(40000), *in = allocate(40000);
    CHECK(0 == strcmp(cableway_last_error(), ""));
    for (round = 0; round < ROUNDS; round++) {
        size_t bytes = SIZES[round % 3];
        cableway_request *request;
        cableway_status status;
        char expected[32];

        fill(out, bytes, 100 * rank + tag + round);
        CALL(cableway_irecv(in, 40000, CABLEWAY_BYTE, CABLEWAY_ANY_SOURCE, tag, everyone, &request));
        CALL(cableway_send(out, bytes, CABLEWAY_BYTE, peer, tag, everyone));
        CALL(cableway_wait(&request, &status));
        CHECK_EQUAL(status.bytes, bytes);
        CHECK(holds(in, bytes, 100 * peer + tag + round));

        snprintf(expected, sizeof expected, "invalid rank %d:", 1000 + tag);
        FAILS(cableway_send(out, 1, CABLEWAY_BYTE, 1000 + tag, 0, everyone), CABLEWAY_ERR_RANK, expected);
    }
    free(out);
    free(in);
    return NULL;
}

int main(void)
{
    pthread_t threads[THREADS];
    int tags[THREADS], at;
    begin();
    for (at = 0; at < THREADS; at++) {
        tags[at] = at;
        CHECK_EQUAL(pthread_create(&threads[at], NULL, exchange, &tags[at]), 0);
    }
    for (at = 0; at < THREADS; at++) {
        CHECK_EQUAL(pthread_join(threads[at], NULL), 0);
    }
    end();
    return 0;
}
