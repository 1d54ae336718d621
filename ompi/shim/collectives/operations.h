/* Collective operations by the engine, implemented in Rust. */
#ifndef CABLEWAY_OPERATIONS_H
#define CABLEWAY_OPERATIONS_H

#include "../cableway.h"

enum cableway_collective_kind {
    CABLEWAY_BROADCAST = 0,
    CABLEWAY_GATHER = 1,
    CABLEWAY_SCATTER = 2,
    CABLEWAY_ALLGATHER = 3,
    CABLEWAY_ALLTOALL = 4,
    CABLEWAY_NEIGHBORS = 5,
    CABLEWAY_ALLREDUCE = 6,
    CABLEWAY_REDUCE = 7,
    CABLEWAY_REDUCE_SCATTER = 8,
    CABLEWAY_SCAN = 9,
    CABLEWAY_EXCLUSIVE_SCAN = 10,
    CABLEWAY_REDUCE_LOCAL = 11,
};

/* A message to or from a neighbour. The number is the same on both sides. A block without a neighbour is empty. */
#define CABLEWAY_NO_NEIGHBOR UINT32_MAX
struct cableway_edge {
    uint32_t rank, message;
};

/* What a call sends, or receives: one buffer for each rank or neighbour, one buffer, or none. */
struct cableway_side {
    const struct cableway_buffer *buffers;
    size_t count;
    const struct cableway_edge *edges; /* one for each buffer of a neighbourhood operation, else NULL */
};

/* How the host combines elements: by an operation of the program, or by one of MPI's on a type that no device has. */
struct cableway_function {
    void *op;           /* NULL if the engine reduces, by `operation` and `element` below */
    void *datatype;     /* of an element */
    const void *layout; /* of an element; NULL if there are no gaps between elements */
    uint64_t size;      /* the bytes of data of an element */
    int64_t offset;     /* without a layout: where the first element begins, from the address on */
};

struct cableway_collective {
    int kind; /* enum cableway_collective_kind */
    int root;
    bool in_place;
    bool even; /* of an alltoall: all blocks of all ranks have one length */
    struct cableway_side send, receive;
    /* Of reductions: the numbers of the operation and of the element type in Rust's lists. */
    int operation, element;
    const void *input;
    void *output;
    uint64_t count;
    const int *counts; /* of a reduce-scatter: one for each rank */
    size_t ranks;
    struct cableway_function function; /* its address must not change while the call is under way */
};

enum cableway_performer { CABLEWAY_BY_HOST = 0, CABLEWAY_BY_ENGINE = 1, CABLEWAY_UNDECIDED = 2 };

/* The groups of an intercommunicator. */
struct cableway_between {
    bool first;     /* of the two groups, this process's is that on which both agree to be the first */
    uint32_t local; /* its size */
    void *own;      /* the handle of its own communicator, or NULL */
};

/* Returns the operations of a communicator, given by its handle, or NULL. `between` is NULL for an intracommunicator. */
void *cableway_collectives_new(void *communicator, const struct cableway_between *between);
/* With `wait`, waits until no other member needs this process for the agreement. After MPI_Finalize has begun nobody makes
 * progress that it could wait for. */
void cableway_collectives_free(void *members, bool wait);
/* Returns an enum cableway_performer. `counted` says whether all members make this call, and `bytes` is a
 * size that is equal at all of them, or UINT64_MAX. If undecided, nothing was counted: make progress and ask again. */
int cableway_collectives_begin(void *members, bool counted, uint64_t bytes);
/* Notes that this process passes device memory, at one of these addresses, so that all members change to the engine's
 * operations. */
void cableway_collectives_want(void *members, const void *send, const void *receive);
/* Performs a call. Returns an enum cableway_code. */
int cableway_collectives_run(void *members, const struct cableway_collective *call);
/* Starts a call. Returns an enum cableway_code. If it is 0, shim_collective_completed is called with `owner`, perhaps
 * before this function returns. */
int cableway_collectives_start(void *members, const struct cableway_collective *call, void *owner);
/* Implemented by the shim. */
void shim_collective_completed(void *owner, int code);
/* Makes each of so many elements at `inout` the combination of that at `in` and itself, in this order, by the struct
 * cableway_function at `function`. */
void shim_combine(const void *function, const void *in, void *inout, uint64_t elements);

#endif
