/*
 * Registered memory and one-sided operations. cableway.h includes this file. docs/one-sided.md says what is ordered and
 * what is checked.
 *
 * Offsets and lengths are in bytes. Data lies in host or device memory, in one run, or as elements of datatypes where the
 * functions take them. A key is plain data, which the program sends
 * to the processes that may use the memory; it tells whose memory it is. That process serves operations in any call that
 * waits or makes progress. All functions may be called from any thread, and none of those that wait from a handler of
 * active messages.
 *
 * Operations fail with CABLEWAY_ERR_ACCESS if the owner refuses them: the place is not within the memory, or the key is
 * not valid or not valid any more. A word that is misaligned is CABLEWAY_ERR_ARGUMENT. In both cases nothing was written to
 * the memory, and the content of a get's buffer is undefined. If the owner dies they fail with CABLEWAY_ERR_PEER_FAILED.
 */
#ifndef CABLEWAY_ONE_SIDED_H
#define CABLEWAY_ONE_SIDED_H

#include "cableway.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Memory of this process that others may read and write. */
typedef struct cableway_registration cableway_registration;

/* Names registered memory of a process. Any process that has it can read and write the memory. */
typedef struct cableway_remote_key {
    unsigned char bytes[64];
} cableway_remote_key;

/* How a signal changes its word: to the value, or by adding it, so that the word counts. */
enum cableway_signal_update {
    CABLEWAY_SIGNAL_SET = 1,
    CABLEWAY_SIGNAL_ADD = 2
};

/* How an atomic operation changes a word. Sums wrap around. */
enum cableway_atomic {
    CABLEWAY_ATOMIC_ADD = 1,
    CABLEWAY_ATOMIC_SWAP = 2,
    CABLEWAY_ATOMIC_COMPARE_SWAP = 3, /* to the value if the word is the expected one */
    CABLEWAY_ATOMIC_AND = 4,
    CABLEWAY_ATOMIC_OR = 5,
    CABLEWAY_ATOMIC_XOR = 6
};

/* How a word compares to a value: the word is on the left. Both are without a sign. */
enum cableway_comparison {
    CABLEWAY_EQUAL = 1,
    CABLEWAY_NOT_EQUAL = 2,
    CABLEWAY_LESS = 3,
    CABLEWAY_LESS_EQUAL = 4,
    CABLEWAY_GREATER = 5,
    CABLEWAY_GREATER_EQUAL = 6
};

/* The memory of every process of the job, for cableway_fence and cableway_flush. */
#define CABLEWAY_ALL_TARGETS (-1)

/*
 * Registers `bytes` of host or device memory in one allocation. Parts need no registration of their own, and memory may be
 * registered many times. Until cableway_deregister the program keeps the memory allocated. Peers may write it at any time.
 */
int cableway_register(cableway_world *world, void *address, size_t bytes, cableway_registration **made);
/* Ends a registration: refuses later accesses, waits for those under way, and stores NULL. Not for handlers. */
int cableway_deregister(cableway_registration **registration);
int cableway_registration_key(cableway_registration *registration, cableway_remote_key *key);
/*
 * Reads the word of 8 bytes at `offset`, a multiple of 8 bytes from an aligned address. Data whose signal it has seen can be
 * read afterwards.
 */
int cableway_registration_load(cableway_registration *registration, uint64_t offset, uint64_t *value);
/*
 * Waits until such a word compares to `value` by a cableway_comparison, for example a signal. Fails if process `from`, a
 * rank of the job, dies or leaves before. Stores the word in `seen`, unless that is NULL.
 */
int cableway_registration_wait(cableway_registration *registration, uint64_t offset, int comparison, uint64_t value,
                               int from, uint64_t *seen);
/* Copy registered memory to other memory of this process, and back, as a get and a put of a peer do. */
int cableway_registration_read(cableway_registration *registration, uint64_t offset, void *buffer, size_t bytes);
int cableway_registration_write(cableway_registration *registration, uint64_t offset, const void *buffer, size_t bytes);

/* Copies data to registered memory of any process of the job. Returns once the data is there. */
int cableway_put(const void *buffer, size_t bytes, const cableway_remote_key *key, uint64_t offset,
                 cableway_communicator *communicator);
/*
 * Copies data, and then changes the aligned word of 8 bytes at `signal_offset` of the memory of `signal_key`, which belongs
 * to the same process, by a cableway_signal_update. Whoever sees the new word sees the data.
 */
int cableway_put_signal(const void *buffer, size_t bytes, const cableway_remote_key *key, uint64_t offset,
                        const cableway_remote_key *signal_key, uint64_t signal_offset, int update, uint64_t value,
                        cableway_communicator *communicator);
/* Copies data from registered memory. */
int cableway_get(void *buffer, size_t bytes, const cableway_remote_key *key, uint64_t offset,
                 cableway_communicator *communicator);
/*
 * Copies data from registered memory, and then changes a word as cableway_put_signal does. Whoever sees the new word may
 * write the memory again. A get that the owner refuses leaves the word unchanged.
 */
int cableway_get_signal(void *buffer, size_t bytes, const cableway_remote_key *key, uint64_t offset,
                        const cableway_remote_key *signal_key, uint64_t signal_offset, int update, uint64_t value,
                        cableway_communicator *communicator);
/*
 * Start what the functions above do. The request is complete when the operation is complete at its target. The program
 * keeps the buffer until then; keys are copied. The status has the target's rank in the job as its source.
 */
int cableway_iput(const void *buffer, size_t bytes, const cableway_remote_key *key, uint64_t offset,
                  cableway_communicator *communicator, cableway_request **request);
int cableway_iput_signal(const void *buffer, size_t bytes, const cableway_remote_key *key, uint64_t offset,
                         const cableway_remote_key *signal_key, uint64_t signal_offset, int update, uint64_t value,
                         cableway_communicator *communicator, cableway_request **request);
int cableway_iget(void *buffer, size_t bytes, const cableway_remote_key *key, uint64_t offset,
                  cableway_communicator *communicator, cableway_request **request);
int cableway_iget_signal(void *buffer, size_t bytes, const cableway_remote_key *key, uint64_t offset,
                         const cableway_remote_key *signal_key, uint64_t signal_offset, int update, uint64_t value,
                         cableway_communicator *communicator, cableway_request **request);
/*
 * Do what the functions above do between `count` elements of `datatype` at `buffer` and `target_count` elements of
 * `target_datatype`, whose offsets count from `offset`. Both hold the same amount of data, or the functions fail with
 * CABLEWAY_ERR_ARGUMENT. Elements of what is written do not overlap. CABLEWAY_BYTE with a count is one run, and
 * cableway_type_hvector makes rows of bytes. A null `signal_key` is no signal; the other arguments of the signal are ignored
 * then. Datatypes may be freed before the request is complete.
 */
int cableway_put_typed(const void *buffer, size_t count, const cableway_datatype *datatype,
                       const cableway_remote_key *key, uint64_t offset, size_t target_count,
                       const cableway_datatype *target_datatype, const cableway_remote_key *signal_key,
                       uint64_t signal_offset, int update, uint64_t value, cableway_communicator *communicator);
int cableway_get_typed(void *buffer, size_t count, const cableway_datatype *datatype, const cableway_remote_key *key,
                       uint64_t offset, size_t target_count, const cableway_datatype *target_datatype,
                       const cableway_remote_key *signal_key, uint64_t signal_offset, int update, uint64_t value,
                       cableway_communicator *communicator);
int cableway_iput_typed(const void *buffer, size_t count, const cableway_datatype *datatype,
                        const cableway_remote_key *key, uint64_t offset, size_t target_count,
                        const cableway_datatype *target_datatype, const cableway_remote_key *signal_key,
                        uint64_t signal_offset, int update, uint64_t value, cableway_communicator *communicator,
                        cableway_request **request);
int cableway_iget_typed(void *buffer, size_t count, const cableway_datatype *datatype, const cableway_remote_key *key,
                        uint64_t offset, size_t target_count, const cableway_datatype *target_datatype,
                        const cableway_remote_key *signal_key, uint64_t signal_offset, int update, uint64_t value,
                        cableway_communicator *communicator, cableway_request **request);
/*
 * Change a word of 4 or 8 bytes, aligned to its size, by a cableway_atomic. The CPU of the memory's owner makes the change.
 * `expected` counts for CABLEWAY_ATOMIC_COMPARE_SWAP only. Store the word before in `before`, unless that is NULL.
 */
int cableway_atomic32(int operation, uint32_t value, uint32_t expected, const cableway_remote_key *key, uint64_t offset,
                      cableway_communicator *communicator, uint32_t *before);
int cableway_atomic64(int operation, uint64_t value, uint64_t expected, const cableway_remote_key *key, uint64_t offset,
                      cableway_communicator *communicator, uint64_t *before);
/*
 * Orders operations of this process on memory of a rank of the communicator that start later after all earlier ones.
 * CABLEWAY_ALL_TARGETS: does that for each process of the job. Does not wait.
 */
int cableway_fence(int target, cableway_communicator *communicator);
/* Waits until all operations that this process has started on such memory are complete. Requests return their errors. */
int cableway_flush(int target, cableway_communicator *communicator);

#ifdef __cplusplus
}
#endif

/* It uses the types above. */
#include "cableway_stream.h"

#endif
