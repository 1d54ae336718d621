/* Registered memory: put and get of elements of datatypes. */
#include "memory.h"

enum { HEAD = 64, ROWS = 3000, WIDTH = 8, HERE = 12, THERE = 20, BYTES = ROWS * WIDTH };

static cableway_registration *window;
static cableway_remote_key *keys;
static struct memory shared, local;
static unsigned char *host, *packed;
static cableway_datatype *here, *there;

/* Stores packed rows in memory that is otherwise 0x55, and checks that memory. */
static void spread(unsigned char *into, const unsigned char *data, size_t stride)
{
    size_t row;
    memset(into, 0x55, ROWS * stride);
    for (row = 0; row < ROWS; row++) {
        memcpy(into + row * stride, data + row * WIDTH, WIDTH);
    }
}

static void check(const unsigned char *found, const unsigned char *data, size_t stride)
{
    unsigned char *expected = allocate(ROWS * stride);
    spread(expected, data, stride);
    CHECK(0 == memcmp(found, expected, (ROWS - 1) * stride + WIDTH));
    free(expected);
}

/* Puts rows, with signals in every second turn, and gets them back. */
static void moves(uint64_t turn)
{
    int next = (rank + 1) % size, previous = (rank + size - 1) % size;
    const cableway_remote_key *to = &keys[next], *signal = 0 == turn % 2 ? to : NULL;
    cableway_request *request;
    cableway_status status;

    memset(host, 0x55, ROWS * THERE);
    CALL(cableway_registration_write(window, HEAD, host, ROWS * THERE));
    CALL(cableway_barrier(everyone));
    fill(packed, BYTES, rank + (int) turn);
    spread(host, packed, HERE);
    put(&local, host, ROWS * HERE);
    CALL(cableway_put_typed(local.address, 1, here, to, HEAD, 1, there, signal, 0, CABLEWAY_SIGNAL_SET, turn, everyone));
    if (NULL != signal) {
        CALL(cableway_registration_wait(window, 0, CABLEWAY_EQUAL, turn, previous, NULL));
    } else {
        CALL(cableway_barrier(everyone));
    }
    CALL(cableway_registration_read(window, HEAD, host, ROWS * THERE));
    fill(packed, BYTES, previous + (int) turn);
    check(host, packed, THERE);

    fill(packed, BYTES, rank + (int) turn);
    memset(host, 0x55, ROWS * HERE);
    put(&local, host, ROWS * HERE);
    CALL(cableway_get_typed(local.address, 1, here, to, HEAD, 1, there, NULL, 0, 0, 0, everyone));
    get(&local, host, ROWS * HERE);
    check(host, packed, HERE);

    /* From rows to one run, and back, in requests. */
    memset(host, 0, BYTES);
    put(&local, host, BYTES);
    CALL(cableway_iget_typed(local.address, BYTES, CABLEWAY_BYTE, to, HEAD, 1, there, to, 8, CABLEWAY_SIGNAL_ADD, 1,
                             everyone, &request));
    CALL(cableway_wait(&request, &status));
    CHECK_EQUAL(status.source, next);
    get(&local, host, BYTES);
    CHECK(holds(host, BYTES, rank + (int) turn));
    CALL(cableway_registration_wait(window, 8, CABLEWAY_EQUAL, turn, previous, NULL));
    CALL(cableway_barrier(everyone));
    CALL(cableway_iput_typed(local.address, BYTES, CABLEWAY_BYTE, to, HEAD, BYTES, CABLEWAY_BYTE, NULL, 0, 0, 0, everyone,
                             &request));
    CALL(cableway_wait(&request, NULL));
    CALL(cableway_barrier(everyone));
    CALL(cableway_registration_read(window, HEAD, host, BYTES));
    CHECK(holds(host, BYTES, previous + (int) turn));
    CALL(cableway_barrier(everyone));
}

static void mistakes(void)
{
    const cableway_remote_key *to = &keys[(rank + 1) % size];
    cableway_request *request = NULL;
    uint64_t beyond = shared.bytes - (uint64_t) (ROWS - 1) * THERE - WIDTH + 1;

    FAILS(cableway_put_typed(host, BYTES - 1, CABLEWAY_BYTE, to, HEAD, 1, there, NULL, 0, 0, 0, everyone),
          CABLEWAY_ERR_ARGUMENT, "describe equal amounts");
    FAILS(cableway_get_typed(host, 1, here, to, HEAD, BYTES + 1, CABLEWAY_BYTE, NULL, 0, 0, 0, everyone),
          CABLEWAY_ERR_ARGUMENT, "describe equal amounts");
    FAILS(cableway_put_typed(host, 1, here, to, beyond, 1, there, NULL, 0, 0, 0, everyone), CABLEWAY_ERR_ACCESS,
          "exceed the registered");
    FAILS(cableway_put_typed(host, 1, here, to, HEAD, 1, there, to, 4, CABLEWAY_SIGNAL_SET, 1, everyone),
          CABLEWAY_ERR_ARGUMENT, "misaligned");
    FAILS(cableway_get_typed(host, 1, here, NULL, HEAD, 1, there, NULL, 0, 0, 0, everyone), CABLEWAY_ERR_ARGUMENT,
          "the key is a null pointer");
    FAILS(cableway_iput_typed(host, 1, here, to, HEAD, 1, (cableway_datatype *) world, NULL, 0, 0, 0, everyone, &request),
          CABLEWAY_ERR_HANDLE, "a datatype is needed");
    FAILS(cableway_iget_typed(host, 1, here, to, HEAD, 1, there, NULL, 0, 0, 0, everyone, NULL), CABLEWAY_ERR_ARGUMENT,
          "place for the request");
    CHECK(NULL == request);
}

int main(int argc, char **argv)
{
    cableway_remote_key key;
    uint64_t zeros[HEAD / sizeof(uint64_t)] = {0}, turn;

    begin();
    select_memory(argc, argv);
    shared = obtain(HEAD + ROWS * THERE);
    local = obtain(ROWS * HERE);
    host = allocate(ROWS * THERE);
    packed = allocate(BYTES);
    keys = allocate(sizeof *keys * (size_t) size);
    CALL(cableway_type_hvector(ROWS, WIDTH, HERE, CABLEWAY_BYTE, &here));
    CALL(cableway_type_hvector(ROWS, WIDTH, THERE, CABLEWAY_BYTE, &there));
    CALL(cableway_register(world, shared.address, shared.bytes, &window));
    CALL(cableway_registration_key(window, &key));
    CALL(cableway_registration_write(window, 0, zeros, sizeof zeros));
    CALL(cableway_allgather(&key, sizeof key, CABLEWAY_BYTE, keys, sizeof key, CABLEWAY_BYTE, everyone));

    for (turn = 1; turn <= 6; turn++) {
        moves(turn);
    }
    mistakes();
    CALL(cableway_barrier(everyone));
    CALL(cableway_deregister(&window));
    CALL(cableway_type_free(&here));
    CALL(cableway_type_free(&there));
    release(&shared);
    release(&local);
    free(host);
    free(packed);
    free(keys);
    end();
    return 0;
}
