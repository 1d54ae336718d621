/* The interface of LibMP 2.0 for programs of Open MPI whose PML is Cableway's component. Link with -lcableway_mp.
 *
 * Messages and puts start on the host, or when a stream gets there. A thread of Cableway starts those of streams and lets
 * the streams go on. docs/streams.md says what is ordered with what, docs/streams-mpi.md where this library differs
 * from LibMP.
 *
 * Functions return MP_SUCCESS or MP_FAILURE, and write why they failed to stderr. Threads may call as MPI's thread level
 * permits. Ranks are those of the communicator of mp_init. Messages match in their order; there are no tags. */
#ifndef CABLEWAY_MP_H
#define CABLEWAY_MP_H

#include <mpi.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

/* Programs of LibMP get CUDA's headers by this one. Without CUDA's toolkit the type is as its header declares it. */
#if defined(__has_include)
#if __has_include(<cuda_runtime.h>)
#include <cuda.h>
#include <cuda_runtime.h>
#define CABLEWAY_MP_HAS_CUDA 1
#endif
#endif
#ifndef CABLEWAY_MP_HAS_CUDA
typedef struct CUstream_st *cudaStream_t;
#endif

#ifdef __cplusplus
extern "C" {
#endif

enum { MP_SUCCESS = 0, MP_FAILURE = 1 };

#define MP_API_MAJOR_VERSION 2
#define MP_API_MINOR_VERSION 0
#define MP_API_VERSION ((MP_API_MAJOR_VERSION << 16) | MP_API_MINOR_VERSION)
/* Every minor version is at least 0. */
#define MP_API_VERSION_COMPATIBLE(v) (MP_API_MAJOR_VERSION == (((v) & 0xffff0000U) >> 16))

typedef enum mp_param { MP_PARAM_VERSION, MP_NUM_PARAMS } mp_param_t;

/* A registration, a message or put, and a window. */
typedef struct mp_reg *mp_reg_t;
typedef struct mp_request *mp_request_t;
typedef struct mp_window *mp_window_t;

/* Where LibMP keeps its queues. Accepted, and without effect. */
enum mp_init_flags {
    MP_INIT_DEFAULT = 0,
    MP_INIT_WQ_ON_GPU,
    MP_INIT_RX_CQ_ON_GPU,
    MP_INIT_TX_CQ_ON_GPU,
    MP_INIT_DBREC_ON_GPU
};

/* Stores MP_API_VERSION for MP_PARAM_VERSION. */
int mp_query_param(mp_param_t param, int *value);

/* Begins. All processes of the communicator make this call, and MPI is initialised. `peers` are `count` ranks with which
 * this process communicates; it may use others, too. `flags` and `gpu_id` are accepted, and without effect. */
int mp_init(MPI_Comm comm, int *peers, int count, int flags, int gpu_id);

/* Ends. All processes make this call, before MPI_Finalize. Requests are waited for, and windows destroyed, before. */
void mp_finalize(void);

/* Registers host or device memory. Streams can wait for words in registered host memory. */
int mp_register(void *addr, size_t length, mp_reg_t *reg);
int mp_deregister(mp_reg_t *reg);

/* --- started by the host ---
 * A registration may be NULL. If it is not, the memory lies within it. A request is waited for once by mp_wait or
 * mp_wait_all, which release it and set it to NULL. Buffers are not touched until then. */

int mp_irecv(void *buf, int size, int peer, mp_reg_t *reg, mp_request_t *req);
int mp_isend(void *buf, int size, int peer, mp_reg_t *reg, mp_request_t *req);
/* The same with `nblocks` blocks, in their order. */
int mp_irecvv(struct iovec *v, int nblocks, int peer, mp_reg_t *reg, mp_request_t *req);
int mp_isendv(struct iovec *v, int nblocks, int peer, mp_reg_t *reg, mp_request_t *req);

/* Wait on the host until requests are over. */
int mp_wait(mp_request_t *req);
int mp_wait_all(uint32_t count, mp_request_t *reqs);
/* Returns how many of the requests are over, or -1 after an error. They are still to be waited for. Messages go on without this call. */
int mp_progress_all(uint32_t count, mp_request_t *reqs);

/* --- in the order of a stream ---
 * The calls return at once. mp_send_on_stream also makes the stream wait until the send is over. */

int mp_send_on_stream(void *buf, int size, int peer, mp_reg_t *reg, mp_request_t *req, cudaStream_t stream);
int mp_isend_on_stream(void *buf, int size, int peer, mp_reg_t *reg, mp_request_t *req, cudaStream_t stream);
int mp_irecv_on_stream(void *buf, int size, int peer, mp_reg_t *reg, mp_request_t *req, cudaStream_t stream);
int mp_isendv_on_stream(struct iovec *v, int nblocks, int peer, mp_reg_t *reg, mp_request_t *req,
                        cudaStream_t stream);

/* Make a stream wait until requests are over, wherever they started. The host still waits for each, to release it. */
int mp_wait_on_stream(mp_request_t *req, cudaStream_t stream);
int mp_wait_all_on_stream(uint32_t count, mp_request_t *reqs, cudaStream_t stream);

/* --- prepared, and posted on a stream once ---
 * Messages match in the order in which they are posted. */

int mp_send_prepare(void *buf, int size, int peer, mp_reg_t *reg, mp_request_t *req);
int mp_sendv_prepare(struct iovec *v, int nblocks, int peer, mp_reg_t *reg, mp_request_t *req);
int mp_send_post_on_stream(mp_request_t *req, cudaStream_t stream);
int mp_isend_post_on_stream(mp_request_t *req, cudaStream_t stream);
/* All of them reach the stream together. */
int mp_send_post_all_on_stream(uint32_t count, mp_request_t *reqs, cudaStream_t stream);
int mp_isend_post_all_on_stream(uint32_t count, mp_request_t *reqs, cudaStream_t stream);

/* --- one-sided --- */

/* Makes memory part of a window. All processes of the communicator make this call, and that which destroys it. Streams have
 * passed a window's puts before it is destroyed. */
int mp_window_create(void *addr, size_t size, mp_window_t *window);
int mp_window_destroy(mp_window_t *window);

enum mp_put_flags {
    MP_PUT_INLINE = 1 << 0, /* the source is host memory, and copied within the call that describes the put */
    MP_PUT_NOWAIT = 1 << 1  /* nobody waits for the put: its request becomes NULL when it starts */
};

/* Put to, or get from, the memory of a peer, `displ` bytes from its beginning. A put is over when its data is there. */
int mp_iput(void *src, int size, mp_reg_t *src_reg, int peer, size_t displ, mp_window_t *dst_window,
            mp_request_t *req, int flags);
int mp_iget(void *dst, int size, mp_reg_t *dst_reg, int peer, size_t displ, mp_window_t *src_window,
            mp_request_t *req);
int mp_iput_on_stream(void *src, int size, mp_reg_t *src_reg, int peer, size_t displ, mp_window_t *dst_window,
                      mp_request_t *req, int flags, cudaStream_t stream);
int mp_put_prepare(void *src, int size, mp_reg_t *src_reg, int peer, size_t displ, mp_window_t *dst_window,
                   mp_request_t *req, int flags);
int mp_iput_post_on_stream(mp_request_t *req, cudaStream_t stream);
int mp_iput_post_all_on_stream(uint32_t count, mp_request_t *reqs, cudaStream_t stream);

/* --- words of 32 bits --- */

enum mp_wait_flags {
    MP_WAIT_GEQ = 0, /* (int32_t) (*ptr - value) >= 0 */
    MP_WAIT_EQ,      /* *ptr == value */
    MP_WAIT_AND      /* 0 != (*ptr & value) */
};

/* Waits on the host for a word in host memory. */
int mp_wait32(uint32_t *ptr, uint32_t value, int flags);
/* Makes a stream wait for a word in device memory, or in host memory that is registered or of the driver. */
int mp_wait32_on_stream(uint32_t *ptr, uint32_t value, int flags, cudaStream_t stream);

static inline int mp_wait_dword_geq_on_stream(uint32_t *ptr, uint32_t value, cudaStream_t stream)
{
    return mp_wait32_on_stream(ptr, value, MP_WAIT_GEQ, stream);
}

static inline int mp_wait_dword_eq_on_stream(uint32_t *ptr, uint32_t value, cudaStream_t stream)
{
    return mp_wait32_on_stream(ptr, value, MP_WAIT_EQ, stream);
}

/* --- queues of descriptors, which a stream gets together, in their order --- */

typedef struct mp_desc_queue *mp_desc_queue_t;

int mp_desc_queue_alloc(mp_desc_queue_t *dq);
int mp_desc_queue_free(mp_desc_queue_t *dq);
/* Adds a prepared send. */
int mp_desc_queue_add_send(mp_desc_queue_t *dq, mp_request_t *req);
/* Add a wait of the stream for a request, which has started or was added before. */
int mp_desc_queue_add_wait_send(mp_desc_queue_t *dq, mp_request_t *req);
int mp_desc_queue_add_wait_recv(mp_desc_queue_t *dq, mp_request_t *req);
int mp_desc_queue_add_wait_value32(mp_desc_queue_t *dq, uint32_t *ptr, uint32_t value, int flags);
int mp_desc_queue_add_write_value32(mp_desc_queue_t *dq, uint32_t *ptr, uint32_t value);
/* Posts the queue, which is empty afterwards. `flags` is 0. */
int mp_desc_queue_post_on_stream(cudaStream_t stream, mp_desc_queue_t *dq, int flags);

#ifdef __cplusplus
}
#endif

#endif
