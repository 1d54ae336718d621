/* Failures end with MPI's error classes. The argument selects the failure. */
#include "check.h"

#include <signal.h>
#include <unistd.h>

static int class_of(int code)
{
    int class;
    MPI_Error_class(code, &class);
    return class;
}

static void truncated(int rank)
{
    static char bytes[1 << 20];
    for (int sent = 100; sent <= 1 << 20; sent *= 100) {
        if (rank == 0) {
            for (int i = 0; i < 4; i++) {
                MPI_Send(bytes, sent, MPI_BYTE, 1, 0, MPI_COMM_WORLD);
            }
        } else if (rank == 1) {
            MPI_Status status;
            MPI_Request request;
            MPI_Message message;
            char guarded[20];
            int count, index;
            memset(guarded, 7, sizeof guarded);
            CHECK_EQUAL(class_of(MPI_Recv(guarded, 10, MPI_BYTE, 0, 0, MPI_COMM_WORLD, &status)), MPI_ERR_TRUNCATE);
            CHECK_EQUAL(guarded[10], 7);
            MPI_Irecv(guarded, 10, MPI_BYTE, MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &request);
            CHECK_EQUAL(class_of(MPI_Wait(&request, &status)), MPI_ERR_TRUNCATE);
            CHECK_EQUAL(status.MPI_SOURCE, 0);
            MPI_Irecv(guarded, 10, MPI_BYTE, 0, 0, MPI_COMM_WORLD, &request);
            CHECK_EQUAL(class_of(MPI_Waitsome(1, &request, &count, &index, &status)), MPI_ERR_IN_STATUS);
            CHECK_EQUAL(class_of(status.MPI_ERROR), MPI_ERR_TRUNCATE);
            MPI_Mprobe(0, 0, MPI_COMM_WORLD, &message, &status);
            CHECK_EQUAL(class_of(MPI_Mrecv(guarded, 10, MPI_BYTE, &message, &status)), MPI_ERR_TRUNCATE);
            CHECK_EQUAL(guarded[10], 7);
        }
    }
    MPI_Barrier(MPI_COMM_WORLD);
}

/* A request that cannot be started: the wait for it returns the error. Open MPI frees a request when it reports an
 * error of it, persistent or not. */
static void failed_start(MPI_Request *request, int class)
{
    int code = MPI_Start(request);
    CHECK_EQUAL(code, MPI_SUCCESS);
    code = MPI_Wait(request, MPI_STATUS_IGNORE);
    CHECK(MPI_SUCCESS != code && (0 == class || class_of(code) == class));
    if (MPI_REQUEST_NULL != *request) {
        MPI_Request_free(request);
    }
}

/* No buffer is attached for a buffered send. */
static void unstarted(int rank)
{
    static char room[MPI_BSEND_OVERHEAD + 1000];
    char out[100] = "sent", in[100] = "";
    void *detached;
    int size;
    MPI_Status statuses[2];
    MPI_Request requests[2];
    MPI_Bsend_init(out, sizeof out, MPI_BYTE, rank, 1, MPI_COMM_WORLD, &requests[1]);
    failed_start(&requests[1], MPI_ERR_BUFFER);

    MPI_Recv_init(in, sizeof in, MPI_BYTE, rank, 1, MPI_COMM_WORLD, &requests[0]);
    MPI_Bsend_init(out, sizeof out, MPI_BYTE, rank, 1, MPI_COMM_WORLD, &requests[1]);
    CHECK_EQUAL(MPI_Startall(2, requests), MPI_SUCCESS);
    CHECK_EQUAL(class_of(MPI_Waitall(2, requests, statuses)), MPI_ERR_IN_STATUS);
    CHECK_EQUAL(class_of(statuses[0].MPI_ERROR), MPI_ERR_PENDING);
    CHECK_EQUAL(class_of(statuses[1].MPI_ERROR), MPI_ERR_BUFFER);

    /* The other rank still waits for its message. */
    MPI_Buffer_attach(room, sizeof room);
    MPI_Bsend(out, sizeof out, MPI_BYTE, rank, 1, MPI_COMM_WORLD);
    CHECK_EQUAL(MPI_Wait(&requests[0], MPI_STATUS_IGNORE), MPI_SUCCESS);
    CHECK(0 == strcmp(in, "sent"));
    MPI_Buffer_detach(&detached, &size);
    MPI_Request_free(&requests[0]);
}

/* Rank 1 dies. Rank 0 waits for it, has a message under way to it, and sends to it. */
static void killed(int rank)
{
    static char large[1 << 22];
    MPI_Request request;
    char byte = 0;
    MPI_Sendrecv(&byte, 1, MPI_BYTE, 1 - rank, 0, &byte, 1, MPI_BYTE, 1 - rank, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    if (rank == 1) {
        raise(SIGKILL);
    }
    MPI_Isend(large, sizeof large, MPI_BYTE, 1, 1, MPI_COMM_WORLD, &request);
    CHECK(MPI_SUCCESS != MPI_Recv(&byte, 1, MPI_BYTE, 1, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
    CHECK(MPI_SUCCESS != MPI_Wait(&request, MPI_STATUS_IGNORE));
    CHECK(MPI_SUCCESS != MPI_Send(&byte, 1, MPI_BYTE, 1, 2, MPI_COMM_WORLD));
    MPI_Send_init(&byte, 1, MPI_BYTE, 1, 3, MPI_COMM_WORLD, &request);
    failed_start(&request, 0);
    printf("all three failed with an error\n");
    fflush(stdout);
    _exit(0);
}

/* A rank that dies before any rank has connected to it. */
static void never_met(int rank)
{
    MPI_Request request;
    char byte = 0;
    if (rank == 1) {
        raise(SIGKILL);
    }
    MPI_Irecv(&byte, 1, MPI_BYTE, 1, 0, MPI_COMM_WORLD, &request);
    CHECK(MPI_SUCCESS != MPI_Wait(&request, MPI_STATUS_IGNORE));
    CHECK(MPI_SUCCESS != MPI_Recv(&byte, 1, MPI_BYTE, 1, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
    CHECK(MPI_SUCCESS != MPI_Recv(&byte, 1, MPI_BYTE, MPI_ANY_SOURCE, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
    printf("all three failed with an error\n");
    fflush(stdout);
    _exit(0);
}

/* Ends with unmatched operations under way. */
static void unfinished(int rank)
{
    static char large[1 << 22], room[1 << 22];
    MPI_Request request;
    int size;
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (rank < 2) {
        int other = size > 1 ? 1 - rank : rank;
        MPI_Irecv(room, sizeof room, MPI_BYTE, other, 7, MPI_COMM_WORLD, &request);
        MPI_Irecv(room, sizeof room, MPI_BYTE, MPI_ANY_SOURCE, 8, MPI_COMM_WORLD, &request);
        MPI_Isend(large, 10, MPI_BYTE, other, 9, MPI_COMM_WORLD, &request);
        MPI_Isend(large, sizeof large, MPI_BYTE, other, 10, MPI_COMM_WORLD, &request);
    }
}

int main(int argc, char **argv)
{
    int rank, provided;
    const char *what = argc > 1 ? argv[1] : "";
    MPI_Init_thread(&argc, &argv, argc > 2 ? MPI_THREAD_MULTIPLE : MPI_THREAD_SINGLE, &provided);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (0 != strcmp(what, "fatal")) {
        MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    }
    if (0 == strcmp(what, "truncated")) {
        truncated(rank);
    } else if (0 == strcmp(what, "unfinished")) {
        unfinished(rank);
    } else if (0 == strcmp(what, "unstarted")) {
        unstarted(rank);
    } else if (0 == strcmp(what, "never-met")) {
        never_met(rank);
    } else {
        killed(rank);
    }
    MPI_Finalize();
    return 0;
}
