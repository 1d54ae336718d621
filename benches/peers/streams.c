/* Times ping-pong between two ranks whose messages are to follow the work of a CUDA stream.
 *
 *   mpirun -np 2 streams WAY SECONDS KERNEL SIZE[,SIZE...]
 *
 * WAY is one of
 *   mpi       the host waits for the stream, and calls MPI
 *   enqueue   MPICH's calls on a stream (cableway_mpix.h); the host waits once for many steps
 *   nccl      NCCL's sends and receives, queued; the host waits once for many steps
 *   pairs     the same, and the host waits after each send and its answer
 *   one-way   NCCL's sends of rank 0 alone, queued
 *   nvshmem   NVSHMEM's puts with signals and waits for signals (nvshmem.h), queued
 *   idle      a stream without work for SECONDS: counts how often the threads of this process woke up
 *
 * Prints a line for each size: way, bytes, time one way, and the times of a call that sends and of one that receives on the
 * host, all in microseconds. If KERNEL is not 0, a last line is of 8 bytes with a kernel of so many microseconds between a
 * receive and the next send.
 */
#include <cableway_mpix.h>
#include <dirent.h>
#include <mpi.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { FIRST = 20, LEAST = 10, MOST = 1000, TIMED_CALLS = 64, TAG = 7 };

static int rank, ranks;

static void give_up(const char *why)
{
    fprintf(stderr, "%s\n", why);
    MPI_Abort(MPI_COMM_WORLD, 1);
    exit(1);
}

#include "device.h"
#include "nccl.h"
#include "nvshmem.h"
#include "spin.h"

enum { NCCL_CHAR = 0 };

static enum way { MPI, ENQUEUE, NCCL, PAIRS, ONE_WAY, NVSHMEM, IDLE } way;
static const char *const WAYS[] = {"mpi", "enqueue", "nccl", "pairs", "one-way", "nvshmem", "idle"};

static void *stream;
static MPI_Comm comm;
static char *out, *in;
static struct { double send, receive; int sends, receives; } calls;

static void synchronise(void)
{
    static int (*function)(void *);
    if (function == NULL)
        *(void **)&function = driver("cuStreamSynchronize");
    if (function(stream) != 0)
        give_up("the stream cannot be waited for");
}

static void send(int bytes)
{
    int failed;
    if (way == MPI) {
        synchronise();
        failed = MPI_Send(out, bytes, MPI_BYTE, 1 - rank, TAG, comm);
    } else if (way == ENQUEUE)
        failed = MPIX_Send_enqueue(out, bytes, MPI_BYTE, 1 - rank, TAG, comm);
    else if (way == NVSHMEM) {
        nvshmem_put(in, out, (size_t)bytes, stream);
        failed = 0;
    } else
        failed = nccl.send(out, (size_t)bytes, NCCL_CHAR, 1 - rank, nccl.comm, stream);
    if (failed)
        give_up("a send failed");
}

static void receive(int bytes)
{
    int failed;
    if (way == MPI)
        failed = MPI_Recv(in, bytes, MPI_BYTE, 1 - rank, TAG, comm, MPI_STATUS_IGNORE);
    else if (way == ENQUEUE)
        failed = MPIX_Recv_enqueue(in, bytes, MPI_BYTE, 1 - rank, TAG, comm, MPI_STATUS_IGNORE);
    else if (way == NVSHMEM) {
        nvshmem_wait(stream);
        failed = 0;
    } else
        failed = nccl.receive(in, (size_t)bytes, NCCL_CHAR, 1 - rank, nccl.comm, stream);
    if (failed)
        give_up("a receive failed");
}

/* One message there and one back, or one there. */
static void step(int bytes, bool timed)
{
    const double from = MPI_Wtime();
    double middle, to;
    if (way == ONE_WAY) {
        rank == 0 ? send(bytes) : receive(bytes);
        middle = to = MPI_Wtime();
    } else if (rank == 0) {
        send(bytes);
        middle = MPI_Wtime();
        receive(bytes);
        to = MPI_Wtime();
        spin(stream);
    } else {
        receive(bytes);
        middle = to = MPI_Wtime();
        spin(stream);
        send(bytes);
    }
    if (timed && rank == 0) {
        calls.send += middle - from, calls.sends++;
        calls.receive += to - middle, calls.receives++;
    }
    if (way == PAIRS)
        synchronise();
}

/* Makes steps, of which the host adds many before it waits. Returns their time. */
static double round_of(int bytes, int steps)
{
    MPI_Barrier(MPI_COMM_WORLD);
    const double from = MPI_Wtime();
    for (int i = 0; i < steps; i++)
        step(bytes, i < TIMED_CALLS);
    synchronise();
    return MPI_Wtime() - from;
}

static void fill(char *device, size_t bytes, int value)
{
    if (((int (*)(unsigned long long, unsigned char, size_t))driver("cuMemsetD8_v2"))((unsigned long long)device,
                                                                                     (unsigned char)value, bytes) != 0 ||
        ((int (*)(void *))driver("cuStreamSynchronize"))(NULL) != 0)
        give_up("device memory cannot be filled");
}

static void check(size_t bytes)
{
    char *host = malloc(bytes + 1);
    if (((int (*)(void *, unsigned long long, size_t))driver("cuMemcpyDtoH_v2"))(host, (unsigned long long)in, bytes) != 0)
        give_up("device memory cannot be read");
    for (size_t i = 0; i < bytes; i++)
        if (host[i] != 2 - rank)
            give_up("the data that came is wrong");
    free(host);
}

static void measure(int bytes, double seconds, const char *with)
{
    double took = 0;
    long steps = 0;
    int more = 1, together;
    fill(out, (size_t)bytes, rank + 1);
    fill(in, (size_t)bytes, 0);
    round_of(bytes, FIRST);
    if (way != ONE_WAY || rank == 1)
        check((size_t)bytes);
    /* As many steps before each wait as the time permits. */
    const double fitting = seconds / (round_of(bytes, FIRST) / FIRST);
    together = fitting < LEAST ? LEAST : fitting > MOST ? MOST : (int)fitting;
    MPI_Bcast(&together, 1, MPI_INT, 0, MPI_COMM_WORLD);
    memset(&calls, 0, sizeof calls);
    while (more) {
        took += round_of(bytes, together);
        steps += together;
        more = took < seconds;
        MPI_Bcast(&more, 1, MPI_INT, 0, MPI_COMM_WORLD);
    }
    if (rank == 0)
        printf("%s%s %d %.2f %.2f %.2f\n", WAYS[way], with, bytes, 1e6 * took / (double)steps / (way == ONE_WAY ? 1 : 2),
               1e6 * calls.send / calls.sends, 1e6 * calls.receive / calls.receives);
    fflush(stdout);
}

/* How often the threads of this process have slept and woken up. */
static long wake_ups(void)
{
    char path[512], line[256];
    long sum = 0, count;
    struct dirent *entry;
    DIR *tasks = opendir("/proc/self/task");
    while (tasks != NULL && (entry = readdir(tasks)) != NULL) {
        snprintf(path, sizeof path, "/proc/self/task/%s/status", entry->d_name);
        FILE *status = entry->d_name[0] == '.' || atoi(entry->d_name) == getpid() ? NULL : fopen(path, "r");
        bool ours = false;
        while (status != NULL && fgets(line, sizeof line, status) != NULL) {
            if (strncmp(line, "Name:", 5) == 0)
                ours = strstr(line, "cableway") != NULL;
            if (ours && sscanf(line, "voluntary_ctxt_switches: %ld", &count) == 1)
                sum += count;
        }
        if (status != NULL)
            fclose(status);
    }
    if (tasks != NULL)
        closedir(tasks);
    return sum;
}

/* Messages before there is a stream: while there is one, Cableway maps no memory of a peer anew. */
static void send_before(int bytes)
{
    for (int i = 0; i < 32; i++)
        MPI_Sendrecv(out, bytes, MPI_BYTE, 1 - rank, TAG, in, bytes, MPI_BYTE, 1 - rank, TAG, MPI_COMM_WORLD,
                     MPI_STATUS_IGNORE);
}

static void use_enqueue(MPIX_Stream *made)
{
    MPI_Info info;
    MPI_Info_create(&info);
    MPI_Info_set(info, "type", "cudaStream_t");
    MPIX_Info_set_hex(info, "value", &stream, sizeof stream);
    if (MPIX_Stream_create(info, made) != MPI_SUCCESS || MPIX_Stream_comm_create(MPI_COMM_WORLD, *made, &comm) != MPI_SUCCESS)
        give_up("MPI makes no stream");
    MPI_Info_free(&info);
}

int main(int count, char **arguments)
{
    MPIX_Stream made = MPIX_STREAM_NULL;
    int devices = 0, most = 8;
    MPI_Init(&count, &arguments);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    comm = MPI_COMM_WORLD;
    if (count != 5 || ranks != 2)
        give_up("usage: mpirun -np 2 streams WAY SECONDS KERNEL SIZE[,SIZE...]");
    while (way <= IDLE && strcmp(arguments[1], WAYS[way]) != 0)
        way++;
    if (way > IDLE)
        give_up("the ways are mpi, enqueue, nccl, pairs, one-way, nvshmem, idle");
    if (((int (*)(unsigned))driver("cuInit"))(0) != 0 || ((int (*)(int *))driver("cuDeviceGetCount"))(&devices) != 0)
        give_up("the devices cannot be counted");
    use_device(rank % devices);
    for (const char *size = arguments[4]; size != NULL && *size; size = strchr(size, ',') ? strchr(size, ',') + 1 : NULL)
        most = atoi(size) > most ? atoi(size) : most;
    out = device_buffer((size_t)most), in = device_buffer((size_t)most);
    if (way == NCCL || way == PAIRS || way == ONE_WAY) {
        nccl_open();
        stream = nccl.stream;
    } else if (((int (*)(void **, unsigned))driver("cuStreamCreate"))(&stream, 1) != 0)
        give_up("there is no stream");
    if (way == NVSHMEM)
        in = nvshmem_open((size_t)most);
    if (way == ENQUEUE || way == IDLE) {
        send_before(most);
        use_enqueue(&made);
    }
    if (way == IDLE) {
        const double seconds = atof(arguments[2]);
        way = ENQUEUE;
        round_of(8, FIRST);
        MPI_Barrier(MPI_COMM_WORLD);
        /* The thread goes to sleep after its last work. */
        sleep(1);
        const long before = wake_ups();
        usleep((useconds_t)(1e6 * seconds));
        const long woken = wake_ups() - before;
        if (rank == 0)
            printf("idle %.0f s: %ld wake-ups of the thread of streams\n", seconds, woken);
    } else {
        for (char *size = strtok(arguments[4], ","); size != NULL; size = strtok(NULL, ","))
            measure(atoi(size), atof(arguments[2]), "");
        if (atof(arguments[3]) > 0 && way != ONE_WAY) {
            spin_load(atof(arguments[3]));
            measure(8, atof(arguments[2]), "+kernel");
        }
    }
    if (made != MPIX_STREAM_NULL) {
        MPI_Comm_free(&comm);
        MPIX_Stream_free(&made);
    }
    MPI_Finalize();
    return 0;
}
