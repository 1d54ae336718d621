/* The boundary between the shim (C, built from Open MPI's own headers) and the engine (Rust).
 *
 * Everything here is plain C: no Open MPI type crosses. The shim knows Open MPI's structures and macros, the Rust
 * side knows Cableway. Functions named shim_ are the shim's, those named cableway_ are Rust's; none of them unwinds. */
#ifndef CABLEWAY_SHIM_H
#define CABLEWAY_SHIM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Room that the shim keeps in each of its requests for one of the engine's. Rust asserts that it is enough. */
#define CABLEWAY_REQUEST_BYTES 512

/* What went wrong; the shim turns it into one of Open MPI's codes. */
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

/* How a send completes; the order is that of Open MPI's mca_pml_base_send_mode_t less the buffered mode. */
enum cableway_mode { CABLEWAY_STANDARD = 0, CABLEWAY_SYNCHRONOUS = 1, CABLEWAY_READY = 2 };

struct cableway_job {
    const char *id;       /* equal in all processes of the job */
    uint32_t number;      /* of the job; processes go by number << 32 | rank among all jobs */
    uint32_t rank, size, local_size;
    uint32_t architecture; /* of this process; those that it talks to must have the same */
    bool threads;         /* MPI_THREAD_MULTIPLE */
};

/* A user's buffer. layout NULL: len bytes one after another, count is ignored. Otherwise count elements of a
 * layout from cableway_layout_create, the first one's origin at address. */
struct cableway_buffer {
    void *address;
    uint64_t len;
    const void *layout;
    uint64_t count;
};

/* What a send that did not leave at once has found out about its buffer, for cableway_isend in the same call of the
 * program's: a driver is asked once. For Rust alone. */
struct cableway_place {
    uint32_t known, class;
    uint64_t device, context, id;
};

struct cableway_status {
    int32_t source, tag;
    uint64_t len;         /* as sent, also where the receive truncated it */
    bool cancelled;
    int32_t code;         /* enum cableway_code */
};

/* --- Rust's --- */

/* Makes the engine and publishes its addresses through shim_modex_put. 0, or why not, in words that stay valid. */
int cableway_start(const struct cableway_job *job, const char **reason);
/* Ends the engine; true when all that was sent has left. */
bool cableway_stop(void);
/* Ends an engine that Open MPI did not select, and withdraws what it published. Nothing else may use it, or have. */
void cableway_discard(void);
/* Lets all that was sent leave; true when it has. The engine can be used again. */
bool cableway_drain(void);
int cableway_progress(void);
/* 0, or why not, in words that stay valid. */
int cableway_set_parameter(const char *name, const char *value, const char **reason);
/* As the parameter `verbose` counts. */
void cableway_set_verbosity(int verbosity);
/* Rows of the counters; false past the last. */
bool cableway_counter_row(size_t index, const char **name, const char **help);
uint64_t cableway_counter_value(size_t index);
void cableway_queue_lengths(void *communicator, uint32_t *posted, uint32_t *unexpected);
/* Logs which protocols carry messages to a process, by name. */
void cableway_explain(uint64_t process);
/* Rows of the parameter table, for registration; false past the last. */
bool cableway_parameter_row(size_t index, const char **name, const char **value, const char **help);

/* group: the processes that messages go to and come from, by name. NULL: refused; the log says why. */
void *cableway_communicator_add(uint32_t context, const uint64_t *group, size_t size, uint32_t rank);
void cableway_communicator_remove(void *communicator);
/* Ends what is under way on it; it still has to be removed. */
void cableway_communicator_revoke(void *communicator);

void *cableway_layout_create(const int64_t *offsets, const uint64_t *lengths, size_t blocks, int64_t lower_bound,
                             int64_t extent);
void cableway_layout_free(void *layout);
/* Packs a buffer, on a device or not, into host memory. */
int cableway_pack(const struct cableway_buffer *from, void *to, uint64_t len);

/* 1: sent, no request needed. 0: nothing happened but that the place is filled in, use cableway_isend. Negative: minus
 * an enum cableway_code. */
int cableway_send_now(void *communicator, int dest, int tag, const struct cableway_buffer *buffer,
                      struct cableway_place *place);
/* 1: complete, the request is untouched. 0: started, shim_completed will be called. Negative: as above. The place is NULL
 * where none was filled in. */
int cableway_isend(void *communicator, int dest, int tag, const struct cableway_buffer *buffer,
                   const struct cableway_place *place, enum cableway_mode mode, void *request);
int cableway_send(void *communicator, int dest, int tag, const struct cableway_buffer *buffer,
                  enum cableway_mode mode);
/* 0, and shim_completed will be called; negative: as above. */
int cableway_irecv(void *communicator, int source, int tag, const struct cableway_buffer *buffer, void *request);
void cableway_recv(void *communicator, int source, int tag, const struct cableway_buffer *buffer,
                   struct cableway_status *status);
void cableway_cancel(void *request);
/* 1: found. 0: not. Negative: as above. A message, where asked for, is taken and must be received. */
int cableway_iprobe(void *communicator, int source, int tag, struct cableway_status *status, void **message);
int cableway_imrecv(void *message, const struct cableway_buffer *buffer, void *request);
void cableway_mrecv(void *message, const struct cableway_buffer *buffer, struct cableway_status *status);
/* The same calls for `len` bytes at an address: what nearly every message is. Sends are of the standard mode. */
int cableway_send_bytes_now(void *communicator, int dest, int tag, const void *address, uint64_t len,
                            struct cableway_place *place);
int cableway_send_bytes(void *communicator, int dest, int tag, const void *address, uint64_t len);
int cableway_irecv_bytes(void *communicator, int source, int tag, void *address, uint64_t len, void *request);
/* An enum cableway_code. The status, which is that of a receive that succeeded or was truncated, may be NULL. */
int cableway_recv_bytes(void *communicator, int source, int tag, void *address, uint64_t len,
                        struct cableway_status *status);
/* Where several threads are in MPI: the wait for one request of ours, given by its req_complete. In it stands, with this
 * bit set, who waits; cableway_wake is told so once it is complete. False: some request failed, so that their number is
 * not `failures`, and this one is not complete. */
#define CABLEWAY_WAITER 2
bool cableway_await(volatile void *complete, uint32_t failures);
void cableway_wake(void *waiter);
uint32_t cableway_failures(void);
void cableway_note_failure(void);
/* Prepares memory of CABLEWAY_REQUEST_BYTES as a request, once. Whenever it completes, shim_completed is told `owner`. */
void cableway_request_construct(void *request, void *owner);
void cableway_request_destruct(void *request);
/* Names of the transports that carry messages to a process of this job, each valid as long as the process: as many as
 * there are, of which the first `room` are written. */
size_t cableway_transports(uint32_t rank, const char **names, size_t room);
/* Writes what the engine knows to the log. */
void cableway_dump(void *communicator);

/* --- the shim's --- */

/* The operation of `owner` is over, with what a status would hold. Called with no lock held; may call straight back in. */
void shim_completed(void *owner, int source, int tag, uint64_t len, bool cancelled, int code);
int shim_modex_put(const char *key, const uint8_t *bytes, size_t len);
/* 0 found (release the bytes with free), 1 not found, negative an error. */
int shim_modex_get(uint64_t process, const char *key, uint8_t **bytes, size_t *len);
/* Whether shim_completed is running, further up the stack. Means nothing among threads. */
bool shim_is_completing(void);
/* Lets the rest of Open MPI advance. */
void shim_host_progress(void);
/* One line for the user. */
void shim_log(const char *line);

#endif
