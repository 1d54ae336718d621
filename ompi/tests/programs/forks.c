/* Ranks that fork without executing another program, as Python's multiprocessing and PyTorch's DataLoader do. The
 * first argument selects the case. The second names a file for the result, because mpirun may lose a rank's output. */
#include "check.h"

#include <errno.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

static void say(const char *path, const char *word)
{
    FILE *file = fopen(path, "w");
    CHECK(NULL != file);
    fputs(word, file);
    CHECK_EQUAL(fclose(file), 0);
}

static void meet(int rank)
{
    char byte = 0;
    MPI_Sendrecv(&byte, 1, MPI_BYTE, 1 - rank, 0, &byte, 1, MPI_BYTE, 1 - rank, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}

/* Rank 1 is killed while a child of it lives. */
static void killed(int rank, const char *path)
{
    char byte = 0;
    pid_t child;
    meet(rank);
    if (rank == 1) {
        child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            /* Leave the process group, so that mpirun does not end the child. */
            setsid();
            alarm(60);
            for (;;) {
                pause();
            }
        }
        MPI_Send(&child, sizeof child, MPI_BYTE, 0, 1, MPI_COMM_WORLD);
        MPI_Recv(&byte, 1, MPI_BYTE, 0, 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        raise(SIGKILL);
    }
    MPI_Recv(&child, sizeof child, MPI_BYTE, 1, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    MPI_Send(&byte, 1, MPI_BYTE, 1, 2, MPI_COMM_WORLD);
    CHECK(MPI_SUCCESS != MPI_Recv(&byte, 1, MPI_BYTE, 1, 3, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
    CHECK_EQUAL(kill(child, 0), 0);
    CHECK_EQUAL(kill(child, SIGKILL), 0);
    say(path, "noticed while the child lived");
    _exit(0);
}

static int in_child(void)
{
    static char large[1 << 20];
    int other, rank;
    MPI_Request request;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    other = 1 - rank;
    if (MPI_SUCCESS == MPI_Send(large, 8, MPI_BYTE, other, 1, MPI_COMM_WORLD)
        || MPI_SUCCESS == MPI_Send(large, sizeof large, MPI_BYTE, other, 1, MPI_COMM_WORLD)
        || MPI_SUCCESS != MPI_Irecv(large, 8, MPI_BYTE, other, 1, MPI_COMM_WORLD, &request)) {
        return 1;
    }
    /* The request reports it. */
    return MPI_SUCCESS == MPI_Wait(&request, MPI_STATUS_IGNORE);
}

/* Both ranks repeatedly have children that end by exit, some with messages under way. */
static void children(int rank, const char *path)
{
    enum { COUNT = 1 << 19 };
    static int ours[COUNT], theirs[COUNT];
    meet(rank);
    for (int round = 0; round < 8; round++) {
        MPI_Request requests[2];
        int status;
        pid_t child;
        for (int i = 0; i < COUNT; i++) {
            ours[i] = rank + round + i;
            theirs[i] = -1;
        }
        MPI_Irecv(theirs, COUNT, MPI_INT, 1 - rank, round, MPI_COMM_WORLD, &requests[0]);
        MPI_Isend(ours, COUNT, MPI_INT, 1 - rank, round, MPI_COMM_WORLD, &requests[1]);
        child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            status = in_child();
            if (round % 2) {
                exit(status);
            }
            _exit(status);
        }
        while (waitpid(child, &status, 0) != child) {
            CHECK_EQUAL(errno, EINTR);
        }
        CHECK(WIFEXITED(status));
        CHECK_EQUAL(WEXITSTATUS(status), 0);
        MPI_Waitall(2, requests, MPI_STATUSES_IGNORE);
        for (int i = 0; i < COUNT; i++) {
            CHECK_EQUAL(theirs[i], 1 - rank + round + i);
        }
    }
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0) {
        say(path, "no child did harm");
    }
}

int main(int argc, char **argv)
{
    int rank;
    MPI_Init(&argc, &argv);
    CHECK_EQUAL(argc, 3);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    if (0 == strcmp(argv[1], "killed")) {
        killed(rank, argv[2]);
    } else {
        children(rank, argv[2]);
    }
    MPI_Finalize();
    return 0;
}
