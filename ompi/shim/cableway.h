/* The boundary between the shim (C, built from Open MPI's own headers) and the engine (Rust).
 *
 * No type of Open MPI crosses this boundary. The shim implements the functions named shim_, Rust implements those named
 * cableway_. None of them unwinds. */
#ifndef CABLEWAY_SHIM_H
#define CABLEWAY_SHIM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The space that each of the shim's requests reserves for the engine's request. Rust asserts that it suffices. */
#define CABLEWAY_REQUEST_BYTES 512

/* Error codes. The shim converts them to MPI's error classes. */
enum cableway_code {
    CABLEWAY_OK = 0,
    CABLEWAY_TRUNCATED = 1,
    CABLEWAY_PEER_FAILED = 2,
    CABLEWAY_BAD_ARGUMENT = 3,
    CABLEWAY_NO_MEMORY = 4,
    CABLEWAY_UNREACHABLE = 5,
    CABLEWAY_DEVICE = 6,
    CABLEWAY_INTERNAL = 7,
    CABLEWAY_NO_SUCH_RANK = 8,
    CABLEWAY_REVOKED = 9,
};

/* Send modes. There is no buffered mode: the shim sends the copy in the standard mode. */
enum cableway_mode { CABLEWAY_STANDARD = 0, CABLEWAY_SYNCHRONOUS = 1, CABLEWAY_READY = 2 };

struct cableway_job {
    const char *id;  /* the same in all processes of the job */
    uint32_t number; /* the jobid; `number << 32 | rank` names a process among all jobs */
    uint32_t rank, size, local_size;
    uint32_t architecture; /* opal_local_arch; peers must have the same */
    bool threads;          /* MPI_THREAD_MULTIPLE */
};

/* A program's buffer. If `layout` is NULL, it is `len` contiguous bytes. Otherwise it is `count` elements of a layout
 * from cableway_layout_create, with the origin of the first element at `address`. */
struct cableway_buffer {
    void *address;
    uint64_t len;
    const void *layout;
    uint64_t count;
};

/* The location of a send buffer as cableway_send_now found it. The same MPI call passes it to cableway_isend, so that
 * the driver is queried once. Only Rust reads the fields. */
struct cableway_location {
    uint32_t known, class;
    uint64_t device, context, id;
};

struct cableway_status {
    int32_t source, tag;
    uint64_t len;  /* as sent, even if the receive truncated it */
    bool cancelled;
    int32_t code;  /* enum cableway_code */
};

/* --- implemented in Rust --- */

/* Creates the engine and publishes its addresses through shim_modex_put. Returns 0, or sets *reason to a string that
 * stays valid. */
int cableway_start(const struct cableway_job *job, const char **reason);
/* Finalizes the engine. Returns whether everything that was sent has left. */
bool cableway_stop(void);
/* Destroys an engine that Open MPI did not select, and withdraws what it published. No other function may have been
 * called since cableway_start. */
void cableway_discard(void);
/* Ends what waits for streams and kernels. Then waits until everything that was sent has left, and returns whether it has.
 * The engine stays usable. */
bool cableway_drain(void);
int cableway_progress(void);
/* Returns 0, or sets *reason to a string that stays valid. */
int cableway_set_parameter(const char *name, const char *value, const char **reason);
/* Sets the log level from the value of the parameter `verbose`. */
void cableway_set_verbosity(int verbosity);
/* Returns one row of the counters, or false past the last one. */
bool cableway_counter_row(size_t index, const char **name, const char **help);
uint64_t cableway_counter_value(size_t index);
void cableway_queue_lengths(void *communicator, uint32_t *posted, uint32_t *unexpected);
/* Prints which protocols carry messages to a process, given by its name. */
void cableway_explain(uint64_t process);
/* Returns one row of the parameter table, or false past the last one. */
bool cableway_parameter_row(size_t index, const char **name, const char **value, const char **help);

/* `group` holds the names of the communicator's remote group. Returns NULL on failure, which is logged. */
void *cableway_communicator_add(uint32_t context, const uint64_t *group, size_t size, uint32_t rank);
void cableway_communicator_remove(void *communicator);
/* Ends all operations on the communicator. It must still be removed. */
void cableway_communicator_revoke(void *communicator);

/* Blocks of bytes in packing order, and the bounds of the datatype that they form. */
struct cableway_type_blocks {
    const int64_t *offsets, *lengths;
    size_t count;
    int64_t lower_bound, extent;
};
/* Returns a layout that is kept for a type with this description, or NULL. */
void *cableway_layout_known(const int64_t *description, size_t words);
/* Creates a layout, and keeps it for types with this description unless that has no words. */
void *cableway_layout_create(const struct cableway_type_blocks *blocks, const int64_t *description, size_t words);
void cableway_layout_free(void *layout);
/* Packs a host or device buffer into host memory. */
int cableway_pack(const struct cableway_buffer *from, void *to, uint64_t len);

/* Tries to send without a request. Returns 1 if the message was sent. Returns 0 if it was not: `location` is then set,
 * and the caller must use cableway_isend. Returns a negated enum cableway_code on failure. */
int cableway_send_now(void *communicator, int dest, int tag, const struct cableway_buffer *buffer,
                      struct cableway_location *location);
/* Returns 1 if the send is complete and the request was not used, 0 if it was started and shim_completed will be
 * called, or a negated enum cableway_code. `location` may be NULL. */
int cableway_isend(void *communicator, int dest, int tag, const struct cableway_buffer *buffer,
                   const struct cableway_location *location, enum cableway_mode mode, void *request);
int cableway_send(void *communicator, int dest, int tag, const struct cableway_buffer *buffer,
                  enum cableway_mode mode);
/* Returns 0 if shim_completed will be called, or a negated enum cableway_code. */
int cableway_irecv(void *communicator, int source, int tag, const struct cableway_buffer *buffer, void *request);
void cableway_recv(void *communicator, int source, int tag, const struct cableway_buffer *buffer,
                   struct cableway_status *status);
void cableway_cancel(void *request);
/* Returns 1 if a message was found, 0 if not, or a negated enum cableway_code. If `message` is not NULL, the message is
 * matched, and the caller must receive it with cableway_imrecv or cableway_mrecv. */
int cableway_iprobe(void *communicator, int source, int tag, struct cableway_status *status, void **message);
int cableway_imrecv(void *message, const struct cableway_buffer *buffer, void *request);
void cableway_mrecv(void *message, const struct cableway_buffer *buffer, struct cableway_status *status);
/* The same calls for `len` contiguous bytes. Sends use the standard mode. */
int cableway_send_bytes_now(void *communicator, int dest, int tag, const void *address, uint64_t len,
                            struct cableway_location *location);
int cableway_send_bytes(void *communicator, int dest, int tag, const void *address, uint64_t len);
int cableway_irecv_bytes(void *communicator, int source, int tag, void *address, uint64_t len, void *request);
/* Returns an enum cableway_code. The status is set if the receive succeeded or was truncated. It may be NULL. */
int cableway_recv_bytes(void *communicator, int source, int tag, void *address, uint64_t len,
                        struct cableway_status *status);
/* Waits for one point-to-point request under MPI_THREAD_MULTIPLE. `complete` is its req_complete. While a thread waits,
 * req_complete holds the thread's waiter with the bit CABLEWAY_WAITER set; completion passes it to cableway_wake.
 * Returns false if the request is not complete, but the count of failed requests is no longer `failures`. */
#define CABLEWAY_WAITER 2
bool cableway_await(volatile void *complete, uint32_t failures);
void cableway_wake(void *waiter);
uint32_t cableway_failure_count(void);
void cableway_count_failure(void);
/* Constructs a request in CABLEWAY_REQUEST_BYTES of memory. Each completion calls shim_completed with `owner`. */
void cableway_request_construct(void *request, void *owner);
void cableway_request_destruct(void *request);
/* Writes the names of at most `room` transports that reach a process of this job, and returns how many there are. The
 * names stay valid. */
size_t cableway_transports(uint32_t rank, const char **names, size_t room);
/* Writes the counters to the log. */
void cableway_dump(void *communicator);

/* --- implemented by the shim --- */

/* Reports that the operation of the request `owner` has completed. Called with no lock held, so that the shim may call
 * the engine from it. */
void shim_completed(void *owner, int source, int tag, uint64_t len, bool cancelled, int code);
int shim_modex_put(const char *key, const uint8_t *bytes, size_t len);
/* Returns 0 if the key was found, 1 if not, or a negative error. The caller frees *bytes. */
int shim_modex_get(uint64_t process, const char *key, uint8_t **bytes, size_t *len);
/* Returns whether a caller on the stack is shim_completed. Only meaningful with a single thread. */
bool shim_is_completing(void);
/* Progresses all of Open MPI. */
void shim_host_progress(void);
/* Prints one line for the user. */
void shim_log(const char *line);

#endif
