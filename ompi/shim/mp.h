/* The interface between the component and libcableway_mp.so (ompi/mp): messages and puts by number, on the host and in the
 * order of streams. */
#ifndef CABLEWAY_SHIM_MP_H
#define CABLEWAY_SHIM_MP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

enum cableway_mp_kind {
    CABLEWAY_MP_SEND,
    CABLEWAY_MP_RECEIVE,
    CABLEWAY_MP_PUT,
    CABLEWAY_MP_GET,
    CABLEWAY_MP_WAIT,
    CABLEWAY_MP_WRITE_WORD,
    CABLEWAY_MP_WAIT_WORD,
    CABLEWAY_MP_WRITE_BYTES
};

enum cableway_mp_condition { CABLEWAY_MP_GEQ, CABLEWAY_MP_EQ, CABLEWAY_MP_AND, CABLEWAY_MP_NOR };

/* One operation of a call. */
struct cableway_mp_operation {
    int kind; /* enum cableway_mp_kind */
    int peer;
    void *address; /* of the bytes or of the word of 32 bits */
    uint64_t len;
    const struct iovec *blocks; /* instead of `address` and `len`, for messages; NULL for none */
    size_t block_count;
    void *window; /* of a put or get */
    uint64_t displacement;
    uint32_t value; /* of a word */
    int condition;  /* enum cableway_mp_condition */
    bool copied;    /* the host bytes of a put are copied in this call */
    size_t earlier; /* a wait for the operation of this call with this number, counted from 1; 0 for `message` */
    void *message;  /* set by the first four kinds; what the fifth waits for */
    const void *source; /* host bytes that are written to `address`; copied in this call */
    const void *words;  /* a send or put of the host starts once a kernel has stored to `start`; NULL for now */
};

/* Words of 64 bits that a running kernel and the host exchange, by their addresses on the device. All are 0 at first. */
struct cableway_mp_words {
    void *handle;
    uint64_t start; /* the kernel stores 1: the message may start */
    uint64_t over;  /* becomes 1 when the message is over, or 2 if it failed */
    uint64_t seen;  /* the kernel stores 1: it does not use the words any more */
};

/* What a communicator became. */
struct cableway_mp_job {
    void *communicator; /* the duplicate, MPI's */
    void *handle;       /* the engine's */
    int rank, size;
};

/* Functions that return an int return 0, or not 0 after an error. Those with `why` write then what failed, as text of less
 * than `room` bytes. All may be called from any thread. */
struct cableway_mp {
    uint32_t version; /* 2 */
    /* Returns whether Open MPI has selected the component, and MPI can be called. */
    bool (*active)(void);
    /* Duplicates a communicator, whose processes all make this call. */
    int (*open)(void *communicator, struct cableway_mp_job *out, char *why, size_t room);
    /* All processes make this call. */
    void (*close)(struct cableway_mp_job *job);
    /* Describes a stream of the device. NULL is the default stream of the current context. */
    int (*stream_open)(int kind, uintptr_t handle, void **out, char *why, size_t room);
    void (*stream_close)(void *stream);
    /* Makes memory part of a window, for which all processes make this call. */
    int (*window_open)(const struct cableway_mp_job *job, void *address, uint64_t len, void **out, char *why,
                       size_t room);
    void (*window_close)(void *window);
    /* Makes host memory known to the driver, for words that streams wait for. NULL if it is no host memory. */
    void *(*memory_register)(void *address, uint64_t len);
    void (*memory_release)(void *registration);
    /* Returns whether the CPU can access memory. */
    bool (*on_host)(const void *address, uint64_t len);
    /* Adds operations to a stream in their order, or starts messages, puts and gets now if it is NULL. */
    int (*post)(const struct cableway_mp_job *job, const void *stream, struct cableway_mp_operation *operations,
                size_t count, char *why, size_t room);
    bool (*is_over)(const void *message);
    int (*wait)(const void *message, char *why, size_t room);
    void (*message_free)(void *message);
    /* Makes words for one message and the kernels of the current context. */
    int (*words_open)(struct cableway_mp_words *out, char *why, size_t room);
    /* They are used again once the kernel has stored to `seen`. */
    void (*words_close)(void *words);
    /* Has `over` set once a message is over. */
    void (*words_follow)(const void *words, const void *message);
    /* Returns whether the kernel has stored to `seen`. */
    bool (*words_seen)(const void *words);
    /* Returns whether streams and kernels of the current context reach memory: a device's, or registered memory of the host. */
    bool (*reaches)(const void *address, uint64_t len);
    /* Makes progress on the calling thread. */
    void (*progress)(void);
};

#endif
