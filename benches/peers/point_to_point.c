/* The peer's side of the comparison: what `cableway pingpong` measures, over MPI.
 *
 *   mpirun -np 2 point_to_point TEST SIZE[,SIZE...] SECONDS WINDOW LABEL [PLACE PLACE [LAYOUT]]
 *
 * TEST is latency, bandwidth, message-rate, threaded-rate or start; each size runs for about SECONDS. One JSON object a
 * line, in the shape that `cableway pingpong --format json` prints, with LABEL as its "btl". A PLACE is where a rank has
 * its buffers: `host`, a device's number, or as `host+N` the host beside device N, of which a message was sent before,
 * or as `pinned+N` page-locked memory of device N's context. LAYOUT is `vector BLOCK STRIDE` or
 * `indexed BLOCK SEED`, as `cableway pingpong --datatype` has them, a message being one element; sizes count the data
 * without the gaps.
 */
#include <mpi.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { TAG = 1, MAX_WINDOW = 1024, THREADS = 16, IN_USE = 1 << 20 };

/* The device of this rank's buffers, -1 for the host. */
static int device = -1;
/* The datatype. A message is one element of it if it has blocks. */
static MPI_Datatype type = MPI_CHAR;
static int block;

static void give_up(const char *why)
{
    fprintf(stderr, "%s\n", why);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

#include "device.h"

/* Page-aligned and touched, as a program's own buffer would be. */
static char *buffer(size_t size)
{
    void *memory = NULL;
    MPI_Aint begin, span = (MPI_Aint)size;
    if (block)
        MPI_Type_get_true_extent(type, &begin, &span);
    if (device >= 0)
        return device_buffer(span ? (size_t)span : 1);
    if (posix_memalign(&memory, 4096, span ? (size_t)span : 1) != 0)
        give_up("no memory for a message");
    memset(memory, 0x5a, (size_t)span);
    return memory;
}

static void release(char *buffer)
{
    if (device >= 0)
        device_release(buffer);
    else
        free(buffer);
}

/* One message's datatype. The gaps of an irregular one are one to three blocks long, as the program's own are: Knuth's
 * linear congruential generator decides. */
static void lay_out(const char *kind, int size, long long other)
{
    int count = size / block;
    if (strcmp(kind, "vector") == 0) {
        MPI_Type_vector(count, block, (int)other, MPI_CHAR, &type);
    } else {
        MPI_Aint *places = malloc((size_t)count * sizeof *places), at = 0;
        if (!places)
            give_up("no memory for the places of blocks");
        unsigned long long state = (unsigned long long)other;
        for (int i = 0; i < count; i++) {
            state = state * 6364136223846793005ULL + 1442695040888963407ULL;
            places[i] = at;
            at += (MPI_Aint)block * (MPI_Aint)(2 + (state >> 33) % 3);
        }
        MPI_Type_create_hindexed_block(count, block, places, MPI_CHAR, &type);
        free(places);
    }
    MPI_Type_commit(&type);
}

/* Makes this rank use its device, although its messages will be in host memory. The device keeps the returned
 * buffer. */
static char *use_beside(int rank, int number)
{
    use_device(number);
    char *memory = device_buffer(IN_USE);
    if (rank == 0) {
        MPI_Send(memory, IN_USE, MPI_CHAR, 1, TAG, MPI_COMM_WORLD);
        MPI_Recv(memory, IN_USE, MPI_CHAR, 1, TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    } else {
        MPI_Recv(memory, IN_USE, MPI_CHAR, 0, TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        MPI_Send(memory, IN_USE, MPI_CHAR, 0, TAG, MPI_COMM_WORLD);
    }
    return memory;
}

static void ping_pong(int rank, char *send, char *receive, int size, long rounds)
{
    int count = block ? 1 : size;
    for (long i = 0; i < rounds; i++) {
        if (rank == 0) {
            MPI_Send(send, count, type, 1, TAG, MPI_COMM_WORLD);
            MPI_Recv(receive, count, type, 1, TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        } else {
            MPI_Recv(receive, count, type, 0, TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            MPI_Send(send, count, type, 0, TAG, MPI_COMM_WORLD);
        }
    }
}

/* A window of messages one way, then a word back, as OSU's bandwidth test does. */
static void windows(int rank, char *send, char *receive, int size, int window, long rounds, int tag)
{
    MPI_Request requests[MAX_WINDOW];
    int count = block ? 1 : size;
    char word[4] = {0};
    for (long i = 0; i < rounds; i++) {
        if (rank == 0) {
            for (int k = 0; k < window; k++)
                MPI_Isend(send, count, type, 1, tag, MPI_COMM_WORLD, &requests[k]);
            MPI_Waitall(window, requests, MPI_STATUSES_IGNORE);
            MPI_Recv(word, sizeof word, MPI_CHAR, 1, tag, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        } else {
            for (int k = 0; k < window; k++)
                MPI_Irecv(receive, count, type, 0, tag, MPI_COMM_WORLD, &requests[k]);
            MPI_Waitall(window, requests, MPI_STATUSES_IGNORE);
            MPI_Send(word, sizeof word, MPI_CHAR, 0, tag, MPI_COMM_WORLD);
        }
    }
}

/* The windows of one thread, whose partner has the same tag. */
struct share {
    pthread_t thread;
    int rank, size, window, tag;
    char *send, *receive;
    long rounds;
};

static void *windows_of_thread(void *argument)
{
    struct share *share = argument;
    windows(share->rank, share->send, share->receive, share->size, share->window, share->rounds, share->tag);
    return NULL;
}

static void threads(int rank, char *send, char *receive, int size, int window, long rounds)
{
    static struct share shares[THREADS];
    for (int i = 0; i < THREADS; i++) {
        char *mine = receive + (size_t) i * size;
        shares[i] = (struct share){.rank = rank, .size = size, .window = window, .tag = TAG + i, .send = send,
                                   .receive = mine, .rounds = rounds};
        if (pthread_create(&shares[i].thread, NULL, windows_of_thread, &shares[i]) != 0) {
            fprintf(stderr, "no thread can be made\n");
            MPI_Abort(MPI_COMM_WORLD, 1);
        }
    }
    for (int i = 0; i < THREADS; i++)
        pthread_join(shares[i].thread, NULL);
}

enum test { PING_PONG, WINDOWS, THREADED };

/* Seconds that `rounds` take, as rank 0 sees them; both ranks learn it. */
static double timed(int rank, enum test test, char *send, char *receive, int size, int window, long rounds)
{
    MPI_Barrier(MPI_COMM_WORLD);
    double began = MPI_Wtime();
    switch (test) {
    case PING_PONG: ping_pong(rank, send, receive, size, rounds); break;
    case WINDOWS: windows(rank, send, receive, size, window, rounds, TAG); break;
    case THREADED: threads(rank, send, receive, size, window, rounds); break;
    }
    double taken = MPI_Wtime() - began;
    MPI_Bcast(&taken, 1, MPI_DOUBLE, 0, MPI_COMM_WORLD);
    return taken;
}

/* How many rounds fill `seconds`: probed with ever more of them, which warms everything up as well. */
static long rounds_for(double seconds, int rank, enum test test, char *send, char *receive, int size, int window)
{
    long rounds = 2;
    double taken = timed(rank, test, send, receive, size, window, rounds);
    while (taken < seconds / 8) {
        rounds *= 2;
        taken = timed(rank, test, send, receive, size, window, rounds);
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

/* Milliseconds until every rank has MPI. */
static double start(int *argc, char ***argv, int wanted)
{
    struct timespec began, ended;
    int provided;
    clock_gettime(CLOCK_MONOTONIC, &began);
    MPI_Init_thread(argc, argv, wanted, &provided);
    clock_gettime(CLOCK_MONOTONIC, &ended);
    if (provided < wanted) {
        fprintf(stderr, "this MPI does not take calls from several threads\n");
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    double mine = (ended.tv_sec - began.tv_sec) * 1e3 + (ended.tv_nsec - began.tv_nsec) / 1e6, longest;
    MPI_Allreduce(&mine, &longest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    return longest;
}

int main(int argc, char **argv)
{
    const char *name = argc > 1 ? argv[1] : "";
    enum test test = strcmp(name, "latency") == 0         ? PING_PONG
                     : strcmp(name, "threaded-rate") == 0 ? THREADED
                                                          : WINDOWS;
    double started = start(&argc, &argv, test == THREADED ? MPI_THREAD_MULTIPLE : MPI_THREAD_SINGLE);
    int rank, ranks;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    int usable = argc == 6 || argc == 8 || argc == 11, window = usable ? atoi(argv[4]) : 0;
    if (!usable || ranks != 2 || window < 1 || window > MAX_WINDOW) {
        if (rank == 0)
            fprintf(stderr, "usage: mpirun -np 2 point_to_point TEST SIZES SECONDS WINDOW LABEL [PLACE PLACE [LAYOUT]]\n");
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    if (strcmp(name, "start") == 0) {
        if (rank == 0)
            report(name, argv[5], 0, started, "ms");
        MPI_Finalize();
        return 0;
    }

    const char *place = argc > 6 ? argv[6 + rank] : "host", *layout = argc == 11 ? argv[8] : NULL;
    char *beside = NULL;
    if (strncmp(place, "host+", 5) == 0) {
        beside = use_beside(rank, atoi(place + 5));
    } else if (strcmp(place, "host") != 0) {
        page_locked = strncmp(place, "pinned+", 7) == 0;
        device = atoi(page_locked ? place + 7 : place);
        use_device(device);
    }
    block = layout ? atoi(argv[9]) : 0;
    if (layout && (block < 1 || (strcmp(layout, "vector") != 0 && strcmp(layout, "indexed") != 0)))
        give_up("a layout is `vector BLOCK STRIDE` or `indexed BLOCK SEED`");

    double seconds = atof(argv[3]);
    int lanes = test == THREADED ? THREADS : 1, warm = 0;
    for (char *item = strtok(argv[2], ","); item != NULL; item = strtok(NULL, ",")) {
        int size = atoi(item);
        if (layout)
            lay_out(layout, size, atoll(argv[10]));
        char *send = buffer((size_t)size), *receive = buffer((size_t)size * lanes);
        long rounds = rounds_for(seconds, rank, test, send, receive, size, window);
        /* A device is slower for a while after it was idle. Both ranks take part, whichever has the device. */
        if (argc > 6 && !warm)
            timed(rank, test, send, receive, size, window, rounds);
        warm = 1;
        double taken = timed(rank, test, send, receive, size, window, rounds);
        if (rank == 0) {
            if (test == PING_PONG)
                report(name, argv[5], size, taken / (double)rounds / 2 * 1e6, "us");
            else if (strcmp(name, "bandwidth") == 0)
                report(name, argv[5], size, (double)rounds * window * size / taken / 1e6, "MB/s");
            else
                report(name, argv[5], size, (double)rounds * window * lanes / taken, "messages/s");
        }
        release(send);
        release(receive);
        if (layout)
            MPI_Type_free(&type);
    }
    if (beside)
        device_release(beside);
    MPI_Finalize();
    return 0;
}
