/* Processes of several jobs: spawned ones, and groups that connect by a port. */
#include "check.h"

enum { CHILDREN = 2, ROUNDS = 3, LARGE = 1 << 18 };

/* Every process of one group exchanges small and large messages with every process of the other. */
static void exchange(MPI_Comm others, int mine)
{
    int count;
    static int out[LARGE], in[LARGE];
    MPI_Request request;
    MPI_Comm_remote_size(others, &count);
    for (int large = 0; large <= 1; large++) {
        int ints = large ? LARGE : 1;
        for (int i = 0; i < ints; i++) {
            out[i] = mine + i;
        }
        for (int other = 0; other < count; other++) {
            MPI_Status status;
            MPI_Isend(out, ints, MPI_INT, other, ints, others, &request);
            MPI_Recv(in, ints, MPI_INT, other, ints, others, &status);
            CHECK_EQUAL(status.MPI_SOURCE, other);
            CHECK_EQUAL(in[0], 1000 - mine);
            CHECK_EQUAL(in[ints - 1], 1000 - mine + ints - 1);
            MPI_Wait(&request, MPI_STATUS_IGNORE);
        }
    }
}

static void merge(MPI_Comm others, int high)
{
    MPI_Comm all;
    int rank, size, sum;
    MPI_Intercomm_merge(others, high, &all);
    MPI_Comm_rank(all, &rank);
    MPI_Comm_size(all, &size);
    MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, all);
    CHECK_EQUAL(sum, size * (size - 1) / 2);
    MPI_Comm_free(&all);
}

static void ports(int rank, int size)
{
    char port[MPI_MAX_PORT_NAME] = "";
    MPI_Comm half, others;
    int low = rank < size / 2;
    MPI_Comm_split(MPI_COMM_WORLD, low, rank, &half);
    if (rank == 0) {
        MPI_Open_port(MPI_INFO_NULL, port);
        MPI_Publish_name("cableway-test", MPI_INFO_NULL, port);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    if (low) {
        MPI_Comm_accept(port, MPI_INFO_NULL, 0, half, &others);
    } else {
        MPI_Lookup_name("cableway-test", MPI_INFO_NULL, port);
        MPI_Comm_connect(port, MPI_INFO_NULL, 0, half, &others);
    }
    exchange(others, low ? 100 : 900);
    MPI_Comm_disconnect(&others);
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0) {
        MPI_Unpublish_name("cableway-test", MPI_INFO_NULL, port);
        MPI_Close_port(port);
    }
    MPI_Comm_free(&half);
}

static void intercommunicator(int rank, int size)
{
    MPI_Comm half, others;
    int low = rank < size / 2;
    MPI_Comm_split(MPI_COMM_WORLD, low, rank, &half);
    MPI_Intercomm_create(half, 0, MPI_COMM_WORLD, low ? size / 2 : 0, 7, &others);
    exchange(others, low ? 100 : 900);
    merge(others, low);
    MPI_Comm_free(&others);
    MPI_Comm_free(&half);
}

/* Spawns this many processes with the given role. All of `spawners` spawn them together. */
static void spawn(char *self, char *role, MPI_Comm spawners, int count)
{
    char *arguments[] = {role, NULL};
    MPI_Comm children;
    MPI_Comm_spawn(self, arguments, count, MPI_INFO_NULL, 0, spawners, &children, MPI_ERRCODES_IGNORE);
    exchange(children, 100);
    merge(children, 0);
    MPI_Comm_disconnect(&children);
}

/* Two programs in one job. mpirun of 5.0.7 crashes on this. */
static void spawn_two(char *self)
{
#if OMPI_MAJOR_VERSION < 5
    char *commands[] = {self, self};
    char *child[] = {"child", NULL}, **arguments[] = {child, child};
    int counts[] = {1, CHILDREN}, codes[1 + CHILDREN];
    MPI_Info infos[] = {MPI_INFO_NULL, MPI_INFO_NULL};
    MPI_Comm children;
    MPI_Comm_spawn_multiple(2, commands, arguments, counts, infos, 0, MPI_COMM_WORLD, &children, codes);
    for (int i = 0; i < 1 + CHILDREN; i++) {
        CHECK_EQUAL(codes[i], MPI_SUCCESS);
    }
    exchange(children, 100);
    MPI_Comm_disconnect(&children);
#else
    (void) self;
#endif
}

int main(int argc, char **argv)
{
    MPI_Comm parent;
    int rank, size;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Comm_get_parent(&parent);
    if (MPI_COMM_NULL != parent) {
        exchange(parent, 900);
        if (0 != strcmp(argv[1], "child")) {
            merge(parent, 1);
        }
        /* Three jobs. The first and the last never connect. */
        if (0 == strcmp(argv[1], "with child")) {
            spawn(argv[0], "alone", MPI_COMM_WORLD, 1);
        }
        MPI_Comm_disconnect(&parent);
        MPI_Finalize();
        return 0;
    }
    for (int round = 0; round < ROUNDS; round++) {
        spawn(argv[0], "alone", MPI_COMM_WORLD, CHILDREN);
    }
    /* As many concurrent jobs as there are processes. */
    spawn(argv[0], "alone", MPI_COMM_SELF, 1);
    spawn(argv[0], "with child", MPI_COMM_WORLD, CHILDREN);
    spawn_two(argv[0]);
    if (size > 1) {
        intercommunicator(rank, size);
        ports(rank, size);
    }
    MPI_Finalize();
    return 0;
}
