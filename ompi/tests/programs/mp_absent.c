/* LibMP's calls in a process whose Open MPI uses another pml. */
#include "check.h"

#include <mp.h>

int main(int argc, char **argv)
{
    int peer = 0;
    CHECK(MP_FAILURE == mp_init(MPI_COMM_WORLD, &peer, 1, MP_INIT_DEFAULT, 0));
    MPI_Init(&argc, &argv);
    CHECK_EQUAL(mp_init(MPI_COMM_WORLD, &peer, 1, MP_INIT_DEFAULT, 0), MP_FAILURE);
    printf("refused\n");
    MPI_Finalize();
    return 0;
}
