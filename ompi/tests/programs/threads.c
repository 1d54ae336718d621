/* Many concurrent threads in MPI. Each pair of threads has its own tag, and all use one communicator. First a few
 * threads, then more than most machines have processors. They wait by every kind of call. */
#include "check.h"

#include <pthread.h>
#include <stdbool.h>

enum { THREADS = 4, ROUNDS = 200, LARGE = 100000, WAITERS = 16, WINDOW = 8, WAITS = 150 };

static int rank, size, next, previous;

static void *work(void *argument)
{
    int tag = (int) (long) argument;
    static __thread int out[LARGE], in[LARGE];
    for (int round = 0; round < ROUNDS; round++) {
        int ints = round % 20 == 0 ? LARGE : 1 + round % 50, count;
        MPI_Request requests[2];
        MPI_Status statuses[2];
        for (int i = 0; i < ints; i++) {
            out[i] = rank * 1000003 + tag * 101 + round + i;
        }
        MPI_Irecv(in, ints, MPI_INT, round % 3 ? previous : MPI_ANY_SOURCE, tag, MPI_COMM_WORLD, &requests[0]);
        MPI_Isend(out, ints, MPI_INT, next, tag, MPI_COMM_WORLD, &requests[1]);
        if (round % 2) {
            MPI_Waitall(2, requests, statuses);
        } else {
            int flag = 0;
            while (!flag) {
                MPI_Testall(2, requests, &flag, statuses);
            }
        }
        MPI_Get_count(&statuses[0], MPI_INT, &count);
        CHECK_EQUAL(count, ints);
        CHECK_EQUAL(statuses[0].MPI_SOURCE, previous);
        for (int i = 0; i < ints; i++) {
            CHECK_EQUAL(in[i], previous * 1000003 + tag * 101 + round + i);
        }
    }
    return NULL;
}

/* Windows of messages to the next rank, each answered by one word. Messages arrive while other threads poll, sleep
 * or leave. */
static void *wait_in_every_way(void *argument)
{
    int tag = 100 + (int) (long) argument;
    for (int round = 0; round < WAITS; round++) {
        MPI_Request sends[WINDOW], receives[WINDOW];
        MPI_Request dropped;
        int out[WINDOW], in[WINDOW], word = -1, done = 0, unheard = -1;
        /* The thread that completes the request finds that no thread waits for it. */
        MPI_Irecv(&unheard, 1, MPI_INT, previous, tag, MPI_COMM_WORLD, &dropped);
        MPI_Request_free(&dropped);
        MPI_Send(&round, 1, MPI_INT, next, tag, MPI_COMM_WORLD);
        for (int i = 0; i < WINDOW; i++) {
            out[i] = (rank * WAITERS + tag) * WAITS + round + i;
            MPI_Irecv(&in[i], 1, MPI_INT, previous, tag, MPI_COMM_WORLD, &receives[i]);
        }
        for (int i = 0; i < WINDOW; i++) {
            MPI_Isend(&out[i], 1, MPI_INT, next, tag, MPI_COMM_WORLD, &sends[i]);
        }
        switch ((round + tag) % 16) {
        case 1:
            for (int i = 0; i < WINDOW; i++) {
                MPI_Wait(&receives[i], MPI_STATUS_IGNORE);
            }
            break;
        case 2:
            for (int i = 0; i < WINDOW; i++) {
                MPI_Waitany(WINDOW, receives, &done, MPI_STATUS_IGNORE);
                CHECK(done != MPI_UNDEFINED);
            }
            break;
        case 3:
            for (int left = WINDOW; left > 0; left -= done) {
                int indices[WINDOW];
                MPI_Waitsome(WINDOW, receives, &done, indices, MPI_STATUSES_IGNORE);
            }
            break;
        default:
            MPI_Waitall(WINDOW, receives, MPI_STATUSES_IGNORE);
        }
        MPI_Waitall(WINDOW, sends, MPI_STATUSES_IGNORE);
        CHECK_EQUAL(unheard, round);
        for (int i = 0; i < WINDOW; i++) {
            CHECK(receives[i] == MPI_REQUEST_NULL);
            CHECK_EQUAL(in[i], (previous * WAITERS + tag) * WAITS + round + i);
        }
        /* The answer travels in the other direction, and larger messages wait for their receivers. */
        if (round % 3) {
            MPI_Sendrecv(&round, 1, MPI_INT, previous, tag, &word, 1, MPI_INT, next, tag, MPI_COMM_WORLD,
                         MPI_STATUS_IGNORE);
        } else if (rank % 2) {
            MPI_Ssend(&round, 1, MPI_INT, previous, tag, MPI_COMM_WORLD);
            MPI_Recv(&word, 1, MPI_INT, next, tag, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        } else {
            MPI_Recv(&word, 1, MPI_INT, next, tag, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            MPI_Ssend(&round, 1, MPI_INT, previous, tag, MPI_COMM_WORLD);
        }
        CHECK_EQUAL(word, round);
    }
    return NULL;
}

static void *receive_a_word(void *argument)
{
    MPI_Recv(argument, 1, MPI_INT, 0, 202, MPI_COMM_SELF, MPI_STATUS_IGNORE);
    return NULL;
}

/* A wait for several requests of messages to the own rank ends when one of them fails, although the others cannot
 * complete before this thread continues. It does so whether this thread polls or another one. */
static void fail_while_others_wait(bool another)
{
    int out[2] = {1, 2}, in = 0, late = 0, word = 0, code;
    MPI_Request requests[2];
    MPI_Status statuses[2];
    pthread_t thread;
    if (another) {
        CHECK(0 == pthread_create(&thread, NULL, receive_a_word, &word));
    }
    MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
    MPI_Irecv(&in, 1, MPI_INT, 0, 200, MPI_COMM_SELF, &requests[0]);
    MPI_Irecv(&late, 1, MPI_INT, 0, 201, MPI_COMM_SELF, &requests[1]);
    MPI_Send(out, 2, MPI_INT, 0, 200, MPI_COMM_SELF);
    code = MPI_Waitall(2, requests, statuses);
    CHECK_EQUAL(code, MPI_ERR_IN_STATUS);
    MPI_Error_class(statuses[0].MPI_ERROR, &code);
    CHECK_EQUAL(code, MPI_ERR_TRUNCATE);
    CHECK_EQUAL(statuses[1].MPI_ERROR, MPI_ERR_PENDING);
    MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_ARE_FATAL);
    MPI_Send(out, 1, MPI_INT, 0, 201, MPI_COMM_SELF);
    MPI_Wait(&requests[1], MPI_STATUS_IGNORE);
    CHECK_EQUAL(late, 1);
    MPI_Send(out, 1, MPI_INT, 0, 202, MPI_COMM_SELF);
    if (another) {
        pthread_join(thread, NULL);
    } else {
        receive_a_word(&word);
    }
    CHECK_EQUAL(word, 1);
}

static void run(int count, void *(*body)(void *))
{
    pthread_t threads[WAITERS];
    for (long thread = 0; thread < count; thread++) {
        CHECK(0 == pthread_create(&threads[thread], NULL, body, (void *) thread));
    }
    for (int thread = 0; thread < count; thread++) {
        pthread_join(threads[thread], NULL);
    }
}

int main(int argc, char **argv)
{
    int provided;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
    CHECK_EQUAL(provided, MPI_THREAD_MULTIPLE);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    next = (rank + 1) % size;
    previous = (rank + size - 1) % size;
    run(THREADS, work);
    MPI_Barrier(MPI_COMM_WORLD);
    run(WAITERS, wait_in_every_way);
    MPI_Barrier(MPI_COMM_WORLD);
    fail_while_others_wait(false);
    fail_while_others_wait(true);
    MPI_Finalize();
    return 0;
}
