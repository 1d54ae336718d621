/* A kernel of the program faults, which ends the context. Nothing that waits for the context's streams and kernels hangs, and
 * messages of host memory go on. CABLEWAY_CUDA_LIBDIR names the driver.
 *
 *   mp_faulted all     messages that the stream and the kernel would have started, and one whose end the kernel does not see
 *   mp_faulted seen    the last one alone */
#include "streams/fault.h"

#include <mp/kernel.h>

int main(int argc, char **argv)
{
    int other, all, in = 0, out = 5, got = 0;
    void *stream;
    struct fault fault;
    uint32_t word = 0;
    mp_reg_t reg;
    mp_request_t recv, send, host, queued;
    struct mp_kernel_wait received;
    struct mp_kernel_send start;
    set_up(argc, argv, MPI_THREAD_SINGLE);
    CHECK(2 == argc);
    all = 0 == strcmp(argv[1], "all");
    load_streams();
    other = 1 - test.rank;
    CHECK_EQUAL(mp_init(MPI_COMM_WORLD, &other, 1, MP_INIT_DEFAULT, 0), MP_SUCCESS);
    CHECK_EQUAL(work.create(&stream, NON_BLOCKING), 0);
    fault_load(&fault);
    CHECK_EQUAL(mp_register(&word, sizeof word, &reg), MP_SUCCESS);

    /* A message that has come, and whose end a kernel will not see. */
    CHECK_EQUAL(mp_irecv(&in, sizeof in, other, NULL, &recv), MP_SUCCESS);
    CHECK_EQUAL(mp_kernel_wait_descriptor(&recv, &received), MP_SUCCESS);
    CHECK_EQUAL(mp_isend(&out, sizeof out, other, NULL, &host), MP_SUCCESS);
    CHECK_EQUAL(mp_wait(&host), MP_SUCCESS);
    while (0 == __atomic_load_n(received.over, __ATOMIC_ACQUIRE)) {
    }
    CHECK_EQUAL(*received.over, received.value);
    /* A message that a kernel will not start. */
    if (all) {
        CHECK_EQUAL(mp_send_prepare(&out, sizeof out, other, NULL, &send), MP_SUCCESS);
        CHECK_EQUAL(mp_kernel_send_descriptor(&send, &start), MP_SUCCESS);
    }
    /* A message that the stream will not get to. */
    CHECK_EQUAL(mp_wait32_on_stream(&word, 1, MP_WAIT_GEQ, stream), MP_SUCCESS);
    fault_launch(&fault, stream);
    if (all) {
        CHECK_EQUAL(mp_isend_on_stream(&out, sizeof out, other, NULL, &queued, stream), MP_SUCCESS);
    }
    CHECK_EQUAL(MPI_Barrier(MPI_COMM_WORLD), MPI_SUCCESS);
    __atomic_store_n(&word, 1, __ATOMIC_RELEASE);

    if (all) {
        CHECK_EQUAL(mp_wait(&queued), MP_FAILURE);
        CHECK_EQUAL(mp_wait(&send), MP_FAILURE);
    }
    CHECK_EQUAL(mp_wait(&recv), MP_SUCCESS);
    CHECK_EQUAL(in, 5);
    CHECK_EQUAL(MPI_Sendrecv(&out, 1, MPI_INT, other, 1, &got, 1, MPI_INT, other, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE),
                MPI_SUCCESS);
    CHECK_EQUAL(got, 5);
    count_check();
    CHECK_EQUAL(mp_deregister(&reg), MP_SUCCESS);
    mp_finalize();
    tear_down();
    return 0;
}
