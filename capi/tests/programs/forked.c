/* A forked child cannot use the library, and its parent goes on. */
#include "job.h"

#include <sys/wait.h>
#include <unistd.h>

static void in_child(void)
{
    cableway_request *request = NULL;
    int value = 0;
    FAILS(cableway_send(&value, sizeof value, CABLEWAY_BYTE, 1 - rank, 1, everyone), CABLEWAY_ERR_FORKED, "forked child");
    FAILS(cableway_recv(&value, sizeof value, CABLEWAY_BYTE, 1 - rank, 1, everyone, NULL), CABLEWAY_ERR_FORKED, "parent");
    FAILS(cableway_isend(&value, sizeof value, CABLEWAY_BYTE, 1 - rank, 1, everyone, &request), CABLEWAY_ERR_FORKED, "");
    CHECK(NULL == request);
    FAILS(cableway_barrier(everyone), CABLEWAY_ERR_FORKED, "");
    CALL(cableway_finalize(&world));
    /* Without the parent's buffered output. */
    _exit(7);
}

int main(void)
{
    int value = -1, ended = 0;
    cableway_request *request;
    pid_t child;

    begin();
    CALL(cableway_barrier(everyone));
    CALL(cableway_irecv(&value, sizeof value, CABLEWAY_BYTE, 1 - rank, 1, everyone, &request));
    child = fork();
    CHECK(child >= 0);
    if (0 == child) {
        in_child();
    }
    CHECK_EQUAL(waitpid(child, &ended, 0), child);
    CHECK(WIFEXITED(ended));
    CHECK_EQUAL(WEXITSTATUS(ended), 7);
    CALL(cableway_send(&rank, sizeof rank, CABLEWAY_BYTE, 1 - rank, 1, everyone));
    CALL(cableway_wait(&request, NULL));
    CHECK_EQUAL(value, 1 - rank);
    end();
    return 0;
}
