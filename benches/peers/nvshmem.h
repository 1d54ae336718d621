/* NVSHMEM's puts with signals on a stream, from the library that NVSHMEM_LIBRARY names. The numbers and structures are
 * those of its headers since release 3.0. */

typedef struct { int version; char bytes[124]; } nvshmem_id;
typedef struct {
    int version;
    void *comm;
    struct {
        int version;
        struct { int version; nvshmem_id *id; int rank, ranks; } unique;
        char rest[96];
    } arguments;
} nvshmem_start;

_Static_assert(sizeof(nvshmem_id) == 128 && sizeof(nvshmem_start) == 144, "the sizes are part of their versions");

enum { NVSHMEM_WITH_ID = 8, NVSHMEM_SET = 9, NVSHMEM_AT_LEAST = 5 };

static struct {
    int (*get_id)(nvshmem_id *);
    int (*set_id)(int, int, const nvshmem_id *, nvshmem_start *);
    int (*init)(unsigned, nvshmem_start *);
    void *(*allocate)(size_t);
    void (*put)(void *, const void *, size_t, unsigned long long *, unsigned long long, int, int, void *);
    void (*wait)(unsigned long long *, int, unsigned long long, void *);
    /* The word that the peer's puts set, and their numbers. */
    unsigned long long *signal, sent, awaited;
} nvshmem;

/* Starts NVSHMEM on the current device, and makes memory for puts and a signal. */
static char *nvshmem_open(size_t bytes)
{
    const char *path = getenv("NVSHMEM_LIBRARY");
    void *library = dlopen(path == NULL || *path == 0 ? "libnvshmem_host.so.3" : path, RTLD_NOW);
    nvshmem_id id = {.version = (1 << 16) + sizeof id};
    nvshmem_start start = {.version = (1 << 16) + sizeof start};
    if (library == NULL)
        give_up("NVSHMEM is not there: set NVSHMEM_LIBRARY to the path of libnvshmem_host.so.3");
    *(void **)&nvshmem.get_id = nccl_function(library, "nvshmemx_get_uniqueid");
    *(void **)&nvshmem.set_id = nccl_function(library, "nvshmemx_set_attr_uniqueid_args");
    *(void **)&nvshmem.init = nccl_function(library, "nvshmemx_hostlib_init_attr");
    *(void **)&nvshmem.allocate = nccl_function(library, "nvshmem_malloc");
    *(void **)&nvshmem.put = nccl_function(library, "nvshmemx_putmem_signal_on_stream");
    *(void **)&nvshmem.wait = nccl_function(library, "nvshmemx_signal_wait_until_on_stream");
    start.arguments.version = (1 << 16) + sizeof start.arguments;
    start.arguments.unique.version = (1 << 16) + sizeof start.arguments.unique;
    if (rank == 0 && nvshmem.get_id(&id) != 0)
        give_up("NVSHMEM makes no id");
    MPI_Bcast(&id, sizeof id, MPI_BYTE, 0, MPI_COMM_WORLD);
    if (nvshmem.set_id(rank, ranks, &id, &start) != 0 || nvshmem.init(NVSHMEM_WITH_ID, &start) != 0)
        give_up("NVSHMEM does not start; each rank needs a device of its own");
    nvshmem.signal = nvshmem.allocate(sizeof *nvshmem.signal);
    char *memory = nvshmem.allocate(bytes);
    if (nvshmem.signal == NULL || memory == NULL)
        give_up("NVSHMEM has no memory");
    if (((int (*)(unsigned long long, unsigned char, size_t))driver("cuMemsetD8_v2"))(
            (unsigned long long)nvshmem.signal, 0, sizeof *nvshmem.signal) != 0 ||
        ((int (*)(void *))driver("cuStreamSynchronize"))(NULL) != 0)
        give_up("NVSHMEM's signal cannot be cleared");
    MPI_Barrier(MPI_COMM_WORLD);
    return memory;
}

static void nvshmem_put(void *to, const void *from, size_t bytes, void *stream)
{
    nvshmem.put(to, from, bytes, nvshmem.signal, ++nvshmem.sent, NVSHMEM_SET, 1 - rank, stream);
}

static void nvshmem_wait(void *stream)
{
    nvshmem.wait(nvshmem.signal, NVSHMEM_AT_LEAST, ++nvshmem.awaited, stream);
}
