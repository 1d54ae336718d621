/*
 * Active messages: a process posts a message, and the target calls the function that it registered for the message's id.
 * cableway.h includes this file. docs/active-messages.md says in which order handlers run, and how messages are carried.
 *
 * Functions that the program passes are called in whichever thread makes progress, one at a time. They must not wait for
 * messages: they call no function that sends, receives or waits, but those whose comments say "for handlers, too". They
 * must return: no exception of C++ and no longjmp leaves them.
 *
 * Headers have at most CABLEWAY_AM_HEADER_LIMIT bytes. Lengths are in bytes. Data lies in host or device memory.
 */
#ifndef CABLEWAY_ACTIVE_H
#define CABLEWAY_ACTIVE_H

#include "cableway.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The most bytes of a header. */
#define CABLEWAY_AM_HEADER_LIMIT 2048
/* Data in host memory of at most so many bytes is copied, and comes with its header. */
#define CABLEWAY_AM_INLINE_LIMIT 8192

/* An active message, during the call of its handler only, in that thread only. */
typedef struct cableway_am cableway_am;

/* What a message says. Its addresses are valid until its handler returns, or receives the data. */
typedef struct cableway_am_info {
    int source;          /* the sender's rank in the job */
    uint32_t id;         /* the id that it was posted with */
    const void *header;  /* the header */
    size_t header_bytes; /* the header's length */
    const void *data;    /* data that came with the header; NULL: other data, which must be received */
    uint64_t bytes;      /* the length of the data */
} cableway_am_info;

/* Handles a message. `context` is what the handler was registered with. */
typedef void (*cableway_am_handler)(cableway_am *message, void *context);
/*
 * Is called once when data of `bytes` bytes has been received, or when posted data can be reused. `error` is a
 * cableway_error, with the text of cableway_last_error().
 */
typedef void (*cableway_am_completion)(int error, uint64_t bytes, void *context);
/* Returns whether a wait is over: 0 if not. */
typedef int (*cableway_condition)(void *context);

/*
 * Registers the handler of messages with this id. Messages wait until their process registers its first handler. From then
 * on those without a handler are dropped. So register all handlers right after cableway_init.
 */
int cableway_am_register(cableway_world *world, uint32_t id, cableway_am_handler handler, void *context);
/* Removes a handler. A call of it in another thread may still be under way. For handlers, too. */
int cableway_am_unregister(cableway_world *world, uint32_t id);
/* Describes a message. For handlers only. */
int cableway_am_describe(cableway_am *message, cableway_am_info *info);
/*
 * Receives the message's data into host or device memory, which the program keeps until `then` is called. Does not wait:
 * `then` (or NULL) is called after the handler has returned. If the data is longer than the buffer, `error` is
 * CABLEWAY_ERR_TRUNCATED, and the buffer holds the beginning. At most once for a message, which is described and replied to
 * before. For handlers only. Data that a handler does not receive is dropped.
 */
int cableway_am_receive(cableway_am *message, void *buffer, size_t bytes, cableway_am_completion then, void *context);

/*
 * Posts a message of a header and data to rank `to` of the job. Does not wait. The header is copied. With `then`, the
 * program keeps the data until that is called. Without (NULL), it keeps the data until cableway_am_flush has returned, but
 * host data of at most CABLEWAY_AM_INLINE_LIMIT bytes can be reused at once. If the call fails, nothing was posted, and
 * `then` is not called. For handlers, too.
 */
int cableway_am_post(cableway_world *world, int to, uint32_t id, const void *header, size_t header_bytes,
                     const void *data, size_t bytes, cableway_am_completion then, void *context);
/* Posts, as cableway_am_post does, to the sender of a message. For handlers only. */
int cableway_am_reply(cableway_am *message, uint32_t id, const void *header, size_t header_bytes, const void *data,
                      size_t bytes, cableway_am_completion then, void *context);
/* Waits until every message that was posted before has left this process. It may not have been handled yet. */
int cableway_am_flush(cableway_world *world);
/* The number of messages that were handled here, and of those that no handler has the id of. `unknown` may be NULL. */
int cableway_am_counts(cableway_world *world, uint64_t *handled, uint64_t *unknown);
/*
 * Moves messages and calls handlers until `over` returns another value than 0. Waits as a receive does, and may sleep, so
 * `over` must depend on messages only, not on other threads.
 */
int cableway_progress_until(cableway_world *world, cableway_condition over, void *context);

#ifdef __cplusplus
}
#endif

#endif
