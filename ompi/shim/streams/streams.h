/* Messages in the order of a stream: MPICH's stream extensions, for libcableway_mpix.so. */
#ifndef CABLEWAY_STREAMS_H
#define CABLEWAY_STREAMS_H

#include "component.h"

#include "../mpix.h"

/* --- implemented in Rust: ompi/src/streams --- */

enum cableway_stream_kind { CABLEWAY_CUDA_STREAM = 0, CABLEWAY_HIP_STREAM = 1 };

/* The arguments of a message. `message` is set if it exists afterwards, which may also be so after an error.
 * shim_stream_completed is then called once it is over. Until then the buffer, the status, the communicator and the
 * layout stay valid. */
struct cableway_stream_call {
    void *communicator;
    struct cableway_buffer buffer;
    int32_t peer, tag;
    bool receive;
    bool wait; /* the stream waits for it */
    void *owner;
    void *status; /* filled before the stream goes on; NULL for none */
    void *message;
};

/* Returns an enum cableway_code, as the following functions do. The first call lets a second thread into the engine. */
int cableway_stream_create(int kind, uintptr_t handle, void **stream);
void cableway_stream_free(void *stream);
int cableway_stream_start(const void *stream, struct cableway_stream_call *call);
/* Makes the stream wait for messages, and fills their statuses before it goes on. */
int cableway_stream_wait(const void *stream, void *const *messages, void *const *statuses, size_t count);
/* The program has got the error of the message. */
void cableway_stream_message_told(const void *message);
void cableway_stream_message_cancel(const void *message);
void cableway_stream_message_free(void *message);

/* --- implemented by the shim --- */

/* Called on a thread of the program. */
void shim_stream_completed(void *owner, const struct cableway_status *result);
/* Called on any thread, also on one that Open MPI does not know. */
void shim_stream_status(void *status, const struct cableway_status *result);
/* Makes Open MPI's locks and atomic operations real, and has waits go through the engine. */
void shim_use_threads(void);
const struct cableway_mpix *shim_mpix(void);

/* --- within the shim --- */

struct cableway_mpix_stream {
    void *engine;                  /* NULL if it is no stream of a device */
    volatile int32_t communicators; /* that it is attached to */
    volatile int32_t references;   /* the program's, those of communicators and of messages */
};

void cableway_mpix_stream_release(MPIX_Stream stream);
/* Returns the stream on which a communicator's messages are enqueued, or NULL and a reason. */
MPIX_Stream cableway_mpix_stream_of(ompi_communicator_t *communicator, const char **reason);
/* Calls the error handler of a communicator, or MPI_COMM_WORLD's if that is NULL, and returns the code. */
int cableway_mpix_failed(ompi_communicator_t *communicator, int code, const char *call);

int cableway_mpix_stream_create(void *info, MPIX_Stream *stream);
int cableway_mpix_stream_free(MPIX_Stream *stream);
int cableway_mpix_info_set_hex(void *info, const char *key, const void *value, int size);
int cableway_mpix_communicator_create(const char *call, void *communicator, int count, const MPIX_Stream *streams,
                                      bool multiplex, void **out);
int cableway_mpix_communicator_stream(void *communicator, int index, MPIX_Stream *stream);
int cableway_mpix_enqueue(const char *call, const struct cableway_mpix_call *arguments);
int cableway_mpix_wait(const char *call, int64_t count, void **requests, void *statuses);

#endif
