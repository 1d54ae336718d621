/* MPI ends with requests that no kernel has started. A kernel that waits for them goes on. CABLEWAY_CUDA_LIBDIR names the
 * driver. */
#include "collectives/memory.h"

#include <mp/kernel.h>

enum { COUNT = 3 };

int main(int argc, char **argv)
{
    int other, out = 0;
    mp_request_t send[COUNT];
    struct mp_kernel_send start[COUNT];
    struct mp_kernel_wait sent[COUNT];
    set_up(argc, argv, MPI_THREAD_SINGLE);
    other = 1 - test.rank;
    CHECK_EQUAL(mp_init(MPI_COMM_WORLD, &other, 1, MP_INIT_DEFAULT, 0), MP_SUCCESS);
    /* The thread looks at the first one, and the others wait for it. */
    for (int i = 0; i < COUNT; i++) {
        CHECK_EQUAL(mp_send_prepare(&out, sizeof out, other, NULL, &send[i]), MP_SUCCESS);
        CHECK_EQUAL(mp_kernel_send_descriptor(&send[i], &start[i]), MP_SUCCESS);
        CHECK_EQUAL(mp_kernel_wait_descriptor(&send[i], &sent[i]), MP_SUCCESS);
    }
    mp_finalize();
    CHECK_EQUAL(MPI_Finalize(), MPI_SUCCESS);
    for (int i = 0; i < COUNT; i++) {
        if (sent[i].value >= __atomic_load_n(sent[i].over, __ATOMIC_ACQUIRE)) {
            fprintf(stderr, "a kernel waits for request %d for ever\n", i);
            return 1;
        }
    }
    return 0;
}
