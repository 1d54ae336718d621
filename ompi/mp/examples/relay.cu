// Two processes pass a field back and forth in the order of their streams, and a kernel changes it between the messages.
// The host issues everything at once, and waits at the end.
//
//   nvcc -ccbin mpicxx -I PREFIX/include relay.cu -o relay -L PREFIX -lcableway_mp
//   mpirun -np 2 --mca pml cableway relay [STEPS [CELLS]]
//
// `cableway ompi install` prints PREFIX.
#include <mp.h>

#include <stdio.h>
#include <stdlib.h>

#include <vector>

// Ends the job if a call does not return 0, which is cudaSuccess and MP_SUCCESS.
#define CHECK(call)                                                                                                    \
    do {                                                                                                               \
        int result_ = (call);                                                                                          \
        if (0 != result_) {                                                                                            \
            fprintf(stderr, "%s returned %d\n", #call, result_);                                                       \
            MPI_Abort(MPI_COMM_WORLD, 1);                                                                              \
        }                                                                                                              \
    } while (0)

__global__ void change(double *field, int cells)
{
    int cell = blockIdx.x * blockDim.x + threadIdx.x;
    if (cell < cells) {
        field[cell] = field[cell] / 2 + cell;
    }
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    const int steps = argc > 1 ? atoi(argv[1]) : 1000, cells = argc > 2 ? atoi(argv[2]) : 1 << 16;
    const int bytes = cells * (int) sizeof(double);
    int rank, size, devices;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (2 != size) {
        fprintf(stderr, "start two processes, not %d\n", size);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    int other = 1 - rank;
    CHECK(cudaGetDeviceCount(&devices));
    CHECK(cudaSetDevice(rank % devices));
    cudaStream_t stream;
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    double *field;
    CHECK(cudaMalloc(&field, bytes));
    CHECK(cudaMemsetAsync(field, 0, bytes, stream));

    CHECK(mp_init(MPI_COMM_WORLD, &other, 1, MP_INIT_DEFAULT, 0));
    mp_reg_t reg;
    CHECK(mp_register(field, bytes, &reg));
    std::vector<mp_request_t> requests(steps);
    for (int step = 0; step < steps; step++) {
        if (rank == step % 2) {
            change<<<(cells + 127) / 128, 128, 0, stream>>>(field, cells);
            // The stream may overwrite the field afterwards.
            CHECK(mp_send_on_stream(field, bytes, other, &reg, &requests[step], stream));
        } else {
            CHECK(mp_irecv_on_stream(field, bytes, other, &reg, &requests[step], stream));
            CHECK(mp_wait_on_stream(&requests[step], stream));
        }
    }
    CHECK(cudaGetLastError());
    CHECK(cudaStreamSynchronize(stream));
    CHECK(mp_wait_all(steps, requests.data()));

    std::vector<double> host(cells);
    CHECK(cudaMemcpy(host.data(), field, bytes, cudaMemcpyDeviceToHost));
    int wrong = 0;
    for (int cell = 0; cell < cells; cell++) {
        double expected = 0;
        for (int step = 0; step < steps; step++) {
            expected = expected / 2 + cell;
        }
        wrong += expected != host[cell];
    }
    printf("rank %d: %d steps, %d of %d cells are wrong\n", rank, steps, wrong, cells);
    CHECK(mp_deregister(&reg));
    mp_finalize();
    CHECK(cudaFree(field));
    CHECK(cudaStreamDestroy(stream));
    MPI_Finalize();
    return 0 == wrong ? 0 : 1;
}
