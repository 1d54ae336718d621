/* NCCL's collectives, from the library that NCCL_LIBRARY names. A call queues an operation. The numbers and types
 * are those of nccl.h since release 2.10. */
#include <dlfcn.h>

typedef struct { char bytes[128]; } nccl_id;
typedef struct nccl_comm *nccl_comm;
typedef struct stream *nccl_stream;

enum { NCCL_INT = 2, NCCL_FLOAT = 7, NCCL_DOUBLE = 8, NCCL_SUM = 0, NCCL_MAX = 2, NCCL_MIN = 3 };

static struct {
    int (*get_id)(nccl_id *);
    int (*init)(nccl_comm *, int, nccl_id, int);
    int (*all_reduce)(const void *, void *, size_t, int, int, nccl_comm, nccl_stream);
    int (*reduce)(const void *, void *, size_t, int, int, int, nccl_comm, nccl_stream);
    int (*broadcast)(const void *, void *, size_t, int, int, nccl_comm, nccl_stream);
    int (*all_gather)(const void *, void *, size_t, int, nccl_comm, nccl_stream);
    int (*reduce_scatter)(const void *, void *, size_t, int, int, nccl_comm, nccl_stream);
    int (*send)(const void *, size_t, int, int, nccl_comm, nccl_stream);
    int (*receive)(void *, size_t, int, int, nccl_comm, nccl_stream);
    int (*group_start)(void);
    int (*group_end)(void);
    nccl_comm comm;
    nccl_stream stream;
} nccl;

static void *nccl_function(void *library, const char *name)
{
    void *found = dlsym(library, name);
    if (found == NULL)
        give_up(name);
    return found;
}

static void nccl_open(void)
{
    const char *path = getenv("NCCL_LIBRARY");
    void *library = dlopen(path == NULL || *path == 0 ? "libnccl.so.2" : path, RTLD_NOW);
    nccl_id id;
    if (library == NULL)
        give_up("NCCL is not there: set NCCL_LIBRARY to the path of libnccl.so.2");
    *(void **)&nccl.get_id = nccl_function(library, "ncclGetUniqueId");
    *(void **)&nccl.init = nccl_function(library, "ncclCommInitRank");
    *(void **)&nccl.all_reduce = nccl_function(library, "ncclAllReduce");
    *(void **)&nccl.reduce = nccl_function(library, "ncclReduce");
    *(void **)&nccl.broadcast = nccl_function(library, "ncclBroadcast");
    *(void **)&nccl.all_gather = nccl_function(library, "ncclAllGather");
    *(void **)&nccl.reduce_scatter = nccl_function(library, "ncclReduceScatter");
    *(void **)&nccl.send = nccl_function(library, "ncclSend");
    *(void **)&nccl.receive = nccl_function(library, "ncclRecv");
    *(void **)&nccl.group_start = nccl_function(library, "ncclGroupStart");
    *(void **)&nccl.group_end = nccl_function(library, "ncclGroupEnd");
    if (rank == 0 && nccl.get_id(&id) != 0)
        give_up("NCCL makes no id");
    MPI_Bcast(&id, sizeof id, MPI_BYTE, 0, MPI_COMM_WORLD);
    if (nccl.init(&nccl.comm, ranks, id, rank) != 0)
        give_up("NCCL makes no communicator; each rank needs a device of its own");
    if (((int (*)(nccl_stream *, unsigned))driver("cuStreamCreate"))(&nccl.stream, 1) != 0)
        give_up("there is no stream for NCCL");
}

static int nccl_all_to_all(const char *send, char *receive, size_t share)
{
    int failed = nccl.group_start();
    for (int peer = 0; peer < ranks; peer++) {
        const size_t at = share * (size_t)peer * sizeof(float);
        failed |= nccl.send(send + at, share, NCCL_FLOAT, peer, nccl.comm, nccl.stream);
        failed |= nccl.receive(receive + at, share, NCCL_FLOAT, peer, nccl.comm, nccl.stream);
    }
    return failed | nccl.group_end();
}

/* NCCL reduces neither complex numbers nor pairs, and has no derived types. */
static bool nccl_has(const char *operation)
{
    return strcmp(operation, "allreduce-complex") != 0 && strcmp(operation, "allreduce-minloc") != 0 &&
           strcmp(operation, "alltoallw") != 0;
}

static void nccl_call(const char *operation, char *send, char *receive, int floats)
{
    const size_t count = (size_t)floats, share = count / (size_t)ranks;
    int failed;
    if (strcmp(operation, "allreduce") == 0)
        failed = nccl.all_reduce(send, receive, count, NCCL_FLOAT, NCCL_SUM, nccl.comm, nccl.stream);
    else if (strcmp(operation, "allreduce-double") == 0)
        failed = nccl.all_reduce(send, receive, count / 2, NCCL_DOUBLE, NCCL_MAX, nccl.comm, nccl.stream);
    else if (strcmp(operation, "allreduce-int") == 0)
        failed = nccl.all_reduce(send, receive, count, NCCL_INT, NCCL_MIN, nccl.comm, nccl.stream);
    else if (strcmp(operation, "reduce") == 0)
        failed = nccl.reduce(send, receive, count, NCCL_FLOAT, NCCL_SUM, 0, nccl.comm, nccl.stream);
    else if (strcmp(operation, "bcast") == 0)
        failed = nccl.broadcast(send, send, count, NCCL_FLOAT, 0, nccl.comm, nccl.stream);
    else if (strcmp(operation, "allgather") == 0)
        failed = nccl.all_gather(send, receive, share, NCCL_FLOAT, nccl.comm, nccl.stream);
    else if (strcmp(operation, "alltoall") == 0)
        failed = nccl_all_to_all(send, receive, share);
    else
        failed = nccl.reduce_scatter(send, receive, share, NCCL_FLOAT, NCCL_SUM, nccl.comm, nccl.stream);
    if (failed)
        give_up("NCCL failed");
}

/* Waits for what is queued, so that a call has ended when it returns, as MPI's. */
static void nccl_wait(void)
{
    if (((int (*)(nccl_stream))driver("cuStreamSynchronize"))(nccl.stream) != 0)
        give_up("NCCL failed");
}
