/* What MPICH's stream extensions refuse, and how errors of messages on streams are told. Two processes. */
#include "streams/stream.h"

enum { TAG = 7 };

static int calls_of_handler, last_error;

static void handler(MPI_Comm *comm, int *error, ...)
{
    (void) comm;
    calls_of_handler++;
    last_error = *error;
}

/* Checks that a call failed with a class, and called the error handler once. */
static void check_refused(int result, int class, const char *what)
{
    int got;
    MPI_Error_class(result, &got);
    if (got != class || 1 != calls_of_handler || result != last_error) {
        fprintf(stderr, "%s: class %d, not %d; %d calls of the error handler\n", what, got, class, calls_of_handler);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    calls_of_handler = 0;
    count_check();
}
#define REFUSED(class, call) check_refused(call, class, #call)

static int create_from(const char *type, const char *value)
{
    MPI_Info info;
    MPIX_Stream stream = MPIX_STREAM_NULL;
    int rc;
    MPI_Info_create(&info);
    if (NULL != type) {
        MPI_Info_set(info, "type", type);
    }
    if (NULL != value) {
        MPI_Info_set(info, "value", value);
    }
    rc = MPIX_Stream_create(info, &stream);
    MPI_Info_free(&info);
    if (MPI_SUCCESS == rc) {
        CHECK(MPIX_STREAM_NULL != stream);
        CHECK_EQUAL(MPIX_Stream_free(&stream), MPI_SUCCESS);
    } else {
        CHECK(MPIX_STREAM_NULL == stream);
    }
    return rc;
}

static void infos(void)
{
    MPI_Info info;
    MPIX_Stream stream = MPIX_STREAM_NULL;
    char text[MPI_MAX_INFO_VAL + 1], long_value[200] = {0};
    const unsigned char bytes[] = {0x00, 0x1f, 0xa0, 0xff};
    int found;
    REFUSED(MPI_ERR_INFO_VALUE, create_from("levelZero", "00"));
    REFUSED(MPI_ERR_INFO_NOKEY, create_from("cudaStream_t", NULL));
    REFUSED(MPI_ERR_INFO_VALUE, create_from("cudaStream_t", "12"));
    REFUSED(MPI_ERR_INFO_VALUE, create_from("cudaStream_t", "00112233445566zz"));
    REFUSED(MPI_ERR_INFO_VALUE, create_from("cudaStream_t", "001122334455667788"));
    REFUSED(MPI_ERR_ARG, MPIX_Stream_create(MPI_INFO_NULL, NULL));
    REFUSED(MPI_ERR_ARG, MPIX_Stream_free(&stream));
    /* Streams of no device. */
    CHECK_EQUAL(create_from(NULL, NULL), MPI_SUCCESS);
    CHECK_EQUAL(MPIX_Stream_create(MPI_INFO_NULL, &stream), MPI_SUCCESS);
    CHECK_EQUAL(MPIX_Stream_free(&stream), MPI_SUCCESS);
    /* Digits are those of the bytes in their order. */
    MPI_Info_create(&info);
    CHECK_EQUAL(MPIX_Info_set_hex(info, "bytes", bytes, sizeof bytes), MPI_SUCCESS);
    MPI_Info_get(info, "bytes", MPI_MAX_INFO_VAL, text, &found);
    CHECK(found && 0 == strcmp(text, "001fa0ff"));
    CHECK_EQUAL(MPIX_Info_set_hex(info, "most", long_value, 127), MPI_SUCCESS);
    REFUSED(MPI_ERR_INFO_VALUE, MPIX_Info_set_hex(info, "more", long_value, 128));
    REFUSED(MPI_ERR_INFO_VALUE, MPIX_Info_set_hex(info, "less", long_value, -1));
    MPI_Info_free(&info);
    count_check();
}

static void communicators(struct lane *lane)
{
    MPI_Comm none, two, copy;
    MPIX_Stream plain, streams[2], stream = MPIX_STREAM_NULL;
    char byte = 0;
    /* The lane's communicator has its stream, and its duplicate none. */
    CHECK_EQUAL(MPIX_Comm_get_stream(lane->comm, 0, &stream), MPI_SUCCESS);
    CHECK(stream == lane->stream);
    REFUSED(MPI_ERR_ARG, MPIX_Comm_get_stream(lane->comm, 1, &stream));
    REFUSED(MPI_ERR_ARG, MPIX_Comm_get_stream(lane->comm, -1, &stream));
    CHECK_EQUAL(MPI_Comm_dup(lane->comm, &copy), MPI_SUCCESS);
    CHECK_EQUAL(MPIX_Comm_get_stream(copy, 0, &stream), MPI_SUCCESS);
    CHECK(MPIX_STREAM_NULL == stream);
    REFUSED(MPI_ERR_COMM, MPIX_Send_enqueue(&byte, 1, MPI_BYTE, 0, TAG, copy));
    CHECK_EQUAL(MPI_Comm_free(&copy), MPI_SUCCESS);
    /* It is in use. */
    stream = lane->stream;
    REFUSED(MPI_ERR_OTHER, MPIX_Stream_free(&stream));
    CHECK(stream == lane->stream);
    /* Several streams: they can be asked for, and the calls name none. */
    CHECK_EQUAL(MPIX_Stream_create(MPI_INFO_NULL, &plain), MPI_SUCCESS);
    streams[0] = lane->stream;
    streams[1] = plain;
    CHECK_EQUAL(MPIX_Stream_comm_create_multiplex(MPI_COMM_WORLD, 2, streams, &two), MPI_SUCCESS);
    for (int i = 0; i < 2; i++) {
        CHECK_EQUAL(MPIX_Comm_get_stream(two, i, &stream), MPI_SUCCESS);
        CHECK(stream == streams[i]);
    }
    REFUSED(MPI_ERR_COMM, MPIX_Send_enqueue(&byte, 1, MPI_BYTE, 0, TAG, two));
    REFUSED(MPI_ERR_OTHER, MPIX_Stream_free(&streams[1]));
    CHECK_EQUAL(MPI_Comm_free(&two), MPI_SUCCESS);
    REFUSED(MPI_ERR_COUNT, MPIX_Stream_comm_create_multiplex(MPI_COMM_WORLD, -1, streams, &two));
    REFUSED(MPI_ERR_COMM, MPIX_Stream_comm_create(MPI_COMM_NULL, plain, &two));
    /* A stream of no device, and none. */
    CHECK_EQUAL(MPIX_Stream_comm_create(MPI_COMM_WORLD, plain, &none), MPI_SUCCESS);
    REFUSED(MPI_ERR_COMM, MPIX_Recv_enqueue(&byte, 1, MPI_BYTE, 0, TAG, none, MPI_STATUS_IGNORE));
    CHECK_EQUAL(MPI_Comm_free(&none), MPI_SUCCESS);
    CHECK_EQUAL(MPIX_Stream_free(&plain), MPI_SUCCESS);
    CHECK_EQUAL(MPIX_Stream_comm_create_multiplex(MPI_COMM_WORLD, 0, NULL, &none), MPI_SUCCESS);
    CHECK_EQUAL(MPIX_Comm_get_stream(none, 0, &stream), MPI_SUCCESS);
    CHECK(MPIX_STREAM_NULL == stream);
    CHECK_EQUAL(MPI_Comm_free(&none), MPI_SUCCESS);
    /* One of several is enough. */
    CHECK_EQUAL(MPIX_Stream_comm_create_multiplex(MPI_COMM_WORLD, 1, &lane->stream, &two), MPI_SUCCESS);
    CHECK_EQUAL(MPIX_Send_enqueue(&byte, 1, MPI_BYTE, 1 - test.rank, TAG, two), MPI_SUCCESS);
    CHECK_EQUAL(MPI_Recv(&byte, 1, MPI_BYTE, 1 - test.rank, TAG, two, MPI_STATUS_IGNORE), MPI_SUCCESS);
    CHECK_EQUAL(work.synchronize(lane->handle), 0);
    CHECK_EQUAL(MPI_Comm_free(&two), MPI_SUCCESS);
    count_check();
}

static void arguments(struct lane *lane)
{
    MPI_Comm comm = lane->comm;
    MPI_Datatype type;
    MPI_Request request, mixed[2];
    MPI_Status status;
    struct lane another;
    char byte = 0;
    MPI_Type_contiguous(2, MPI_BYTE, &type);
    REFUSED(MPI_ERR_COMM, MPIX_Send_enqueue(&byte, 1, MPI_BYTE, 0, TAG, MPI_COMM_NULL));
    REFUSED(MPI_ERR_COMM, MPIX_Send_enqueue(&byte, 1, MPI_BYTE, 0, TAG, MPI_COMM_WORLD));
    REFUSED(MPI_ERR_COUNT, MPIX_Send_enqueue(&byte, -1, MPI_BYTE, 0, TAG, comm));
    REFUSED(MPI_ERR_COUNT, MPIX_Recv_enqueue_c(&byte, -1, MPI_BYTE, 0, TAG, comm, &status));
    REFUSED(MPI_ERR_TYPE, MPIX_Send_enqueue(&byte, 1, MPI_DATATYPE_NULL, 0, TAG, comm));
    REFUSED(MPI_ERR_TYPE, MPIX_Irecv_enqueue(&byte, 1, type, 0, TAG, comm, &request));
    REFUSED(MPI_ERR_RANK, MPIX_Send_enqueue(&byte, 1, MPI_BYTE, 2, TAG, comm));
    REFUSED(MPI_ERR_RANK, MPIX_Send_enqueue(&byte, 1, MPI_BYTE, MPI_ANY_SOURCE, TAG, comm));
    REFUSED(MPI_ERR_RANK, MPIX_Recv_enqueue(&byte, 1, MPI_BYTE, -7, TAG, comm, &status));
    REFUSED(MPI_ERR_TAG, MPIX_Isend_enqueue(&byte, 1, MPI_BYTE, 0, MPI_ANY_TAG, comm, &request));
    REFUSED(MPI_ERR_TAG, MPIX_Recv_enqueue(&byte, 1, MPI_BYTE, 0, -9, comm, &status));
    REFUSED(MPI_ERR_REQUEST, MPIX_Isend_enqueue(&byte, 1, MPI_BYTE, 0, TAG, comm, NULL));
    REFUSED(MPI_ERR_REQUEST, MPIX_Wait_enqueue(NULL, &status));
    REFUSED(MPI_ERR_COUNT, MPIX_Waitall_enqueue(-1, mixed, MPI_STATUSES_IGNORE));
    MPI_Type_free(&type);
    /* A request of MPI's own call, and requests of two streams. The requests stay. */
    CHECK_EQUAL(MPI_Irecv(&byte, 1, MPI_BYTE, test.rank, TAG, MPI_COMM_WORLD, &request), MPI_SUCCESS);
    REFUSED(MPI_ERR_REQUEST, MPIX_Wait_enqueue(&request, &status));
    CHECK_EQUAL(MPI_Send(&byte, 1, MPI_BYTE, test.rank, TAG, MPI_COMM_WORLD), MPI_SUCCESS);
    CHECK_EQUAL(MPI_Wait(&request, &status), MPI_SUCCESS);
    lane_open(&another);
    MPI_Comm_set_errhandler(another.comm, MPI_ERRORS_RETURN);
    CHECK_EQUAL(MPIX_Irecv_enqueue(&byte, 1, MPI_BYTE, test.rank, TAG, comm, &mixed[0]), MPI_SUCCESS);
    CHECK_EQUAL(MPIX_Isend_enqueue(&byte, 0, MPI_BYTE, test.rank, TAG, another.comm, &mixed[1]), MPI_SUCCESS);
    REFUSED(MPI_ERR_REQUEST, MPIX_Waitall_enqueue(2, mixed, MPI_STATUSES_IGNORE));
    CHECK(MPI_REQUEST_NULL != mixed[0] && MPI_REQUEST_NULL != mixed[1]);
    CHECK_EQUAL(MPI_Wait(&mixed[1], MPI_STATUS_IGNORE), MPI_SUCCESS);
    CHECK_EQUAL(work.synchronize(lane->handle), 0);
    CHECK_EQUAL(MPI_Cancel(&mixed[0]), MPI_SUCCESS);
    CHECK_EQUAL(MPI_Send(&byte, 0, MPI_BYTE, test.rank, TAG, comm), MPI_SUCCESS);
    CHECK_EQUAL(MPI_Wait(&mixed[0], &status), MPI_SUCCESS);
    int cancelled;
    CHECK_EQUAL(MPI_Test_cancelled(&status, &cancelled), MPI_SUCCESS);
    if (cancelled) {
        /* The stream had reached it, so that the message is still there. */
        CHECK_EQUAL(MPI_Recv(&byte, 0, MPI_BYTE, test.rank, TAG, comm, MPI_STATUS_IGNORE), MPI_SUCCESS);
    }
    lane_close(&another);
    count_check();
}

/* A message that is too long: told by the request, or by the next call on the stream, which does nothing else. */
static void truncation(struct lane *lane)
{
    const int peer = 1 - test.rank;
    char out[8] = "1234567", in[4] = {0};
    MPI_Request request;
    MPI_Status status;
    CHECK_EQUAL(MPIX_Irecv_enqueue(in, 4, MPI_BYTE, peer, 1, lane->comm, &request), MPI_SUCCESS);
    CHECK_EQUAL(MPI_Send(out, 8, MPI_BYTE, peer, 1, lane->comm), MPI_SUCCESS);
    REFUSED(MPI_ERR_TRUNCATE, MPI_Wait(&request, &status));
    CHECK_EQUAL(status.MPI_SOURCE, peer);
    CHECK_EQUAL(status.MPI_TAG, 1);
    /* It is told, so that the stream takes the next call. */
    memset(&status, 0xff, sizeof status);
    CHECK_EQUAL(MPIX_Recv_enqueue(in, 4, MPI_BYTE, peer, 2, lane->comm, &status), MPI_SUCCESS);
    CHECK_EQUAL(MPI_Send(out, 8, MPI_BYTE, peer, 2, lane->comm), MPI_SUCCESS);
    CHECK_EQUAL(work.synchronize(lane->handle), 0);
    CHECK_EQUAL(status.MPI_ERROR, MPI_ERR_TRUNCATE);
    CHECK_EQUAL(status.MPI_TAG, 2);
    REFUSED(MPI_ERR_TRUNCATE, MPIX_Send_enqueue(out, 8, MPI_BYTE, peer, 3, lane->comm));
    CHECK_EQUAL(MPIX_Send_enqueue(out, 8, MPI_BYTE, peer, 3, lane->comm), MPI_SUCCESS);
    memset(out, 0, sizeof out);
    CHECK_EQUAL(MPI_Recv(out, 8, MPI_BYTE, peer, 3, lane->comm, MPI_STATUS_IGNORE), MPI_SUCCESS);
    CHECK_EQUAL(work.synchronize(lane->handle), 0);
    CHECK(0 == memcmp(in, "1234", 4));
    count_check();
}

/* A request that outlives its stream, which the program destroys. Calls about other streams must leave that one alone. */
static void a_request_after_its_stream(struct lane *other)
{
    struct lane lane;
    MPI_Request request;
    MPI_Comm comm;
    char out = 1, in = 0;
    lane_open(&lane);
    CHECK_EQUAL(MPIX_Isend_enqueue(&out, 1, MPI_BYTE, 1 - test.rank, TAG, lane.comm, &request), MPI_SUCCESS);
    CHECK_EQUAL(MPIX_Recv_enqueue(&in, 1, MPI_BYTE, 1 - test.rank, TAG, lane.comm, MPI_STATUS_IGNORE), MPI_SUCCESS);
    CHECK_EQUAL(work.synchronize(lane.handle), 0);
    MPI_Barrier(MPI_COMM_WORLD);
    lane_close(&lane);
    CHECK_EQUAL(MPIX_Stream_comm_create(MPI_COMM_WORLD, other->stream, &comm), MPI_SUCCESS);
    CHECK_EQUAL(MPI_Wait(&request, MPI_STATUS_IGNORE), MPI_SUCCESS);
    CHECK_EQUAL(MPI_Comm_free(&comm), MPI_SUCCESS);
    CHECK_EQUAL(in, 1);
    count_check();
}

int main(int argc, char **argv)
{
    struct lane lane;
    MPI_Errhandler errors;
    set_up(argc, argv, level_of(argc, argv));
    load_streams();
    CHECK_EQUAL(test.size, 2);
    MPI_Comm_create_errhandler(handler, &errors);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, errors);
    infos();
    lane_open(&lane);
    MPI_Comm_set_errhandler(lane.comm, errors);
    communicators(&lane);
    arguments(&lane);
    truncation(&lane);
    a_request_after_its_stream(&lane);
    CHECK_EQUAL(calls_of_handler, 0);
    lane_close(&lane);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_ARE_FATAL);
    MPI_Errhandler_free(&errors);
    tear_down();
    return 0;
}
