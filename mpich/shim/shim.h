/* The boundary between the shim and Rust. Functions whose names begin with `cableway_` are Rust's. Structures have the same
 * fields in `src/boundary.rs`. */
#ifndef CABLEWAY_SHIM_H
#define CABLEWAY_SHIM_H

#include <mpi.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What Rust's functions return. */
enum cableway_code { CABLEWAY_OK, CABLEWAY_INTERNAL, CABLEWAY_NO_MEMORY };

/* --- the process (src/process.rs) --- */

/* What each process tells all others in MPI_Init. Only rank 0's id and secret count. */
struct cableway_hello {
    uint64_t host;             /* the same on all processes of a node */
    uint64_t id;               /* of the job */
    unsigned char secret[32];  /* of the job */
    uint64_t expects;          /* 1 if device memory may appear in the process */
};

/* Reads the parameters, and finds the drivers. Fills `hello`; `processor` is the name of the node. */
void cableway_prepare(struct cableway_hello *hello, const char *processor, int rank);
/* Takes what all processes told. */
void cableway_job(const struct cableway_hello *all, int rank, int size);
/* Returns whether a driver is in the process at present. */
bool cableway_present(void);
/* Tells peers that this process ends. */
void cableway_stop(void);

/* Who performs collectives: the parameter `coll_performer`. */
enum cableway_performer { CABLEWAY_AUTO, CABLEWAY_MPI, CABLEWAY_ALWAYS };
int cableway_performer(void);
/* The smallest call that members who share a device give to Cableway, in bytes. */
uint64_t cableway_shared_limit(void);

/* --- communicators (src/groups.rs) --- */

/* What a member tells all members when they change to Cableway. */
struct cableway_card {
    uint64_t ready;    /* 1 if its engine runs */
    uint64_t device;   /* a number that stands for its device, 0 if it has not passed device memory */
    uint64_t length;   /* of its addresses, which follow in a second exchange */
    uint64_t context;  /* of the new communicator, 0 if there is none left; only rank 0's counts */
};

/* Starts the engine if it does not run. Fills `card` but for the device. */
void cableway_start(struct cableway_card *card);
/* Returns this process's addresses: as many bytes as its card says. */
const void *cableway_addresses(void);
/* Takes the addresses of a process of MPI_COMM_WORLD. */
bool cableway_meet(int process, const void *addresses, size_t length);
/* Returns a new communicator of these processes of MPI_COMM_WORLD, or NULL. */
void *cableway_group_new(uint64_t context, const int *processes, int size, int rank);
void cableway_group_free(void *group);
/* Says at level info that Cableway performs a communicator's calls. */
void cableway_took_over(int size, bool shared);

/* --- calls (src/calls.rs) --- */

/* `count` elements of `layout`, or `length` bytes without one. */
struct cableway_memory {
    void *address;
    uint64_t count;
    uint64_t length;
    const void *layout;
};

enum cableway_kind {
    BROADCAST, GATHER, SCATTER, ALLGATHER, ALLTOALL, ALLREDUCE, REDUCE, REDUCE_SCATTER, SCAN, EXCLUSIVE_SCAN
};

/* The parts of one buffer of a call. */
struct cableway_side {
    struct cableway_memory *parts;
    size_t count;
    bool read, written;
};

/* A collective call. */
struct cableway_call {
    int kind;
    int root;
    bool in_place;
    struct cableway_side send, receive;
    int operation, element;      /* of a reduction: the numbers in Rust's lists, or -1 */
    uint64_t elements;           /* of a reduction: of its input */
    const void *input;
    void *output;
    const int *counts;           /* of a reduce-scatter: `ranks` */
    size_t ranks;
};

/* Returns a number that stands for the device of which a part is memory, or 0. */
uint64_t cableway_device_of(const struct cableway_side *side);
/* Performs a call, and waits for it. */
int cableway_run(void *group, const struct cableway_call *call);
/* Returns whether MPI defines a predefined operation for a type, both by their numbers. */
bool cableway_reduces(int operation, int element);

/* Host copies of the sides on a device. `bases` are the addresses of both buffers, and become those of the copies.
 * Copies in what the call reads. Sets `copies` to NULL if nothing is on a device. */
int cableway_stage(void **copies, const struct cableway_side *const sides[2], void *bases[2]);
/* Copies back what the call wrote, unless it failed. Frees the copies. */
int cableway_unstage(void *copies, bool failed);

/* --- types (src/types.rs) --- */

/* How a type is made. The integers are those of MPI_Type_get_contents, but for the last three kinds: constants of MPI have
 * the numbers of `src/types.rs`. */
enum cableway_combiner {
    DUP, CONTIGUOUS, VECTOR, HVECTOR, INDEXED, HINDEXED, INDEXED_BLOCK, HINDEXED_BLOCK, STRUCT, RESIZED, SUBARRAY, DARRAY
};
enum cableway_order { ROWS_FIRST, COLUMNS_FIRST };
enum cableway_distribution { UNDIVIDED, BLOCKS, IN_TURN };

/* The pairs with gaps. */
enum cableway_pair { PAIR_DOUBLE_INT, PAIR_LONG_INT, PAIR_SHORT_INT, PAIR_LONG_DOUBLE_INT };

void *cableway_type_bytes(uint64_t size);
void *cableway_type_pair(int pair);
/* Returns NULL if a type cannot be made. */
void *cableway_type_make(int combiner, const int *integers, size_t integer_count, const MPI_Aint *addresses,
                         size_t address_count, void *const *types, size_t type_count);
void cableway_type_free(void *type);
/* Returns the layout of a type, and frees the type. */
void *cableway_layout_new(void *type);
void cableway_layout_free(void *layout);

#endif
