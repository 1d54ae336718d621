/* Two processes use LibGDSync's calls on host and device memory. The first argument is the thread level: single or multiple.
 * CABLEWAY_CUDA_LIBDIR names the driver. */
#include "streams/stream.h"

#include <errno.h>
#include <gdsync.h>

enum { FLAGS = GDS_MEMORY_GPU, BATCH = 4 };

static int other;
static CUstream stream;
/* Words that the host and streams use. */
static gds_mem_desc_t shared;
static uint32_t *word;

static void barrier(void)
{
    CHECK_EQUAL(MPI_Barrier(MPI_COMM_WORLD), MPI_SUCCESS);
}

static void synchronize(void)
{
    CHECK_EQUAL(work.synchronize(stream), 0);
}

static uint32_t load_word(int index)
{
    return __atomic_load_n(&word[index], __ATOMIC_ACQUIRE);
}

static void store_word(int index, uint32_t value)
{
    __atomic_store_n(&word[index], value, __ATOMIC_RELEASE);
}

static gds_descriptor_t wait_value(uint32_t *ptr, uint32_t value, gds_wait_cond_flag_t condition)
{
    gds_descriptor_t descriptor = {.tag = GDS_TAG_WAIT_VALUE32};
    CHECK_EQUAL(gds_prepare_wait_value32(&descriptor.wait32, ptr, value, condition, FLAGS | GDS_WAIT_POST_FLUSH), 0);
    return descriptor;
}

static gds_descriptor_t write_value(uint32_t *ptr, uint32_t value)
{
    gds_descriptor_t descriptor = {.tag = GDS_TAG_WRITE_VALUE32};
    CHECK_EQUAL(gds_prepare_write_value32(&descriptor.write32, ptr, value, GDS_MEMORY_HOST | GDS_WRITE_PRE_BARRIER), 0);
    return descriptor;
}

static gds_descriptor_t write_bytes(void *dest, const void *src, size_t count)
{
    gds_descriptor_t descriptor = {.tag = GDS_TAG_WRITE_MEMORY};
    CHECK_EQUAL(gds_prepare_write_memory(&descriptor.writemem, dest, src, count,
                                         FLAGS | GDS_WRITE_MEMORY_POST_BARRIER_SYS | GDS_WRITE_MEMORY_PRE_BARRIER_SYS), 0);
    return descriptor;
}

static void post(size_t count, gds_descriptor_t *descriptors)
{
    CHECK_EQUAL(gds_stream_post_descriptors(stream, count, descriptors, 0), 0);
}

/* A stream waits for a word until exactly the condition holds: on the host, and on the device. */
static void conditions(void)
{
    static const struct {
        gds_wait_cond_flag_t condition;
        uint32_t value, before, after;
    } cases[] = {
        {GDS_WAIT_COND_GEQ, 5, 4, 6},
        {GDS_WAIT_COND_GEQ, 0xffffffff, 0xfffffffe, 3},
        {GDS_WAIT_COND_EQ, 5, 7, 5},
        {GDS_WAIT_COND_AND, 4, 11, 6},
        {GDS_WAIT_COND_NOR, 0xffff0000, 0x0000ffff, 0x0000fffe},
    };
    device_pointer memory = device_memory(64);
    uint32_t *there = at(memory);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        gds_descriptor_t host[2] = {wait_value(&word[0], cases[i].value, cases[i].condition), write_value(&word[1], 77)};
        store_word(0, cases[i].before);
        store_word(1, 0);
        post(2, host);
        /* A message that comes meanwhile shows that time has passed. */
        barrier();
        CHECK_EQUAL(work.query(stream), NOT_READY);
        CHECK_EQUAL(load_word(1), 0);
        store_word(0, cases[i].after);
        synchronize();
        CHECK_EQUAL(load_word(1), 77);
        /* The device's word is written by the stream itself, before the wait. */
        gds_descriptor_t device[3] = {write_value(there, cases[i].after),
                                      wait_value(there, cases[i].value, cases[i].condition), write_value(&word[1], 78)};
        post(3, device);
        synchronize();
        CHECK_EQUAL(load_word(1), 78);
        /* The host finds the same. */
        CHECK_EQUAL(gds_post_descriptors(1, host, 0), 0);
        count_check();
    }
    CHECK_EQUAL(cuda.free(memory), 0);
}

/* Bytes are written to device memory, to registered and to pageable memory of the host, also those that are not whole words
 * and those that are many. The source is overwritten as soon as the call has returned. */
static void bytes(void)
{
    static const size_t shifts[] = {0, 4, 1}, counts[] = {4, 20, 1024, 7, 1028, 70000};
    enum { MOST = 70000 + 64 };
    device_pointer memory = device_memory(MOST);
    unsigned char *pageable = malloc(MOST), *source = malloc(MOST), *want = malloc(MOST), *got = malloc(MOST);
    unsigned char *registered = (unsigned char *) &word[16];
    CHECK(NULL != pageable && NULL != source && NULL != want && NULL != got);
    for (size_t i = 0; i < sizeof shifts / sizeof *shifts; i++) {
        for (size_t j = 0; j < sizeof counts / sizeof *counts; j++) {
            const size_t shift = shifts[i], count = counts[j];
            unsigned char *host = count > 2000 ? pageable : registered;
            CHECK_EQUAL(work.fill(memory, 0xee, MOST, stream), 0);
            synchronize();
            memset(pageable, 0xee, MOST);
            memset(registered, 0xee, 2048);
            memset(want, 0xee, MOST);
            for (size_t k = 0; k < count; k++) {
                source[k] = want[shift + k] = (unsigned char) mix(k, j, i);
            }
            store_word(0, 0);
            gds_descriptor_t all[4] = {wait_value(&word[0], 1, GDS_WAIT_COND_EQ), write_bytes(at(memory + shift), source, count),
                                       write_bytes(host + shift, source, count), write_bytes(pageable + shift, source, count)};
            post(4, all);
            memset(source, 0xdd, count);
            CHECK_EQUAL(host[shift], 0xee);
            store_word(0, 1);
            synchronize();
            CHECK_EQUAL(cuda.to_host(got, memory, MOST), 0);
            CHECK_EQUAL(memcmp(got, want, MOST), 0);
            CHECK_EQUAL(memcmp(host, want, shift + count + 4), 0);
            CHECK_EQUAL(memcmp(pageable, want, MOST), 0);
            count_check();
        }
    }
    free(pageable);
    free(source);
    free(want);
    free(got);
    CHECK_EQUAL(cuda.free(memory), 0);
}

/* One call posts descriptors of every tag, and the stream performs them in their order. */
static void mixed(size_t size)
{
    enum { COUNT = 8 };
    device_pointer out = device_memory(2 * size), in = device_memory(2 * size), check = device_memory(size);
    unsigned char *source = malloc(size);
    mp_request_t sends[2], recvs[2];
    gds_send_request_t send[2];
    gds_wait_request_t sent[2], received[2];
    CHECK(NULL != source);
    memset(source, 50 + test.rank, size);
    CHECK_EQUAL(work.fill(check, 0, size, stream), 0);
    for (int i = 0; i < 2; i++) {
        CHECK_EQUAL(work.fill(out + i * size, (unsigned char) (10 * i + test.rank + 1), size, stream), 0);
        CHECK_EQUAL(work.fill(in + i * size, 0, size, stream), 0);
    }
    synchronize();
    for (int i = 0; i < 2; i++) {
        CHECK_EQUAL(mp_irecv(at(in + i * size), (int) size, other, NULL, &recvs[i]), MP_SUCCESS);
        CHECK_EQUAL(mp_send_prepare(at(out + i * size), (int) size, other, NULL, &sends[i]), MP_SUCCESS);
        CHECK_EQUAL(gds_prepare_mp_send(&sends[i], &send[i]), 0);
        CHECK_EQUAL(gds_prepare_mp_wait(&sends[i], &sent[i], 0), 0);
        CHECK_EQUAL(gds_prepare_mp_wait(&recvs[i], &received[i], 0), 0);
    }
    for (int i = 0; i < 4; i++) {
        store_word(i, 0);
    }
    /* The second send has the bytes that the stream writes after the first one. */
    gds_descriptor_t all[COUNT] = {
        wait_value(&word[0], 1, GDS_WAIT_COND_GEQ),
        {.tag = GDS_TAG_SEND, .send = &send[0]},
        {.tag = GDS_TAG_WAIT, .wait = &sent[0]},
        write_bytes(at(out + size), source, size),
        {.tag = GDS_TAG_SEND, .send = &send[1]},
        {.tag = GDS_TAG_WAIT, .wait = &received[0]},
        {.tag = GDS_TAG_WAIT, .wait = &received[1]},
        write_value(&word[1], 9),
    };
    post(COUNT, all);
    barrier();
    CHECK_EQUAL(work.query(stream), NOT_READY);
    CHECK_EQUAL(load_word(1), 0);
    CHECK_EQUAL(mp_progress_all(2, sends), 0);
    store_word(0, 1);
    CHECK_EQUAL(mp_wait32(&word[1], 9, MP_WAIT_EQ), MP_SUCCESS);
    synchronize();
    check_bytes(in, size, 1 + other);
    check_bytes(in + size, size, 50 + other);
    CHECK_EQUAL(mp_wait_all(2, sends), MP_SUCCESS);
    CHECK_EQUAL(mp_wait_all(2, recvs), MP_SUCCESS);
    free(source);
    CHECK_EQUAL(cuda.free(out) | cuda.free(in) | cuda.free(check), 0);
}

/* Sends and waits are posted without descriptors: one, and several together. */
static void requests(size_t size)
{
    device_pointer out = device_memory(BATCH * size), in = device_memory(BATCH * size);
    mp_request_t sends[BATCH], recvs[BATCH];
    gds_send_request_t send[BATCH];
    gds_wait_request_t sent[BATCH], received[BATCH];
    for (int i = 0; i < BATCH; i++) {
        CHECK_EQUAL(mp_irecv(at(in + i * size), (int) size, other, NULL, &recvs[i]), MP_SUCCESS);
        CHECK_EQUAL(mp_send_prepare(at(out + i * size), (int) size, other, NULL, &sends[i]), MP_SUCCESS);
        CHECK_EQUAL(work.fill(out + i * size, (unsigned char) (7 * i + test.rank), size, stream), 0);
        CHECK_EQUAL(gds_prepare_mp_send(&sends[i], &send[i]), 0);
        CHECK_EQUAL(gds_prepare_mp_wait(&sends[i], &sent[i], 0), 0);
        CHECK_EQUAL(gds_prepare_mp_wait(&recvs[i], &received[i], 0), 0);
    }
    CHECK_EQUAL(gds_stream_post_send(stream, &send[0]), 0);
    CHECK_EQUAL(gds_stream_post_wait_cq(stream, &received[0]), 0);
    CHECK_EQUAL(gds_stream_post_send_all(stream, BATCH - 1, &send[1]), 0);
    CHECK_EQUAL(gds_stream_post_wait_cq_all(stream, BATCH - 1, &received[1]), 0);
    CHECK_EQUAL(gds_stream_post_wait_cq_all(stream, BATCH, sent), 0);
    /* Overwritten after the stream has waited. */
    CHECK_EQUAL(work.fill(out, 0xee, BATCH * size, stream), 0);
    synchronize();
    for (int i = 0; i < BATCH; i++) {
        check_bytes(in + i * size, size, 7 * i + other);
    }
    CHECK_EQUAL(mp_wait_all(BATCH, sends), MP_SUCCESS);
    CHECK_EQUAL(mp_wait_all(BATCH, recvs), MP_SUCCESS);
    CHECK_EQUAL(cuda.free(out) | cuda.free(in), 0);
}

/* The host performs descriptors. */
static void on_the_host(void)
{
    int out = 40 + test.rank, in = 0, copied = 0;
    mp_request_t send, recv;
    gds_send_request_t sending;
    gds_wait_request_t sent, received;
    CHECK_EQUAL(mp_irecv(&in, sizeof in, other, NULL, &recv), MP_SUCCESS);
    CHECK_EQUAL(mp_send_prepare(&out, sizeof out, other, NULL, &send), MP_SUCCESS);
    CHECK_EQUAL(gds_prepare_mp_send(&send, &sending), 0);
    CHECK_EQUAL(gds_prepare_mp_wait(&send, &sent, 0), 0);
    CHECK_EQUAL(gds_prepare_mp_wait(&recv, &received, 0), 0);
    gds_descriptor_t all[6] = {
        write_value(&word[2], 3),
        wait_value(&word[2], 3, GDS_WAIT_COND_EQ),
        {.tag = GDS_TAG_SEND, .send = &sending},
        {.tag = GDS_TAG_WAIT, .wait = &sent},
        {.tag = GDS_TAG_WAIT, .wait = &received},
        write_bytes(&copied, &in, sizeof in),
    };
    CHECK_EQUAL(gds_post_descriptors(6, all, 0), 0);
    CHECK_EQUAL(copied, 40 + other);
    CHECK_EQUAL(mp_wait(&send), MP_SUCCESS);
    CHECK_EQUAL(mp_wait(&recv), MP_SUCCESS);
    count_check();
}

static void wrong_words(device_pointer memory)
{
    static uint32_t unregistered;
    gds_wait_value32_t wait;
    gds_write_value32_t write;
    gds_write_memory_t writemem;
    uint8_t byte = 0;
    uint32_t *odd = (uint32_t *) ((char *) word + 2);
    CHECK_EQUAL(gds_prepare_wait_value32(NULL, word, 0, GDS_WAIT_COND_EQ, FLAGS), EINVAL);
    CHECK_EQUAL(gds_prepare_wait_value32(&wait, NULL, 0, GDS_WAIT_COND_EQ, FLAGS), EINVAL);
    CHECK_EQUAL(gds_prepare_wait_value32(&wait, odd, 0, GDS_WAIT_COND_EQ, FLAGS), EINVAL);
    CHECK_EQUAL(gds_prepare_wait_value32(&wait, word, 0, (gds_wait_cond_flag_t) 4, FLAGS), EINVAL);
    CHECK_EQUAL(gds_prepare_wait_value32(&wait, word, 0, GDS_WAIT_COND_EQ, 0), EINVAL);
    CHECK_EQUAL(gds_prepare_wait_value32(&wait, word, 0, GDS_WAIT_COND_EQ, FLAGS | GDS_WRITE_PRE_BARRIER), EINVAL);
    CHECK_EQUAL(gds_prepare_wait_value32(&wait, word, 0, GDS_WAIT_COND_EQ, GDS_MEMORY_IO), EOPNOTSUPP);
    CHECK_EQUAL(gds_prepare_write_value32(NULL, word, 0, FLAGS), EINVAL);
    CHECK_EQUAL(gds_prepare_write_value32(&write, odd, 0, FLAGS), EINVAL);
    CHECK_EQUAL(gds_prepare_write_value32(&write, word, 0, GDS_MEMORY_GPU | GDS_MEMORY_HOST), EINVAL);
    CHECK_EQUAL(gds_prepare_write_memory(NULL, &byte, &byte, 1, FLAGS), EINVAL);
    CHECK_EQUAL(gds_prepare_write_memory(&writemem, NULL, &byte, 1, FLAGS), EINVAL);
    CHECK_EQUAL(gds_prepare_write_memory(&writemem, &byte, NULL, 1, FLAGS), EINVAL);
    CHECK_EQUAL(gds_prepare_write_memory(&writemem, &byte, &byte, 1, FLAGS | GDS_WAIT_POST_FLUSH), EINVAL);
    gds_descriptor_t wrong[1] = {wait_value(&unregistered, 0, GDS_WAIT_COND_GEQ)};
    CHECK_EQUAL(gds_stream_post_descriptors(stream, 1, wrong, 0), EFAULT);
    wrong[0] = write_value(&unregistered, 1);
    CHECK_EQUAL(gds_stream_post_descriptors(stream, 1, wrong, 0), EFAULT);
    CHECK_EQUAL(unregistered, 0);
    wrong[0] = write_bytes(&byte, at(memory), 1);
    CHECK_EQUAL(gds_stream_post_descriptors(stream, 1, wrong, 0), EINVAL);
    wrong[0] = write_value(at(memory), 1);
    CHECK_EQUAL(gds_post_descriptors(1, wrong, 0), EFAULT);
    wrong[0] = (gds_descriptor_t){.tag = (gds_tag_t) 5};
    CHECK_EQUAL(gds_stream_post_descriptors(stream, 1, wrong, 0), EINVAL);
    CHECK_EQUAL(gds_post_descriptors(1, wrong, 0), EINVAL);
    wrong[0] = write_value(&word[0], 1);
    CHECK_EQUAL(gds_stream_post_descriptors(stream, 1, wrong, 1), EINVAL);
    CHECK_EQUAL(gds_stream_post_descriptors(stream, 1, NULL, 0), EINVAL);
    CHECK_EQUAL(gds_stream_post_descriptors(stream, 0, NULL, 0), 0);
    count_check();
}

static void wrong_requests(void)
{
    uint8_t byte = 0;
    mp_request_t none = NULL, send, recv;
    gds_send_request_t sending, foreign = {0};
    gds_wait_request_t waiting;
    CHECK_EQUAL(gds_prepare_mp_send(&none, &sending), EINVAL);
    CHECK_EQUAL(gds_prepare_mp_send(NULL, &sending), EINVAL);
    CHECK_EQUAL(mp_send_prepare(&byte, 1, other, NULL, &send), MP_SUCCESS);
    CHECK_EQUAL(gds_prepare_mp_send(&send, NULL), EINVAL);
    CHECK_EQUAL(gds_prepare_mp_send(&send, &sending), 0);
    CHECK_EQUAL(gds_prepare_mp_wait(&send, &waiting, 1), EINVAL);
    CHECK_EQUAL(gds_prepare_mp_wait(&send, &waiting, 0), 0);
    CHECK_EQUAL(mp_irecv(&byte, 1, other, NULL, &recv), MP_SUCCESS);
    CHECK_EQUAL(gds_prepare_mp_send(&recv, &foreign), EINVAL);
    gds_descriptor_t all[2] = {{.tag = GDS_TAG_SEND, .send = &foreign}, {.tag = GDS_TAG_SEND, .send = &sending}};
    CHECK_EQUAL(gds_stream_post_descriptors(stream, 2, all, 0), EINVAL);
    all[0].send = NULL;
    CHECK_EQUAL(gds_stream_post_descriptors(stream, 2, all, 0), EINVAL);
    /* A wait is no send, a send cannot be posted twice, and none was posted before this wait. */
    all[0].send = (gds_send_request_t *) &waiting;
    CHECK_EQUAL(gds_stream_post_descriptors(stream, 2, all, 0), EINVAL);
    all[0].send = &sending;
    CHECK_EQUAL(gds_stream_post_descriptors(stream, 2, all, 0), EINVAL);
    all[0] = (gds_descriptor_t){.tag = GDS_TAG_WAIT, .wait = &waiting};
    CHECK_EQUAL(gds_stream_post_descriptors(stream, 2, all, 0), EINVAL);
    CHECK_EQUAL(gds_stream_post_wait_cq(stream, &waiting), EINVAL);
    CHECK_EQUAL(gds_stream_post_send_all(stream, -1, &sending), EINVAL);
    CHECK_EQUAL(gds_stream_post_send(stream, NULL), EINVAL);
    CHECK_EQUAL(gds_stream_post_send(stream, &sending), 0);
    CHECK_EQUAL(gds_stream_post_send(stream, &sending), EINVAL);
    CHECK_EQUAL(gds_stream_post_wait_cq(stream, &waiting), 0);
    synchronize();
    CHECK_EQUAL(mp_wait(&send), MP_SUCCESS);
    CHECK_EQUAL(mp_wait(&recv), MP_SUCCESS);
    CHECK_EQUAL(gds_stream_post_wait_cq(stream, &waiting), EINVAL);
    count_check();
}

/* What only LibGDSync's network card can do. */
static void absent(void)
{
    gds_mem_desc_t memory;
    gds_wait_request_t waiting;
    gds_send_request_t sending;
    CHECK(NULL == gds_create_qp(NULL, NULL, NULL, 0, GDS_CREATE_QP_DEFAULT));
    CHECK_EQUAL(gds_destroy_qp(NULL), EOPNOTSUPP);
    CHECK_EQUAL(gds_poll_cq(NULL, 0, NULL), EOPNOTSUPP);
    CHECK_EQUAL(gds_post_send(NULL, NULL, NULL), EOPNOTSUPP);
    CHECK_EQUAL(gds_post_recv(NULL, NULL, NULL), EOPNOTSUPP);
    CHECK_EQUAL(gds_stream_wait_cq(stream, NULL, 0), EOPNOTSUPP);
    CHECK_EQUAL(gds_stream_queue_send(stream, NULL, NULL, NULL), EOPNOTSUPP);
    CHECK_EQUAL(gds_prepare_send(NULL, NULL, NULL, &sending), EOPNOTSUPP);
    CHECK_EQUAL(gds_prepare_wait_cq(NULL, &waiting, 0), EOPNOTSUPP);
    CHECK_EQUAL(gds_post_wait_cq(NULL, &waiting, 0), EOPNOTSUPP);
    CHECK_EQUAL(gds_alloc_mapped_memory(&memory, 64, GDS_MEMORY_GPU), EOPNOTSUPP);
    CHECK_EQUAL(gds_alloc_mapped_memory(&memory, 64, 0), EINVAL);
    CHECK_EQUAL(gds_alloc_mapped_memory(NULL, 64, GDS_MEMORY_HOST), EINVAL);
    CHECK_EQUAL(gds_alloc_mapped_memory(&memory, SIZE_MAX, GDS_MEMORY_HOST), EINVAL);
    count_check();
}

int main(int argc, char **argv)
{
    static const size_t sizes[] = {64, 5000, 300000};
    int version = 0;
    set_up(argc, argv, level_of(argc, argv));
    load_streams();
    other = 1 - test.rank;
    CHECK_EQUAL(work.create((void **) &stream, NON_BLOCKING), 0);
    CHECK_EQUAL(gds_query_param(GDS_PARAM_VERSION, &version), 0);
    CHECK(GDS_API_VERSION_COMPATIBLE((unsigned) version));
    CHECK_EQUAL(gds_alloc_mapped_memory(&shared, 8192, GDS_MEMORY_HOST), EIO);
    CHECK_EQUAL(mp_init(MPI_COMM_WORLD, &other, 1, MP_INIT_DEFAULT, test.rank), MP_SUCCESS);
    CHECK_EQUAL(gds_alloc_mapped_memory(&shared, 8192, GDS_MEMORY_HOST), 0);
    word = shared.h_ptr;
    CHECK_EQUAL(shared.d_ptr, (uintptr_t) word);
    CHECK(8192 <= shared.alloc_size && 0 == word[0] && 0 == word[2047]);
    conditions();
    bytes();
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        mixed(sizes[i]);
        requests(sizes[i]);
    }
    on_the_host();
    device_pointer memory = device_memory(64);
    wrong_words(memory);
    CHECK_EQUAL(cuda.free(memory), 0);
    wrong_requests();
    absent();
    CHECK_EQUAL(gds_free_mapped_memory(&shared), 0);
    CHECK_EQUAL(gds_free_mapped_memory(&shared), EINVAL);
    mp_finalize();
    CHECK_EQUAL(work.destroy(stream), 0);
    tear_down();
    return 0;
}
