/* MPI 4's sessions without MPI_Init, one after the other. Their communicators are made from groups, so they have no
 * parent. A third session is there all the time, so that Open MPI starts once only. With the argument `alone` Open MPI starts
 * with each session, which has no communicator. */
#include "check.h"

#ifdef MPI_SESSION_NULL

enum { COUNT = 100000 };

static int sent[COUNT], received[COUNT];

static void exchange(MPI_Comm communicator)
{
    int rank, size, sum;
    MPI_Comm_rank(communicator, &rank);
    MPI_Comm_size(communicator, &size);
    for (int i = 0; i < COUNT; i++) {
        sent[i] = rank + i;
    }
    MPI_Sendrecv(sent, COUNT, MPI_INT, (rank + 1) % size, 3, received, COUNT, MPI_INT, (rank + size - 1) % size, 3,
                 communicator, MPI_STATUS_IGNORE);
    for (int i = 0; i < COUNT; i++) {
        CHECK_EQUAL(received[i], (rank + size - 1) % size + i);
    }
    MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, communicator);
    CHECK_EQUAL(sum, size * (size - 1) / 2);
}

static void in_session(const char *tag)
{
    MPI_Session session;
    MPI_Group group;
    MPI_Comm first, second, copy, half;
    int rank, size;
    MPI_Session_init(MPI_INFO_NULL, MPI_ERRORS_ARE_FATAL, &session);
    MPI_Group_from_session_pset(session, "mpi://WORLD", &group);
    MPI_Comm_create_from_group(group, tag, MPI_INFO_NULL, MPI_ERRORS_ARE_FATAL, &first);
    MPI_Comm_create_from_group(group, "another", MPI_INFO_NULL, MPI_ERRORS_ARE_FATAL, &second);
    exchange(first);
    exchange(second);
    /* Communicators derived from them. */
    MPI_Comm_dup(first, &copy);
    exchange(copy);
    MPI_Comm_rank(second, &rank);
    MPI_Comm_size(second, &size);
    MPI_Comm_split(second, rank % 2, 0, &half);
    exchange(half);
    MPI_Comm_free(&half);
    MPI_Comm_free(&copy);
    /* Each communicator has its own messages. */
    if (size > 1 && rank < 2) {
        int one = 1, two = 2, got = 0;
        if (0 == rank) {
            MPI_Send(&one, 1, MPI_INT, 1, 9, first);
            MPI_Send(&two, 1, MPI_INT, 1, 9, second);
        } else {
            MPI_Recv(&got, 1, MPI_INT, 0, 9, second, MPI_STATUS_IGNORE);
            CHECK_EQUAL(got, 2);
            MPI_Recv(&got, 1, MPI_INT, 0, 9, first, MPI_STATUS_IGNORE);
            CHECK_EQUAL(got, 1);
        }
    }
    MPI_Comm_free(&second);
    MPI_Comm_free(&first);
    MPI_Group_free(&group);
    MPI_Session_finalize(&session);
}

/* Starts Open MPI, and stops it. */
static void in_short_session(void)
{
    MPI_Session session;
    MPI_Group group;
    int size;
    MPI_Session_init(MPI_INFO_NULL, MPI_ERRORS_ARE_FATAL, &session);
    MPI_Group_from_session_pset(session, "mpi://WORLD", &group);
    MPI_Group_size(group, &size);
    CHECK_EQUAL(size, 1);
    MPI_Group_free(&group);
    MPI_Session_finalize(&session);
}

int main(int argc, char **argv)
{
    MPI_Session whole;
    if (argc > 1) {
        CHECK_EQUAL(strcmp(argv[1], "alone"), 0);
        in_short_session();
        in_short_session();
        in_short_session();
    } else {
        MPI_Session_init(MPI_INFO_NULL, MPI_ERRORS_ARE_FATAL, &whole);
        in_session("first session");
        in_session("second session");
        MPI_Session_finalize(&whole);
    }
    printf("done\n");
    return 0;
}

#else

int main(void)
{
    return 0;
}

#endif
