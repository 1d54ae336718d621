/*
 * Two processes pass a field of device memory back and forth in the order of a stream, by operations that are prepared once
 * and posted in each step. The stream changes the field between the messages, and the host waits once, at the end.
 *
 *     cargo build --release -p cableway -p cableway-capi
 *     cc -O2 -Icapi/include capi/examples/stream.c -Ltarget/release -lcableway -l:libcuda.so.1 \
 *         -Wl,-rpath,$PWD/target/release -o stream
 *     target/release/cableway run -n 2 -- ./stream
 */
#include <cableway.h>
#include <stdio.h>
#include <stdlib.h>

/* What this program needs of CUDA's driver, so that it builds without the toolkit. */
typedef unsigned long long device_pointer;
int cuInit(unsigned flags);
int cuDevicePrimaryCtxRetain(void **context, int device);
int cuCtxSetCurrent(void *context);
int cuStreamCreate(void **stream, unsigned flags);
int cuMemAlloc_v2(device_pointer *pointer, size_t bytes);
int cuMemcpyDtoH_v2(void *to, device_pointer from, size_t bytes);
int cuMemsetD8Async(device_pointer pointer, unsigned char value, size_t count, void *stream);

enum { STEPS = 1000, BYTES = 1 << 16, TAG = 7, NON_BLOCKING = 1 };

static void check(int code)
{
    if (code != CABLEWAY_SUCCESS) {
        fprintf(stderr, "%s\n", cableway_last_error());
        exit(1);
    }
}

static void check_driver(int result)
{
    if (result != 0) {
        fprintf(stderr, "CUDA's driver returned %d\n", result);
        exit(1);
    }
}

int main(void)
{
    static unsigned char result[BYTES];
    cableway_world *world;
    cableway_communicator *everyone;
    cableway_stream *stream;
    cableway_prepared *there, *back;
    device_pointer memory;
    void *context, *cuda_stream, *field;
    int rank, size, other, alone, step, wrong = 0;

    check(cableway_init(NULL, 0, &world));
    check(cableway_world_communicator(world, &everyone));
    check(cableway_rank(everyone, &rank));
    check(cableway_size(everyone, &size));
    if (size != 2) {
        fprintf(stderr, "start two processes, not %d\n", size);
        return 1;
    }
    other = 1 - rank;
    check_driver(cuInit(0));
    check_driver(cuDevicePrimaryCtxRetain(&context, 0));
    check_driver(cuCtxSetCurrent(context));
    check_driver(cuStreamCreate(&cuda_stream, NON_BLOCKING));
    check_driver(cuMemAlloc_v2(&memory, BYTES));
    field = (void *)(uintptr_t)memory;

    check(cableway_stream_create(world, CABLEWAY_VENDOR_NVIDIA, cuda_stream, &stream));
    check(cableway_stream_prepare_send(field, BYTES, CABLEWAY_BYTE, other, TAG, everyone, stream, &there));
    check(cableway_stream_prepare_recv(field, BYTES, CABLEWAY_BYTE, other, TAG, everyone, stream, &back));
    check(cableway_prepared_agree(there, &alone));
    for (step = 0; step < STEPS; step++) {
        if (rank == step % 2) {
            /* A kernel would compute here. */
            check_driver(cuMemsetD8Async(memory, (unsigned char)step, BYTES, cuda_stream));
            check(cableway_stream_post(1, &there, stream));
        } else {
            check(cableway_stream_post(1, &back, stream));
        }
    }
    check(cableway_stream_finish(stream));
    check_driver(cuMemcpyDtoH_v2(result, memory, BYTES));
    for (step = 0; step < BYTES; step++)
        wrong += result[step] != (unsigned char)(STEPS - 1);
    printf("rank %d: %d steps, moved by %s, %d bytes wrong\n", rank, STEPS, alone ? "the streams alone" : "a thread", wrong);
    check(cableway_prepared_free(&there));
    check(cableway_prepared_free(&back));
    check(cableway_stream_free(&stream));
    check(cableway_finalize(&world));
    return wrong != 0;
}
