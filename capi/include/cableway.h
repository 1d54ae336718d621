/*
 * Cableway for C and C++: messages between processes, from and to host and device memory.
 *
 * Results. Every function that returns int returns CABLEWAY_SUCCESS or another cableway_error, unless its comment says
 * otherwise. cableway_last_error() has the text. A function that fails stores no result, unless its comment says so.
 *
 * Memory is an address and a count of elements of a datatype; CABLEWAY_BYTE counts bytes. The address may be of host
 * memory or of a device: the library looks that up at each call. The address is ignored if the count is 0. The program
 * waits for kernels and asynchronous copies that use the memory before it passes it.
 *
 * Ranks count from 0 to the communicator's size less 1. Tags are 0 or above.
 *
 * Handles are made by one function and freed by another one, which stores NULL in their place. A handle of another kind,
 * or NULL, is refused with CABLEWAY_ERR_HANDLE. A handle that was freed must not be used.
 *
 * Threads. Every function may be called from any thread at any time, with these exceptions: one thread at a time uses a
 * request; the collective functions of one communicator are called from one thread at a time, in the same order by all
 * members; and nobody uses a handle while it is freed. Messages progress only while a thread is in a call of the library,
 * unless the parameter progress_thread is set.
 *
 * Order. Two messages from one process to another on one communicator, whose tags both match a receive, are received in
 * the order in which they were sent.
 */
#ifndef CABLEWAY_H
#define CABLEWAY_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The version of this header: 10000 times the major, 100 times the minor, and the patch. */
#define CABLEWAY_VERSION_NUMBER 100

/* The process as a member of its job. */
typedef struct cableway_world cableway_world;
/* A group of processes, and a context: messages on one communicator never match receives on another one. */
typedef struct cableway_communicator cableway_communicator;
/* Which bytes of an element are data. */
typedef struct cableway_datatype cableway_datatype;
/* A nonblocking operation, until it was waited for. */
typedef struct cableway_request cableway_request;
/* Device memory that the library allocated. */
typedef struct cableway_device_buffer cableway_device_buffer;

/* What functions return. */
enum cableway_error {
    CABLEWAY_SUCCESS = 0,
    CABLEWAY_ERR_ARGUMENT = 1,     /* an argument is null, out of range or does not fit the others */
    CABLEWAY_ERR_HANDLE = 2,       /* a handle is null, of another kind, or was freed */
    CABLEWAY_ERR_RANK = 3,         /* the communicator has no such rank */
    CABLEWAY_ERR_TAG = 4,          /* the tag is negative */
    CABLEWAY_ERR_TRUNCATED = 5,    /* the message is longer than the buffer, which holds its beginning */
    CABLEWAY_ERR_PEER_FAILED = 6,  /* the other process died or was disconnected */
    CABLEWAY_ERR_PEER_LEFT = 7,    /* the other process has left the job */
    CABLEWAY_ERR_UNREACHABLE = 8,  /* no transport reaches the other process */
    CABLEWAY_ERR_ABORTED = 9,      /* the other process aborted the transfer */
    CABLEWAY_ERR_DEVICE = 10,      /* a device or its driver failed, or there is none */
    CABLEWAY_ERR_DATATYPE = 11,    /* the arguments describe no datatype, or a message of it is too large */
    CABLEWAY_ERR_OPERATION = 12,   /* the operation is not defined for elements of this type */
    CABLEWAY_ERR_MISMATCH = 13,    /* the arguments of the members do not fit together */
    CABLEWAY_ERR_PARAMETER = 14,   /* there is no such parameter, or its value is invalid */
    CABLEWAY_ERR_JOB = 15,         /* the job cannot be joined */
    CABLEWAY_ERR_TRANSPORT = 16,   /* a transport failed */
    CABLEWAY_ERR_SYSTEM = 17,      /* a system call failed */
    CABLEWAY_ERR_NO_MEMORY = 18,   /* there is not enough memory */
    CABLEWAY_ERR_FINALIZED = 19,   /* the process has left the job */
    CABLEWAY_ERR_FORKED = 20,      /* the process is a forked child of a process of the job */
    CABLEWAY_ERR_UNFINISHED = 21,  /* the process left the job before all its messages were handed over */
    CABLEWAY_ERR_INTERNAL = 22,    /* the library has a fault; from now on every call returns this */
    CABLEWAY_ERR_OTHER = 23,
    CABLEWAY_ERR_ACCESS = 24       /* the owner of registered memory refused an access, or the key is wrong */
};

/* Receives from any rank, and with any tag. */
#define CABLEWAY_ANY_SOURCE (-1)
#define CABLEWAY_ANY_TAG (-1)
/* The colour of a process that gets no communicator from cableway_split. */
#define CABLEWAY_UNDEFINED (-32766)
/* The datatype of a byte. */
#define CABLEWAY_BYTE ((const cableway_datatype *) 0)
/* The buffer to send, or the scatters' buffer to receive into: this process's data is in the other buffer already. */
#define CABLEWAY_IN_PLACE ((void *) -1)

/* A parameter and its value, as `cableway info --all` lists them. */
typedef struct cableway_parameter {
    const char *name;
    const char *value;
} cableway_parameter;

/* A message that was received or probed. Of a send: its destination, tag and length. */
typedef struct cableway_status {
    int source;     /* the sender's rank; CABLEWAY_ANY_SOURCE if unknown */
    int tag;        /* the tag; CABLEWAY_ANY_TAG if unknown */
    int cancelled;  /* 1 if the receive was cancelled */
    int error;      /* the cableway_error with which the operation ended */
    uint64_t bytes; /* the length of the message as it was sent */
} cableway_status;

/* The version of the library: as CABLEWAY_VERSION_NUMBER, and as text that is never freed. */
int cableway_version_number(void);
const char *cableway_version(void);
/* What a cableway_error means, as text that is never freed. */
const char *cableway_error_string(int code);
/* What failed in this thread's last failed call. Empty before the first one, valid until the next one. */
const char *cableway_last_error(void);

/*
 * Joins the job that a launcher started this process in: `cableway run`, mpirun, prterun, or srun with PMIx. A process
 * without a launcher is a job of one process. Parameters are those of the environment, then the `count` given ones. A
 * process joins its job once. Warnings go to the standard error output, or what CABLEWAY_LOG selects.
 */
int cableway_init(const cableway_parameter *parameters, size_t count, cableway_world **world);
/*
 * Makes another world of the same processes, with the same ranks and parameters, and with locks and connections of its own,
 * for a thread that sends many small messages in host memory: it does not wait for threads that use other workers. Collective
 * on the communicator of `world`. Communicators, registrations and handlers belong to their worker. Nothing orders messages of
 * one worker after those of another, and messages of a worker progress only in calls with this worker, unless the parameter
 * progress_thread says otherwise. cableway_finalize ends it, before or after `world`.
 */
int cableway_worker(cableway_world *world, cableway_world **worker);
/*
 * Leaves the job. Waits up to the parameter peer_timeout until messages sent before are handed over, and otherwise fails
 * with CABLEWAY_ERR_UNFINISHED; the process has left in either case. Frees the world and its communicator. Other
 * communicators, datatypes, requests and buffers are freed before or after. Wait for requests before.
 */
int cableway_finalize(cableway_world **world);
/* The communicator of all processes of the job. It belongs to the world. */
int cableway_world_communicator(cableway_world *world, cableway_communicator **everyone);
/* The number of processes of the job on this node, this one included. */
int cableway_local_size(cableway_world *world, int *size);
/* Progresses messages without waiting, for programs that compute between nonblocking operations. */
int cableway_progress(cableway_world *world);
/* The value of a counter of the library, for example "sends_eager"; docs/c.md says where their names are. */
int cableway_counter(cableway_world *world, const char *name, uint64_t *value);

/* This process's rank, and the number of processes. */
int cableway_rank(cableway_communicator *communicator, int *rank);
int cableway_size(cableway_communicator *communicator, int *size);
/* Makes a communicator of the same group. Collective. */
int cableway_dup(cableway_communicator *communicator, cableway_communicator **made);
/*
 * Makes a communicator for each colour (0 or above, or CABLEWAY_UNDEFINED) of the processes that pass it, ordered by key
 * and then by rank. Stores NULL for CABLEWAY_UNDEFINED. Collective.
 */
int cableway_split(cableway_communicator *communicator, int colour, int key, cableway_communicator **made);
/* Frees a communicator. Operations under way go on. Messages that nobody received are discarded. Not collective. */
int cableway_communicator_free(cableway_communicator **communicator);

/*
 * Make datatypes from others, as the MPI functions of these names do. Strides and displacements count elements of `old`;
 * those of hvector and struct count bytes. A datatype is ready for communication at once. Those made from it, and
 * operations under way, outlive it.
 */
int cableway_type_contiguous(int64_t count, const cableway_datatype *old, cableway_datatype **made);
int cableway_type_vector(int64_t count, int64_t block_length, int64_t stride, const cableway_datatype *old,
                         cableway_datatype **made);
int cableway_type_hvector(int64_t count, int64_t block_length, int64_t stride, const cableway_datatype *old,
                          cableway_datatype **made);
int cableway_type_indexed(size_t count, const int64_t *block_lengths, const int64_t *displacements,
                          const cableway_datatype *old, cableway_datatype **made);
int cableway_type_struct(size_t count, const int64_t *block_lengths, const int64_t *displacements,
                         const cableway_datatype *const *types, cableway_datatype **made);
int cableway_type_resized(const cableway_datatype *old, int64_t lower_bound, int64_t extent, cableway_datatype **made);
/* The bytes of data in an element, and the bytes from one element to the next. */
int cableway_type_size(const cableway_datatype *datatype, uint64_t *size);
int cableway_type_extent(const cableway_datatype *datatype, int64_t *extent);
int cableway_type_free(cableway_datatype **datatype);

/* Sends, and returns when the buffer can be reused, which may be before the message is received. */
int cableway_send(const void *buffer, size_t count, const cableway_datatype *datatype, int to, int tag,
                  cableway_communicator *communicator);
/* Sends, and returns after a receive has matched the message. */
int cableway_ssend(const void *buffer, size_t count, const cableway_datatype *datatype, int to, int tag,
                   cableway_communicator *communicator);
/*
 * Receives from `source` or CABLEWAY_ANY_SOURCE with `tag` or CABLEWAY_ANY_TAG. The message may be shorter than the
 * buffer. If it is longer, the buffer is filled, the rest is discarded, and the call fails with CABLEWAY_ERR_TRUNCATED;
 * the status is stored all the same. `status` may be NULL here and in every other function.
 */
int cableway_recv(void *buffer, size_t count, const cableway_datatype *datatype, int source, int tag,
                  cableway_communicator *communicator, cableway_status *status);
/* Sends one message and receives another at the same time, so that processes that do this to each other do not wait. */
int cableway_sendrecv(const void *send_buffer, size_t send_count, const cableway_datatype *send_datatype, int to,
                      int send_tag, void *receive_buffer, size_t receive_count,
                      const cableway_datatype *receive_datatype, int source, int receive_tag,
                      cableway_communicator *communicator, cableway_status *status);
/* Waits for a message without receiving it. Another thread may receive it first. */
int cableway_probe(int source, int tag, cableway_communicator *communicator, cableway_status *status);
/* Stores 1 in `found` and the status if a message has arrived, and 0 otherwise. */
int cableway_iprobe(int source, int tag, cableway_communicator *communicator, int *found, cableway_status *status);

/*
 * Start what the blocking functions do. The program keeps the buffer in place until the request has ended, changes none
 * that is sent, and reads none that is received into. Every request is ended by one of the functions below.
 */
int cableway_isend(const void *buffer, size_t count, const cableway_datatype *datatype, int to, int tag,
                   cableway_communicator *communicator, cableway_request **request);
int cableway_issend(const void *buffer, size_t count, const cableway_datatype *datatype, int to, int tag,
                    cableway_communicator *communicator, cableway_request **request);
int cableway_irecv(void *buffer, size_t count, const cableway_datatype *datatype, int source, int tag,
                   cableway_communicator *communicator, cableway_request **request);
/*
 * Waits until the operation is complete, and ends the request: frees it and stores NULL. Returns how the operation
 * ended; a cancelled one ends well. A NULL request is complete, with an empty status.
 */
int cableway_wait(cableway_request **request, cableway_status *status);
/* Stores 1 in `done` and does what cableway_wait does if the operation is complete, and stores 0 otherwise. */
int cableway_test(cableway_request **request, int *done, cableway_status *status);
/*
 * Waits for `count` requests. Each one ends, also if another one failed. Returns the first failure in the array's order;
 * every status has its own `error`. `statuses` has room for `count`, or is NULL.
 */
int cableway_waitall(size_t count, cableway_request **requests, cableway_status *statuses);
/*
 * Waits until one of the requests is complete, does for it what cableway_wait does, and stores its index. Stores `count`
 * if all are NULL. Stores the index also if the operation failed.
 */
int cableway_waitany(size_t count, cableway_request **requests, size_t *index, cableway_status *status);
/* Cancels a receive that no message has matched. It still must be waited for. No effect on other operations. */
int cableway_cancel(cableway_request *request);
/*
 * Ends a request without its result: cancels a receive that no message has matched, and waits for any other operation.
 * On return the library no longer uses the buffer. This is unlike MPI_Request_free.
 */
int cableway_request_free(cableway_request **request);

/* Kinds of device memory. The CPU may access managed and pinned memory. */
enum cableway_memory_kind {
    CABLEWAY_MEMORY_DEVICE = 1,  /* as cudaMalloc */
    CABLEWAY_MEMORY_MANAGED = 2, /* as cudaMallocManaged */
    CABLEWAY_MEMORY_PINNED = 3   /* host memory, as cudaMallocHost */
};

/* The number of devices that this process can use. Fails with CABLEWAY_ERR_DEVICE if there is no driver. */
int cableway_device_count(cableway_world *world, int *count);
/* Allocates `bytes` in the primary context of a device (from 0), whose content is undefined. */
int cableway_device_allocate(cableway_world *world, int device, int kind, size_t bytes,
                             cableway_device_buffer **buffer, void **address);
/* Copy host memory to a buffer, from byte `offset` on, and back. Messages see what was written before. */
int cableway_device_write(cableway_device_buffer *buffer, size_t offset, const void *source, size_t bytes);
int cableway_device_read(cableway_device_buffer *buffer, size_t offset, void *destination, size_t bytes);
int cableway_device_free(cableway_device_buffer **buffer);

#ifdef __cplusplus
}
#endif

#include "cableway_active.h"
#include "cableway_collective.h"
#include "cableway_one_sided.h"

#endif
