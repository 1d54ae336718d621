/* The results of MPI calls after a panic in the engine: everything that waits ends, and nothing new begins. The
 * component panics at a point for which a file exists (`ompi/src/fault.rs`). The argument selects the calls. */
#include "check.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <unistd.h>

enum { LARGE = 4 << 20, PENDING = 5 };

static char bytes[LARGE];
static int rank;

/* Requests a panic when this process next reaches the point. */
static void panic_at(const char *point)
{
    char path[4096];
    const char *prefix = getenv("CABLEWAY_TEST_PANIC");
    CHECK(NULL != prefix);
    snprintf(path, sizeof path, "%s.%d.%s", prefix, (int) getpid(), point);
    int file = open(path, O_CREAT | O_WRONLY, 0600);
    CHECK(file >= 0);
    close(file);
}

#define CHECK_INTERNAL(call)                                                                                           \
    do {                                                                                                              \
        int class_;                                                                                                   \
        MPI_Error_class((call), &class_);                                                                             \
        CHECK_EQUAL(class_, MPI_ERR_INTERN);                                                                          \
    } while (0)

/* Operations of several kinds that are never matched. */
static void post(MPI_Request requests[PENDING])
{
    MPI_Request freed;
    MPI_Datatype type;
    MPI_Type_vector(4, 1, 2, MPI_INT, &type);
    MPI_Type_commit(&type);
    MPI_Irecv(bytes, 8, MPI_BYTE, rank, 1, MPI_COMM_WORLD, &requests[0]);
    MPI_Irecv(bytes + 64, 1, type, MPI_ANY_SOURCE, 1, MPI_COMM_WORLD, &requests[1]);
    MPI_Recv_init(bytes + 128, 8, MPI_BYTE, rank, MPI_ANY_TAG, MPI_COMM_WORLD, &requests[2]);
    MPI_Start(&requests[2]);
    MPI_Irecv(bytes + 192, 8, MPI_BYTE, MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &requests[3]);
    MPI_Issend(bytes + 320, 8, MPI_BYTE, 0, 1, MPI_COMM_SELF, &requests[4]);
    MPI_Irecv(bytes + 256, 8, MPI_BYTE, rank, 2, MPI_COMM_WORLD, &freed);
    MPI_Request_free(&freed);
    MPI_Type_free(&type);
}

static void nothing_begins(void)
{
    MPI_Request request;
    MPI_Message message;
    int flag;
    CHECK_INTERNAL(MPI_Send(bytes, 8, MPI_BYTE, rank, 1, MPI_COMM_WORLD));
    CHECK_INTERNAL(MPI_Ssend(bytes, 8, MPI_BYTE, rank, 1, MPI_COMM_WORLD));
    CHECK_INTERNAL(MPI_Recv(bytes, 8, MPI_BYTE, rank, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
    /* The request reports it. */
    CHECK_EQUAL(MPI_Isend(bytes, 8, MPI_BYTE, rank, 1, MPI_COMM_WORLD, &request), MPI_SUCCESS);
    CHECK_INTERNAL(MPI_Wait(&request, MPI_STATUS_IGNORE));
    CHECK_EQUAL(MPI_Irecv(bytes, 8, MPI_BYTE, rank, 1, MPI_COMM_WORLD, &request), MPI_SUCCESS);
    CHECK_INTERNAL(MPI_Wait(&request, MPI_STATUS_IGNORE));
    CHECK_INTERNAL(MPI_Probe(rank, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
    CHECK_INTERNAL(MPI_Iprobe(rank, 1, MPI_COMM_WORLD, &flag, MPI_STATUS_IGNORE));
    CHECK_INTERNAL(MPI_Mprobe(rank, 1, MPI_COMM_WORLD, &message, MPI_STATUS_IGNORE));
    CHECK_INTERNAL(MPI_Sendrecv(bytes, 8, MPI_BYTE, rank, 1, bytes + 64, 8, MPI_BYTE, rank, 1, MPI_COMM_WORLD,
                                MPI_STATUS_IGNORE));
}

static void wait_for_all(void)
{
    MPI_Request requests[PENDING];
    MPI_Status statuses[PENDING];
    post(requests);
    panic_at("progress");
    CHECK_EQUAL(MPI_Waitall(PENDING, requests, statuses), MPI_ERR_IN_STATUS);
    for (int i = 0; i < PENDING; i++) {
        CHECK_INTERNAL(statuses[i].MPI_ERROR);
    }
}

static void wait_for_each(void)
{
    MPI_Request requests[PENDING];
    post(requests);
    panic_at("progress");
    for (int i = 0; i < PENDING; i++) {
        CHECK_INTERNAL(MPI_Wait(&requests[i], MPI_STATUS_IGNORE));
    }
}

static void test_one(void)
{
    MPI_Request requests[PENDING];
    int flag = 0, code = MPI_SUCCESS;
    post(requests);
    panic_at("progress");
    while (!flag && MPI_SUCCESS == code) {
        code = MPI_Test(&requests[1], &flag, MPI_STATUS_IGNORE);
    }
    CHECK_INTERNAL(code);
}

static void wait_for_any(void)
{
    MPI_Request requests[PENDING];
    int index;
    post(requests);
    panic_at("progress");
    CHECK_INTERNAL(MPI_Waitany(PENDING, requests, &index, MPI_STATUS_IGNORE));
}

static void receive(const char *point)
{
    MPI_Request requests[PENDING];
    post(requests);
    panic_at(point);
    CHECK_INTERNAL(MPI_Recv(bytes + 512, 8, MPI_BYTE, rank, 3, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
    CHECK_INTERNAL(MPI_Wait(&requests[0], MPI_STATUS_IGNORE));
}

static void probe(void)
{
    panic_at("progress");
    CHECK_INTERNAL(MPI_Probe(rank, 3, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
}

/* The call that starts a receive panics after the engine has the receive. */
static void start(void)
{
    MPI_Request requests[PENDING], request;
    post(requests);
    panic_at("start");
    CHECK_EQUAL(MPI_Irecv(bytes + 512, 8, MPI_BYTE, rank, 3, MPI_COMM_WORLD, &request), MPI_SUCCESS);
    CHECK_INTERNAL(MPI_Wait(&request, MPI_STATUS_IGNORE));
    CHECK_INTERNAL(MPI_Wait(&requests[3], MPI_STATUS_IGNORE));
}

/* A collective that the other rank never joins. */
static void collective(void)
{
    MPI_Request request;
    if (0 == rank) {
        MPI_Ibarrier(MPI_COMM_WORLD, &request);
        panic_at("progress");
        CHECK(MPI_SUCCESS != MPI_Wait(&request, MPI_STATUS_IGNORE));
    }
}

/* An unmatched send, whose buffer is exposed to the peer. */
static void transfer(bool blocking)
{
    MPI_Request request;
    if (blocking) {
        panic_at("wait");
        MPI_Send(bytes, LARGE, MPI_BYTE, rank, 3, MPI_COMM_WORLD);
    } else {
        MPI_Isend(bytes, LARGE, MPI_BYTE, rank, 3, MPI_COMM_WORLD, &request);
        panic_at("progress");
        MPI_Wait(&request, MPI_STATUS_IGNORE);
    }
}

static void *receive_in_a_thread(void *unused)
{
    MPI_Recv(bytes, 8, MPI_BYTE, rank, 3, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    return unused;
}

/* One thread waits, and the first thread in the engine panics; or the other thread panics, which only tests a
 * request. */
static void threads(bool both_wait)
{
    MPI_Request request;
    pthread_t thread;
    int flag = 0;
    CHECK(0 == pthread_create(&thread, NULL, receive_in_a_thread, NULL));
    if (both_wait) {
        panic_at("wait");
        MPI_Recv(bytes + 64, 8, MPI_BYTE, rank, 4, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    } else {
        MPI_Irecv(bytes + 64, 8, MPI_BYTE, rank, 4, MPI_COMM_WORLD, &request);
        panic_at("progress");
        while (!flag && MPI_SUCCESS == MPI_Test(&request, &flag, MPI_STATUS_IGNORE)) {
            continue;
        }
    }
    pthread_join(thread, NULL);
}

/* The engine reports a failed receive to a callback, which panics. */
static void completion(void)
{
    MPI_Request request;
    MPI_Irecv(bytes, 4, MPI_BYTE, rank, 3, MPI_COMM_WORLD, &request);
    panic_at("completion");
    MPI_Send(bytes + 64, 8, MPI_BYTE, rank, 3, MPI_COMM_WORLD);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
}

int main(int argc, char **argv)
{
    const char *what = argv[1];
    const bool multiple = NULL != strstr(what, "thread");
    int provided;
    CHECK_EQUAL(argc, 2);
    MPI_Init_thread(&argc, &argv, multiple ? MPI_THREAD_MULTIPLE : MPI_THREAD_SINGLE, &provided);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
    if (0 == strcmp(what, "all")) {
        wait_for_all();
        nothing_begins();
    } else if (0 == strcmp(what, "each")) {
        wait_for_each();
    } else if (0 == strcmp(what, "test")) {
        test_one();
    } else if (0 == strcmp(what, "any")) {
        wait_for_any();
    } else if (0 == strcmp(what, "receive")) {
        receive("wait");
        nothing_begins();
    } else if (0 == strcmp(what, "receive-elsewhere")) {
        /* In a call of Open MPI that the receive makes. */
        receive("progress");
    } else if (0 == strcmp(what, "probe")) {
        probe();
    } else if (0 == strcmp(what, "start")) {
        start();
    } else if (0 == strcmp(what, "collective")) {
        collective();
    } else if (0 == strcmp(what, "transfer")) {
        transfer(false);
    } else if (0 == strcmp(what, "blocking-transfer")) {
        transfer(true);
    } else if (0 == strcmp(what, "completion")) {
        completion();
    } else if (multiple) {
        threads(0 == strcmp(what, "threads-wait"));
    } else {
        fprintf(stderr, "there is no '%s'\n", what);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    MPI_Finalize();
    puts("done");
    return 0;
}
