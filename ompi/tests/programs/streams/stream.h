/* Streams of the device, and work on them, for tests of MPICH's stream extensions. */
#ifndef STREAM_H
#define STREAM_H

#include "../collectives/memory.h"

#include <cableway_mpix.h>

static struct {
    int (*create)(void **, unsigned);
    int (*destroy)(void *);
    int (*synchronize)(void *);
    int (*query)(void *);
    int (*fill)(device_pointer, unsigned char, size_t, void *);
    int (*copy)(device_pointer, device_pointer, size_t, void *);
} work;

enum { NOT_READY = 600, BLOCKING = 0, NON_BLOCKING = 1 };

static inline void load_streams(void)
{
    void *driver = open_driver();
#define WORK(field, name)                                                                                             \
    *(void **) &work.field = dlsym(driver, name);                                                                     \
    CHECK(NULL != work.field)
    WORK(create, "cuStreamCreate");
    WORK(destroy, "cuStreamDestroy_v2");
    WORK(synchronize, "cuStreamSynchronize");
    WORK(query, "cuStreamQuery");
    WORK(fill, "cuMemsetD8Async");
    WORK(copy, "cuMemcpyDtoDAsync_v2");
}

/* A stream of the device, MPI's stream made from it, and a communicator with it. */
struct lane {
    void *handle;
    MPIX_Stream stream;
    MPI_Comm comm;
};

static inline MPIX_Stream stream_of(void *handle)
{
    MPI_Info info;
    MPIX_Stream stream = MPIX_STREAM_NULL;
    CHECK_EQUAL(MPI_Info_create(&info), MPI_SUCCESS);
    CHECK_EQUAL(MPI_Info_set(info, "type", "cudaStream_t"), MPI_SUCCESS);
    CHECK_EQUAL(MPIX_Info_set_hex(info, "value", &handle, sizeof handle), MPI_SUCCESS);
    CHECK_EQUAL(MPIX_Stream_create(info, &stream), MPI_SUCCESS);
    CHECK(MPIX_STREAM_NULL != stream);
    CHECK_EQUAL(MPI_Info_free(&info), MPI_SUCCESS);
    return stream;
}

static inline void lane_open_as(struct lane *lane, unsigned flags)
{
    CHECK_EQUAL(work.create(&lane->handle, flags), 0);
    lane->stream = stream_of(lane->handle);
    CHECK_EQUAL(MPIX_Stream_comm_create(MPI_COMM_WORLD, lane->stream, &lane->comm), MPI_SUCCESS);
}

static inline void lane_open(struct lane *lane)
{
    lane_open_as(lane, NON_BLOCKING);
}

static inline void lane_close(struct lane *lane)
{
    CHECK_EQUAL(work.synchronize(lane->handle), 0);
    CHECK_EQUAL(MPI_Comm_free(&lane->comm), MPI_SUCCESS);
    CHECK_EQUAL(MPIX_Stream_free(&lane->stream), MPI_SUCCESS);
    CHECK(MPIX_STREAM_NULL == lane->stream);
    CHECK_EQUAL(work.destroy(lane->handle), 0);
}

static inline device_pointer device_memory(size_t bytes)
{
    device_pointer pointer;
    CHECK_EQUAL(cuda.alloc(&pointer, bytes), 0);
    return pointer;
}

static inline void *at(device_pointer pointer)
{
    return (void *) (uintptr_t) pointer;
}

/* Checks that every byte of device memory has a value. */
static inline void check_bytes(device_pointer pointer, size_t bytes, int value)
{
    unsigned char *got = malloc(bytes);
    CHECK(NULL != got);
    CHECK_EQUAL(cuda.to_host(got, pointer, bytes), 0);
    for (size_t i = 0; i < bytes; i++) {
        CHECK_EQUAL(got[i], value);
    }
    free(got);
    count_check();
}

static inline void check_status(const MPI_Status *status, int source, int tag, int bytes)
{
    int count;
    CHECK_EQUAL(status->MPI_SOURCE, source);
    CHECK_EQUAL(status->MPI_TAG, tag);
    CHECK_EQUAL(MPI_Get_count(status, MPI_BYTE, &count), MPI_SUCCESS);
    CHECK_EQUAL(count, bytes);
    count_check();
}

static inline int level_of(int argc, char **argv)
{
    return argc > 1 && 0 == strcmp(argv[1], "multiple") ? MPI_THREAD_MULTIPLE
           : argc > 1 && 0 == strcmp(argv[1], "serialized") ? MPI_THREAD_SERIALIZED
                                                             : MPI_THREAD_SINGLE;
}

#endif
