/*
 * Several threads of two processes exchange messages at the same time, first in one world, then with a worker each. Each
 * thread has its own last error.
 */
#include "job.h"

#include <pthread.h>

enum { THREADS = 4, ROUNDS = 200 };

struct thread {
    pthread_t id;
    int tag;
    cableway_communicator *on;
};

static void *exchange(void *argument)
{
    const struct thread *thread = argument;
    int tag = thread->tag, peer = 1 - rank, round;
    static const size_t SIZES[] = {8, 3000, 40000};
    unsigned char *out = allocate(40000), *in = allocate(40000);
    CHECK(0 == strcmp(cableway_last_error(), ""));
    for (round = 0; round < ROUNDS; round++) {
        size_t bytes = SIZES[round % 3];
        cableway_request *request;
        cableway_status status;
        char expected[32];

        fill(out, bytes, 100 * rank + tag + round);
        CALL(cableway_irecv(in, 40000, CABLEWAY_BYTE, CABLEWAY_ANY_SOURCE, tag, thread->on, &request));
        CALL(cableway_send(out, bytes, CABLEWAY_BYTE, peer, tag, thread->on));
        CALL(cableway_wait(&request, &status));
        CHECK_EQUAL(status.bytes, bytes);
        CHECK(holds(in, bytes, 100 * peer + tag + round));

        snprintf(expected, sizeof expected, "invalid rank %d:", 1000 + tag);
        FAILS(cableway_send(out, 1, CABLEWAY_BYTE, 1000 + tag, 0, thread->on), CABLEWAY_ERR_RANK, expected);
    }
    free(out);
    free(in);
    return NULL;
}

static void exchange_in_all(struct thread *threads)
{
    int at;
    for (at = 0; at < THREADS; at++) {
        CHECK_EQUAL(pthread_create(&threads[at].id, NULL, exchange, &threads[at]), 0);
    }
    for (at = 0; at < THREADS; at++) {
        CHECK_EQUAL(pthread_join(threads[at].id, NULL), 0);
    }
}

int main(void)
{
    struct thread threads[THREADS];
    cableway_world *workers[THREADS];
    int at;
    begin();
    for (at = 0; at < THREADS; at++) {
        threads[at].tag = at;
        threads[at].on = everyone;
    }
    exchange_in_all(threads);

    FAILS(cableway_worker(world, NULL), CABLEWAY_ERR_ARGUMENT, "the place for the worker is a null pointer");
    FAILS(cableway_worker(NULL, &workers[0]), CABLEWAY_ERR_HANDLE, "a world is needed, not a null pointer");
    for (at = 0; at < THREADS; at++) {
        CALL(cableway_worker(world, &workers[at]));
        CALL(cableway_world_communicator(workers[at], &threads[at].on));
        threads[at].tag = 0;
    }
    exchange_in_all(threads);
    for (at = 0; at < THREADS; at++) {
        CALL(cableway_finalize(&workers[at]));
        CHECK(NULL == workers[at]);
    }
    end();
    return 0;
}
