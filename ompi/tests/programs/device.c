/* Messages between device memory and host memory in every combination, contiguous and in blocks, by every kind of
 * call. CABLEWAY_CUDA_LIBDIR names the driver. With "reset" as the last argument the context is destroyed before
 * MPI_Finalize. */
#include "check.h"
#include "driver.h"

static int rank, other;

/* A buffer in host or device memory, and a copy of it in host memory. */
struct buffer {
    int on_device;
    size_t len;
    unsigned char *here;
    device_pointer there;
};

static struct buffer make(int on_device, size_t len)
{
    struct buffer buffer = {on_device, len, malloc(len + 1), 0};
    if (on_device) {
        CHECK_EQUAL(cuda.alloc(&buffer.there, len + 1), 0);
    }
    return buffer;
}

static void *address(struct buffer *buffer)
{
    return buffer->on_device ? (void *) (uintptr_t) buffer->there : buffer->here;
}

static void fill(struct buffer *buffer, int seed)
{
    for (size_t i = 0; i < buffer->len; i++) {
        buffer->here[i] = (unsigned char) (seed + 3 * i + (i >> 8));
    }
    if (buffer->on_device) {
        CHECK_EQUAL(cuda.to_device(buffer->there, buffer->here, buffer->len), 0);
    }
}

static void clear(struct buffer *buffer)
{
    memset(buffer->here, 0xee, buffer->len);
    if (buffer->on_device) {
        CHECK_EQUAL(cuda.to_device(buffer->there, buffer->here, buffer->len), 0);
    }
}

/* Every `block` of `stride` bytes must be the neighbour's, and the rest unchanged. */
static void check(struct buffer *buffer, int seed, size_t block, size_t stride)
{
    if (buffer->on_device) {
        CHECK_EQUAL(cuda.to_host(buffer->here, buffer->there, buffer->len), 0);
    }
    for (size_t i = 0; i < buffer->len; i++) {
        unsigned char wanted = i % stride < block ? (unsigned char) (seed + 3 * i + (i >> 8)) : 0xee;
        CHECK_EQUAL(buffer->here[i], wanted);
    }
}

static void discard(struct buffer *buffer)
{
    if (buffer->on_device) {
        CHECK_EQUAL(cuda.free(buffer->there), 0);
    }
    free(buffer->here);
}

static void exchange(int from_device, int to_device, MPI_Datatype type, int count, size_t len, size_t block,
                     size_t stride)
{
    struct buffer out = make(from_device, len), in = make(to_device, len);
    MPI_Request requests[2];
    MPI_Status status;
    MPI_Message message;
    int elements;
    void *attached;
    int room = (int) len + MPI_BSEND_OVERHEAD;

    fill(&out, rank), clear(&in);
    MPI_Irecv(address(&in), count, type, other, 1, MPI_COMM_WORLD, &requests[0]);
    MPI_Isend(address(&out), count, type, other, 1, MPI_COMM_WORLD, &requests[1]);
    MPI_Waitall(2, requests, MPI_STATUSES_IGNORE);
    check(&in, other, block, stride);

    fill(&out, rank + 5), clear(&in);
    MPI_Issend(address(&out), count, type, other, 2, MPI_COMM_WORLD, &requests[0]);
    MPI_Mprobe(other, 2, MPI_COMM_WORLD, &message, &status);
    MPI_Get_elements(&status, MPI_BYTE, &elements);
    CHECK_EQUAL(elements, len / stride * block);
    MPI_Mrecv(address(&in), count, type, &message, MPI_STATUS_IGNORE);
    MPI_Wait(&requests[0], MPI_STATUS_IGNORE);
    check(&in, other + 5, block, stride);

    attached = malloc(room);
    MPI_Buffer_attach(attached, room);
    fill(&out, rank + 9), clear(&in);
    MPI_Bsend(address(&out), count, type, other, 3, MPI_COMM_WORLD);
    clear(&out); /* the send has copied it */
    MPI_Recv(address(&in), count, type, other, 3, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    check(&in, other + 9, block, stride);
    MPI_Buffer_detach(&attached, &room);
    free(attached);

    MPI_Send_init(address(&out), count, type, other, 4, MPI_COMM_WORLD, &requests[0]);
    MPI_Recv_init(address(&in), count, type, other, 4, MPI_COMM_WORLD, &requests[1]);
    for (int round = 0; round < 3; round++) {
        fill(&out, rank + round), clear(&in);
        MPI_Startall(2, requests);
        MPI_Waitall(2, requests, MPI_STATUSES_IGNORE);
        check(&in, other + round, block, stride);
    }
    MPI_Request_free(&requests[0]);
    MPI_Request_free(&requests[1]);
    discard(&out), discard(&in);
}

int main(int argc, char **argv)
{
    void *context;
    int device;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    other = 1 - rank;
    load();
    CHECK_EQUAL(cuda.init(0), 0);
    CHECK_EQUAL(cuda.device_get(&device, rank), 0);
    CHECK_EQUAL(cuda.retain(&context, device), 0);
    CHECK_EQUAL(cuda.set_current(context), 0);

    for (int pairing = 0; pairing < 4; pairing++) {
        int from_device = pairing & 1, to_device = pairing >> 1;
        for (size_t len = 8; len <= 1 << 23; len *= 32) {
            MPI_Datatype vector;
            exchange(from_device, to_device, MPI_BYTE, (int) len, len, len, len);
            if (len > 1 << 13) {
                continue; /* the simulated driver copies rows one by one */
            }
            MPI_Type_vector((int) len / 8, 3, 8, MPI_BYTE, &vector);
            MPI_Type_commit(&vector);
            exchange(from_device, to_device, vector, 1, len, 3, 8);
            MPI_Type_free(&vector);
        }
    }
    MPI_Barrier(MPI_COMM_WORLD);
    if (argc > 1 && 0 == strcmp(argv[1], "reset")) {
        CHECK_EQUAL(cuda.reset(device), 0);
    } else {
        CHECK_EQUAL(cuda.release(device), 0);
    }
    MPI_Finalize();
    return 0;
}
