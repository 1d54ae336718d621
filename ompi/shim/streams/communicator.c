/* Communicators with streams. The streams are an attribute of the communicator, so that they are released when it is
 * freed. Duplicates of the communicator have none. */
#include "streams.h"

#include <stdlib.h>

struct attached {
    int count;
    struct cableway_mpix_group *group;
    MPIX_Stream streams[];
};

static opal_mutex_t lock = OPAL_MUTEX_STATIC_INIT;
static int keyval = MPI_KEYVAL_INVALID;

static void release(struct attached *attached)
{
    for (int i = 0; i < attached->count; i++) {
        if (NULL != attached->streams[i]) {
            (void) opal_atomic_add_fetch_32(&attached->streams[i]->communicators, -1);
            cableway_mpix_stream_release(attached->streams[i]);
        }
    }
    if (NULL != attached->group) {
        cableway_mpix_group_release(attached->group);
    }
    free(attached);
}

static int delete_attribute(MPI_Comm communicator, int key, void *value, void *state)
{
    (void) communicator, (void) key, (void) state;
    release(value);
    return MPI_SUCCESS;
}

static int create_keyval(void)
{
    int rc = MPI_SUCCESS;
    opal_mutex_atomic_lock(&lock);
    if (MPI_KEYVAL_INVALID == keyval) {
        rc = PMPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, delete_attribute, &keyval, NULL);
    }
    opal_mutex_atomic_unlock(&lock);
    return rc;
}

static struct attached *attached_to(MPI_Comm communicator)
{
    struct attached *attached = NULL;
    int found = 0;
    if (MPI_KEYVAL_INVALID == keyval
        || MPI_SUCCESS != PMPI_Comm_get_attr(communicator, keyval, &attached, &found) || !found) {
        return NULL;
    }
    return attached;
}

int cableway_mpix_communicator_create(const char *call, void *communicator, int count, const MPIX_Stream *streams,
                                      void **out)
{
    struct attached *attached;
    MPI_Comm new;
    int rc;
    cableway_mpix_free_groups();
    if (ompi_comm_invalid(communicator)) {
        return cableway_mpix_failed(NULL, MPI_ERR_COMM, call);
    }
    if (0 > count || NULL == out || (0 != count && NULL == streams)) {
        return cableway_mpix_failed(communicator, 0 > count ? MPI_ERR_COUNT : MPI_ERR_ARG, call);
    }
    attached = calloc(1, sizeof *attached + (size_t) count * sizeof(MPIX_Stream));
    if (NULL == attached) {
        return cableway_mpix_failed(communicator, MPI_ERR_NO_MEM, call);
    }
    attached->count = count;
    for (int i = 0; i < count; i++) {
        attached->streams[i] = streams[i];
        if (NULL != streams[i]) {
            (void) opal_atomic_add_fetch_32(&streams[i]->communicators, 1);
            (void) opal_atomic_add_fetch_32(&streams[i]->references, 1);
        }
    }
    /* Calls of MPI have called the error handler. */
    if (MPI_SUCCESS != (rc = create_keyval()) || MPI_SUCCESS != (rc = PMPI_Comm_dup(communicator, &new))) {
        release(attached);
        return rc;
    }
    if (MPI_SUCCESS != (rc = cableway_mpix_group_new(new, &attached->group))
        || MPI_SUCCESS != (rc = PMPI_Comm_set_attr(new, keyval, attached))) {
        release(attached);
        (void) PMPI_Comm_free(&new);
        return rc;
    }
    *out = new;
    return MPI_SUCCESS;
}

int cableway_mpix_communicator_stream(void *communicator, int index, MPIX_Stream *stream)
{
    static const char call[] = "MPIX_Comm_get_stream";
    struct attached *attached;
    if (ompi_comm_invalid(communicator)) {
        return cableway_mpix_failed(NULL, MPI_ERR_COMM, call);
    }
    attached = attached_to(communicator);
    /* A communicator without streams has the null stream. */
    if (NULL == stream || 0 > index || index >= (NULL != attached && 0 != attached->count ? attached->count : 1)) {
        return cableway_mpix_failed(communicator, MPI_ERR_ARG, call);
    }
    *stream = NULL != attached && 0 != attached->count ? attached->streams[index] : NULL;
    return MPI_SUCCESS;
}

struct cableway_mpix_group *cableway_mpix_group_of(ompi_communicator_t *communicator)
{
    struct attached *attached = attached_to(communicator);
    return NULL != attached && NULL != attached->group && NULL != attached->group->engine ? attached->group : NULL;
}

MPIX_Stream cableway_mpix_stream_of(ompi_communicator_t *communicator, const char **reason)
{
    struct attached *attached = attached_to(communicator);
    if (NULL == attached || 0 == attached->count) {
        *reason = "the communicator has no stream: make one by MPIX_Stream_comm_create";
    } else if (1 != attached->count) {
        *reason = "the communicator has several streams, and the call names none: use one with one stream";
    } else if (NULL == attached->streams[0] || NULL == attached->streams[0]->engine) {
        *reason = "the communicator's stream is no stream of a device: create it with the info type and value";
    } else {
        return attached->streams[0];
    }
    return NULL;
}
