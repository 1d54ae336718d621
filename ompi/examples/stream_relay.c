/* Two processes pass a field of device memory back and forth in the order of a stream. The stream changes the field
 * between the messages, and the host waits once, at the end.
 *
 *   mpicc -I PREFIX/include stream_relay.c -o stream_relay -L PREFIX -lcableway_mpix -l:libcuda.so.1
 *   mpirun -np 2 --mca pml cableway stream_relay
 *
 * `cableway ompi install` prints PREFIX. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

#include <cableway_mpix.h>

/* What this program needs of CUDA's driver, so that it builds without the toolkit. */
typedef unsigned long long device_pointer;
int cuInit(unsigned flags);
int cuDeviceGet(int *device, int ordinal);
int cuDevicePrimaryCtxRetain(void **context, int device);
int cuCtxSetCurrent(void *context);
int cuStreamCreate(void **stream, unsigned flags);
int cuStreamSynchronize(void *stream);
int cuMemAlloc_v2(device_pointer *pointer, size_t bytes);
int cuMemcpyDtoH_v2(void *to, device_pointer from, size_t bytes);
int cuMemsetD8Async(device_pointer pointer, unsigned char value, size_t count, void *stream);

enum { STEPS = 100, BYTES = 1 << 16, TAG = 7, NON_BLOCKING = 1 };

static void check(int result, const char *what)
{
    if (0 != result) {
        fprintf(stderr, "%s returned %d\n", what, result);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
}
#define CHECK(call) check(call, #call)

int main(int argc, char **argv)
{
    static unsigned char result[BYTES];
    void *context, *cuda_stream;
    device_pointer memory;
    MPIX_Stream stream;
    MPI_Comm comm;
    MPI_Info info;
    int rank, size, device, other, wrong = 0;

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    other = 1 - rank;
    if (2 != size) {
        fprintf(stderr, "start two processes, not %d\n", size);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    CHECK(cuInit(0));
    CHECK(cuDeviceGet(&device, 0));
    CHECK(cuDevicePrimaryCtxRetain(&context, device));
    CHECK(cuCtxSetCurrent(context));
    CHECK(cuStreamCreate(&cuda_stream, NON_BLOCKING));
    CHECK(cuMemAlloc_v2(&memory, BYTES));
    void *field = (void *) (size_t) memory;

    MPI_Info_create(&info);
    MPI_Info_set(info, "type", "cudaStream_t");
    MPIX_Info_set_hex(info, "value", &cuda_stream, sizeof cuda_stream);
    MPIX_Stream_create(info, &stream);
    MPI_Info_free(&info);
    MPIX_Stream_comm_create(MPI_COMM_WORLD, stream, &comm);

    for (int step = 0; step < STEPS; step++) {
        if (rank == step % 2) {
            /* A kernel would compute here. */
            CHECK(cuMemsetD8Async(memory, (unsigned char) step, BYTES, cuda_stream));
            MPIX_Send_enqueue(field, BYTES, MPI_BYTE, other, TAG, comm);
        } else {
            MPIX_Recv_enqueue(field, BYTES, MPI_BYTE, other, TAG, comm, MPI_STATUS_IGNORE);
        }
    }
    CHECK(cuStreamSynchronize(cuda_stream));

    CHECK(cuMemcpyDtoH_v2(result, memory, BYTES));
    for (int i = 0; i < BYTES; i++) {
        wrong += STEPS - 1 != result[i];
    }
    printf("rank %d: %d steps, %d of %d bytes are wrong\n", rank, STEPS, wrong, BYTES);
    MPI_Comm_free(&comm);
    MPIX_Stream_free(&stream);
    MPI_Finalize();
    return 0 == wrong ? 0 : 1;
}
