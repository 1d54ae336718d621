/* Messages in the order of a stream: MPICH's stream extensions, for libcableway_mpix.so. */
#ifndef CABLEWAY_STREAMS_H
#define CABLEWAY_STREAMS_H

#include "shim.h"

#include "../collectives/described.h"
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
void cableway_stream_retire(const void *stream);
void cableway_stream_free(void *stream);
int cableway_stream_start(const void *stream, struct cableway_stream_call *call);
/* Makes the stream wait for messages, and fills their statuses before it goes on. */
int cableway_stream_wait(const void *stream, void *const *messages, void *const *statuses, size_t count);
/* The collective operations of a communicator that nothing else uses, given by its handle, or NULL. */
void *cableway_stream_group_new(void *communicator);
void cableway_stream_group_free(void *group);
/* Adds a collective operation, which the stream waits for. `message` and `owner` are as for cableway_stream_start. */
int cableway_stream_collective(const void *stream, const void *group, const struct cableway_collective *call,
                               void *owner, void **message);
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

/* The collective operations of a stream communicator: on a communicator of their own, so that their messages and those of
 * the program's other collective calls never meet. */
struct cableway_mpix_group {
    MPI_Comm communicator;
    void *engine;                /* NULL for an intercommunicator */
    volatile int32_t references; /* the stream communicator's, and those of operations */
};

/* A message or a collective operation on a stream, and its request if the program has one. It keeps the communicator, the
 * datatypes and the stream until it is over. */
struct cableway_enqueued {
    ompi_request_t super;
    volatile int32_t references; /* the program's until it frees the request, and that of the message */
    bool receive;
    ompi_datatype_t *datatype;
    MPIX_Stream stream;
    void *message;                     /* NULL if there is none */
    struct cableway_mpix_group *group; /* of a collective operation, else NULL */
    struct cableway_described described;
};
typedef struct cableway_enqueued cableway_enqueued_t;
OBJ_CLASS_DECLARATION(cableway_enqueued_t);

/* Returns NULL if there is no memory. The program has the reference. */
cableway_enqueued_t *cableway_enqueued_new(ompi_communicator_t *communicator, ompi_datatype_t *datatype, bool receive,
                                           MPIX_Stream stream);
void cableway_enqueued_release(cableway_enqueued_t *self);

void cableway_mpix_stream_release(MPIX_Stream stream);
/* Makes the group of a new stream communicator. All its processes make this call. */
int cableway_mpix_group_new(MPI_Comm communicator, struct cableway_mpix_group **out);
void cableway_mpix_group_release(struct cableway_mpix_group *group);
struct cableway_mpix_group *cableway_mpix_group_of(ompi_communicator_t *communicator);
/* Frees communicators of groups that are no longer used. Not to be called within a callback of MPI. */
void cableway_mpix_free_groups(void);
/* Returns the stream on which a communicator's messages are enqueued, or NULL and a reason. */
MPIX_Stream cableway_mpix_stream_of(ompi_communicator_t *communicator, const char **reason);
/* Calls the error handler of a communicator, or MPI_COMM_WORLD's if that is NULL, and returns the code. */
int cableway_mpix_failed(ompi_communicator_t *communicator, int code, const char *call);

int cableway_mpix_stream_create(void *info, MPIX_Stream *stream);
int cableway_mpix_stream_free(MPIX_Stream *stream);
int cableway_mpix_info_set_hex(void *info, const char *key, const void *value, int size);
int cableway_mpix_communicator_create(const char *call, void *communicator, int count, const MPIX_Stream *streams,
                                      void **out);
int cableway_mpix_communicator_stream(void *communicator, int index, MPIX_Stream *stream);
int cableway_mpix_enqueue(const char *call, const struct cableway_mpix_call *arguments);
int cableway_mpix_collective(const char *call, const struct cableway_mpix_collective *arguments);
int cableway_mpix_wait(const char *call, int64_t count, void **requests, void *statuses);

#endif
