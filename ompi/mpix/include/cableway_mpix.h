/* MPICH's stream extensions for programs of Open MPI whose PML is Cableway's component. Link with -lcableway_mpix.
 *
 * A stream communicator has a stream of a device. Calls whose names end in _enqueue return at once, as launches of
 * kernels do: the message starts when the stream gets there. docs/streams.md says what is ordered with what.
 *
 * Every function returns an MPI error code, and calls the error handler of its communicator before, or that of
 * MPI_COMM_WORLD if it has none. A message that fails later is told by the next call on its stream, which does nothing
 * else then, and by the program's wait for its request. Threads may call as MPI's thread level permits. */
#ifndef CABLEWAY_MPIX_H
#define CABLEWAY_MPIX_H

#include <mpi.h>

#ifndef OPEN_MPI
#error "cableway_mpix.h is for programs of Open MPI; MPICH has these functions in mpi.h"
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* A stream. It is not that of the device, but made from it. */
typedef struct cableway_mpix_stream *MPIX_Stream;
#define MPIX_STREAM_NULL ((MPIX_Stream) 0)

/* Sets a value of an info to `size` bytes, in hexadecimal digits. `size` is less than 128. */
int MPIX_Info_set_hex(MPI_Info info, const char *key, const void *value, int size);

/* Creates a stream from an info with `type` cudaStream_t or hipStream_t and with `value` set by MPIX_Info_set_hex to the
 * stream of the device. Without a type, or from MPI_INFO_NULL, the stream is of no device, and nothing can be enqueued on
 * it. The stream of the device exists until MPIX_Stream_free, and until everything that was enqueued is done. Not to be
 * called within a callback of MPI. */
int MPIX_Stream_create(MPI_Info info, MPIX_Stream *stream);

/* Frees a stream, and sets it to MPIX_STREAM_NULL. What was enqueued on it is done as before. The communicators that it
 * is attached to are freed first. */
int MPIX_Stream_free(MPIX_Stream *stream);

/* Creates a communicator like `comm`, to which this process attaches a stream, or MPIX_STREAM_NULL. All processes of
 * `comm` make the call. Duplicates of the new communicator have no stream. */
int MPIX_Stream_comm_create(MPI_Comm comm, MPIX_Stream stream, MPI_Comm *newcomm);

/* The same with several streams. Calls can be enqueued on the communicator if this process has attached one. */
int MPIX_Stream_comm_create_multiplex(MPI_Comm comm, int count, MPIX_Stream array_of_streams[], MPI_Comm *newcomm);

/* Returns a stream of a communicator, by its index. It still belongs to who created it. A communicator without streams
 * has MPIX_STREAM_NULL at index 0. */
int MPIX_Comm_get_stream(MPI_Comm comm, int idx, MPIX_Stream *stream);

/* Sends when the stream gets there. The stream goes on when the buffer can be reused. The message matches any receive. */
int MPIX_Send_enqueue(const void *buf, int count, MPI_Datatype datatype, int dest, int tag, MPI_Comm comm);
int MPIX_Send_enqueue_c(const void *buf, MPI_Count count, MPI_Datatype datatype, int dest, int tag, MPI_Comm comm);

/* Receives when the stream gets there. The stream goes on when the message is in the buffer, and the status is filled.
 * The status stays valid until then. Any send matches. */
int MPIX_Recv_enqueue(void *buf, int count, MPI_Datatype datatype, int source, int tag, MPI_Comm comm,
                      MPI_Status *status);
int MPIX_Recv_enqueue_c(void *buf, MPI_Count count, MPI_Datatype datatype, int source, int tag, MPI_Comm comm,
                        MPI_Status *status);

/* Send or receive when the stream gets there. The stream goes on at once. The request is for MPIX_Wait_enqueue or
 * MPIX_Waitall_enqueue, or for any call of MPI that waits or tests, on the host. */
int MPIX_Isend_enqueue(const void *buf, int count, MPI_Datatype datatype, int dest, int tag, MPI_Comm comm,
                       MPI_Request *request);
int MPIX_Isend_enqueue_c(const void *buf, MPI_Count count, MPI_Datatype datatype, int dest, int tag, MPI_Comm comm,
                         MPI_Request *request);
int MPIX_Irecv_enqueue(void *buf, int count, MPI_Datatype datatype, int source, int tag, MPI_Comm comm,
                       MPI_Request *request);
int MPIX_Irecv_enqueue_c(void *buf, MPI_Count count, MPI_Datatype datatype, int source, int tag, MPI_Comm comm,
                         MPI_Request *request);

/* Makes the stream of the requests wait until they are over. The statuses are filled before the stream goes on, and stay
 * valid until then. The requests become MPI_REQUEST_NULL at once. All of them are of MPIX_Isend_enqueue and
 * MPIX_Irecv_enqueue on one stream; null requests are nothing. */
int MPIX_Wait_enqueue(MPI_Request *request, MPI_Status *status);
int MPIX_Waitall_enqueue(int count, MPI_Request array_of_requests[], MPI_Status array_of_statuses[]);

/* Collective operations in the order of the streams. Each process has a stream of its own attached; the stream goes on when
 * the process's part is done. All processes enqueue the same operations in the same order. They have no order with other
 * collective calls on the communicator. Reductions are MPI's own, on types of the language. The functions whose names end
 * in _c count beyond an int where they reduce without a list: Allreduce and Reduce. */
int MPIX_Allreduce_enqueue(const void *sendbuf, void *recvbuf, int count, MPI_Datatype datatype, MPI_Op op,
                           MPI_Comm comm);
int MPIX_Allreduce_enqueue_c(const void *sendbuf, void *recvbuf, MPI_Count count, MPI_Datatype datatype, MPI_Op op,
                             MPI_Comm comm);
int MPIX_Bcast_enqueue(void *buffer, int count, MPI_Datatype datatype, int root, MPI_Comm comm);
int MPIX_Bcast_enqueue_c(void *buffer, MPI_Count count, MPI_Datatype datatype, int root, MPI_Comm comm);
int MPIX_Reduce_enqueue(const void *sendbuf, void *recvbuf, int count, MPI_Datatype datatype, MPI_Op op, int root,
                        MPI_Comm comm);
int MPIX_Reduce_enqueue_c(const void *sendbuf, void *recvbuf, MPI_Count count, MPI_Datatype datatype, MPI_Op op,
                          int root, MPI_Comm comm);
int MPIX_Allgather_enqueue(const void *sendbuf, int sendcount, MPI_Datatype sendtype, void *recvbuf, int recvcount,
                           MPI_Datatype recvtype, MPI_Comm comm);
int MPIX_Allgather_enqueue_c(const void *sendbuf, MPI_Count sendcount, MPI_Datatype sendtype, void *recvbuf,
                             MPI_Count recvcount, MPI_Datatype recvtype, MPI_Comm comm);
int MPIX_Alltoall_enqueue(const void *sendbuf, int sendcount, MPI_Datatype sendtype, void *recvbuf, int recvcount,
                          MPI_Datatype recvtype, MPI_Comm comm);
int MPIX_Alltoall_enqueue_c(const void *sendbuf, MPI_Count sendcount, MPI_Datatype sendtype, void *recvbuf,
                            MPI_Count recvcount, MPI_Datatype recvtype, MPI_Comm comm);
int MPIX_Reduce_scatter_enqueue(const void *sendbuf, void *recvbuf, const int recvcounts[], MPI_Datatype datatype,
                                MPI_Op op, MPI_Comm comm);
int MPIX_Reduce_scatter_enqueue_c(const void *sendbuf, void *recvbuf, const MPI_Count recvcounts[],
                                  MPI_Datatype datatype, MPI_Op op, MPI_Comm comm);

#ifdef __cplusplus
}
#endif

#endif
