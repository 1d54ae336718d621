/* A kernel of rank 0 faults before its stream gets to a collective operation, of which rank 0 says nothing more. The others do
 * not wait for it. CABLEWAY_CUDA_LIBDIR names the driver. */
#include "streams/fault.h"

int main(int argc, char **argv)
{
    enum { GATE = 1 };
    struct lane lane;
    struct fault fault;
    int in = 1, out = 0, gate = 0, code;
    set_up(argc, argv, MPI_THREAD_SINGLE);
    load_streams();
    lane_open(&lane);
    CHECK_EQUAL(MPI_Comm_set_errhandler(lane.comm, MPI_ERRORS_RETURN), MPI_SUCCESS);
    if (0 == test.rank) {
        fault_load(&fault);
        CHECK_EQUAL(MPIX_Recv_enqueue(&gate, 1, MPI_INT, 1, GATE, lane.comm, MPI_STATUS_IGNORE), MPI_SUCCESS);
        fault_launch(&fault, lane.handle);
        CHECK_EQUAL(MPIX_Allreduce_enqueue(&in, &out, 1, MPI_INT, MPI_SUM, lane.comm), MPI_SUCCESS);
        MPI_Barrier(MPI_COMM_WORLD);
    } else {
        CHECK_EQUAL(MPIX_Allreduce_enqueue(&in, &out, 1, MPI_INT, MPI_SUM, lane.comm), MPI_SUCCESS);
        MPI_Barrier(MPI_COMM_WORLD);
        if (1 == test.rank) {
            CHECK_EQUAL(MPI_Send(&gate, 1, MPI_INT, 0, GATE, lane.comm), MPI_SUCCESS);
        }
        CHECK_EQUAL(work.synchronize(lane.handle), 0);
        do {
            code = MPIX_Send_enqueue(&in, 1, MPI_INT, MPI_PROC_NULL, GATE, lane.comm);
        } while (MPI_SUCCESS == code);
        count_check();
    }
    tear_down();
    return 0;
}
