/* The interface between the component and libcableway_mpix.so (ompi/mpix): MPICH's stream extensions. */
#ifndef CABLEWAY_SHIM_MPIX_H
#define CABLEWAY_SHIM_MPIX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct cableway_mpix_stream *MPIX_Stream;

enum cableway_mpix_message { CABLEWAY_MPIX_SEND, CABLEWAY_MPIX_RECV, CABLEWAY_MPIX_ISEND, CABLEWAY_MPIX_IRECV };

/* The arguments of a call that sends or receives. */
struct cableway_mpix_call {
    int kind; /* enum cableway_mpix_message */
    void *buffer;
    int64_t count;
    void *datatype;
    int peer, tag;
    void *communicator;
    void **request; /* of the nonblocking calls */
    void *status;   /* of a blocking receive: may be MPI_STATUS_IGNORE */
};

/* The arguments of a collective call. */
struct cableway_mpix_collective {
    int kind; /* enum cableway_collective_kind */
    int root;
    const void *send;
    void *receive;
    int64_t send_count, receive_count;
    void *send_type, *receive_type;
    void *operation;
    const int *counts;          /* of a reduce-scatter: one for each rank, or NULL */
    const int64_t *wide_counts; /* the same */
    void *communicator;
};

/* All functions return MPI's error codes, and have called the error handler then. Communicators, datatypes, requests,
 * statuses and infos are MPI's. `call` is the name of the MPI call, for the error handler. */
struct cableway_mpix {
    uint32_t version; /* 1 */
    /* Returns whether Open MPI has selected the component, and MPI can be called. */
    bool (*active)(void);
    int (*stream_create)(void *info, MPIX_Stream *stream);
    int (*stream_free)(MPIX_Stream *stream);
    int (*info_set_hex)(void *info, const char *key, const void *value, int size);
    int (*communicator_create)(const char *call, void *communicator, int count, const MPIX_Stream *streams,
                               void **out);
    int (*communicator_stream)(void *communicator, int index, MPIX_Stream *stream);
    int (*enqueue)(const char *call, const struct cableway_mpix_call *arguments);
    int (*collective)(const char *call, const struct cableway_mpix_collective *arguments);
    int (*wait)(const char *call, int64_t count, void **requests, void *statuses);
};

#endif
