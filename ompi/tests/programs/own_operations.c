/* Reductions by the program's own operation, which is not commutative, on elements with and without gaps, in host and device
 * memory. Each result is compared with what the program computes itself, and every byte between and around the elements
 * must keep its contents.
 *
 *   own_operations SCALE         every form, on counts around SCALE elements, and several times as many
 *   own_operations long COUNT    one form, on about so many elements
 *
 * The engine performs them all: nothing runs on host copies, and after the first round no memory for copies is allocated.
 * CABLEWAY_CUDA_LIBDIR names the driver. */
#include "collectives/counters.h"
#include "collectives/memory.h"

#include <mpi-ext.h>

enum call { ALLREDUCE, REDUCE, REDUCE_SCATTER, REDUCE_SCATTER_BLOCK, SCAN, EXSCAN, LOCAL, CALLS };
enum form { BLOCKING, NONBLOCKING, PERSISTENT, FORMS };

#if OMPI_MAJOR_VERSION < 5
#define PERSISTENTLY(name) MPIX_##name##_init
#else
#define PERSISTENTLY(name) MPI_##name##_init
#endif

/* x -> a * x + b */
struct affine {
    unsigned a, b;
};

static struct affine combined(struct affine one, struct affine other)
{
    return (struct affine){one.a * other.a, one.a * other.b + one.b};
}

/* Where the numbers lie in an element, and how far elements are apart. */
static const struct kind {
    int a, b, extent;
} kinds[] = {{0, 4, 8}, {4, 12, 20}};
enum { KINDS = 2 };

static MPI_Datatype types[KINDS];
static MPI_Op op;
static struct memory out, in;
static int longest;

static struct affine take(const struct kind *kind, const unsigned char *base, int i)
{
    struct affine value;
    memcpy(&value.a, base + (size_t) i * kind->extent + kind->a, sizeof value.a);
    memcpy(&value.b, base + (size_t) i * kind->extent + kind->b, sizeof value.b);
    return value;
}

static void store(const struct kind *kind, unsigned char *base, int i, struct affine value)
{
    memcpy(base + (size_t) i * kind->extent + kind->a, &value.a, sizeof value.a);
    memcpy(base + (size_t) i * kind->extent + kind->b, &value.b, sizeof value.b);
}

static void combine(void *from, void *to, int *count, MPI_Datatype *type)
{
    MPI_Aint lb, extent;
    MPI_Type_get_extent(*type, &lb, &extent);
    const struct kind *kind = &kinds[kinds[0].extent == extent ? 0 : 1];
    CHECK_EQUAL(kind->extent, extent);
    longest = *count > longest ? *count : longest;
    for (int i = 0; i < *count; i++) {
        store(kind, to, i, combined(take(kind, from, i), take(kind, to, i)));
    }
}

static MPI_Datatype type_of(const struct kind *kind)
{
    MPI_Aint places[] = {kind->a, kind->b};
    int lengths[] = {1, 1};
    MPI_Datatype numbers, type;
    MPI_Type_create_hindexed(2, lengths, places, MPI_UNSIGNED, &numbers);
    MPI_Type_create_resized(numbers, 0, kind->extent, &type);
    MPI_Type_commit(&type);
    MPI_Type_free(&numbers);
    return type;
}

/* An operand, and the combination of those of several ranks. */
static struct affine operand(int rank, int i, uint64_t salt)
{
    uint64_t hash = mix(salt, (uint64_t) rank, (uint64_t) i);
    return (struct affine){(unsigned) hash | 1, (unsigned) (hash >> 32)};
}

static struct affine result(int first, int last, int i, uint64_t salt)
{
    struct affine value = operand(first, i, salt);
    for (int rank = first + 1; rank <= last; rank++) {
        value = combined(value, operand(rank, i, salt));
    }
    return value;
}

/* One operation: what it is, and where its memory is. */
struct shape {
    enum call call;
    enum form form;
    int kind, count, root;
    bool in_place, frees;
    uint64_t salt;
};

static int counts[64];

/* The elements that a rank gets of a reduce-scatter. Some get none. */
static int share(const struct shape *shape, int rank)
{
    return REDUCE_SCATTER_BLOCK == shape->call ? shape->count : rank % 3 == 1 ? 0 : shape->count + rank;
}

/* Sets the elements of the input, and which of them are the results, or -1 for none. */
static void sizes(const struct shape *shape, int *elements, int *first, int *results)
{
    *elements = shape->count;
    *first = 0;
    *results = shape->count;
    if (REDUCE_SCATTER == shape->call || REDUCE_SCATTER_BLOCK == shape->call) {
        *elements = 0;
        for (int rank = 0; rank < test.size; rank++) {
            counts[rank] = share(shape, rank);
            *first = rank == test.rank ? *elements : *first;
            *elements += counts[rank];
        }
        *results = counts[test.rank];
    } else if ((REDUCE == shape->call && test.rank != shape->root) || (EXSCAN == shape->call && 0 == test.rank)) {
        *results = 0;
    }
}

static void start(const struct shape *shape, MPI_Op by, MPI_Datatype type, MPI_Request *request)
{
    void *to = memory_at(&in), *from = shape->in_place ? MPI_IN_PLACE : memory_at(&out);
    /* Only the root of a reduce may be in place. */
    void *other = shape->in_place && test.rank != shape->root ? memory_at(&in) : from;
    const int n = shape->count, root = shape->root;
    MPI_Comm comm = MPI_COMM_WORLD;
#define ALL_FORMS(Name, name, ...)                                                                                     \
    if (BLOCKING == shape->form) {                                                                                     \
        MPI_##Name(__VA_ARGS__);                                                                                       \
    } else if (NONBLOCKING == shape->form) {                                                                           \
        MPI_I##name(__VA_ARGS__, request);                                                                             \
    } else {                                                                                                           \
        PERSISTENTLY(Name)(__VA_ARGS__, MPI_INFO_NULL, request);                                                       \
        MPI_Start(request);                                                                                            \
    }                                                                                                                  \
    break
    switch (shape->call) {
    case ALLREDUCE: ALL_FORMS(Allreduce, allreduce, from, to, n, type, by, comm);
    case REDUCE: ALL_FORMS(Reduce, reduce, other, to, n, type, by, root, comm);
    case REDUCE_SCATTER: ALL_FORMS(Reduce_scatter, reduce_scatter, from, to, counts, type, by, comm);
    case REDUCE_SCATTER_BLOCK: ALL_FORMS(Reduce_scatter_block, reduce_scatter_block, from, to, n, type, by, comm);
    case SCAN: ALL_FORMS(Scan, scan, from, to, n, type, by, comm);
    case EXSCAN: ALL_FORMS(Exscan, exscan, from, to, n, type, by, comm);
    default: MPI_Reduce_local(memory_at(&out), to, n, type, by);
    }
}

static void run(struct shape shape)
{
    const struct kind *kind = &kinds[shape.kind];
    int elements, first, results;
    MPI_Request request = MPI_REQUEST_NULL;
    sizes(&shape, &elements, &first, &results);
    const size_t bytes = (size_t) elements * kind->extent;
    const size_t room = shape.in_place || bytes > (size_t) results * kind->extent ? bytes : (size_t) results * kind->extent;
    /* Ranks differ in what their memory is. */
    const uint64_t where = mix(shape.salt, (uint64_t) test.rank, 7);
    memory_use(&out, where % 4, where / 4 % 3 * 4, bytes, SEND_GAP);
    memory_use(&in, where / 16 % 4, where / 64 % 3 * 4, room, RECV_GAP);
    struct memory *input = shape.in_place ? &in : &out;
    for (int i = 0; i < elements; i++) {
        store(kind, data(input, input->before), i, operand(test.rank, i, shape.salt));
        if (LOCAL == shape.call) {
            store(kind, data(&in, in.before), i, operand(test.rank + 1, i, shape.salt));
        }
    }
    memcpy(in.want, in.before, memory_whole(&in));
    for (int i = 0; i < results; i++) {
        int from = LOCAL == shape.call ? test.rank : 0;
        int to = LOCAL == shape.call  ? test.rank + 1
                 : SCAN == shape.call ? test.rank
                 : EXSCAN == shape.call ? test.rank - 1
                                        : test.size - 1;
        store(kind, data(&in, in.want), i, result(from, to, first + i, shape.salt));
    }
    MPI_Datatype type = shape.frees ? type_of(kind) : types[shape.kind];
    MPI_Op by = op;
    if (shape.frees) {
        MPI_Op_create(combine, 0, &by);
    }
    memory_put(&out);
    memory_put(&in);
    start(&shape, by, type, &request);
    if (shape.frees) {
        MPI_Type_free(&type);
        MPI_Op_free(&by);
    }
    if (MPI_REQUEST_NULL != request) {
        MPI_Wait(&request, MPI_STATUS_IGNORE);
        if (PERSISTENT == shape.form) {
            memory_get(&in);
            CHECK_EQUAL(memory_differs(&in), -1);
            memory_put(&in);
            MPI_Start(&request);
            MPI_Wait(&request, MPI_STATUS_IGNORE);
            MPI_Request_free(&request);
        }
    }
    memory_get(&in);
    if (-1 != memory_differs(&in)) {
        fprintf(stderr, "rank %d of %d: call %d, form %d, kind %d, %d elements, root %d, in place %d: byte %ld differs\n",
                test.rank, test.size, shape.call, shape.form, shape.kind, shape.count, shape.root, shape.in_place,
                memory_differs(&in));
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    count_check();
}

static bool is_scattered(enum call call)
{
    return REDUCE_SCATTER == call || REDUCE_SCATTER_BLOCK == call;
}

/* Every form of every call. */
static void run_all(int scale, uint64_t salt)
{
    for (int call = 0; call < CALLS; call++) {
        /* Each rank combines several pieces. */
        const int longer = 5 * scale * (ALLREDUCE == call || REDUCE == call ? test.size : 1) + 7;
        const int lengths[] = {0, 1, 3, scale, scale + 1, longer};
        for (int kind = 0; kind < KINDS; kind++) {
            for (int length = 0; length < 6; length++) {
                for (int form = 0; form < (LOCAL == call ? 1 : FORMS); form++) {
                    for (int in_place = 0; in_place < (LOCAL == call ? 1 : 2); in_place++) {
                        salt = mix(salt, 1, 2);
                        struct shape shape = {.call = (enum call) call, .form = (enum form) form, .kind = kind};
                        shape.count = lengths[length];
                        shape.in_place = in_place;
                        shape.root = (int) (salt % (uint64_t) test.size);
                        shape.frees = salt / 64 % 2;
                        shape.salt = salt;
                        run(shape);
                    }
                }
            }
        }
    }
}

/* One form of every call. */
static void run_long(int elements)
{
    for (int call = 0; call < CALLS; call++) {
        for (int kind = 0; kind < KINDS; kind++) {
            struct shape shape = {.call = (enum call) call, .form = LOCAL == call ? BLOCKING : (enum form) (call % FORMS)};
            shape.kind = kind;
            shape.count = is_scattered(shape.call) ? elements / test.size : elements;
            shape.in_place = LOCAL != call && (call + kind) % 2;
            shape.salt = mix((uint64_t) call, (uint64_t) kind, 3);
            run(shape);
        }
    }
}

int main(int argc, char **argv)
{
    MPI_T_pvar_handle host_copies, allocations;
    unsigned long long copies_before, allocations_before;
    set_up(argc, argv, MPI_THREAD_SINGLE);
    CHECK(2 == argc || 3 == argc);
    open_counters();
    host_copies = counter("pml_cableway_calls_on_host_copies");
    allocations = counter("pml_cableway_host_copy_allocations");
    for (int i = 0; i < KINDS; i++) {
        types[i] = type_of(&kinds[i]);
    }
    MPI_Op_create(combine, 0, &op);
    copies_before = read_counter(host_copies);
    for (int round = 0; round < 2; round++) {
        allocations_before = read_counter(allocations);
        if (2 == argc) {
            run_all(atoi(argv[1]), 1);
        } else {
            run_long(atoi(argv[2]));
        }
    }
    CHECK(0 < allocations_before);
    CHECK_EQUAL(read_counter(allocations), allocations_before);
    CHECK_EQUAL(read_counter(host_copies), copies_before);
    if (0 == test.rank) {
        printf("longest piece: %d\n", longest);
    }
    MPI_Op_free(&op);
    for (int i = 0; i < KINDS; i++) {
        MPI_Type_free(&types[i]);
    }
    memory_discard(&out);
    memory_discard(&in);
    close_counters();
    tear_down();
    return 0;
}
