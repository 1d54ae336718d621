/*
 * Messages in the order of streams between two processes: blocking and not, by puts and signals, words, and prepared.
 * The first argument names the memory. Streams are on the device in either case.
 */
#include "memory.h"

enum { NON_BLOCKING = 1, PORTABLE_MAPPED = 3, STEPS = 20 };

static struct {
    int (*stream_create)(void **, unsigned);
    int (*stream_synchronize)(void *);
    int (*stream_destroy)(void *);
    int (*host_alloc)(void **, size_t, unsigned);
} driver;

static void *handle;
static cableway_stream *stream;
static int peer;

static void load_streams(void)
{
    void *library;
    if (NULL == cuda.init) {
        load_driver();
    }
    library = open_driver();
#define STREAM_SYMBOL(field, name)                                                                                    \
    *(void **) &driver.field = dlsym(library, name);                                                                  \
    CHECK(NULL != driver.field)
    STREAM_SYMBOL(stream_create, "cuStreamCreate");
    STREAM_SYMBOL(stream_synchronize, "cuStreamSynchronize");
    STREAM_SYMBOL(stream_destroy, "cuStreamDestroy_v2");
    STREAM_SYMBOL(host_alloc, "cuMemHostAlloc");
    CHECK_EQUAL(driver.stream_create(&handle, NON_BLOCKING), 0);
}

/* Sets all bytes of memory that no stream uses. */
static void set(const struct memory *memory, int owner)
{
    unsigned char *host = allocate(memory->bytes);
    fill(host, memory->bytes, owner);
    put(memory, host, memory->bytes);
    free(host);
}

static void expect(const struct memory *memory, size_t bytes, int owner)
{
    unsigned char *host = allocate(bytes);
    get(memory, host, bytes);
    CHECK(holds(host, bytes, owner));
    free(host);
}

/* Whether streams put into this memory without the thread. */
static int puts_alone(void)
{
    const char *btl = getenv("CABLEWAY_BTL");
    return DEVICE == kind && NULL != btl && 0 == strcmp(btl, "sm");
}

/* Rank 0's bytes go there and back; then the ranks exchange theirs. */
static void messages(size_t bytes)
{
    struct memory there = obtain(bytes), back = obtain(bytes);
    cableway_request *requests[2];
    int step;

    set(&there, rank);
    set(&back, 7);
    for (step = 0; step < STEPS; step++) {
        if (0 == rank) {
            CALL(cableway_stream_send(there.address, bytes, CABLEWAY_BYTE, peer, 1, everyone, stream));
            CALL(cableway_stream_recv(back.address, bytes, CABLEWAY_BYTE, CABLEWAY_ANY_SOURCE, 2, everyone, stream));
        } else {
            CALL(cableway_stream_recv(back.address, bytes, CABLEWAY_BYTE, peer, CABLEWAY_ANY_TAG, everyone, stream));
            CALL(cableway_stream_send(back.address, bytes, CABLEWAY_BYTE, peer, 2, everyone, stream));
        }
    }
    CALL(cableway_stream_finish(stream));
    expect(&back, bytes, 0);

    set(&back, 7);
    for (step = 0; step < STEPS; step++) {
        CALL(cableway_stream_irecv(back.address, bytes, CABLEWAY_BYTE, peer, 3, everyone, stream, &requests[0]));
        CALL(cableway_stream_isend(there.address, bytes, CABLEWAY_BYTE, peer, 3, everyone, stream, &requests[1]));
        if (step % 2) {
            CALL(cableway_stream_waitall(2, requests, stream));
            CHECK(NULL == requests[0] && NULL == requests[1]);
            CALL(cableway_stream_waitall(2, requests, stream));
        } else {
            cableway_status status;
            CALL(cableway_wait(&requests[0], &status));
            CHECK_EQUAL(status.bytes, bytes);
            CHECK_EQUAL(status.source, peer);
            CALL(cableway_request_free(&requests[1]));
        }
    }
    CALL(cableway_stream_finish(stream));
    expect(&back, bytes, peer);
    release(&there);
    release(&back);
}

/* Each rank puts into the other's memory, and signals; the second word says that the data was used. */
static void puts_with_signals(size_t bytes, int mapped)
{
    struct memory from = obtain(bytes), window = obtain(bytes + 16);
    cableway_registration *registration;
    cableway_remote_key keys[2], key;
    unsigned char *zeros = calloc(1, bytes + 16);
    uint64_t step;
    int alone = 0;

    set(&from, rank);
    put(&window, zeros, bytes + 16);
    free(zeros);
    CALL(cableway_register(world, window.address, bytes + 16, &registration));
    CALL(cableway_registration_key(registration, &key));
    CALL(cableway_allgather(&key, sizeof key, CABLEWAY_BYTE, keys, sizeof key, CABLEWAY_BYTE, everyone));
    if (mapped) {
        CALL(cableway_stream_map(&keys[peer], stream, &alone));
        CHECK_EQUAL(alone, puts_alone());
    }
    for (step = 1; step <= STEPS; step++) {
        CALL(cableway_stream_put_signal(from.address, bytes, &keys[peer], 0, &keys[peer], bytes, CABLEWAY_SIGNAL_SET,
                                        step, stream));
        CALL(cableway_stream_wait_signal(registration, bytes, step, peer, stream));
        CALL(cableway_stream_put_signal(NULL, 0, &keys[peer], 0, &keys[peer], bytes + 8, CABLEWAY_SIGNAL_SET, step,
                                        stream));
        CALL(cableway_stream_wait_signal(registration, bytes + 8, step, peer, stream));
    }
    CALL(cableway_stream_finish(stream));
    expect(&window, bytes, peer);
    CALL(cableway_stream_put(from.address, bytes, &keys[peer], 0, stream));
    CALL(cableway_stream_finish(stream));
    CALL(cableway_barrier(everyone));
    expect(&window, bytes, peer);
    FAILS(cableway_stream_put(from.address, bytes + 17, &keys[peer], 0, stream), CABLEWAY_ERR_ACCESS, "put");
    CALL(cableway_deregister(&registration));
    release(&from);
    release(&window);
}

/* The stream alone moves device memory of processes that share it, a thread anything else. */
static void prepared(size_t bytes)
{
    struct memory out = obtain(bytes), in = obtain(bytes);
    cableway_prepared *both[2];
    int alone[2], step;

    set(&out, rank);
    set(&in, 7);
    CALL(cableway_stream_prepare_send(out.address, bytes, CABLEWAY_BYTE, peer, 9, everyone, stream, &both[0]));
    CALL(cableway_stream_prepare_recv(in.address, bytes, CABLEWAY_BYTE, peer, 9, everyone, stream, &both[1]));
    CALL(cableway_prepared_agree(both[0], &alone[0]));
    CALL(cableway_prepared_agree(both[1], &alone[1]));
    CHECK_EQUAL(alone[0], alone[1]);
    CHECK_EQUAL(alone[0], DEVICE == kind);
    for (step = 0; step < STEPS; step++) {
        cableway_prepared *swapped[] = {both[1], both[0]};
        CALL(cableway_stream_post(2, 0 == rank ? both : swapped, stream));
    }
    CALL(cableway_stream_finish(stream));
    expect(&in, bytes, peer);
    CALL(cableway_prepared_free(&both[0]));
    CALL(cableway_prepared_free(&both[1]));
    CHECK(NULL == both[0] && NULL == both[1]);
    release(&out);
    release(&in);
}

static void words(void)
{
    volatile uint64_t *word;
    void *memory;
    CHECK_EQUAL(driver.host_alloc(&memory, 64, PORTABLE_MAPPED), 0);
    memset(memory, 0, 64);
    word = memory;
    CALL(cableway_stream_wait_value64((void *) &word[0], 5, CABLEWAY_WAIT_GREATER_EQUAL, stream));
    CALL(cableway_stream_write_value32((void *) &word[1], 6, stream));
    CALL(cableway_stream_wait_value32((void *) &word[1], 2, CABLEWAY_WAIT_AND, stream));
    CALL(cableway_stream_write_value64((void *) &word[2], 7, stream));
    CHECK_EQUAL(word[2], 0);
    word[0] = 5;
    CHECK_EQUAL(driver.stream_synchronize(handle), 0);
    CHECK_EQUAL(word[1], 6);
    CHECK_EQUAL(word[2], 7);
    FAILS(cableway_stream_write_value64((char *) memory + 4, 1, stream), CABLEWAY_ERR_ARGUMENT, "misaligned");
    FAILS(cableway_stream_wait_value64(memory, 1, 5, stream), CABLEWAY_ERR_ARGUMENT, "there is no condition 5");
}

static void mistakes(void)
{
    cableway_request *request = NULL;
    cableway_stream *none = NULL;
    cableway_prepared *made;
    cableway_status status;
    char byte = 0;

    FAILS(cableway_stream_send(&byte, 1, CABLEWAY_BYTE, peer, 1, everyone, NULL), CABLEWAY_ERR_HANDLE, "a stream is needed");
    FAILS(cableway_stream_send(&byte, 1, CABLEWAY_BYTE, 2, 1, everyone, stream), CABLEWAY_ERR_RANK, "invalid rank 2");
    FAILS(cableway_stream_recv(&byte, 1, CABLEWAY_BYTE, peer, -2, everyone, stream), CABLEWAY_ERR_TAG, "-2");
    FAILS(cableway_stream_create(world, 3, handle, &none), CABLEWAY_ERR_ARGUMENT, "there is no vendor 3");
    FAILS(cableway_stream_prepare_send(&byte, 1, CABLEWAY_BYTE, peer, -1, everyone, stream, &made), CABLEWAY_ERR_TAG, "-1");
    CALL(cableway_irecv(&byte, 1, CABLEWAY_BYTE, peer, 8, everyone, &request));
    FAILS(cableway_stream_waitall(1, &request, stream), CABLEWAY_ERR_ARGUMENT, "request 0 is of no message on a stream");
    CHECK(NULL != request);
    CALL(cableway_request_free(&request));

    /* A receive is cancelled, also before the stream has reached it. */
    CALL(cableway_stream_irecv(&byte, 1, CABLEWAY_BYTE, peer, 77, everyone, stream, &request));
    CALL(cableway_request_free(&request));
    CALL(cableway_stream_irecv(&byte, 1, CABLEWAY_BYTE, peer, 77, everyone, stream, &request));
    CALL(cableway_cancel(request));
    CALL(cableway_wait(&request, &status));
    CHECK(status.cancelled);

    /* A message that fails is told by the next call. */
    if (0 == rank) {
        char two[2] = {1, 2};
        CALL(cableway_send(two, 2, CABLEWAY_BYTE, peer, 4, everyone));
    } else {
        CALL(cableway_stream_recv(&byte, 1, CABLEWAY_BYTE, peer, 4, everyone, stream));
        FAILS(cableway_stream_finish(stream), CABLEWAY_ERR_TRUNCATED, "exceeds the receive buffer");
    }
    CALL(cableway_stream_check(stream));
}

int main(int argc, char **argv)
{
    static const size_t SIZES[] = {8, 5000, 300000};
    size_t at;

    begin();
    CHECK_EQUAL(size, 2);
    select_memory(argc, argv);
    load_streams();
    peer = 1 - rank;
    CALL(cableway_stream_create(world, CABLEWAY_VENDOR_NVIDIA, handle, &stream));
    for (at = 0; at < sizeof SIZES / sizeof *SIZES; at++) {
        messages(SIZES[at]);
        puts_with_signals(SIZES[at], at % 2);
        prepared(SIZES[at]);
    }
    words();
    mistakes();
    CALL(cableway_barrier(everyone));
    CALL(cableway_stream_free(&stream));
    CHECK(NULL == stream);
    CHECK_EQUAL(driver.stream_destroy(handle), 0);
    end();
    return 0;
}
