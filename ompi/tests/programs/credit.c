/* Sends that are received late. Sends that need not wait must not wait, however many there are. Each rank sends to
 * the next: first many messages with one tag, then one message with another tag, which is received first. */
#include "check.h"

#include <stdlib.h>
#include <string.h>

enum { FLOOD = 1, LAST = 2 };
static int rank, size, next, previous;

/* Receives the last message, then the others in order. The barrier shows that no process waited for a receive
 * before. */
static void receive(int messages, int bytes)
{
    unsigned char last = 0;
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Recv(&last, 1, MPI_BYTE, previous, LAST, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    CHECK_EQUAL(last, 77);
    for (int number = 0; number < messages; number++) {
        MPI_Status status;
        int in = -1, count;
        MPI_Recv(&in, sizeof(in), MPI_BYTE, previous, FLOOD, MPI_COMM_WORLD, &status);
        MPI_Get_count(&status, MPI_BYTE, &count);
        CHECK_EQUAL(count, bytes);
        CHECK_EQUAL(in, bytes ? number : -1);
    }
}

/* Buffered sends of each kind. Empty ones need no room: like Open MPI's own components, they work without an
 * attached buffer. */
static void buffered(int messages, int bytes, int kind)
{
    static const unsigned char last = 77;
    int room = (messages + 1) * (bytes + MPI_BSEND_OVERHEAD), detached = 0, out;
    void *attached = malloc(room), *memory = attached;
    MPI_Request persistent, final;
    if (bytes) {
        MPI_Buffer_attach(attached, room);
    }
    MPI_Bsend_init(&out, bytes, MPI_BYTE, next, FLOOD, MPI_COMM_WORLD, &persistent);
    for (int number = 0; number < messages; number++) {
        MPI_Request request;
        out = number;
        if (0 == kind) {
            MPI_Bsend(&out, bytes, MPI_BYTE, next, FLOOD, MPI_COMM_WORLD);
        } else if (1 == kind) {
            MPI_Ibsend(&out, bytes, MPI_BYTE, next, FLOOD, MPI_COMM_WORLD, &request);
            MPI_Wait(&request, MPI_STATUS_IGNORE);
        } else {
            MPI_Start(&persistent);
            MPI_Wait(&persistent, MPI_STATUS_IGNORE);
        }
    }
    MPI_Isend(&last, 1, MPI_BYTE, next, LAST, MPI_COMM_WORLD, &final);
    receive(messages, bytes);
    MPI_Wait(&final, MPI_STATUS_IGNORE);
    MPI_Request_free(&persistent);
    if (bytes) {
        MPI_Buffer_detach(&memory, &detached);
        CHECK(memory == attached);
        CHECK_EQUAL(detached, room);
    }
    free(attached);
}

/* Sends that are complete only after a wait, but start without waiting. */
static void started(int messages, int bytes, int synchronous)
{
    static const unsigned char last = 77;
    int *out = malloc(messages * sizeof(*out));
    MPI_Request *requests = malloc((messages + 1) * sizeof(*requests));
    for (int number = 0; number < messages; number++) {
        out[number] = number;
        if (synchronous) {
            MPI_Issend(&out[number], bytes, MPI_BYTE, next, FLOOD, MPI_COMM_WORLD, &requests[number]);
        } else {
            MPI_Isend(&out[number], bytes, MPI_BYTE, next, FLOOD, MPI_COMM_WORLD, &requests[number]);
        }
    }
    MPI_Isend(&last, 1, MPI_BYTE, next, LAST, MPI_COMM_WORLD, &requests[messages]);
    receive(messages, bytes);
    MPI_Waitall(messages + 1, requests, MPI_STATUSES_IGNORE);
    free(requests);
    free(out);
}

/* Rank 0 is in MPI_Finalize while others still receive its messages. MPI detaches the attached buffer there. */
static void left_behind(int messages)
{
    if (0 == rank) {
        int room = messages * (sizeof(rank) + MPI_BSEND_OVERHEAD);
        MPI_Buffer_attach(malloc(room), room);
        for (int number = 0; number < messages; number++) {
            MPI_Bsend(&number, number % 2 ? sizeof(number) : 0, MPI_BYTE, 1, FLOOD, MPI_COMM_WORLD);
        }
    } else if (1 == rank) {
        for (int number = 0; number < messages; number++) {
            int in = -1;
            MPI_Recv(&in, sizeof(in), MPI_BYTE, 0, FLOOD, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            CHECK_EQUAL(in, number % 2 ? number : -1);
        }
    }
}

int main(int argc, char **argv)
{
    int messages = argc > 1 ? atoi(argv[1]) : 40000;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    next = (rank + 1) % size;
    previous = (rank + size - 1) % size;
    for (int bytes = 0; bytes <= 4; bytes += 4) {
        for (int kind = 0; kind < 3; kind++) {
            buffered(messages, bytes, kind);
        }
        started(messages, bytes, 0);
        started(messages, bytes, 1);
    }
    if (size > 1) {
        left_behind(messages);
    }
    MPI_Finalize();
    return 0;
}
