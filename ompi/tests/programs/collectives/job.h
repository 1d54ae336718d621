/* A collective operation of a test: what it is, its buffers, and the arguments of the call. */
#ifndef JOB_H
#define JOB_H

#include "layouts.h"
#include "types.h"

enum call {
    ALLGATHER, ALLGATHERV, ALLTOALL, ALLTOALLV, ALLTOALLW, BCAST, GATHER, GATHERV, SCATTER, SCATTERV,
    NEIGHBOR_ALLGATHER, NEIGHBOR_ALLGATHERV, NEIGHBOR_ALLTOALL, NEIGHBOR_ALLTOALLV, NEIGHBOR_ALLTOALLW,
    ALLREDUCE, REDUCE, REDUCE_SCATTER, REDUCE_SCATTER_BLOCK, SCAN, EXSCAN, REDUCE_LOCAL, CALLS
};
static const char *const call_names[CALLS] = {
    "Allgather", "Allgatherv", "Alltoall", "Alltoallv", "Alltoallw", "Bcast", "Gather", "Gatherv", "Scatter", "Scatterv",
    "Neighbor_allgather", "Neighbor_allgatherv", "Neighbor_alltoall", "Neighbor_alltoallv", "Neighbor_alltoallw",
    "Allreduce", "Reduce", "Reduce_scatter", "Reduce_scatter_block", "Scan", "Exscan", "Reduce_local"};

enum form { BLOCKING, NONBLOCKING, PERSISTENT, FORMS };
static const char *const form_names[FORMS] = {"blocking", "non-blocking", "persistent"};

/* Where the buffers are. The last is drawn for each rank and buffer. */
enum placement { HOST, DEVICE, EVEN_RANKS, TO_HOST, TO_DEVICE, ANYWHERE, PLACEMENTS };
static const char *const placement_names[PLACEMENTS] = {
    "host", "device", "device on even ranks", "device to host", "host to device", "anywhere"};

static bool is_neighbor(enum call call)
{
    return NEIGHBOR_ALLGATHER <= call && call <= NEIGHBOR_ALLTOALLW;
}

static bool is_reduction(enum call call)
{
    return ALLREDUCE <= call;
}

static bool has_root(enum call call)
{
    return (BCAST <= call && call <= SCATTERV) || REDUCE == call;
}

static bool is_alltoall(enum call call)
{
    return (ALLTOALL <= call && call <= ALLTOALLW) || (NEIGHBOR_ALLTOALL <= call && call <= NEIGHBOR_ALLTOALLW);
}

static bool is_gather(enum call call)
{
    return GATHER == call || GATHERV == call;
}

static bool is_scatter(enum call call)
{
    return SCATTER == call || SCATTERV == call;
}

/* Checks whether parts have lengths of their own. */
static bool is_varied(enum call call)
{
    return ALLGATHERV == call || ALLTOALLV == call || ALLTOALLW == call || GATHERV == call || SCATTERV == call ||
           NEIGHBOR_ALLGATHERV == call || NEIGHBOR_ALLTOALLV == call || NEIGHBOR_ALLTOALLW == call;
}

static bool can_be_in_place(enum call call)
{
    return BCAST != call && !is_neighbor(call) && REDUCE_LOCAL != call;
}

/* A communicator. In an intercommunicator the partners are the other group, else all processes. Processes have numbers
 * which tell the groups apart. */
struct group {
    MPI_Comm comm;
    bool inter;
    int me, size, partners; /* me, size: in the own group */
    int my_base, their_base;
    bool is_graph;
    int sources, targets; /* of a graph */
    int source[MOST], target[MOST];
};

enum { OTHER_GROUP = 100, TO_ALL = 999 };

static inline struct group group_of(MPI_Comm comm)
{
    struct group group = {.comm = comm};
    int inter;
    MPI_Comm_test_inter(comm, &inter);
    MPI_Comm_rank(comm, &group.me);
    MPI_Comm_size(comm, &group.size);
    if (inter) {
        MPI_Comm_remote_size(comm, &group.partners);
    } else {
        group.partners = group.size;
    }
    group.inter = inter;
    CHECK(group.partners <= MOST);
    return group;
}

/* What is the same on all ranks of the communicator. */
struct shape {
    enum call call;
    enum form form;
    enum placement placement;
    bool in_place, misaligned;
    int count; /* elements of a reduction, units of a movement; other lengths are near it */
    int root;  /* of an intercommunicator: in the group that has first_has_root */
    bool first_has_root;
    uint64_t salt;
    const struct layout *layout; /* of a movement */
    const struct type *type;     /* of a reduction */
    enum op op;
};

/* The arguments that describe one buffer. */
struct side {
    const struct view *view;
    int parts;
    int count; /* of a buffer whose parts are equal */
    int counts[MOST], places[MOST], bytes_from[MOST];
    MPI_Aint wide[MOST];
    MPI_Datatype types[MOST];
    const struct view *views[MOST]; /* of `types` */
};

struct job {
    struct shape shape;
    const struct group *group;
    struct memory send, recv;
    struct side out, in;
    MPI_Request request;
    int round; /* of a persistent operation; each has other data */
    bool is_root, is_outside; /* is_outside: takes no part, beside the root of an intercommunicator */
    int root;                 /* as an argument of MPI */
    int expected, checked_from; /* of a reduction: the elements of its result */
};

static uint64_t data_salt(const struct job *job)
{
    return mix(job->shape.salt, (uint64_t) job->round, 17);
}

static void fail(const struct job *job, const char *what, long at, const unsigned char *got, const unsigned char *wanted)
{
    const struct shape *shape = &job->shape;
    fprintf(stderr,
            "rank %d of %d: %s %s%s%s: %s differs at byte %ld (guards have %d): is %02x %02x %02x %02x, not %02x %02x %02x %02x; "
            "rank %d in a %s of %d, root %d, %s %s, count %d, buffers on %s (send %s, receive %s), round %d; of this run:%s\n",
            test.rank, test.size, form_names[shape->form], call_names[shape->call], shape->in_place ? " in place" : "",
            shape->misaligned ? " one element on" : "", what, at, GUARD, got[0], got[1], got[2], got[3], wanted[0], wanted[1],
            wanted[2], wanted[3], job->group->me, job->group->inter ? "remote group" : "group", job->group->partners,
            shape->root, is_reduction(shape->call) ? op_names[shape->op] : shape->layout->name,
            is_reduction(shape->call) ? shape->type->name : "", shape->count, placement_names[shape->placement],
            job->send.on_device ? "on the device" : "on the host", job->recv.on_device ? "on the device" : "on the host",
            job->round, test.run);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

static bool on_device(const struct job *job, bool send)
{
    switch (job->shape.placement) {
    case HOST: return false;
    case EVEN_RANKS: return 0 == job->group->me % 2;
    case TO_HOST: return send;
    case TO_DEVICE: return !send;
    case ANYWHERE: return mix(job->shape.salt, (uint64_t) test.rank, 31 + send) >> 63;
    default: return true;
    }
}

/* Finds out what this process is. */
static void find_role(struct job *job)
{
    const struct group *group = job->group;
    bool in_rooted_group = !group->inter || job->shape.first_has_root == (0 == group->my_base);
    job->is_root = has_root(job->shape.call) && in_rooted_group && group->me == job->shape.root;
    job->is_outside = has_root(job->shape.call) && group->inter && in_rooted_group && !job->is_root;
    job->root = job->shape.root;
    if (group->inter && in_rooted_group) {
        job->root = job->is_root ? MPI_ROOT : MPI_PROC_NULL;
    }
}

static int my_number(const struct job *job)
{
    return job->group->my_base + job->group->me;
}

static int root_number(const struct job *job)
{
    return (job->shape.first_has_root || !job->group->inter ? 0 : OTHER_GROUP) + job->shape.root;
}

#endif
