/* Groups: duplicates of stream communicators, for the collective operations of their streams. */
#include "streams.h"

#include <stdlib.h>

static opal_mutex_t lock = OPAL_MUTEX_STATIC_INIT;
/* Groups whose communicators are to be freed: not by callbacks of MPI, which may hold its locks. */
static struct doomed {
    struct cableway_mpix_group *group;
    struct doomed *next;
} *doomed;

int cableway_mpix_group_new(MPI_Comm communicator, struct cableway_mpix_group **out)
{
    struct cableway_mpix_group *group = calloc(1, sizeof *group);
    int rc;
    if (NULL == group) {
        return MPI_ERR_NO_MEM;
    }
    group->references = 1;
    rc = PMPI_Comm_dup(communicator, &group->communicator);
    if (MPI_SUCCESS != rc) {
        free(group);
        return rc;
    }
    if (!OMPI_COMM_IS_INTER(communicator)) {
        group->engine = cableway_stream_group_new(cableway_handle(group->communicator));
    }
    *out = group;
    return MPI_SUCCESS;
}

void cableway_mpix_group_release(struct cableway_mpix_group *group)
{
    struct doomed *entry;
    if (0 != opal_atomic_add_fetch_32(&group->references, -1)) {
        return;
    }
    if (NULL != group->engine) {
        cableway_stream_group_free(group->engine);
        group->engine = NULL;
    }
    entry = malloc(sizeof *entry);
    if (NULL == entry) {
        return;
    }
    entry->group = group;
    opal_mutex_atomic_lock(&lock);
    entry->next = doomed;
    doomed = entry;
    opal_mutex_atomic_unlock(&lock);
}

void cableway_mpix_free_groups(void)
{
    struct doomed *all;
    opal_mutex_atomic_lock(&lock);
    all = doomed;
    doomed = NULL;
    opal_mutex_atomic_unlock(&lock);
    while (NULL != all) {
        struct doomed *entry = all;
        all = entry->next;
        (void) PMPI_Comm_free(&entry->group->communicator);
        free(entry->group);
        free(entry);
    }
}
