/* Collective functions. cableway.h includes this file. docs/collectives.md says how they are performed. */
#ifndef CABLEWAY_COLLECTIVE_H
#define CABLEWAY_COLLECTIVE_H

#include "cableway.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * All members of the communicator call these functions, with arguments that fit together, as those of the MPI functions of
 * these names. Memory may be on the host in some processes and on devices in others. Buffers that only the root uses are
 * ignored elsewhere. The v forms count parts and displacements in elements of the datatype, with one entry for each rank;
 * without displacements (NULL) the parts follow each other. CABLEWAY_IN_PLACE is for the root only where there is one.
 * Wrong arguments fail before anything is sent, if one process
 * can see that; the other members then wait or fail.
 */
int cableway_barrier(cableway_communicator *communicator);
int cableway_bcast(void *buffer, size_t count, const cableway_datatype *datatype, int root,
                   cableway_communicator *communicator);
int cableway_gather(const void *send_buffer, size_t send_count, const cableway_datatype *send_datatype,
                    void *receive_buffer, size_t receive_count, const cableway_datatype *receive_datatype, int root,
                    cableway_communicator *communicator);
int cableway_gatherv(const void *send_buffer, size_t send_count, const cableway_datatype *send_datatype,
                     void *receive_buffer, const size_t *receive_counts, const size_t *displacements,
                     const cableway_datatype *receive_datatype, int root, cableway_communicator *communicator);
int cableway_scatter(const void *send_buffer, size_t send_count, const cableway_datatype *send_datatype,
                     void *receive_buffer, size_t receive_count, const cableway_datatype *receive_datatype, int root,
                     cableway_communicator *communicator);
int cableway_scatterv(const void *send_buffer, const size_t *send_counts, const size_t *displacements,
                      const cableway_datatype *send_datatype, void *receive_buffer, size_t receive_count,
                      const cableway_datatype *receive_datatype, int root, cableway_communicator *communicator);
int cableway_allgather(const void *send_buffer, size_t send_count, const cableway_datatype *send_datatype,
                       void *receive_buffer, size_t receive_count, const cableway_datatype *receive_datatype,
                       cableway_communicator *communicator);
int cableway_allgatherv(const void *send_buffer, size_t send_count, const cableway_datatype *send_datatype,
                        void *receive_buffer, const size_t *receive_counts, const size_t *displacements,
                        const cableway_datatype *receive_datatype, cableway_communicator *communicator);
int cableway_alltoall(const void *send_buffer, size_t send_count, const cableway_datatype *send_datatype,
                      void *receive_buffer, size_t receive_count, const cableway_datatype *receive_datatype,
                      cableway_communicator *communicator);
int cableway_alltoallv(const void *send_buffer, const size_t *send_counts, const size_t *send_displacements,
                       const cableway_datatype *send_datatype, void *receive_buffer, const size_t *receive_counts,
                       const size_t *receive_displacements, const cableway_datatype *receive_datatype,
                       cableway_communicator *communicator);

/* A message of an exchange with neighbours. */
typedef struct cableway_neighbor {
    int rank;                          /* the neighbour's rank in the communicator */
    uint16_t number;                   /* tells several messages apart; the sender and the receiver give the same */
    void *buffer;                      /* a message that is sent is only read */
    size_t count;                      /* elements of the datatype, or bytes without one */
    const cableway_datatype *datatype; /* CABLEWAY_BYTE or another datatype */
} cableway_neighbor;

/*
 * Sends and receives messages at the same time (MPI's neighbourhood collectives). Unlike the other functions here, only
 * processes with messages for each other call it. The messages of several calls between two processes match in the order
 * of the calls. A message has exactly the length of the buffer that receives it, also if that is 0. Memory that receives a
 * message belongs to no other message of the call; memory may be sent several times. The arrays are read by the call only.
 * After a failed process, later exchanges fail, too.
 */
int cableway_neighbor_alltoall(const cableway_neighbor *sends, size_t send_count, const cableway_neighbor *receives,
                               size_t receive_count, cableway_communicator *communicator);

/*
 * Start collective functions. Members start them in the same order as blocking ones. The program keeps the buffers until
 * the request has ended, as those of nonblocking messages. The arrays of counts, displacements and neighbours are read by
 * the call only. A status says nothing but the error. The request of ibarrier ends when all members have started it. None
 * of these functions matches a blocking one.
 */
int cableway_ibarrier(cableway_communicator *communicator, cableway_request **request);
int cableway_ibcast(void *buffer, size_t count, const cableway_datatype *datatype, int root,
                    cableway_communicator *communicator, cableway_request **request);
int cableway_igather(const void *send_buffer, size_t send_count, const cableway_datatype *send_datatype,
                     void *receive_buffer, size_t receive_count, const cableway_datatype *receive_datatype, int root,
                     cableway_communicator *communicator, cableway_request **request);
int cableway_igatherv(const void *send_buffer, size_t send_count, const cableway_datatype *send_datatype,
                      void *receive_buffer, const size_t *receive_counts, const size_t *displacements,
                      const cableway_datatype *receive_datatype, int root, cableway_communicator *communicator,
                      cableway_request **request);
int cableway_iscatter(const void *send_buffer, size_t send_count, const cableway_datatype *send_datatype,
                      void *receive_buffer, size_t receive_count, const cableway_datatype *receive_datatype, int root,
                      cableway_communicator *communicator, cableway_request **request);
int cableway_iscatterv(const void *send_buffer, const size_t *send_counts, const size_t *displacements,
                       const cableway_datatype *send_datatype, void *receive_buffer, size_t receive_count,
                       const cableway_datatype *receive_datatype, int root, cableway_communicator *communicator,
                       cableway_request **request);
int cableway_iallgather(const void *send_buffer, size_t send_count, const cableway_datatype *send_datatype,
                        void *receive_buffer, size_t receive_count, const cableway_datatype *receive_datatype,
                        cableway_communicator *communicator, cableway_request **request);
int cableway_iallgatherv(const void *send_buffer, size_t send_count, const cableway_datatype *send_datatype,
                         void *receive_buffer, const size_t *receive_counts, const size_t *displacements,
                         const cableway_datatype *receive_datatype, cableway_communicator *communicator,
                         cableway_request **request);
int cableway_ialltoall(const void *send_buffer, size_t send_count, const cableway_datatype *send_datatype,
                       void *receive_buffer, size_t receive_count, const cableway_datatype *receive_datatype,
                       cableway_communicator *communicator, cableway_request **request);
int cableway_ialltoallv(const void *send_buffer, const size_t *send_counts, const size_t *send_displacements,
                        const cableway_datatype *send_datatype, void *receive_buffer, const size_t *receive_counts,
                        const size_t *receive_displacements, const cableway_datatype *receive_datatype,
                        cableway_communicator *communicator, cableway_request **request);
int cableway_ineighbor_alltoall(const cableway_neighbor *sends, size_t send_count, const cableway_neighbor *receives,
                                size_t receive_count, cableway_communicator *communicator, cableway_request **request);

/* The types of elements that reductions combine. Pairs are structures of a value and an index, for MINLOC and MAXLOC. */
enum cableway_element {
    CABLEWAY_INT8 = 1,
    CABLEWAY_INT16 = 2,
    CABLEWAY_INT32 = 3,
    CABLEWAY_INT64 = 4,
    CABLEWAY_UINT8 = 5,
    CABLEWAY_UINT16 = 6,
    CABLEWAY_UINT32 = 7,
    CABLEWAY_UINT64 = 8,
    CABLEWAY_FLOAT16 = 9,        /* IEEE 754 binary16 */
    CABLEWAY_FLOAT = 10,
    CABLEWAY_DOUBLE = 11,
    CABLEWAY_FLOAT_COMPLEX = 12, /* two float: real and imaginary part */
    CABLEWAY_DOUBLE_COMPLEX = 13,
    CABLEWAY_FLOAT_INT = 14,     /* struct { float value; int32_t index; } */
    CABLEWAY_DOUBLE_INT = 15,    /* struct { double value; int32_t index; } */
    CABLEWAY_INT64_INT = 16,     /* struct { int64_t value; int32_t index; } */
    CABLEWAY_2INT = 17,          /* struct { int32_t value; int32_t index; } */
    CABLEWAY_INT16_INT = 18,     /* struct { int16_t value; int32_t index; } */
    CABLEWAY_2FLOAT = 19,        /* struct { float value; float index; } */
    CABLEWAY_2DOUBLE = 20        /* struct { double value; double index; } */
};

/*
 * Operations. SUM and PRODUCT are for all numbers, integers wrap; MIN and MAX for all but complex numbers, and a NaN wins;
 * the logical and bitwise ones for integers; MINLOC and MAXLOC for pairs. docs/collectives.md has the exact results.
 */
enum cableway_operation {
    CABLEWAY_SUM = 1,
    CABLEWAY_PRODUCT = 2,
    CABLEWAY_MIN = 3,
    CABLEWAY_MAX = 4,
    CABLEWAY_LOGICAL_AND = 5,
    CABLEWAY_LOGICAL_OR = 6,
    CABLEWAY_LOGICAL_XOR = 7,
    CABLEWAY_BIT_AND = 8,
    CABLEWAY_BIT_OR = 9,
    CABLEWAY_BIT_XOR = 10,
    CABLEWAY_MINLOC = 11,
    CABLEWAY_MAXLOC = 12
};

/*
 * Reductions of `count` elements, with a cableway_element and a cableway_operation. Buffers are aligned for the elements.
 * Each process gets `receive_count` elements of reduce_scatter_block, whose input has as many for each rank. Of
 * reduce_scatter it gets as many as its entry of `receive_counts` says, and the input has the sum of them. In place the
 * input of both is in `receive`, and the result at its beginning. exscan leaves `receive` of rank 0 as it is.
 */
int cableway_reduce(const void *send, void *receive, size_t count, int element, int operation, int root,
                    cableway_communicator *communicator);
int cableway_allreduce(const void *send, void *receive, size_t count, int element, int operation,
                       cableway_communicator *communicator);
int cableway_reduce_scatter_block(const void *send, void *receive, size_t receive_count, int element, int operation,
                                  cableway_communicator *communicator);
int cableway_reduce_scatter(const void *send, void *receive, const size_t *receive_counts, int element, int operation,
                            cableway_communicator *communicator);
int cableway_scan(const void *send, void *receive, size_t count, int element, int operation,
                  cableway_communicator *communicator);
int cableway_exscan(const void *send, void *receive, size_t count, int element, int operation,
                    cableway_communicator *communicator);

/* Start such reductions. */
int cableway_ireduce(const void *send, void *receive, size_t count, int element, int operation, int root,
                     cableway_communicator *communicator, cableway_request **request);
int cableway_iallreduce(const void *send, void *receive, size_t count, int element, int operation,
                        cableway_communicator *communicator, cableway_request **request);
int cableway_ireduce_scatter_block(const void *send, void *receive, size_t receive_count, int element, int operation,
                                   cableway_communicator *communicator, cableway_request **request);
int cableway_ireduce_scatter(const void *send, void *receive, const size_t *receive_counts, int element,
                             int operation, cableway_communicator *communicator, cableway_request **request);
int cableway_iscan(const void *send, void *receive, size_t count, int element, int operation,
                   cableway_communicator *communicator, cableway_request **request);
int cableway_iexscan(const void *send, void *receive, size_t count, int element, int operation,
                     cableway_communicator *communicator, cableway_request **request);

#ifdef __cplusplus
}
#endif

#endif
