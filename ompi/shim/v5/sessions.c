/* One engine for all sessions of a process.
 *
 * What a process has published stays with the runtime when a session ends, and peers are given it again in the next one.
 * So the addresses must stay good: the engine is made by the first session and ends with the process. */
#include "component.h"

#include "ompi/runtime/mpiruntime.h"

#include <stdlib.h>
#include <string.h>

struct published {
    struct published *next;
    char *key;
    size_t len;
    uint8_t bytes[];
};

static struct published *published;
static bool entered, with_threads, again;

int cableway_remember(const char *key, const uint8_t *bytes, size_t len)
{
    struct published *one;
    if (again) {
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

bool cableway_entered(void)
{
    return entered;
}

bool cableway_with_threads(void)
{
    return with_threads;
}

static void stop(void)
{
    (void) cableway_stop();
}

const char *cableway_enter(bool threads)
{
    if (!entered) {
        /* A session that ends may be followed by an MPI_Init_thread that wants more. */
        with_threads = threads || ompi_mpi_state < OMPI_MPI_STATE_INIT_STARTED;
        return NULL;
    }
    if (threads && !with_threads) {
        return "this process was initialised without MPI_THREAD_MULTIPLE before, and cannot be with it now";
    }
    again = true;
    for (const struct published *one = published; NULL != one; one = one->next) {
        if (0 != shim_modex_put(one->key, one->bytes, one->len)) {
            return "its addresses cannot be published again";
        }
    }
    return NULL;
}

void cableway_leave(void)
{
    (void) cableway_drain();
    if (!entered) {
        entered = true;
        (void) atexit(stop);
    }
}
