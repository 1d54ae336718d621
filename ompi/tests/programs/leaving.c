/* Processes of several jobs that leave while they are connected. With two dynamic communicators, Open MPI's
 * MPI_Finalize sends to every process of other jobs. Some of these have left by then, and were never connected.
 *
 *   leaving FIFO at-once    the spawning processes leave at the same time as the spawned ones
 *   leaving FIFO late       they leave after the others have exited; FIFO is created to detect that */
#include "check.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

enum { JOBS = 2, CHILDREN = 2 };

static void parent(char *self, char *fifo, int late)
{
    char *arguments[] = {fifo, NULL}, byte;
    struct pollfd end = {.events = POLLIN};
    int rank;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (0 == rank) {
        CHECK_EQUAL(mkfifo(fifo, 0600), 0);
        end.fd = open(fifo, O_RDONLY | O_NONBLOCK);
        CHECK(0 <= end.fd);
    }
    for (int i = 0; i < JOBS; i++) {
        MPI_Comm children;
        MPI_Comm_spawn(self, arguments, CHILDREN, MPI_INFO_NULL, 0, MPI_COMM_WORLD, &children, MPI_ERRCODES_IGNORE);
    }
    /* The end of the file is read when no process has it open for writing. */
    while (late && 0 == rank && !(end.revents & POLLHUP)) {
        end.revents = 0;
        CHECK(0 <= poll(&end, 1, -1));
    }
    CHECK(0 != rank || !late || 0 == read(end.fd, &byte, 1));
    MPI_Barrier(MPI_COMM_WORLD);
}

int main(int argc, char **argv)
{
    const int spawned = 2 == argc;
    if (spawned && 0 > open(argv[1], O_WRONLY)) {
        /* Open from before MPI_Comm_spawn returns until the process exits. */
        return 1;
    }
    MPI_Init(&argc, &argv);
    if (!spawned) {
        parent(argv[0], argv[1], 0 == strcmp(argv[2], "late"));
    }
    MPI_Finalize();
    if (!spawned) {
        fprintf(stderr, "done\n");
    }
    return 0;
}
