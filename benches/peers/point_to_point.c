/* The peer's side of the comparison: what `cableway pingpong` measures, over MPI.
 *
 *   mpirun -np 2 point_to_point TEST SIZE[,SIZE...] SECONDS WINDOW LABEL
 *
 * TEST is latency, bandwidth or message-rate; each size runs for about SECONDS. One JSON object a line, in the
 * shape that `cableway pingpong --format json` prints, with LABEL as its "btl".
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TAG = 1, MAX_WINDOW = 1024 };

/* Page-aligned and touched, as a program's own buffer would be. */
static char *buffer(size_t size)
{
    void *memory = NULL;
    if (posix_memalign(&memory, 4096, size ? size : 1) != 0) {
        fprintf(stderr, "no memory for a message of %zu bytes\n", size);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    memset(memory, 0x5a, size);
    return memory;
}

static void ping_pong(int rank, char *send, char *receive, int size, long rounds)
{
    for (long i = 0; i < rounds; i++) {
        if (rank == 0) {
            MPI_Send(send, size, MPI_CHAR, 1, TAG, MPI_COMM_WORLD);
            MPI_Recv(receive, size, MPI_CHAR, 1, TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        } else {
            MPI_Recv(receive, size, MPI_CHAR, 0, TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            MPI_Send(send, size, MPI_CHAR, 0, TAG, MPI_COMM_WORLD);
        }
    }
}

/* A window of messages one way, then a word back, as OSU's bandwidth test does. */
static void windows(int rank, char *send, char *receive, int size, int window, long rounds)
{
    MPI_Request requests[MAX_WINDOW];
    char word[4] = {0};
    for (long i = 0; i < rounds; i++) {
        if (rank == 0) {
            for (int k = 0; k < window; k++)
                MPI_Isend(send, size, MPI_CHAR, 1, TAG, MPI_COMM_WORLD, &requests[k]);
            MPI_Waitall(window, requests, MPI_STATUSES_IGNORE);
            MPI_Recv(word, sizeof word, MPI_CHAR, 1, TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        } else {
            for (int k = 0; k < window; k++)
                MPI_Irecv(receive, size, MPI_CHAR, 0, TAG, MPI_COMM_WORLD, &requests[k]);
            MPI_Waitall(window, requests, MPI_STATUSES_IGNORE);
            MPI_Send(word, sizeof word, MPI_CHAR, 0, TAG, MPI_COMM_WORLD);
        }
    }
}

/* Seconds that `rounds` take, as rank 0 sees them; both ranks learn it. */
static double timed(int rank, int pinging, char *send, char *receive, int size, int window, long rounds)
{
    MPI_Barrier(MPI_COMM_WORLD);
    double began = MPI_Wtime();
    if (pinging)
        ping_pong(rank, send, receive, size, rounds);
    else
        windows(rank, send, receive, size, window, rounds);
    double taken = MPI_Wtime() - began;
    MPI_Bcast(&taken, 1, MPI_DOUBLE, 0, MPI_COMM_WORLD);
    return taken;
}

/* How many rounds fill `seconds`: probed with ever more of them, which warms everything up as well. */
static long rounds_for(double seconds, int rank, int pinging, char *send, char *receive, int size, int window)
{
    long rounds = 2;
    double taken = timed(rank, pinging, send, receive, size, window, rounds);
    while (taken < seconds / 8) {
        rounds *= 2;
        taken = timed(rank, pinging, send, receive, size, window, rounds);
    }
    long fitting = (long)((double)rounds * seconds / taken);
    return fitting < 2 ? 2 : fitting;
}

static void report(const char *test, const char *label, int size, double value, const char *unit)
{
    printf("{\"test\":\"%s\",\"btl\":\"%s\",\"src\":\"host\",\"dst\":\"host\",\"size\":%d,\"value\":%.6g,\"unit\":\"%s\"}\n",
           test, label, size, value, unit);
    fflush(stdout);
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    int rank, ranks;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    int window = argc == 6 ? atoi(argv[4]) : 0;
    if (argc != 6 || ranks != 2 || window < 1 || window > MAX_WINDOW) {
        if (rank == 0)
            fprintf(stderr, "usage: mpirun -np 2 point_to_point TEST SIZES SECONDS WINDOW LABEL\n");
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    const char *test = argv[1];
    double seconds = atof(argv[3]);
    int pinging = strcmp(test, "latency") == 0;

    for (char *item = strtok(argv[2], ","); item != NULL; item = strtok(NULL, ",")) {
        int size = atoi(item);
        char *send = buffer((size_t)size), *receive = buffer((size_t)size);
        long rounds = rounds_for(seconds, rank, pinging, send, receive, size, window);
        double taken = timed(rank, pinging, send, receive, size, window, rounds);
        if (rank == 0) {
            if (pinging)
                report(test, argv[5], size, taken / (double)rounds / 2 * 1e6, "us");
            else if (strcmp(test, "bandwidth") == 0)
                report(test, argv[5], size, (double)rounds * window * size / taken / 1e6, "MB/s");
            else
                report(test, argv[5], size, (double)rounds * window / taken, "messages/s");
        }
        free(send);
        free(receive);
    }
    MPI_Finalize();
    return 0;
}
