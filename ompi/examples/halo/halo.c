/* Halo exchange: a field of cells in three dimensions is divided among the ranks, and each step computes a cell from itself
 * and its six neighbours. Before each step, neighbouring ranks exchange the faces of their parts.
 *
 *   nvcc -ptx -o halo.ptx halo.cu
 *   mpicc -O2 -I PREFIX/include halo.c -o halo -L PREFIX -lcableway_mpix -ldl
 *   mpirun -np 2 --mca pml cableway halo WAY [X Y Z [STEPS]]
 *
 * `cableway ompi install` prints PREFIX. WAY says how faces are exchanged:
 *
 *   stream   in the order of the stream, which the host never waits for
 *   mpi      by MPI, between two halves of a step: the host waits for the stream before it sends
 *   nccl     by NCCL on the stream, if each rank has a device of its own; NCCL_LIBRARY may name its file
 *
 * It prints the time of a step, and a checksum, which is the same for every way and number of ranks. */
#include "device.h"
#include "nccl.h"

#include <cableway_mpix.h>
#include <stdint.h>
#include <string.h>

enum { Z, Y, X, DIMENSIONS, SIDES = 2, FACES = DIMENSIONS * SIDES, THREADS = 128, WARM = 10, NON_BLOCKING = 1 };

/* A face of this rank's part, and the neighbour beyond it, which may be MPI_PROC_NULL. */
struct face {
    int neighbour, tag, back;
    unsigned inner, outer;
    unsigned long long inner_stride, outer_stride, own, ghost;
    device_pointer send, receive;
};

static struct {
    int rank, ranks, parts[DIMENSIONS], first[DIMENSIONS];
    unsigned cells[DIMENSIONS];
    unsigned long long strides[DIMENSIONS];
    struct face faces[FACES];
    MPI_Comm comm;
    void *stream, *stencil, *face;
} job;

/* Divides the cells, and describes the faces. */
static void divide(const int whole[DIMENSIONS])
{
    const int around[DIMENSIONS] = {0};
    int place[DIMENSIONS];
    unsigned long long stride = 1;
    MPI_Dims_create(job.ranks, DIMENSIONS, job.parts);
    MPI_Cart_create(MPI_COMM_WORLD, DIMENSIONS, job.parts, around, 0, &job.comm);
    MPI_Cart_coords(job.comm, job.rank, DIMENSIONS, place);
    for (int axis = X; axis >= Z; axis--) {
        job.first[axis] = (int) ((long long) whole[axis] * place[axis] / job.parts[axis]);
        job.cells[axis] = (unsigned) ((long long) whole[axis] * (place[axis] + 1) / job.parts[axis] - job.first[axis]);
        job.strides[axis] = stride;
        stride *= job.cells[axis] + 2;
    }
    for (int number = 0; number < FACES; number++) {
        struct face *face = &job.faces[number];
        const int axis = number / SIDES, upper = number % SIDES;
        const int inner = X == axis ? Y : X, outer = Z == axis ? Y : Z;
        int below, above;
        MPI_Cart_shift(job.comm, axis, 1, &below, &above);
        *face = (struct face){
            .neighbour = upper ? above : below, .tag = number, .back = number ^ 1,
            .inner = job.cells[inner], .inner_stride = job.strides[inner],
            .outer = job.cells[outer], .outer_stride = job.strides[outer],
        };
        const unsigned long long corner = face->inner_stride + face->outer_stride;
        face->own = corner + (upper ? job.cells[axis] : 1) * job.strides[axis];
        face->ghost = corner + (upper ? job.cells[axis] + 1 : 0) * job.strides[axis];
        if (MPI_PROC_NULL != face->neighbour) {
            face->send = device_memory(sizeof(double) * face->inner * face->outer);
            face->receive = device_memory(sizeof(double) * face->inner * face->outer);
        }
    }
}

static unsigned blocks(unsigned threads)
{
    return (threads + THREADS - 1) / THREADS;
}

/* Adds the kernels to the stream that copy all faces from the field, or to its ghosts. */
static void copy_faces(device_pointer field, int unpack)
{
    for (struct face *face = job.faces; face < job.faces + FACES; face++) {
        device_pointer *packed = unpack ? &face->receive : &face->send;
        unsigned long long *first = unpack ? &face->ghost : &face->own;
        void *arguments[] = {packed, &field, first, &face->inner, &face->inner_stride, &face->outer, &face->outer_stride,
                             &unpack};
        if (MPI_PROC_NULL != face->neighbour) {
            CHECK(cuda.launch(job.face, blocks(face->inner * face->outer), 1, 1, THREADS, 1, 1, 0, job.stream, arguments,
                              NULL));
        }
    }
}

static void compute(device_pointer next, device_pointer now)
{
    void *arguments[] = {&next, &now, &job.cells[X], &job.cells[Y]};
    CHECK(cuda.launch(job.stencil, blocks(job.cells[X]), job.cells[Y], job.cells[Z], THREADS, 1, 1, 0, job.stream,
                      arguments, NULL));
}

/* --- the ways --- */

/* The stream starts the messages, and waits for them. */
static void exchange_on_stream(void)
{
    MPI_Request requests[2 * FACES];
    int count = 0;
    for (struct face *face = job.faces; face < job.faces + FACES; face++) {
        const int cells = (int) (face->inner * face->outer);
        if (MPI_PROC_NULL != face->neighbour) {
            MPIX_Irecv_enqueue(at(face->receive), cells, MPI_DOUBLE, face->neighbour, face->back, job.comm,
                               &requests[count++]);
            MPIX_Isend_enqueue(at(face->send), cells, MPI_DOUBLE, face->neighbour, face->tag, job.comm,
                               &requests[count++]);
        }
    }
    MPIX_Waitall_enqueue(count, requests, MPI_STATUSES_IGNORE);
}

/* The host waits for the stream, and for the messages. */
static void exchange_by_mpi(void)
{
    MPI_Request requests[2 * FACES];
    int count = 0;
    CHECK(cuda.synchronize(job.stream));
    for (struct face *face = job.faces; face < job.faces + FACES; face++) {
        const int cells = (int) (face->inner * face->outer);
        if (MPI_PROC_NULL != face->neighbour) {
            MPI_Irecv(at(face->receive), cells, MPI_DOUBLE, face->neighbour, face->back, job.comm, &requests[count++]);
            MPI_Isend(at(face->send), cells, MPI_DOUBLE, face->neighbour, face->tag, job.comm, &requests[count++]);
        }
    }
    MPI_Waitall(count, requests, MPI_STATUSES_IGNORE);
}

static void exchange_by_nccl(void)
{
    CHECK(nccl.group_start());
    for (struct face *face = job.faces; face < job.faces + FACES; face++) {
        const size_t cells = (size_t) face->inner * face->outer;
        if (MPI_PROC_NULL != face->neighbour) {
            CHECK(nccl.receive(at(face->receive), cells, NCCL_DOUBLE, face->neighbour, nccl.comm, job.stream));
            CHECK(nccl.send(at(face->send), cells, NCCL_DOUBLE, face->neighbour, nccl.comm, job.stream));
        }
    }
    CHECK(nccl.group_end());
}

static const struct {
    const char *name;
    void (*exchange)(void);
} ways[] = {{"stream", exchange_on_stream}, {"mpi", exchange_by_mpi}, {"nccl", exchange_by_nccl}};

/* --- the field --- */

/* Calls a function for each of this rank's cells, with the cell's place in memory and its number in the whole field. */
static void each_cell(const int whole[DIMENSIONS], void (*call)(size_t, uint64_t, void *), void *argument)
{
    for (unsigned z = 0; z < job.cells[Z]; z++) {
        for (unsigned y = 0; y < job.cells[Y]; y++) {
            for (unsigned x = 0; x < job.cells[X]; x++) {
                const size_t place = (z + 1) * job.strides[Z] + (y + 1) * job.strides[Y] + (x + 1) * job.strides[X];
                const uint64_t row = (uint64_t) (job.first[Z] + (int) z) * whole[Y] + job.first[Y] + y;
                call(place, row * whole[X] + job.first[X] + x, argument);
            }
        }
    }
}

static void set_cell(size_t place, uint64_t number, void *field)
{
    ((double *) field)[place] = (double) (number * 7919 % 1000);
}

struct sum {
    const double *field;
    uint64_t of_bits;
};

/* Each bit of each cell counts, and where the cell is. */
static void add_cell(size_t place, uint64_t number, void *argument)
{
    struct sum *sum = argument;
    uint64_t bits;
    memcpy(&bits, &sum->field[place], sizeof bits);
    sum->of_bits += (bits ^ (bits >> 29)) * (2 * number + 1) * 0x9e3779b97f4a7c15;
}

int main(int argc, char **argv)
{
    int whole[DIMENSIONS] = {argc > 4 ? atoi(argv[4]) : 128, argc > 4 ? atoi(argv[3]) : 128, argc > 4 ? atoi(argv[2]) : 128};
    const int steps = argc > 5 ? atoi(argv[5]) : 100;
    size_t way = 0;
    uint64_t checksum;
    double seconds, longest;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &job.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &job.ranks);
    while (way < 3 && 0 != strcmp(ways[way].name, argc > 1 ? argv[1] : "")) {
        way++;
    }
    if (3 == way || steps < 1 || whole[X] < job.ranks || whole[Y] < job.ranks || whole[Z] < job.ranks) {
        fprintf(stderr, "halo stream|mpi|nccl [X Y Z [STEPS]], with at least as many cells in each dimension as ranks\n");
        MPI_Abort(MPI_COMM_WORLD, 2);
    }

    load_driver();
    const int devices = use_device(job.rank);
    CHECK(cuda.stream(&job.stream, NON_BLOCKING));
    void *kernels = load_kernels("halo.ptx");
    CHECK(cuda.function(&job.stencil, kernels, "stencil"));
    CHECK(cuda.function(&job.face, kernels, "face"));
    divide(whole);
    const size_t bytes = sizeof(double) * job.strides[Z] * (job.cells[Z] + 2);
    double *field = calloc(1, bytes);
    device_pointer now = device_memory(bytes), next = device_memory(bytes);
    CHECK(cuda.to_device(next, field, bytes));
    each_cell(whole, set_cell, field);
    CHECK(cuda.to_device(now, field, bytes));
    /* Such copies may end after they have returned, and our stream does not follow the default stream. */
    CHECK(cuda.synchronize(NULL));

    MPIX_Stream stream = MPIX_STREAM_NULL;
    if (exchange_on_stream == ways[way].exchange) {
        /* No memory of a neighbour is mapped anew once a stream is described, and it is mapped at its second use. */
        exchange_by_mpi();
        exchange_by_mpi();
        MPI_Comm plain = job.comm;
        MPI_Info info;
        MPI_Info_create(&info);
        MPI_Info_set(info, "type", "cudaStream_t");
        MPIX_Info_set_hex(info, "value", &job.stream, sizeof job.stream);
        MPIX_Stream_create(info, &stream);
        MPI_Info_free(&info);
        MPIX_Stream_comm_create(plain, stream, &job.comm);
        MPI_Comm_free(&plain);
    } else if (exchange_by_nccl == ways[way].exchange) {
        if (devices < job.ranks) {
            fprintf(stderr, "%d ranks share %d devices: NCCL needs a device for each rank\n", job.ranks, devices);
            MPI_Abort(MPI_COMM_WORLD, 2);
        }
        load_nccl(job.rank, job.ranks);
    }

    /* The first steps are not timed. */
    for (int step = -WARM; step < steps; step++) {
        if (0 == step) {
            CHECK(cuda.synchronize(job.stream));
            MPI_Barrier(MPI_COMM_WORLD);
            seconds = MPI_Wtime();
        }
        copy_faces(now, 0);
        ways[way].exchange();
        copy_faces(now, 1);
        compute(next, now);
        device_pointer swapped = now;
        now = next;
        next = swapped;
    }
    CHECK(cuda.synchronize(job.stream));
    seconds = MPI_Wtime() - seconds;

    CHECK(cuda.to_host(field, now, bytes));
    struct sum sum = {field, 0};
    each_cell(whole, add_cell, &sum);
    MPI_Reduce(&seconds, &longest, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
    MPI_Reduce(&sum.of_bits, &checksum, 1, MPI_UINT64_T, MPI_SUM, 0, MPI_COMM_WORLD);
    if (0 == job.rank) {
        printf("halo %s: %d x %d x %d cells in %d x %d x %d parts: %.2f us a step, checksum %016llx\n", ways[way].name,
               whole[X], whole[Y], whole[Z], job.parts[X], job.parts[Y], job.parts[Z], longest / steps * 1e6,
               (unsigned long long) checksum);
    }
    if (MPIX_STREAM_NULL != stream) {
        MPI_Comm_free(&job.comm);
        MPIX_Stream_free(&stream);
    }
    free(field);
    MPI_Finalize();
    return 0;
}
