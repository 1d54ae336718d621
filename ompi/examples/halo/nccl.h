/* What halo.c needs of NCCL, which it loads when it runs: from NCCL_LIBRARY, or from where the loader finds libnccl.so.2. */
#ifndef NCCL_H
#define NCCL_H

#include "device.h"

/* As nccl.h has it. */
typedef struct { char bytes[128]; } nccl_id;
enum { NCCL_DOUBLE = 8 };

static struct {
    int (*get_id)(nccl_id *);
    int (*init)(void **, int, nccl_id, int);
    int (*group_start)(void);
    int (*group_end)(void);
    int (*send)(const void *, size_t, int, int, void *, void *);
    int (*receive)(void *, size_t, int, int, void *, void *);
    void *comm;
} nccl;

static void load_nccl(int rank, int ranks)
{
    const char *path = getenv("NCCL_LIBRARY");
    void *library = dlopen(NULL == path ? "libnccl.so.2" : path, RTLD_NOW);
    nccl_id id;
    if (NULL == library) {
        fprintf(stderr, "%s: set NCCL_LIBRARY to the path of libnccl.so.2\n", dlerror());
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    *(void **) &nccl.get_id = function_of(library, "ncclGetUniqueId");
    *(void **) &nccl.init = function_of(library, "ncclCommInitRank");
    *(void **) &nccl.group_start = function_of(library, "ncclGroupStart");
    *(void **) &nccl.group_end = function_of(library, "ncclGroupEnd");
    *(void **) &nccl.send = function_of(library, "ncclSend");
    *(void **) &nccl.receive = function_of(library, "ncclRecv");
    if (0 == rank) {
        CHECK(nccl.get_id(&id));
    }
    MPI_Bcast(&id, sizeof id, MPI_BYTE, 0, MPI_COMM_WORLD);
    CHECK(nccl.init(&nccl.comm, ranks, id, rank));
}

#endif
