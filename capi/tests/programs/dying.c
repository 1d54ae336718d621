/*
 * Rank 1 is killed, ends without finalizing, or leaves in good order, as the argument says. Operations that involve it
 * fail, and the others go on.
 */
#include "job.h"

#include <signal.h>
#include <unistd.h>

static void die(const char *how)
{
    /* Both others have received something from it before. */
    CALL(cableway_ssend(&rank, sizeof rank, CABLEWAY_BYTE, 2, 1, everyone));
    CALL(cableway_ssend(&rank, sizeof rank, CABLEWAY_BYTE, 0, 1, everyone));
    if (0 == strcmp(how, "killed")) {
        kill(getpid(), SIGKILL);
    } else if (0 == strcmp(how, "leaves")) {
        CALL(cableway_finalize(&world));
    }
    exit(0);
}

int main(int argc, char **argv)
{
    int value = 0, code;
    const char *how = argc > 1 ? argv[1] : "killed", *text;
    cableway_request *requests[2];
    cableway_status statuses[2];

    code = 0 == strcmp(how, "leaves") ? CABLEWAY_ERR_PEER_LEFT : CABLEWAY_ERR_PEER_FAILED;
    text = 0 == strcmp(how, "leaves") ? "peer 1 has left the job" : "peer 1 failed";
    begin();
    CALL(cableway_barrier(everyone));
    if (1 == rank) {
        die(how);
    }
    CALL(cableway_recv(&value, sizeof value, CABLEWAY_BYTE, 1, 1, everyone, NULL));
    CALL(cableway_irecv(&value, sizeof value, CABLEWAY_BYTE, 1, 2, everyone, &requests[0]));
    CALL(cableway_irecv(&value, sizeof value, CABLEWAY_BYTE, 2 - rank, 3, everyone, &requests[1]));
    CALL(cableway_send(&rank, sizeof rank, CABLEWAY_BYTE, 2 - rank, 3, everyone));
    FAILS(cableway_waitall(2, requests, statuses), code, "receive of 4 bytes from rank 1, tag 2");
    CHECK(NULL != strstr(cableway_last_error(), text));
    CHECK_EQUAL(statuses[0].error, code);
    CHECK_EQUAL(statuses[1].error, CABLEWAY_SUCCESS);
    CHECK_EQUAL(statuses[1].source, 2 - rank);
    CHECK_EQUAL(value, 2 - rank);
    FAILS(cableway_send(&value, sizeof value, CABLEWAY_BYTE, 1, 4, everyone), code, "to rank 1");
    FAILS(cableway_recv(&value, sizeof value, CABLEWAY_BYTE, 1, 4, everyone, NULL), code, "from rank 1");
    FAILS(cableway_barrier(everyone), code, text);
    /* Neither leaves while the other still expects it. */
    CALL(cableway_sendrecv(NULL, 0, CABLEWAY_BYTE, 2 - rank, 5, NULL, 0, CABLEWAY_BYTE, 2 - rank, 5, everyone, NULL));
    CALL(cableway_finalize(&world));
    printf("done\n");
    return 0;
}
