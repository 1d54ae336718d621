/* Two processes use LibMP's calls on host and device memory. The first argument is the thread level: single or multiple.
 * CABLEWAY_CUDA_LIBDIR names the driver. */
#include "streams/stream.h"

#include <mp.h>

enum { ROUNDS = 12, BATCH = 4 };

static int other;
static cudaStream_t stream;

static void barrier(void)
{
    CHECK_EQUAL(MPI_Barrier(MPI_COMM_WORLD), MPI_SUCCESS);
}

static void synchronize(void)
{
    CHECK_EQUAL(work.synchronize(stream), 0);
}

static void fill(device_pointer memory, int value, size_t bytes)
{
    CHECK_EQUAL(work.fill(memory, (unsigned char) value, bytes, stream), 0);
}

/* Messages of host memory that the host starts, in one run and in blocks. */
static void on_the_host(void)
{
    int out[3] = {10 + test.rank, 20 + test.rank, 30 + test.rank}, in[3] = {0};
    struct iovec sent[2] = {{&out[2], sizeof(int)}, {&out[0], sizeof(int)}};
    struct iovec got[2] = {{&in[0], sizeof(int)}, {&in[1], sizeof(int)}};
    mp_request_t reqs[4];
    mp_reg_t reg;
    CHECK_EQUAL(mp_register(out, sizeof out, &reg), MP_SUCCESS);
    CHECK_EQUAL(mp_irecvv(got, 2, other, NULL, &reqs[0]), MP_SUCCESS);
    CHECK_EQUAL(mp_irecv(&in[2], sizeof(int), other, NULL, &reqs[1]), MP_SUCCESS);
    CHECK_EQUAL(mp_isendv(sent, 2, other, &reg, &reqs[2]), MP_SUCCESS);
    CHECK_EQUAL(mp_isend(&out[1], sizeof(int), other, &reg, &reqs[3]), MP_SUCCESS);
    while (4 != mp_progress_all(4, reqs)) {
    }
    CHECK_EQUAL(mp_wait(&reqs[0]), MP_SUCCESS);
    CHECK(NULL == reqs[0]);
    CHECK_EQUAL(mp_wait_all(3, &reqs[1]), MP_SUCCESS);
    CHECK(NULL == reqs[1] && NULL == reqs[2] && NULL == reqs[3]);
    CHECK_EQUAL(in[0], 30 + other);
    CHECK_EQUAL(in[1], 10 + other);
    CHECK_EQUAL(in[2], 20 + other);
    CHECK_EQUAL(mp_deregister(&reg), MP_SUCCESS);
    CHECK(NULL == reg);
    count_check();
}

/* Each round trip has work of both streams between the messages. The receive of a round is posted by the host before the
 * message leaves, or after it, or by the stream. */
static void ping_pong(size_t bytes, int when)
{
    enum { RECEIVE_FIRST, SEND_FIRST, BY_STREAM };
    device_pointer out = device_memory(bytes), in = device_memory(ROUNDS * bytes);
    mp_request_t sends[ROUNDS], recvs[ROUNDS];
    mp_reg_t reg;
    CHECK_EQUAL(mp_register(at(in), ROUNDS * bytes, &reg), MP_SUCCESS);
    for (int round = 0; RECEIVE_FIRST == when && round < ROUNDS; round++) {
        CHECK_EQUAL(mp_irecv(at(in + round * bytes), (int) bytes, other, &reg, &recvs[round]), MP_SUCCESS);
    }
    barrier();
    for (int round = 0; round < ROUNDS; round++) {
        const device_pointer landed = in + round * bytes;
        if (0 == test.rank || SEND_FIRST == when) {
            fill(out, 3 * round + test.rank, bytes);
            /* The stream waits for the first kind, so it overwrites what was sent. */
            CHECK_EQUAL((round & 1 ? mp_send_on_stream : mp_isend_on_stream)(at(out), (int) bytes, other, NULL,
                                                                            &sends[round], stream), MP_SUCCESS);
            if (!(round & 1)) {
                CHECK_EQUAL(SEND_FIRST == when ? MP_SUCCESS : mp_wait_on_stream(&sends[round], stream), MP_SUCCESS);
            }
        }
        if (SEND_FIRST == when) {
            /* The stream has reached the send. It would stand at one that blocks it. */
            if (!(round & 1)) {
                synchronize();
            }
            barrier();
            CHECK_EQUAL(mp_irecv(at(landed), (int) bytes, other, &reg, &recvs[round]), MP_SUCCESS);
        } else if (BY_STREAM == when) {
            CHECK_EQUAL(mp_irecv_on_stream(at(landed), (int) bytes, other, &reg, &recvs[round], stream), MP_SUCCESS);
        }
        CHECK_EQUAL(mp_wait_on_stream(&recvs[round], stream), MP_SUCCESS);
        if (SEND_FIRST == when) {
            CHECK_EQUAL(mp_wait_on_stream(&sends[round], stream), MP_SUCCESS);
        } else if (1 == test.rank) {
            CHECK_EQUAL(mp_isend_on_stream(at(landed), (int) bytes, other, &reg, &sends[round], stream), MP_SUCCESS);
            CHECK_EQUAL(mp_wait_on_stream(&sends[round], stream), MP_SUCCESS);
        }
    }
    synchronize();
    CHECK_EQUAL(mp_wait_all(ROUNDS, sends), MP_SUCCESS);
    CHECK_EQUAL(mp_wait_all(ROUNDS, recvs), MP_SUCCESS);
    for (int round = 0; round < ROUNDS; round++) {
        check_bytes(in + round * bytes, bytes, 3 * round + (SEND_FIRST == when ? other : 0));
    }
    CHECK_EQUAL(mp_deregister(&reg), MP_SUCCESS);
    CHECK_EQUAL(cuda.free(out) | cuda.free(in), 0);
}

/* Prepared sends are posted together, one by one, and in a queue, and match in this order. */
static void prepared(size_t bytes)
{
    device_pointer out = device_memory(3 * BATCH * bytes), in = device_memory(3 * BATCH * bytes);
    struct iovec halves[2];
    mp_request_t sends[3 * BATCH], recvs[3 * BATCH];
    mp_desc_queue_t dq;
    uint32_t *word = NULL;
    CHECK_EQUAL(posix_memalign((void **) &word, 4096, 4096), 0);
    memset(word, 0, 4096);
    mp_reg_t reg;
    CHECK_EQUAL(mp_register(word, 4096, &reg), MP_SUCCESS);
    CHECK_EQUAL(mp_desc_queue_alloc(&dq), MP_SUCCESS);
    for (int i = 0; i < 3 * BATCH; i++) {
        CHECK_EQUAL(mp_irecv(at(in + i * bytes), (int) bytes, other, NULL, &recvs[i]), MP_SUCCESS);
    }
    for (int i = 0; i < 3 * BATCH; i++) {
        halves[0] = (struct iovec){at(out + i * bytes), bytes / 2};
        halves[1] = (struct iovec){at(out + i * bytes + bytes / 2), bytes - bytes / 2};
        CHECK_EQUAL(i & 1 ? mp_sendv_prepare(halves, 2, other, NULL, &sends[i])
                          : mp_send_prepare(at(out + i * bytes), (int) bytes, other, NULL, &sends[i]), MP_SUCCESS);
        fill(out + i * bytes, 10 * i + test.rank, bytes);
    }
    CHECK_EQUAL(mp_isend_post_all_on_stream(BATCH, sends, stream), MP_SUCCESS);
    for (int i = BATCH; i < 2 * BATCH; i++) {
        CHECK_EQUAL((i & 1 ? mp_send_post_on_stream : mp_isend_post_on_stream)(&sends[i], stream), MP_SUCCESS);
    }
    /* The stream stands at the word until the host opens it. */
    CHECK_EQUAL(mp_desc_queue_add_wait_value32(&dq, &word[0], 5, MP_WAIT_EQ), MP_SUCCESS);
    for (int i = 2 * BATCH; i < 3 * BATCH; i++) {
        CHECK_EQUAL(mp_desc_queue_add_send(&dq, &sends[i]), MP_SUCCESS);
        CHECK_EQUAL(mp_desc_queue_add_wait_send(&dq, &sends[i]), MP_SUCCESS);
        CHECK_EQUAL(mp_desc_queue_add_wait_recv(&dq, &recvs[i]), MP_SUCCESS);
    }
    CHECK_EQUAL(mp_desc_queue_add_write_value32(&dq, &word[1], 77), MP_SUCCESS);
    CHECK_EQUAL(mp_desc_queue_post_on_stream(stream, &dq, 0), MP_SUCCESS);
    CHECK_EQUAL(mp_wait_all_on_stream(2 * BATCH, recvs, stream), MP_SUCCESS);
    CHECK_EQUAL(mp_wait_all(2 * BATCH, sends), MP_SUCCESS);
    CHECK_EQUAL(work.query(stream), NOT_READY);
    CHECK_EQUAL(__atomic_load_n(&word[1], __ATOMIC_ACQUIRE), 0);
    __atomic_store_n(&word[0], 5, __ATOMIC_RELEASE);
    CHECK_EQUAL(mp_wait32(&word[1], 77, MP_WAIT_EQ), MP_SUCCESS);
    synchronize();
    CHECK_EQUAL(mp_wait_all(BATCH, &sends[2 * BATCH]), MP_SUCCESS);
    CHECK_EQUAL(mp_wait_all(3 * BATCH, recvs), MP_SUCCESS);
    for (int i = 0; i < 3 * BATCH; i++) {
        check_bytes(in + i * bytes, bytes, 10 * i + other);
    }
    CHECK_EQUAL(mp_desc_queue_free(&dq), MP_SUCCESS);
    CHECK(NULL == dq);
    CHECK_EQUAL(mp_deregister(&reg), MP_SUCCESS);
    free(word);
    CHECK_EQUAL(cuda.free(out) | cuda.free(in), 0);
}

/* Puts of the host and of streams, and gets. */
static void one_sided(size_t bytes)
{
    enum { PARTS = 8 };
    device_pointer memory = device_memory(PARTS * bytes), out = device_memory(PARTS * bytes);
    unsigned char *host = malloc(bytes);
    mp_request_t reqs[PARTS], unwaited;
    mp_window_t window;
    CHECK(NULL != host);
    fill(memory, 0xff, PARTS * bytes);
    for (int i = 0; i < PARTS; i++) {
        fill(out + i * bytes, 16 * test.rank + i, bytes);
    }
    synchronize();
    CHECK_EQUAL(mp_window_create(at(memory), PARTS * bytes, &window), MP_SUCCESS);
    CHECK_EQUAL(mp_iput(at(out), (int) bytes, NULL, other, 0, &window, &reqs[0], 0), MP_SUCCESS);
    memset(host, 16 * test.rank + 1, bytes);
    CHECK_EQUAL(mp_iput(host, (int) bytes, NULL, other, bytes, &window, &reqs[1], MP_PUT_INLINE), MP_SUCCESS);
    memset(host, 0xee, bytes);
    CHECK_EQUAL(mp_iput_on_stream(at(out + 2 * bytes), (int) bytes, NULL, other, 2 * bytes, &window, &reqs[2], 0, stream),
                MP_SUCCESS);
    CHECK_EQUAL(mp_wait_on_stream(&reqs[2], stream), MP_SUCCESS);
    /* Overwritten after the put. */
    fill(out + 2 * bytes, 0xee, bytes);
    for (int i = 3; i < 5; i++) {
        CHECK_EQUAL(mp_put_prepare(at(out + i * bytes), (int) bytes, NULL, other, i * bytes, &window, &reqs[i], 0),
                    MP_SUCCESS);
    }
    CHECK_EQUAL(mp_iput_post_all_on_stream(2, &reqs[3], stream), MP_SUCCESS);
    memset(host, 16 * test.rank + 5, bytes);
    CHECK_EQUAL(mp_put_prepare(host, (int) bytes, NULL, other, 5 * bytes, &window, &reqs[5], MP_PUT_INLINE), MP_SUCCESS);
    memset(host, 0xee, bytes);
    CHECK_EQUAL(mp_iput_post_on_stream(&reqs[5], stream), MP_SUCCESS);
    CHECK_EQUAL(mp_iput_on_stream(at(out + 6 * bytes), (int) bytes, NULL, other, 6 * bytes, &window, &unwaited,
                                  MP_PUT_NOWAIT, stream), MP_SUCCESS);
    CHECK(NULL == unwaited);
    CHECK_EQUAL(mp_wait_all(6, reqs), MP_SUCCESS);
    barrier();
    /* The last part comes by a get. */
    CHECK_EQUAL(mp_iget(at(memory + 7 * bytes), (int) bytes, NULL, other, 4 * bytes, &window, &reqs[7]), MP_SUCCESS);
    CHECK_EQUAL(mp_wait_on_stream(&reqs[7], stream), MP_SUCCESS);
    synchronize();
    CHECK_EQUAL(mp_wait(&reqs[7]), MP_SUCCESS);
    CHECK_EQUAL(mp_window_destroy(&window), MP_SUCCESS);
    CHECK(NULL == window);
    /* The put that nobody waits for is complete now. */
    for (int i = 0; i < 7; i++) {
        check_bytes(memory + i * bytes, bytes, 16 * other + i);
    }
    check_bytes(memory + 7 * bytes, bytes, 16 * test.rank + 4);
    free(host);
    CHECK_EQUAL(cuda.free(memory) | cuda.free(out), 0);
}

/* A send starts after the puts to its rank that the host or its stream posted before, or that another stream has passed,
 * though nobody waits for them. The last put ends after the others. */
static void sends_follow_puts(size_t bytes)
{
    enum { PARTS = 16, ROUNDS = 12 };
    device_pointer out = device_memory(PARTS * bytes);
    unsigned char *memory = calloc(PARTS, bytes), *want = malloc(PARTS * bytes);
    mp_request_t last, send, recv;
    mp_window_t window;
    char sent = 0, received = 0;
    CHECK(NULL != memory && NULL != want);
    CHECK_EQUAL(mp_window_create(memory, PARTS * bytes, &window), MP_SUCCESS);
    for (int round = 0; round < ROUNDS; round++) {
        const int puts = round % 3 != 0, sends = round % 3 == 1, waits = round / 3 % 2;
        fill(out, 16 * test.rank + round + 1, PARTS * bytes);
        synchronize();
        CHECK_EQUAL(mp_irecv(&received, 1, other, NULL, &recv), MP_SUCCESS);
        barrier();
        for (int i = 0; i < PARTS; i++) {
            const int flags = waits && PARTS - 1 == i ? 0 : MP_PUT_NOWAIT;
            CHECK_EQUAL(puts ? mp_iput_on_stream(at(out + i * bytes), (int) bytes, NULL, other, i * bytes, &window, &last,
                                                    flags, stream)
                                : mp_iput(at(out + i * bytes), (int) bytes, NULL, other, i * bytes, &window, &last, flags),
                        MP_SUCCESS);
        }
        if (waits) {
            CHECK_EQUAL(mp_wait(&last), MP_SUCCESS);
        }
        if (puts && !sends) {
            synchronize();
        }
        CHECK_EQUAL(sends ? mp_isend_on_stream(&sent, 1, other, NULL, &send, stream)
                            : mp_isend(&sent, 1, other, NULL, &send), MP_SUCCESS);
        CHECK_EQUAL(mp_wait(&recv), MP_SUCCESS);
        memset(want, 16 * other + round + 1, PARTS * bytes);
        CHECK_EQUAL(memcmp(memory, want, PARTS * bytes), 0);
        CHECK_EQUAL(mp_wait(&send), MP_SUCCESS);
        count_check();
        barrier();
    }
    CHECK_EQUAL(mp_window_destroy(&window), MP_SUCCESS);
    free(memory);
    free(want);
    CHECK_EQUAL(cuda.free(out), 0);
}

/* A stream waits for a word until exactly the condition holds. */
static void words(void)
{
    device_pointer done = device_memory(64);
    uint32_t *word = NULL;
    mp_reg_t reg;
    static const struct {
        int flags;
        uint32_t value, before, after;
    } cases[] = {
        {MP_WAIT_GEQ, 5, 4, 6}, {MP_WAIT_GEQ, 0xffffffff, 0xfffffffe, 3},
        {MP_WAIT_EQ, 5, 7, 5},  {MP_WAIT_AND, 4, 11, 6},
    };
    CHECK_EQUAL(posix_memalign((void **) &word, 4096, 4096), 0);
    CHECK_EQUAL(mp_register(word, 4096, &reg), MP_SUCCESS);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        __atomic_store_n(word, cases[i].before, __ATOMIC_RELEASE);
        CHECK_EQUAL(mp_wait32_on_stream(word, cases[i].value, cases[i].flags, stream), MP_SUCCESS);
        fill(done, (int) i + 1, 64);
        /* A message that comes meanwhile shows that time has passed. */
        barrier();
        CHECK_EQUAL(work.query(stream), NOT_READY);
        __atomic_store_n(word, cases[i].after, __ATOMIC_RELEASE);
        synchronize();
        check_bytes(done, 64, (int) i + 1);
        CHECK_EQUAL(mp_wait32(word, cases[i].value, cases[i].flags), MP_SUCCESS);
    }
    CHECK_EQUAL(mp_wait_dword_geq_on_stream(word, 1, stream), MP_SUCCESS);
    CHECK_EQUAL(mp_wait_dword_eq_on_stream(word, 6, stream), MP_SUCCESS);
    synchronize();
    CHECK_EQUAL(mp_deregister(&reg), MP_SUCCESS);
    free(word);
    CHECK_EQUAL(cuda.free(done), 0);
}

/* What is wrong is refused and starts nothing. */
static void errors(void)
{
    char byte = 0, four[4] = {0};
    device_pointer memory = device_memory(64);
    mp_request_t req = NULL, send = NULL;
    mp_desc_queue_t dq;
    mp_window_t window = NULL, none = NULL;
    mp_reg_t reg;
    uint32_t pageable = 0;
    int value;
    CHECK_EQUAL(mp_query_param(MP_PARAM_VERSION, &value), MP_SUCCESS);
    CHECK(MP_API_VERSION_COMPATIBLE((uint32_t) value));
    CHECK_EQUAL(mp_init(MPI_COMM_WORLD, &other, 1, MP_INIT_DEFAULT, 0), MP_FAILURE);
    CHECK_EQUAL(mp_register(four, sizeof four, &reg), MP_SUCCESS);
    CHECK_EQUAL(mp_isend(&byte, 1, 2, NULL, &req), MP_FAILURE);
    CHECK_EQUAL(mp_isend(&byte, -1, other, NULL, &req), MP_FAILURE);
    CHECK_EQUAL(mp_isend(NULL, 1, other, NULL, &req), MP_FAILURE);
    CHECK_EQUAL(mp_isend(four, 5, other, &reg, &req), MP_FAILURE);
    CHECK_EQUAL(mp_irecv_on_stream(four + 1, 4, other, &reg, &req, stream), MP_FAILURE);
    CHECK_EQUAL(mp_irecvv(NULL, 2, other, NULL, &req), MP_FAILURE);
    CHECK_EQUAL(mp_wait(&req), MP_FAILURE);
    CHECK_EQUAL(mp_wait_on_stream(&req, stream), MP_FAILURE);
    CHECK(NULL == req);
    CHECK_EQUAL(mp_send_prepare(&byte, 1, other, NULL, &send), MP_SUCCESS);
    CHECK_EQUAL(mp_wait(&send), MP_FAILURE);
    CHECK_EQUAL(mp_iput_post_on_stream(&send, stream), MP_FAILURE);
    CHECK_EQUAL(mp_desc_queue_alloc(&dq), MP_SUCCESS);
    CHECK_EQUAL(mp_desc_queue_add_wait_send(&dq, &send), MP_FAILURE);
    CHECK_EQUAL(mp_desc_queue_add_send(&dq, &send), MP_SUCCESS);
    CHECK_EQUAL(mp_desc_queue_add_send(&dq, &send), MP_FAILURE);
    CHECK_EQUAL(mp_desc_queue_post_on_stream(stream, &dq, 1), MP_FAILURE);
    CHECK_EQUAL(mp_desc_queue_post_on_stream(stream, &dq, 0), MP_SUCCESS);
    CHECK_EQUAL(mp_isend_post_on_stream(&send, stream), MP_FAILURE);
    CHECK_EQUAL(mp_irecv(&byte, 1, other, NULL, &req), MP_SUCCESS);
    CHECK_EQUAL(mp_wait(&req), MP_SUCCESS);
    CHECK_EQUAL(mp_wait(&send), MP_SUCCESS);
    CHECK_EQUAL(mp_desc_queue_free(&dq), MP_SUCCESS);
    CHECK_EQUAL(mp_desc_queue_free(&dq), MP_FAILURE);
    CHECK_EQUAL(mp_wait32(&pageable, 0, 3), MP_FAILURE);
    CHECK_EQUAL(mp_wait32(at(memory), 0, MP_WAIT_GEQ), MP_FAILURE);
    CHECK_EQUAL(mp_wait32_on_stream(&pageable, 0, MP_WAIT_GEQ, stream), MP_FAILURE);
    CHECK_EQUAL(mp_wait32_on_stream((uint32_t *) at(memory + 1), 0, MP_WAIT_GEQ, stream), MP_FAILURE);
    CHECK_EQUAL(mp_window_create(at(memory), 64, &window), MP_SUCCESS);
    CHECK_EQUAL(mp_desc_queue_alloc(&dq), MP_SUCCESS);
    CHECK_EQUAL(mp_put_prepare(four, 4, NULL, other, 0, &window, &send, MP_PUT_NOWAIT), MP_SUCCESS);
    CHECK_EQUAL(mp_desc_queue_add_send(&dq, &send), MP_SUCCESS);
    CHECK_EQUAL(mp_desc_queue_add_wait_send(&dq, &send), MP_FAILURE);
    CHECK_EQUAL(mp_desc_queue_post_on_stream(stream, &dq, 0), MP_SUCCESS);
    CHECK_EQUAL(mp_desc_queue_free(&dq), MP_SUCCESS);
    CHECK_EQUAL(mp_iput(four, 4, NULL, other, 0, &none, &req, 0), MP_FAILURE);
    CHECK_EQUAL(mp_iput(four, 4, NULL, other, 0, &window, &req, 4), MP_FAILURE);
    CHECK_EQUAL(mp_iput(at(memory), 4, NULL, other, 0, &window, &req, MP_PUT_INLINE), MP_FAILURE);
    /* The peer refuses what is outside of its window. */
    CHECK_EQUAL(mp_iput(four, 4, NULL, other, 61, &window, &req, 0), MP_SUCCESS);
    CHECK_EQUAL(mp_wait(&req), MP_FAILURE);
    CHECK(NULL == req);
    /* A message that is too long for its receive. */
    if (0 == test.rank) {
        CHECK_EQUAL(mp_isend(four, 4, other, NULL, &send), MP_SUCCESS);
        CHECK_EQUAL(mp_wait(&send), MP_SUCCESS);
    } else {
        CHECK_EQUAL(mp_irecv(&byte, 1, other, NULL, &req), MP_SUCCESS);
        CHECK_EQUAL(mp_wait_on_stream(&req, stream), MP_SUCCESS);
        synchronize();
        CHECK_EQUAL(mp_wait(&req), MP_FAILURE);
    }
    CHECK_EQUAL(mp_window_destroy(&window), MP_SUCCESS);
    CHECK_EQUAL(mp_window_destroy(&window), MP_FAILURE);
    CHECK_EQUAL(mp_deregister(&reg), MP_SUCCESS);
    CHECK_EQUAL(mp_deregister(&reg), MP_FAILURE);
    CHECK_EQUAL(cuda.free(memory), 0);
    count_check();
}

int main(int argc, char **argv)
{
    static const size_t sizes[] = {64, 5000, 300000};
    set_up(argc, argv, level_of(argc, argv));
    load_streams();
    other = 1 - test.rank;
    CHECK_EQUAL(work.create((void **) &stream, NON_BLOCKING), 0);
    CHECK_EQUAL(mp_isend(NULL, 0, other, NULL, &(mp_request_t){0}), MP_FAILURE);
    CHECK_EQUAL(mp_init(MPI_COMM_WORLD, &(int){2}, 1, MP_INIT_DEFAULT, 0), MP_FAILURE);
    /* What ended can begin again. */
    for (int again = 0; again < 2; again++) {
        CHECK_EQUAL(mp_init(MPI_COMM_WORLD, &other, 1, MP_INIT_DEFAULT, test.rank), MP_SUCCESS);
        on_the_host();
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            for (int when = 0; when < 3; when++) {
                ping_pong(sizes[i], when);
            }
            prepared(sizes[i]);
            one_sided(sizes[i]);
            sends_follow_puts(sizes[i]);
        }
        words();
        errors();
        mp_finalize();
    }
    CHECK_EQUAL(work.destroy(stream), 0);
    tear_down();
    return 0;
}
