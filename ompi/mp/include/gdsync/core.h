/* Words, bytes, sends and waits in the order of a stream. */
#ifndef CABLEWAY_GDSYNC_CORE_H
#define CABLEWAY_GDSYNC_CORE_H

#ifndef __GDSYNC_H__
#error "include gdsync.h instead"
#endif

GDS_BEGIN_DECLS

#define GDS_API_MAJOR_VERSION 2U
#define GDS_API_MINOR_VERSION 2U
#define GDS_API_VERSION ((GDS_API_MAJOR_VERSION << 16) | GDS_API_MINOR_VERSION)
#define GDS_API_VERSION_COMPATIBLE(v)                                                                                 \
    (GDS_API_MAJOR_VERSION == ((v) >> 16 & 0xffffU) && GDS_API_MINOR_VERSION <= ((v) & 0xffffU))

typedef enum gds_param { GDS_PARAM_VERSION, GDS_NUM_PARAMS } gds_param_t;

/* Stores GDS_API_VERSION for GDS_PARAM_VERSION. */
int gds_query_param(gds_param_t param, int *value);

/* --- flags --- */

/* Where memory is. One of GPU and HOST is given, for device memory and host memory alike: the driver knows which it is. IO is
 * refused. */
typedef enum gds_memory_type {
    GDS_MEMORY_GPU = 1,
    GDS_MEMORY_HOST = 2,
    GDS_MEMORY_IO = 4,
    GDS_MEMORY_MASK = 0x7
} gds_memory_type_t;

/* Writes of other network cards are flushed. Accepted, and without effect: the stream's later work sees what came by a
 * message once the stream has waited for it. */
typedef enum gds_wait_flags {
    GDS_WAIT_POST_FLUSH_REMOTE = 1 << 3,
    GDS_WAIT_POST_FLUSH = GDS_WAIT_POST_FLUSH_REMOTE
} gds_wait_flags_t;

/* Earlier work of the stream is visible before the write. That is so without these flags, too. */
typedef enum gds_write_flags {
    GDS_WRITE_PRE_BARRIER_SYS = 1 << 4,
    GDS_WRITE_PRE_BARRIER = GDS_WRITE_PRE_BARRIER_SYS
} gds_write_flags_t;

/* The same for a write of bytes, and: the bytes are visible before the stream's later work. */
typedef enum gds_write_memory_flags {
    GDS_WRITE_MEMORY_POST_BARRIER_SYS = 1 << 4,
    GDS_WRITE_MEMORY_PRE_BARRIER_SYS = 1 << 5
} gds_write_memory_flags_t;

/* When a wait for a word is over. */
typedef enum gds_wait_cond_flag {
    GDS_WAIT_COND_GEQ = 0, /* (int32_t) (*ptr - value) >= 0 */
    GDS_WAIT_COND_EQ,      /* *ptr == value */
    GDS_WAIT_COND_AND,     /* 0 != (*ptr & value) */
    GDS_WAIT_COND_NOR      /* 0 != ~(*ptr | value) */
} gds_wait_cond_flag_t;

/* --- descriptors ---
 * Words are aligned, and lie in device memory, in host memory of the driver, or in memory that mp_register was given. */

typedef struct gds_wait_value32 {
    uint32_t *ptr;
    uint32_t value;
    gds_wait_cond_flag_t cond_flags;
    int flags; /* gds_memory_type_t | gds_wait_flags_t */
} gds_wait_value32_t;

typedef struct gds_write_value32 {
    uint32_t *ptr;
    uint32_t value;
    int flags; /* gds_memory_type_t | gds_write_flags_t */
} gds_write_value32_t;

/* A write of bytes of host memory, which are copied by the call that posts it. */
typedef struct gds_write_memory {
    uint8_t *dest;
    const uint8_t *src;
    size_t count;
    int flags; /* gds_memory_type_t | gds_write_memory_flags_t */
} gds_write_memory_t;

int gds_prepare_wait_value32(gds_wait_value32_t *desc, uint32_t *ptr, uint32_t value, gds_wait_cond_flag_t cond_flags,
                             int flags);
int gds_prepare_write_value32(gds_write_value32_t *desc, uint32_t *ptr, uint32_t value, int flags);
int gds_prepare_write_memory(gds_write_memory_t *desc, uint8_t *dest, const uint8_t *src, size_t count, int flags);

/* A send, and a wait, of a request of mp.h. The fields belong to the library. */
typedef struct gds_send_request {
    uint64_t mark;
    mp_request_t *request;
} gds_send_request_t;

typedef struct gds_wait_request {
    uint64_t mark;
    mp_request_t *request;
} gds_wait_request_t;

/* Cableway's own. `req` is of mp_send_prepare or mp_sendv_prepare, or a put of mp_put_prepare, and not posted. It stays
 * where it is until the send is posted. */
int gds_prepare_mp_send(mp_request_t *req, gds_send_request_t *request);
/* Cableway's own. `req` is any request. It has started, or its send was posted before or stands before the wait in the same
 * call, when the wait is posted. The host releases it by mp_wait all the same. `flags` is 0. */
int gds_prepare_mp_wait(mp_request_t *req, gds_wait_request_t *request, int flags);

typedef enum gds_tag {
    GDS_TAG_SEND,
    GDS_TAG_WAIT,
    GDS_TAG_WAIT_VALUE32,
    GDS_TAG_WRITE_VALUE32,
    GDS_TAG_WRITE_MEMORY
} gds_tag_t;

typedef struct gds_descriptor {
    gds_tag_t tag;
    union {
        gds_send_request_t *send;
        gds_wait_request_t *wait;
        gds_wait_value32_t wait32;
        gds_write_value32_t write32;
        gds_write_memory_t writemem;
    };
} gds_descriptor_t;

/* --- posted ---
 * A stream gets all descriptors of a call together, in their order. After an error it has got none, unless the driver refused
 * a part. A send only starts. `flags` is 0. */

int gds_stream_post_descriptors(struct CUstream_st *stream, size_t n_descs, gds_descriptor_t *descs, int flags);
int gds_stream_post_send(struct CUstream_st *stream, gds_send_request_t *request);
int gds_stream_post_send_all(struct CUstream_st *stream, int count, gds_send_request_t *request);
int gds_stream_post_wait_cq(struct CUstream_st *stream, gds_wait_request_t *request);
int gds_stream_post_wait_cq_all(struct CUstream_st *stream, int count, gds_wait_request_t *request);
/* Performs descriptors on the calling thread, which waits. Words and bytes are in host memory. */
int gds_post_descriptors(size_t n_descs, gds_descriptor_t *descs, int flags);

/* --- what needs the card: EOPNOTSUPP, or NULL --- */

struct ibv_context;
struct ibv_pd;
struct ibv_qp_init_attr;
struct ibv_recv_wr;
struct ibv_send_wr;
struct ibv_wc;
struct gds_cq;
struct gds_qp;

typedef struct ibv_qp_init_attr gds_qp_init_attr_t;
typedef struct ibv_send_wr gds_send_wr;

enum gds_create_qp_flags {
    GDS_CREATE_QP_DEFAULT = 0,
    GDS_CREATE_QP_WQ_ON_GPU = 1 << 0,
    GDS_CREATE_QP_TX_CQ_ON_GPU = 1 << 1,
    GDS_CREATE_QP_RX_CQ_ON_GPU = 1 << 2,
    GDS_CREATE_QP_WQ_DBREC_ON_GPU = 1 << 5
};

struct gds_qp *gds_create_qp(struct ibv_pd *pd, struct ibv_context *context, gds_qp_init_attr_t *qp_init_attr, int gpu_id,
                             int flags);
int gds_destroy_qp(struct gds_qp *qp);
int gds_poll_cq(struct gds_cq *cq, int ne, struct ibv_wc *wc);
int gds_post_send(struct gds_qp *qp, gds_send_wr *wr, gds_send_wr **bad_wr);
int gds_post_recv(struct gds_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad_wr);
int gds_stream_wait_cq(struct CUstream_st *stream, struct gds_cq *cq, int flags);
int gds_stream_queue_send(struct CUstream_st *stream, struct gds_qp *qp, gds_send_wr *wr, gds_send_wr **bad_wr);
int gds_prepare_send(struct gds_qp *qp, gds_send_wr *wr, gds_send_wr **bad_wr, gds_send_request_t *request);
int gds_prepare_wait_cq(struct gds_cq *cq, gds_wait_request_t *request, int flags);
int gds_post_wait_cq(struct gds_cq *cq, gds_wait_request_t *request, int flags);

GDS_END_DECLS

#endif
