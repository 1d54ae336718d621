/* Rows: messages around the ring of ranks, in every mode. */

#define TAG 5
#define TO_NEXT S, C, T, next, TAG, comm
#define FROM_PREVIOUS R, C, T, previous, TAG, comm

#define SENDING(call, before, after)                                                                                   \
    ROW(call, {                                                                                                        \
        MPI_Request request;                                                                                           \
        before MPI_Irecv(FROM_PREVIOUS, &request);                                                                     \
        MPI_Barrier(comm);                                                                                             \
        call(TO_NEXT);                                                                                                 \
        WAIT(request);                                                                                                 \
        after                                                                                                          \
    })
#define STARTING(call, before, after)                                                                                  \
    ROW(call, {                                                                                                        \
        MPI_Request requests[2];                                                                                       \
        before MPI_Irecv(FROM_PREVIOUS, &requests[0]);                                                                 \
        MPI_Barrier(comm);                                                                                             \
        call(TO_NEXT, &requests[1]);                                                                                   \
        MPI_Waitall(2, requests, MPI_STATUSES_IGNORE);                                                                 \
        after                                                                                                          \
    })
#define PREPARING(call, before, after)                                                                                 \
    ROW(call, {                                                                                                        \
        MPI_Request requests[2];                                                                                       \
        before MPI_Recv_init(FROM_PREVIOUS, &requests[0]);                                                             \
        call(TO_NEXT, &requests[1]);                                                                                   \
        for (int i = 0; i < 2; i++) {                                                                                  \
            MPI_Start(&requests[0]);                                                                                   \
            MPI_Barrier(comm);                                                                                         \
            MPI_Start(&requests[1]);                                                                                   \
            MPI_Waitall(2, requests, MPI_STATUSES_IGNORE);                                                             \
        }                                                                                                              \
        MPI_Request_free(&requests[0]);                                                                                \
        MPI_Request_free(&requests[1]);                                                                                \
        after                                                                                                          \
    })

static void attach(void)
{
    int room = (int) (4 * LARGE * extent + 4 * MPI_BSEND_OVERHEAD);
    MPI_Buffer_attach(malloc((size_t) room), room);
}
static void detach(void)
{
    void *buffer;
    int room;
    MPI_Buffer_detach(&buffer, &room);
    free(buffer);
}

SENDING(MPI_Send, , )
SENDING(MPI_Ssend, , )
SENDING(MPI_Rsend, , )
SENDING(MPI_Bsend, attach();, detach();)
STARTING(MPI_Isend, , )
STARTING(MPI_Issend, , )
STARTING(MPI_Irsend, , )
STARTING(MPI_Ibsend, attach();, detach();)
PREPARING(MPI_Send_init, , )
PREPARING(MPI_Ssend_init, , )
PREPARING(MPI_Rsend_init, , )
PREPARING(MPI_Bsend_init, attach();, detach();)

#define RECEIVING(name, ...)                                                                                           \
    ROW(name, {                                                                                                        \
        MPI_Request request;                                                                                           \
        MPI_Isend(TO_NEXT, &request);                                                                                  \
        __VA_ARGS__                                                                                                    \
        WAIT(request);                                                                                                 \
    })

RECEIVING(MPI_Recv, {
    MPI_Status status;
    int count;
    MPI_Recv(FROM_PREVIOUS, &status);
    MPI_Get_count(&status, T, &count);
    CHECK_EQUAL(count, C);
})
RECEIVING(MPI_Irecv, {
    MPI_Request receive;
    MPI_Irecv(FROM_PREVIOUS, &receive);
    WAIT(receive);
})
RECEIVING(MPI_Recv_init, {
    MPI_Request receive;
    MPI_Recv_init(FROM_PREVIOUS, &receive);
    MPI_Start(&receive);
    WAIT(receive);
    MPI_Request_free(&receive);
})
RECEIVING(MPI_Mrecv, {
    MPI_Message message;
    MPI_Mprobe(previous, TAG, comm, &message, MPI_STATUS_IGNORE);
    MPI_Mrecv(R, C, T, &message, MPI_STATUS_IGNORE);
})
RECEIVING(MPI_Imrecv, {
    MPI_Message message;
    MPI_Request receive;
    MPI_Mprobe(previous, TAG, comm, &message, MPI_STATUS_IGNORE);
    MPI_Imrecv(R, C, T, &message, &receive);
    WAIT(receive);
})
ROW(MPI_Sendrecv, {
    MPI_Sendrecv(S, C, T, next, TAG, R, C, T, previous, TAG, comm, MPI_STATUS_IGNORE);
})

#if OMPI_MAJOR_VERSION >= 5
ROW(MPI_Isendrecv, {
    MPI_Request request;
    MPI_Isendrecv(S, C, T, next, TAG, R, C, T, previous, TAG, comm, &request);
    WAIT(request);
})
ROW(MPI_Isendrecv_replace, {
    MPI_Request request;
    MPI_Isendrecv_replace(R, C, T, next, TAG, previous, TAG, comm, &request);
    WAIT(request);
})

/* In partitions that become ready one by one, the last one first. C is a multiple of their number. */
enum { PARTS = 5 };
#define PARTITIONED(call, arrived)                                                                                     \
    ROW(call, {                                                                                                        \
        MPI_Request requests[2];                                                                                       \
        MPI_Precv_init(R, PARTS, C / PARTS, T, previous, TAG, comm, MPI_INFO_NULL, &requests[0]);                      \
        MPI_Psend_init(S, PARTS, C / PARTS, T, next, TAG, comm, MPI_INFO_NULL, &requests[1]);                          \
        for (int i = 0; i < 2; i++) {                                                                                  \
            MPI_Startall(2, requests);                                                                                 \
            for (int part = PARTS - 1; part >= 0; part--) {                                                            \
                MPI_Pready(part, requests[1]);                                                                         \
            }                                                                                                          \
            arrived MPI_Waitall(2, requests, MPI_STATUSES_IGNORE);                                                     \
        }                                                                                                              \
        MPI_Request_free(&requests[0]);                                                                                \
        MPI_Request_free(&requests[1]);                                                                                \
    })
PARTITIONED(MPI_Psend_init, )
PARTITIONED(
    MPI_Precv_init, for (int part = 0; part < PARTS; part++) {
        for (int there = 0; !there;) {
            MPI_Parrived(requests[0], part, &there);
        }
    })
#endif
