/* Uses of requests that MPI allows, in orders that may break a careless implementation. */
#include "check.h"

enum { LARGE = 1 << 20 };

static int rank, size, next, previous;

static void fill(unsigned char *bytes, int count, int seed)
{
    for (int i = 0; i < count; i++) {
        bytes[i] = (unsigned char) (seed * 17 + i * 7);
    }
}

static void holds(const unsigned char *bytes, int count, int seed)
{
    for (int i = 0; i < count; i++) {
        CHECK_EQUAL(bytes[i], (unsigned char) (seed * 17 + i * 7));
    }
}

/* Requests that are freed while active: the operations complete, and their types live as long. */
static void free_while_active(int bytes)
{
    unsigned char *out = malloc(bytes), *in = malloc(bytes);
    MPI_Datatype type;
    MPI_Request request;
    char token = 0;
    fill(out, bytes, rank);
    MPI_Type_contiguous(bytes / 4, MPI_INT, &type);
    MPI_Type_commit(&type);
    MPI_Irecv(in, 1, type, previous, 1, MPI_COMM_WORLD, &request);
    MPI_Request_free(&request);
    CHECK(request == MPI_REQUEST_NULL);
    MPI_Isend(out, 1, type, next, 1, MPI_COMM_WORLD, &request);
    MPI_Request_free(&request);
    MPI_Type_free(&type);
    /* Messages do not overtake: earlier messages have arrived before this one. Large ones may still be under way. */
    MPI_Sendrecv(&token, 1, MPI_CHAR, next, 2, &token, 1, MPI_CHAR, previous, 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    for (volatile unsigned char *last = in + bytes - 1; *last != (unsigned char) (previous * 17 + (bytes - 1) * 7);) {
        int flag;
        MPI_Iprobe(MPI_ANY_SOURCE, 99, MPI_COMM_WORLD, &flag, MPI_STATUS_IGNORE);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Barrier(MPI_COMM_WORLD);
    free(in);
    free(out);
}

static void persistent(int bytes)
{
    unsigned char *out = malloc(bytes), *in = malloc(bytes);
    MPI_Request requests[2];
    MPI_Status statuses[2];
    MPI_Send_init(out, bytes, MPI_BYTE, next, 3, MPI_COMM_WORLD, &requests[0]);
    MPI_Recv_init(in, bytes, MPI_BYTE, previous, 3, MPI_COMM_WORLD, &requests[1]);
    for (int round = 0; round < 20; round++) {
        int count;
        fill(out, bytes, rank + round);
        memset(in, 0, bytes);
        MPI_Startall(2, requests);
        MPI_Waitall(2, requests, statuses);
        holds(in, bytes, previous + round);
        MPI_Get_count(&statuses[1], MPI_BYTE, &count);
        CHECK_EQUAL(count, bytes);
    }
    /* Inactive requests are complete and empty. */
    MPI_Waitall(2, requests, statuses);
    CHECK_EQUAL(statuses[1].MPI_SOURCE, MPI_ANY_SOURCE);
    /* Freed after the start: the operation still completes. */
    MPI_Start(&requests[0]);
    MPI_Request_free(&requests[0]);
    MPI_Start(&requests[1]);
    MPI_Wait(&requests[1], MPI_STATUS_IGNORE);
    MPI_Request_free(&requests[1]);
    MPI_Barrier(MPI_COMM_WORLD);
    free(in);
    free(out);
}

static void cancelled(void)
{
    MPI_Request request;
    MPI_Status status;
    int buffer = 7, flag;
    MPI_Irecv(&buffer, 1, MPI_INT, MPI_ANY_SOURCE, 4, MPI_COMM_WORLD, &request);
    MPI_Cancel(&request);
    MPI_Wait(&request, &status);
    MPI_Test_cancelled(&status, &flag);
    CHECK(flag);
    MPI_Barrier(MPI_COMM_WORLD);
    /* The next message is for the next receive. */
    MPI_Sendrecv(&rank, 1, MPI_INT, next, 4, &buffer, 1, MPI_INT, previous, 4, MPI_COMM_WORLD, &status);
    CHECK_EQUAL(buffer, previous);
    MPI_Test_cancelled(&status, &flag);
    CHECK(!flag);
}

static void probes(int bytes)
{
    unsigned char *out = malloc(bytes), *in = malloc(bytes);
    MPI_Request request;
    MPI_Status status;
    MPI_Message message;
    int count, flag = 0;
    fill(out, bytes, rank);
    for (int kind = 0; kind < 4; kind++) {
        /* The probe must not write this field. */
        status.MPI_ERROR = 4711;
        MPI_Isend(out, bytes, MPI_BYTE, next, 5, MPI_COMM_WORLD, &request);
        switch (kind) {
        case 0: MPI_Probe(MPI_ANY_SOURCE, 5, MPI_COMM_WORLD, &status); break;
        case 1:
            for (flag = 0; !flag;) {
                MPI_Iprobe(previous, MPI_ANY_TAG, MPI_COMM_WORLD, &flag, &status);
            }
            break;
        case 2: MPI_Mprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &message, &status); break;
        case 3:
            for (flag = 0; !flag;) {
                MPI_Improbe(previous, 5, MPI_COMM_WORLD, &flag, &message, &status);
            }
        }
        CHECK_EQUAL(status.MPI_ERROR, 4711);
        CHECK_EQUAL(status.MPI_SOURCE, previous);
        CHECK_EQUAL(status.MPI_TAG, 5);
        MPI_Get_count(&status, MPI_BYTE, &count);
        CHECK_EQUAL(count, bytes);
        memset(in, 0, bytes);
        if (kind < 2) {
            MPI_Recv(in, bytes, MPI_BYTE, status.MPI_SOURCE, status.MPI_TAG, MPI_COMM_WORLD, &status);
        } else if (kind == 2) {
            MPI_Mrecv(in, bytes, MPI_BYTE, &message, &status);
            CHECK(message == MPI_MESSAGE_NULL);
            CHECK_EQUAL(status.MPI_ERROR, 4711);
        } else {
            MPI_Request receive;
            MPI_Imrecv(in, bytes, MPI_BYTE, &message, &receive);
            MPI_Wait(&receive, &status);
        }
        holds(in, bytes, previous);
        MPI_Wait(&request, MPI_STATUS_IGNORE);
    }
    MPI_Mprobe(MPI_PROC_NULL, 5, MPI_COMM_WORLD, &message, &status);
    CHECK(message == MPI_MESSAGE_NO_PROC);
    free(in);
    free(out);
}

static void modes(int bytes)
{
    unsigned char *out = malloc(bytes), *in = malloc(bytes);
    int room = bytes + MPI_BSEND_OVERHEAD;
    void *attached = malloc(room);
    MPI_Request request;
    int flag;
    MPI_Buffer_attach(attached, room);
    fill(out, bytes, rank);

    MPI_Bsend(out, bytes, MPI_BYTE, next, 6, MPI_COMM_WORLD);
    memset(out, 0, bytes);
    MPI_Recv(in, bytes, MPI_BYTE, previous, 6, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    holds(in, bytes, previous);
    MPI_Buffer_detach(&attached, &room);

    fill(out, bytes, rank + 1);
    MPI_Issend(out, bytes, MPI_BYTE, next, 7, MPI_COMM_WORLD, &request);
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Test(&request, &flag, MPI_STATUS_IGNORE);
    CHECK(!flag); /* no receive is posted yet */
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Recv(in, bytes, MPI_BYTE, previous, 7, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    holds(in, bytes, previous + 1);
    MPI_Wait(&request, MPI_STATUS_IGNORE);

    fill(in, bytes, rank + 2);
    MPI_Sendrecv_replace(in, bytes, MPI_BYTE, next, 8, previous, 8, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    holds(in, bytes, previous + 2);
    free(attached);
    free(in);
    free(out);
}

/* The number of a freed communicator is reused. Unreceived messages of the old communicator must not appear in the
 * new one. */
static void numbers_used_again(void)
{
    for (int round = 0; round < 40; round++) {
        MPI_Comm world;
        MPI_Request request;
        int got = -1, flag;
        MPI_Comm_dup(MPI_COMM_WORLD, &world);
        if (size > 1) {
            MPI_Isend(&round, 1, MPI_INT, next, 9, world, &request);
            MPI_Request_free(&request);
        }
        MPI_Sendrecv(&round, 1, MPI_INT, next, 10, &got, 1, MPI_INT, previous, 10, world, MPI_STATUS_IGNORE);
        CHECK_EQUAL(got, round);
        MPI_Iprobe(MPI_ANY_SOURCE, 11, world, &flag, MPI_STATUS_IGNORE);
        CHECK(!flag);
        if (size > 1 && round % 2) {
            MPI_Recv(&got, 1, MPI_INT, previous, 9, world, MPI_STATUS_IGNORE);
            CHECK_EQUAL(got, round);
        }
        MPI_Comm_free(&world);
    }
}

static MPI_Comm pair_of(int one, int other, int tag)
{
    const int ranks[2] = {one, other};
    MPI_Group everybody, two;
    MPI_Comm pair;
    MPI_Comm_group(MPI_COMM_WORLD, &everybody);
    MPI_Group_incl(everybody, 2, ranks, &two);
    MPI_Comm_create_group(MPI_COMM_WORLD, two, tag, &pair);
    MPI_Group_free(&two);
    MPI_Group_free(&everybody);
    return pair;
}

/* The communicator's number may belong to another one by then; its sender is still known. */
static void number_used_again_by_others(void)
{
    MPI_Comm old, other;
    int value = rank, flag;
    if (0 == rank) {
        old = pair_of(0, 1, 1);
        MPI_Comm_free(&old);
        other = pair_of(0, 2, 2);
        MPI_Send(&value, 1, MPI_INT, 1, 12, MPI_COMM_WORLD);
        MPI_Recv(&value, 1, MPI_INT, 1, 12, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        CHECK_EQUAL(value, 1);
        MPI_Iprobe(MPI_ANY_SOURCE, 12, other, &flag, MPI_STATUS_IGNORE);
        CHECK(!flag);
        MPI_Comm_free(&other);
    } else if (1 == rank) {
        old = pair_of(0, 1, 1);
        MPI_Recv(&value, 1, MPI_INT, 0, 12, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        value = 1;
        MPI_Send(&value, 1, MPI_INT, 0, 12, old);
        MPI_Send(&value, 1, MPI_INT, 0, 12, MPI_COMM_WORLD);
        MPI_Comm_free(&old);
    } else if (2 == rank) {
        other = pair_of(0, 2, 2);
        MPI_Comm_free(&other);
    }
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    next = (rank + 1) % size;
    previous = (rank + size - 1) % size;
    for (int bytes = 4; bytes <= LARGE; bytes *= 64) {
        free_while_active(bytes);
        persistent(bytes);
        probes(bytes);
        modes(bytes);
    }
    cancelled();
    numbers_used_again();
    if (size > 2) {
        number_used_again_by_others();
    }
    MPI_Finalize();
    return 0;
}
