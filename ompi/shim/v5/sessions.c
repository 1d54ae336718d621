/* One engine for all sessions of a process.
 *
 * The runtime keeps what a process has published when a session ends, and gives it to peers in the next session. So the
 * published addresses must stay valid: the first session starts the engine, and it stops when the process exits. */
#include "shim.h"

#include "ompi/runtime/mpiruntime.h"
#include "opal/mca/pmix/pmix-internal.h"

#include <stdlib.h>
#include <string.h>

struct published {
    struct published *next;
    char *key;
    size_t len;
    uint8_t bytes[];
};

static struct published *published;
static bool entered, with_threads, republishing;

/* Records a key that this process has published, so that the next session can publish it again. */
static int record(const char *key, const uint8_t *bytes, size_t len)
{
    struct published *one;
    if (republishing) {
        return 0;
    }
    one = malloc(sizeof *one + len);
    if (NULL == one || NULL == (one->key = strdup(key))) {
        free(one);
        return -1;
    }
    memcpy(one->bytes, bytes, len);
    one->len = len;
    one->next = published;
    published = one;
    return 0;
}

int shim_modex_put(const char *key, const uint8_t *bytes, size_t len)
{
    int rc;
    OPAL_MODEX_SEND_STRING(rc, PMIX_GLOBAL, key, bytes, len);
    return PMIX_SUCCESS == rc ? record(key, bytes, len) : -1;
}

bool cableway_engine_persists(void)
{
    return entered;
}

bool cableway_session_threads(void)
{
    return with_threads;
}

static void stop(void)
{
    (void) cableway_stop();
}

const char *cableway_session_begin(bool threads)
{
    if (!entered) {
        /* A session may be followed by an MPI_Init_thread that requests MPI_THREAD_MULTIPLE. */
        with_threads = threads || ompi_mpi_state < OMPI_MPI_STATE_INIT_STARTED;
        return NULL;
    }
    if (threads && !with_threads) {
        return "this process was first initialized without MPI_THREAD_MULTIPLE, and cannot request it now";
    }
    republishing = true;
    for (const struct published *one = published; NULL != one; one = one->next) {
        if (0 != shim_modex_put(one->key, one->bytes, one->len)) {
            return "the addresses of this process cannot be published again";
        }
    }
    return NULL;
}

void cableway_session_end(void)
{
    (void) cableway_drain();
    if (!entered) {
        entered = true;
        (void) atexit(stop);
    }
}
