/* Nonblocking collective functions: several at a time, mixed with messages, and ended in any order. */
#include "memory.h"

enum { COUNT = 3000 };

/* A number that depends on who made it and for which operation. */
static int32_t number(int owner, int operation, size_t at)
{
    return owner * 1000 + operation * 7 + (int32_t) at;
}

static void numbers(struct memory *memory, int32_t *host, int operation, size_t count)
{
    size_t at;
    for (at = 0; at < count; at++) {
        host[at] = number(rank, operation, at);
    }
    put(memory, host, count * sizeof *host);
}

/* The last member starts its barrier when all others have seen that theirs is not over. */
static void barrier(void)
{
    cableway_request *request = NULL;
    int last = size - 1, done, tries, from;
    char token = 0;
    if (rank == last && last > 0) {
        CALL(cableway_recv(&token, 1, CABLEWAY_BYTE, 0, 4, everyone, NULL));
    }
    CALL(cableway_ibarrier(everyone, &request));
    if (rank < last) {
        for (tries = 0; tries < 100; tries++) {
            CALL(cableway_test(&request, &done, NULL));
            CHECK(!done);
        }
        for (from = 1; from < last && 0 == rank; from++) {
            CALL(cableway_recv(&token, 1, CABLEWAY_BYTE, from, 4, everyone, NULL));
        }
        CALL(cableway_send(&token, 1, CABLEWAY_BYTE, 0 == rank ? last : 0, 4, everyone));
    }
    CALL(cableway_wait(&request, NULL));
}

int main(int argc, char **argv)
{
    enum { BCAST, GATHER, GATHER_IN_PLACE, EXCHANGE, SUM, SUM_IN_PLACE, ROOTED, OPERATIONS };
    cableway_request *requests[OPERATIONS + 1] = {NULL};
    struct memory send[OPERATIONS], receive[OPERATIONS];
    int operation, owner, done, message = 0, root;
    int32_t *host;
    size_t at, all, index;
    cableway_status status;

    begin();
    select_memory(argc, argv);
    barrier();
    all = COUNT * (size_t) size;
    root = size - 1;
    host = allocate(all * sizeof *host);
    for (operation = 0; operation < OPERATIONS; operation++) {
        send[operation] = obtain(all * sizeof *host);
        receive[operation] = obtain(all * sizeof *host);
        numbers(&send[operation], host, operation, all);
        numbers(&receive[operation], host, operation, all);
    }
    /* In place, this process's part is in its place. */
    for (at = 0; at < COUNT; at++) {
        host[(size_t) rank * COUNT + at] = number(rank, GATHER_IN_PLACE, at);
    }
    put(&receive[GATHER_IN_PLACE], host, all * sizeof *host);

    CALL(cableway_ibcast(receive[BCAST].address, COUNT * sizeof *host, CABLEWAY_BYTE, root, everyone, &requests[BCAST]));
    CALL(cableway_iallgather(send[GATHER].address, COUNT * sizeof *host, CABLEWAY_BYTE, receive[GATHER].address,
                             COUNT * sizeof *host, CABLEWAY_BYTE, everyone, &requests[GATHER]));
    CALL(cableway_iallgather(CABLEWAY_IN_PLACE, 0, CABLEWAY_BYTE, receive[GATHER_IN_PLACE].address,
                             COUNT * sizeof *host, CABLEWAY_BYTE, everyone, &requests[GATHER_IN_PLACE]));
    CALL(cableway_ialltoall(send[EXCHANGE].address, COUNT * sizeof *host, CABLEWAY_BYTE, receive[EXCHANGE].address,
                            COUNT * sizeof *host, CABLEWAY_BYTE, everyone, &requests[EXCHANGE]));
    CALL(cableway_iallreduce(send[SUM].address, receive[SUM].address, COUNT, CABLEWAY_INT32, CABLEWAY_SUM, everyone,
                             &requests[SUM]));
    CALL(cableway_iallreduce(CABLEWAY_IN_PLACE, receive[SUM_IN_PLACE].address, COUNT, CABLEWAY_INT32, CABLEWAY_SUM,
                             everyone, &requests[SUM_IN_PLACE]));
    CALL(cableway_ireduce(send[ROOTED].address, receive[ROOTED].address, COUNT, CABLEWAY_INT32, CABLEWAY_MAX, root,
                          everyone, &requests[ROOTED]));
    /* A message at the same time. */
    CALL(cableway_irecv(&message, sizeof message, CABLEWAY_BYTE, (rank + size - 1) % size, 3, everyone,
                        &requests[OPERATIONS]));
    CALL(cableway_send(&rank, sizeof rank, CABLEWAY_BYTE, (rank + 1) % size, 3, everyone));

    for (done = 0; !done;) {
        CALL(cableway_test(&requests[EXCHANGE], &done, &status));
    }
    CHECK(NULL == requests[EXCHANGE]);
    CHECK_EQUAL(status.error, CABLEWAY_SUCCESS);
    CALL(cableway_waitany(OPERATIONS + 1, requests, &index, NULL));
    CHECK(index <= OPERATIONS && EXCHANGE != index && NULL == requests[index]);
    CALL(cableway_wait(&requests[ROOTED], NULL));
    CALL(cableway_request_free(&requests[GATHER]));
    CALL(cableway_waitall(OPERATIONS + 1, requests, NULL));
    CHECK_EQUAL(message, (rank + size - 1) % size);

    get(&receive[BCAST], host, COUNT * sizeof *host);
    for (at = 0; at < COUNT; at++) {
        CHECK_EQUAL(host[at], number(root, BCAST, at));
    }
    for (operation = GATHER; operation <= EXCHANGE; operation++) {
        get(&receive[operation], host, all * sizeof *host);
        for (owner = 0; owner < size; owner++) {
            for (at = 0; at < COUNT; at++) {
                size_t from = EXCHANGE == operation ? (size_t) rank * COUNT + at : at;
                CHECK_EQUAL(host[(size_t) owner * COUNT + at], number(owner, operation, from));
            }
        }
    }
    for (operation = SUM; operation <= SUM_IN_PLACE; operation++) {
        get(&receive[operation], host, COUNT * sizeof *host);
        for (at = 0; at < COUNT; at++) {
            CHECK_EQUAL(host[at], size * number(0, operation, at) + 1000 * (size - 1) * size / 2);
        }
    }
    get(&receive[ROOTED], host, COUNT * sizeof *host);
    for (at = 0; at < COUNT; at++) {
        CHECK_EQUAL(host[at], number(rank == root ? size - 1 : rank, ROOTED, at));
    }

    FAILS(cableway_ibcast(host, 1, CABLEWAY_BYTE, size, everyone, &requests[0]), CABLEWAY_ERR_RANK, "root");
    FAILS(cableway_iallreduce(host, host, 1, 99, CABLEWAY_SUM, everyone, &requests[0]), CABLEWAY_ERR_ARGUMENT, "99");
    FAILS(cableway_ireduce(host, host, 1, CABLEWAY_INT32, CABLEWAY_SUM, 0, everyone, NULL), CABLEWAY_ERR_ARGUMENT,
          "place for the request");
    CHECK(NULL == requests[0]);

    for (operation = 0; operation < OPERATIONS; operation++) {
        release(&send[operation]);
        release(&receive[operation]);
    }
    free(host);
    end();
    return 0;
}
