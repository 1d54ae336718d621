/* Registered memory: put, get, signals, atomic operations, and what the owner refuses. */
#include "memory.h"

enum { HEAD = 64, LARGEST = 700000 };

static cableway_registration *window;
static cableway_remote_key *keys;
static struct memory shared, local;
static unsigned char *host;

/* Puts data and a signal into the next process's memory, which waits for it, and gets it back with a signal. */
static void moves(size_t bytes, uint64_t turn)
{
    int next = (rank + 1) % size, previous = (rank + size - 1) % size;
    const cableway_remote_key *to = &keys[next];
    cableway_request *requests[2];
    cableway_status statuses[2];
    uint64_t seen;

    fill(host, bytes, rank + (int) turn);
    put(&local, host, bytes);
    if (0 == turn % 2) {
        CALL(cableway_put_signal(local.address, bytes, to, HEAD, to, 0, CABLEWAY_SIGNAL_SET, turn, everyone));
    } else {
        CALL(cableway_iput(local.address, bytes / 2, to, HEAD, everyone, &requests[0]));
        CALL(cableway_wait(&requests[0], NULL));
        CALL(cableway_iput_signal((char *) local.address + bytes / 2, bytes - bytes / 2, to, HEAD + bytes / 2, to, 0,
                                  CABLEWAY_SIGNAL_ADD, 1, everyone, &requests[0]));
        CALL(cableway_wait(&requests[0], &statuses[0]));
        CHECK_EQUAL(statuses[0].source, next);
        CHECK(NULL == requests[0]);
    }
    CALL(cableway_registration_wait(window, 0, CABLEWAY_GREATER_EQUAL, turn, previous, &seen));
    CHECK_EQUAL(seen, turn);
    memset(host, 0, bytes);
    CALL(cableway_registration_read(window, HEAD, host, bytes));
    CHECK(holds(host, bytes, previous + (int) turn));

    /* Two gets at a time, of what this process has put. */
    memset(host, 0, bytes);
    put(&local, host, bytes);
    CALL(cableway_iget(local.address, bytes / 3, to, HEAD, everyone, &requests[0]));
    CALL(cableway_iget((char *) local.address + bytes / 3, bytes - bytes / 3, to, HEAD + bytes / 3, everyone,
                       &requests[1]));
    CALL(cableway_waitall(2, requests, statuses));
    get(&local, host, bytes);
    CHECK(holds(host, bytes, rank + (int) turn));
    memset(host, 0, bytes);
    CALL(cableway_get(host, bytes, to, HEAD, everyone));
    CHECK(holds(host, bytes, rank + (int) turn));

    /* The owner may write again once it has seen the signals of both gets. */
    memset(host, 0, bytes);
    put(&local, host, bytes);
    CALL(cableway_iget_signal(local.address, bytes / 2, to, HEAD, to, 32, CABLEWAY_SIGNAL_ADD, 1, everyone, &requests[0]));
    CALL(cableway_get_signal((char *) local.address + bytes / 2, bytes - bytes / 2, to, HEAD + bytes / 2, to, 40,
                             CABLEWAY_SIGNAL_SET, turn, everyone));
    CALL(cableway_wait(&requests[0], &statuses[0]));
    CHECK_EQUAL(statuses[0].source, next);
    CALL(cableway_registration_wait(window, 32, CABLEWAY_EQUAL, turn, previous, NULL));
    CALL(cableway_registration_wait(window, 40, CABLEWAY_EQUAL, turn, previous, NULL));
    get(&local, host, bytes);
    CHECK(holds(host, bytes, rank + (int) turn));
    CALL(cableway_barrier(everyone));
}

/* All processes change words of process 0. */
static void words(void)
{
    enum { TIMES = 20 };
    uint64_t before, sum, mine = 0, value = 0xF0;
    uint32_t small;
    int time;

    if (0 == rank) {
        uint64_t zeros[3] = {0, 0, 0};
        CALL(cableway_registration_write(window, 8, zeros, sizeof zeros));
    }
    CALL(cableway_barrier(everyone));
    for (time = 0; time < TIMES; time++) {
        CALL(cableway_atomic64(CABLEWAY_ATOMIC_ADD, 1, 0, &keys[0], 8, everyone, &before));
        mine += before;
        CALL(cableway_atomic32(CABLEWAY_ATOMIC_ADD, 1, 0, &keys[0], 16, everyone, NULL));
    }
    /* Every number was given once. */
    CALL(cableway_allreduce(&mine, &sum, 1, CABLEWAY_UINT64, CABLEWAY_SUM, everyone));
    CHECK_EQUAL(sum, (uint64_t) size * TIMES * ((uint64_t) size * TIMES - 1) / 2);
    if (0 == rank) {
        CALL(cableway_registration_load(window, 8, &before));
        CHECK_EQUAL(before, (uint64_t) size * TIMES);
        CALL(cableway_atomic32(CABLEWAY_ATOMIC_SWAP, 5, 0, &keys[0], 16, everyone, &small));
        CHECK_EQUAL(small, size * TIMES);
        CALL(cableway_atomic32(CABLEWAY_ATOMIC_COMPARE_SWAP, 6, 4, &keys[0], 16, everyone, &small));
        CHECK_EQUAL(small, 5);
        CALL(cableway_atomic32(CABLEWAY_ATOMIC_COMPARE_SWAP, 6, 5, &keys[0], 16, everyone, &small));
        CHECK_EQUAL(small, 5);
        CALL(cableway_atomic32(CABLEWAY_ATOMIC_OR, 9, 0, &keys[0], 16, everyone, &small));
        CHECK_EQUAL(small, 6);
        CALL(cableway_put(&value, sizeof value, &keys[0], 24, everyone));
        CALL(cableway_atomic64(CABLEWAY_ATOMIC_AND, 0x3C, 0, &keys[0], 24, everyone, &before));
        CHECK_EQUAL(before, 0xF0);
        CALL(cableway_atomic64(CABLEWAY_ATOMIC_XOR, 0xFF, 0, &keys[0], 24, everyone, &before));
        CHECK_EQUAL(before, 0x30);
        CALL(cableway_registration_load(window, 24, &before));
        CHECK_EQUAL(before, 0xCF);
    }
    CALL(cableway_barrier(everyone));
}

/* A put that was started earlier is complete before one that a fence orders after it. */
static void order(void)
{
    int next = (rank + 1) % size, previous = (rank + size - 1) % size;
    cableway_request *requests[2];
    uint64_t zero = 0;
    size_t bytes = LARGEST;

    CALL(cableway_registration_write(window, 0, &zero, sizeof zero));
    CALL(cableway_barrier(everyone));
    fill(host, bytes, rank + 50);
    put(&local, host, bytes);
    CALL(cableway_iput(local.address, bytes, &keys[next], HEAD, everyone, &requests[0]));
    CALL(cableway_fence(next, everyone));
    CALL(cableway_iput_signal(NULL, 0, &keys[next], 0, &keys[next], 0, CABLEWAY_SIGNAL_SET, 99, everyone, &requests[1]));
    CALL(cableway_fence(CABLEWAY_ALL_TARGETS, everyone));
    CALL(cableway_registration_wait(window, 0, CABLEWAY_EQUAL, 99, previous, NULL));
    CALL(cableway_registration_read(window, HEAD, host, bytes));
    CHECK(holds(host, bytes, previous + 50));
    CALL(cableway_flush(next, everyone));
    CALL(cableway_flush(CABLEWAY_ALL_TARGETS, everyone));
    CALL(cableway_waitall(2, requests, NULL));
    CALL(cableway_barrier(everyone));
}

static void mistakes(void)
{
    int next = (rank + 1) % size;
    cableway_remote_key forged = keys[next], none = {{0}};
    cableway_registration *other = NULL;
    cableway_request *request = NULL;
    uint64_t word = 0, beyond = shared.bytes;

    forged.bytes[63] ^= 1;
    FAILS(cableway_put(&word, 8, &forged, HEAD, everyone), CABLEWAY_ERR_ACCESS, "refused access to 8 bytes");
    FAILS(cableway_get(&word, 8, &none, 0, everyone), CABLEWAY_ERR_ACCESS, "registered memory of 0 bytes");
    FAILS(cableway_put(&word, 8, &keys[next], beyond - 7, everyone), CABLEWAY_ERR_ACCESS, "exceed the registered");
    FAILS(cableway_get(&word, 8, &keys[next], UINT64_MAX, everyone), CABLEWAY_ERR_ACCESS, "exceed the registered");
    FAILS(cableway_atomic64(CABLEWAY_ATOMIC_ADD, 1, 0, &keys[next], 4, everyone, &word), CABLEWAY_ERR_ARGUMENT, "misaligned");
    FAILS(cableway_atomic64(7, 1, 0, &keys[next], 8, everyone, &word), CABLEWAY_ERR_ARGUMENT, "atomic operation 7");
    FAILS(cableway_put_signal(&word, 8, &keys[next], HEAD, &keys[next], 0, 3, 1, everyone), CABLEWAY_ERR_ARGUMENT,
          "update of signals 3");
    FAILS(cableway_put_signal(&word, 8, &keys[next], HEAD, NULL, 0, 1, 1, everyone), CABLEWAY_ERR_ARGUMENT,
          "the key of the signal is a null pointer");
    FAILS(cableway_get_signal(&word, 8, &keys[next], HEAD, &keys[next], 0, 0, 1, everyone), CABLEWAY_ERR_ARGUMENT,
          "update of signals 0");
    FAILS(cableway_iget_signal(&word, 8, &keys[next], HEAD, NULL, 0, 1, 1, everyone, &request), CABLEWAY_ERR_ARGUMENT,
          "the key of the signal is a null pointer");
    FAILS(cableway_get_signal(&word, 8, &keys[next], HEAD, &forged, 0, 1, 1, everyone), CABLEWAY_ERR_ACCESS,
          "refused access to 8 bytes");
    FAILS(cableway_put(NULL, 8, &keys[next], HEAD, everyone), CABLEWAY_ERR_ARGUMENT, "the buffer is a null pointer");
    FAILS(cableway_iput(&word, 8, &keys[next], HEAD, everyone, NULL), CABLEWAY_ERR_ARGUMENT, "place for the request");
    FAILS(cableway_registration_wait(window, 0, 0, 1, next, NULL), CABLEWAY_ERR_ARGUMENT, "comparison 0");
    FAILS(cableway_registration_load(window, beyond, &word), CABLEWAY_ERR_ACCESS, "registered memory");
    FAILS(cableway_registration_read((cableway_registration *) world, 0, &word, 8), CABLEWAY_ERR_HANDLE,
          "a registration is needed");
    FAILS(cableway_fence(size, everyone), CABLEWAY_ERR_RANK, "invalid rank");
    FAILS(cableway_flush(-2, everyone), CABLEWAY_ERR_RANK, "invalid rank -2");
    FAILS(cableway_register(world, NULL, 8, &other), CABLEWAY_ERR_ARGUMENT, "null pointer");
    CHECK(NULL == other && NULL == request);
    CALL(cableway_barrier(everyone));

    /* The end of a registration ends its keys. */
    CALL(cableway_deregister(&window));
    CHECK(NULL == window);
    CALL(cableway_deregister(&window));
    CALL(cableway_barrier(everyone));
    FAILS(cableway_put(&word, 8, &keys[next], HEAD, everyone), CABLEWAY_ERR_ACCESS, "refused access to 8 bytes");
    CALL(cableway_iget(&word, 8, &keys[next], HEAD, everyone, &request));
    FAILS(cableway_wait(&request, NULL), CABLEWAY_ERR_ACCESS, "refused access to 8 bytes");
}

int main(int argc, char **argv)
{
    static const size_t sizes[] = {1, 100, 8116, 8117, 65536, LARGEST};
    cableway_remote_key key;
    uint64_t zeros[HEAD / sizeof(uint64_t)] = {0}, turn;

    begin();
    select_memory(argc, argv);
    shared = obtain(HEAD + LARGEST);
    local = obtain(LARGEST);
    host = allocate(LARGEST);
    keys = allocate(sizeof *keys * (size_t) size);
    CALL(cableway_register(world, shared.address, shared.bytes, &window));
    CALL(cableway_registration_key(window, &key));
    CALL(cableway_registration_write(window, 0, zeros, sizeof zeros));
    CALL(cableway_allgather(&key, sizeof key, CABLEWAY_BYTE, keys, sizeof key, CABLEWAY_BYTE, everyone));
    CHECK(0 == memcmp(&keys[rank], &key, sizeof key));

    for (turn = 1; turn <= 2 * sizeof sizes / sizeof sizes[0]; turn++) {
        moves(sizes[(turn - 1) / 2], turn);
    }
    words();
    order();
    mistakes();
    CALL(cableway_barrier(everyone));
    release(&shared);
    release(&local);
    free(host);
    free(keys);
    end();
    return 0;
}
