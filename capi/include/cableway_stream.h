/*
 * Messages in the order of a stream of the program. cableway.h includes this file, through cableway_one_sided.h.
 * docs/streams.md says what is ordered with what.
 *
 * The program makes the stream: a CUstream or cudaStream_t, or a hipStream_t for AMD's devices. Functions that add to it
 * return at once, as launches of kernels do. What they start begins when the stream gets there. The program keeps the memory
 * of a call in place until the stream has passed the call and the message is over. Meanwhile only earlier and later work of
 * the stream uses it. If a message fails after its call has returned, the next call on the stream returns the error and adds
 * nothing.
 *
 * All functions may be called from any thread. None of them is for handlers of active messages.
 */
#ifndef CABLEWAY_STREAM_H
#define CABLEWAY_STREAM_H

#include "cableway.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A stream of the program, as the library knows it. */
typedef struct cableway_stream cableway_stream;
/* A send or receive that is described once and posted on a stream many times. */
typedef struct cableway_prepared cableway_prepared;

/* Whose stream it is. */
enum cableway_vendor {
    CABLEWAY_VENDOR_NVIDIA = 1,
    CABLEWAY_VENDOR_AMD = 2
};

/* When a stream that waits for a word goes on. */
enum cableway_wait_condition {
    CABLEWAY_WAIT_GREATER_EQUAL = 1, /* word - value, with wrap-around, is not negative */
    CABLEWAY_WAIT_EQUAL = 2,
    CABLEWAY_WAIT_AND = 3,           /* word & value is not 0 */
    CABLEWAY_WAIT_NOR = 4            /* word | value has a bit that is not set */
};

/*
 * Describes a stream, which exists until cableway_stream_free. A default stream means that of the thread's current context.
 * The first one starts a thread, which sleeps while no stream has anything to do. Fails with CABLEWAY_ERR_DEVICE if the
 * driver is not loaded or has no operations on words in streams.
 */
int cableway_stream_create(cableway_world *world, int vendor, void *stream, cableway_stream **made);
/* Waits as cableway_stream_finish does, and ends the description. Free prepared operations before. */
int cableway_stream_free(cableway_stream **stream);
/*
 * Waits on the calling thread until the stream has passed all calls so far and all their messages are over. Returns the
 * error of a message that no one was told.
 */
int cableway_stream_finish(cableway_stream *stream);
/* Returns the error of an earlier message that no one was told, without waiting. */
int cableway_stream_check(cableway_stream *stream);

/* The stream's later work begins when the buffer can be reused, or holds the message. */
int cableway_stream_send(const void *buffer, size_t count, const cableway_datatype *datatype, int to, int tag,
                         cableway_communicator *communicator, cableway_stream *stream);
int cableway_stream_recv(void *buffer, size_t count, const cableway_datatype *datatype, int source, int tag,
                         cableway_communicator *communicator, cableway_stream *stream);
/*
 * The stream goes on at once. The request goes to cableway_stream_waitall, or to the functions of cableway.h, which wait on
 * the calling thread.
 */
int cableway_stream_isend(const void *buffer, size_t count, const cableway_datatype *datatype, int to, int tag,
                          cableway_communicator *communicator, cableway_stream *stream, cableway_request **request);
int cableway_stream_irecv(void *buffer, size_t count, const cableway_datatype *datatype, int source, int tag,
                          cableway_communicator *communicator, cableway_stream *stream, cableway_request **request);
/*
 * Makes the stream wait until messages are over that any stream has started, and ends their requests: stores NULL in their
 * places. NULL requests have no effect. Other requests are CABLEWAY_ERR_ARGUMENT.
 */
int cableway_stream_waitall(size_t count, cableway_request **requests, cableway_stream *stream);

/*
 * Has puts of this stream to registered memory of another process made by the stream alone, if that is possible, and stores
 * whether it is. Maps the memory, so call it before streams have work. Map the memory of signals, too.
 */
int cableway_stream_map(const cableway_remote_key *key, cableway_stream *stream, int *alone);
/* As cableway_put and cableway_put_signal. The stream's later work begins when the data and the signal are there. */
int cableway_stream_put(const void *buffer, size_t bytes, const cableway_remote_key *key, uint64_t offset,
                        cableway_stream *stream);
int cableway_stream_put_signal(const void *buffer, size_t bytes, const cableway_remote_key *key, uint64_t offset,
                               const cableway_remote_key *signal_key, uint64_t signal_offset, int update, uint64_t value,
                               cableway_stream *stream);
/*
 * Makes the stream wait until the word of 8 bytes at `offset` has at least this value, with wrap-around: a signal of
 * process `from`, a rank of the job. The memory stays registered until the stream has passed the call. If the process is
 * gone, the stream goes on.
 */
int cableway_stream_wait_signal(cableway_registration *registration, uint64_t offset, uint64_t value, int from,
                                cableway_stream *stream);

/*
 * Write a word, after all earlier work of the stream, and wait for one. The address is aligned, and that of device memory or
 * of registered host memory as the device sees it. Others access the word atomically.
 */
int cableway_stream_write_value32(void *address, uint32_t value, cableway_stream *stream);
int cableway_stream_write_value64(void *address, uint64_t value, cableway_stream *stream);
int cableway_stream_wait_value32(void *address, uint32_t value, int condition, cableway_stream *stream);
int cableway_stream_wait_value64(void *address, uint64_t value, int condition, cableway_stream *stream);

/*
 * Prepare a send and a receive. They match in the order in which they are prepared, by communicator and tag, and match no
 * other messages. There are no wildcards. Both return at once. The buffer stays in place until cableway_prepared_free.
 */
int cableway_stream_prepare_send(const void *buffer, size_t count, const cableway_datatype *datatype, int to, int tag,
                                 cableway_communicator *communicator, cableway_stream *stream,
                                 cableway_prepared **made);
int cableway_stream_prepare_recv(void *buffer, size_t count, const cableway_datatype *datatype, int source, int tag,
                                 cableway_communicator *communicator, cableway_stream *stream,
                                 cableway_prepared **made);
/*
 * Waits until the other process has prepared its side, and stores whether the two streams move the data alone. Only such
 * operations can be captured into a graph. Call it before streams have work; the first post does the same.
 */
int cableway_prepared_agree(cableway_prepared *prepared, int *alone);
/*
 * Posts operations that were prepared on this stream, in their order. The n-th post of the send belongs to the n-th post of
 * the receive. A stream that captures a graph takes the posts into it; each launch of the graph then posts once.
 */
int cableway_stream_post(size_t count, cableway_prepared *const *prepared, cableway_stream *stream);
/* Waits until the stream has passed all posts, and ends the operation. */
int cableway_prepared_free(cableway_prepared **prepared);

#ifdef __cplusplus
}
#endif

#endif
