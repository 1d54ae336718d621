/* Rank 1 dies. Operations that involve it fail, and the others go on. */
#include "job.h"

#include <signal.h>
#include <unistd.h>

int main(void)
{
    int value = 0;
    cableway_request *requests[2];
    cableway_status statuses[2];

    begin();
    CALL(cableway_barrier(everyone));
    if (1 == rank) {
        /* Both others have received something from it before it dies. */
        CALL(cableway_ssend(&rank, sizeof rank, CABLEWAY_BYTE, 2, 1, everyone));
        CALL(cableway_ssend(&rank, sizeof rank, CABLEWAY_BYTE, 0, 1, everyone));
        kill(getpid(), SIGKILL);
    }
    CALL(cableway_recv(&value, sizeof value, CABLEWAY_BYTE, 1, 1, everyone, NULL));
    CALL(cableway_irecv(&value, sizeof value, CABLEWAY_BYTE, 1, 2, everyone, &requests[0]));
    CALL(cableway_irecv(&value, sizeof value, CABLEWAY_BYTE, 2 - rank, 3, everyone, &requests[1]));
    CALL(cableway_send(&rank, sizeof rank, CABLEWAY_BYTE, 2 - rank, 3, everyone));
    FAILS(cableway_waitall(2, requests, statuses), CABLEWAY_ERR_PEER_FAILED, "receive of 4 bytes from rank 1, tag 2");
    CHECK_EQUAL(statuses[0].error, CABLEWAY_ERR_PEER_FAILED);
    CHECK_EQUAL(statuses[1].error, CABLEWAY_SUCCESS);
    CHECK_EQUAL(statuses[1].source, 2 - rank);
    CHECK_EQUAL(value, 2 - rank);
    FAILS(cableway_send(&value, sizeof value, CABLEWAY_BYTE, 1, 4, everyone), CABLEWAY_ERR_PEER_FAILED, "to rank 1");
    FAILS(cableway_recv(&value, sizeof value, CABLEWAY_BYTE, 1, 4, everyone, NULL), CABLEWAY_ERR_PEER_FAILED, "rank 1");
    FAILS(cableway_barrier(everyone), CABLEWAY_ERR_PEER_FAILED, "peer 1 failed");
    /* Neither leaves while the other still expects it. */
    CALL(cableway_sendrecv(NULL, 0, CABLEWAY_BYTE, 2 - rank, 5, NULL, 0, CABLEWAY_BYTE, 2 - rank, 5, everyone, NULL));
    CALL(cableway_finalize(&world));
    printf("done\n");
    return 0;
}
