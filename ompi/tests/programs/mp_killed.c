/* A kernel waits for a message of a process that is killed. The host plays the kernel. CABLEWAY_CUDA_LIBDIR names the
 * driver. */
#include "collectives/memory.h"

#include <mp/kernel.h>
#include <signal.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    int other, in = 0, out = 0;
    mp_request_t recv, send;
    struct mp_kernel_wait received, sent;
    struct mp_kernel_send start;
    set_up(argc, argv, MPI_THREAD_SINGLE);
    other = 1 - test.rank;
    CHECK_EQUAL(mp_init(MPI_COMM_WORLD, &other, 1, MP_INIT_DEFAULT, 0), MP_SUCCESS);
    CHECK_EQUAL(mp_irecv(&in, sizeof in, other, NULL, &recv), MP_SUCCESS);
    CHECK_EQUAL(mp_kernel_wait_descriptor(&recv, &received), MP_SUCCESS);
    CHECK_EQUAL(mp_send_prepare(&out, sizeof out, other, NULL, &send), MP_SUCCESS);
    CHECK_EQUAL(mp_kernel_send_descriptor(&send, &start), MP_SUCCESS);
    CHECK_EQUAL(mp_kernel_wait_descriptor(&send, &sent), MP_SUCCESS);
    /* All are connected. */
    CHECK_EQUAL(MPI_Barrier(MPI_COMM_WORLD), MPI_SUCCESS);
    if (1 == test.rank) {
        raise(SIGKILL);
    }
    while (0 == __atomic_load_n(received.over, __ATOMIC_ACQUIRE)) {
    }
    CHECK(received.value < *received.over);
    /* What starts afterwards fails, too. */
    __atomic_store_n(start.start, start.value, __ATOMIC_RELEASE);
    while (0 == __atomic_load_n(sent.over, __ATOMIC_ACQUIRE)) {
    }
    CHECK(sent.value < *sent.over);
    CHECK_EQUAL(mp_wait(&recv), MP_FAILURE);
    CHECK_EQUAL(mp_wait(&send), MP_FAILURE);
    fprintf(stderr, "the kernel and the host learnt of it\n");
    /* MPI_Finalize would wait for the process. */
    _exit(0);
}
