/* The module: Open MPI's point-to-point calls, each handed to the engine. */
#include "component.h"

#include "opal/runtime/opal_progress.h"

#include <limits.h>
#include <stdlib.h>

/* --- processes and communicators --- */

static int add_procs(ompi_proc_t **procs, size_t count)
{
    int rc = mca_pml_base_pml_check_selected("cableway", procs, count);
    if (OMPI_SUCCESS != rc) {
        return rc;
    }
    /* Whether one is of another architecture is found when it is met: most are never seen here. */
    return OMPI_SUCCESS;
}

static int del_procs(ompi_proc_t **procs, size_t count)
{
    (void) procs, (void) count;
    return OMPI_SUCCESS;
}

static int enable(bool on)
{
    (void) on;
    return OMPI_SUCCESS;
}

static int add_comm(ompi_communicator_t *communicator)
{
    ompi_group_t *group = communicator->c_remote_group;
    size_t size = group->grp_proc_count;
    uint64_t *names = calloc(size ? size : 1, sizeof *names);
    if (NULL == names) {
        return OMPI_ERR_OUT_OF_RESOURCE;
    }
    for (size_t i = 0; i < size; i++) {
        opal_process_name_t name = ompi_group_get_proc_name(group, (int) i);
        names[i] = (uint64_t) name.jobid << 32 | name.vpid;
    }
    communicator->c_pml_comm = cableway_communicator_add(cableway_context(communicator), names, size,
                                                         (uint32_t) communicator->c_my_rank);
    if (cableway_explain_wanted && communicator == &ompi_mpi_comm_world.comm && 0 == communicator->c_my_rank
        && size > 1) {
        cableway_explain(names[1]);
    }
    free(names);
    return NULL != communicator->c_pml_comm ? OMPI_SUCCESS : OMPI_ERROR;
}

static int del_comm(ompi_communicator_t *communicator)
{
    if (NULL != communicator->c_pml_comm) {
        cableway_communicator_remove(cableway_handle(communicator));
        communicator->c_pml_comm = NULL;
    }
    return OMPI_SUCCESS;
}

/* --- sends --- */

static enum cableway_mode mode_of(mca_pml_base_send_mode_t mode)
{
    return MCA_PML_BASE_SEND_SYNCHRONOUS == mode ? CABLEWAY_SYNCHRONOUS
           : MCA_PML_BASE_SEND_READY == mode     ? CABLEWAY_READY
                                                 : CABLEWAY_STANDARD;
}

/* Copies a buffered send into the program's attached buffer; the copy then goes out by itself. */
static int begin_buffered(cableway_request_t *request, struct cableway_buffer *buffer)
{
    uint64_t len = buffer->len;
    cableway_request_t *copy;
    int rc;
    if (0 != len) {
        void *attached = mca_pml_base_bsend_request_alloc_buf(len);
        if (NULL == attached) {
            return MPI_ERR_BUFFER;
        }
        rc = cableway_pack(buffer, attached, len);
        if (CABLEWAY_OK != rc) {
            (void) mca_pml_base_bsend_request_free(attached);
            return cableway_error(rc);
        }
        *buffer = (struct cableway_buffer){.address = attached, .len = len};
        copy = cableway_request_new(request->communicator, attached, len, &ompi_mpi_byte.dt, request->peer,
                                    request->tag, false);
        copy->kind = CABLEWAY_BUFFERED;
        copy->attached = attached;
        rc = cableway_isend(cableway_handle(copy->communicator), copy->peer, copy->tag, buffer, CABLEWAY_STANDARD,
                            copy->engine);
        if (0 != rc) {
            (void) mca_pml_base_bsend_request_free(attached);
            cableway_request_release(copy);
        }
        return rc < 0 ? cableway_error(-rc) : OMPI_SUCCESS;
    }
    rc = cableway_send(cableway_handle(request->communicator), request->peer, request->tag, buffer, CABLEWAY_STANDARD);
    return rc < 0 ? cableway_error(-rc) : OMPI_SUCCESS;
}

/* Starts a request's operation. It becomes complete by itself, at once perhaps. */
int cableway_request_begin(cableway_request_t *request)
{
    struct cableway_buffer buffer;
    void *communicator = cableway_handle(request->communicator);
    int rc = cableway_describe(&buffer, request->address, request->count, request->datatype);
    if (OMPI_SUCCESS != rc) {
        return rc;
    }
    request->ompi.req_complete = REQUEST_PENDING;
    request->ompi.req_state = OMPI_REQUEST_ACTIVE;
    request->ompi.req_status = ompi_status_empty;
    if (CABLEWAY_RECEIVE != request->kind) {
        /* MPI defines no such thing for sends, but osc/pt2pt reads the tag of what it has sent. */
        request->ompi.req_status.MPI_SOURCE = ompi_comm_rank(request->communicator);
        request->ompi.req_status.MPI_TAG = request->tag;
        request->ompi.req_status._ucount = buffer.len;
    }
    if (CABLEWAY_RECEIVE == request->kind) {
        (void) OPAL_THREAD_ADD_FETCH32(&request->references, 1);
        rc = cableway_irecv(communicator, request->peer, request->tag, &buffer, request->engine);
    } else if (MCA_PML_BASE_SEND_BUFFERED == request->mode) {
        rc = begin_buffered(request, &buffer);
        if (OMPI_SUCCESS == rc) {
            (void) ompi_request_complete(&request->ompi, false);
        }
        return rc;
    } else {
        (void) OPAL_THREAD_ADD_FETCH32(&request->references, 1);
        rc = cableway_isend(communicator, request->peer, request->tag, &buffer, mode_of(request->mode), request->engine);
        if (1 == rc) {
            (void) ompi_request_complete(&request->ompi, false);
        }
    }
    if (0 != rc) {
        cableway_request_release(request);
    }
    return rc < 0 ? cableway_error(-rc) : OMPI_SUCCESS;
}

static int isend_init(const void *address, size_t count, ompi_datatype_t *datatype, int dest, int tag,
                      mca_pml_base_send_mode_t mode, ompi_communicator_t *communicator, ompi_request_t **out)
{
    cableway_request_t *request = cableway_request_new(communicator, address, count, datatype, dest, tag, true);
    request->kind = CABLEWAY_SEND;
    request->mode = mode;
    *out = &request->ompi;
    return OMPI_SUCCESS;
}

int cableway_pml_isend(const void *address, size_t count, ompi_datatype_t *datatype, int dest, int tag,
                       mca_pml_base_send_mode_t mode, ompi_communicator_t *communicator, ompi_request_t **out)
{
    cableway_request_t *request;
    int rc;
    if (MCA_PML_BASE_SEND_STANDARD == mode || MCA_PML_BASE_SEND_READY == mode) {
        struct cableway_buffer buffer;
        rc = cableway_describe(&buffer, address, count, datatype);
        if (OMPI_SUCCESS != rc) {
            return rc;
        }
        rc = cableway_send_now(cableway_handle(communicator), dest, tag, &buffer);
        if (1 == rc) {
            *out = &ompi_request_empty;
            return OMPI_SUCCESS;
        }
        if (rc < 0) {
            return cableway_error(-rc);
        }
    }
    request = cableway_request_new(communicator, address, count, datatype, dest, tag, false);
    request->kind = CABLEWAY_SEND;
    request->mode = mode;
    rc = cableway_request_begin(request);
    if (OMPI_SUCCESS != rc) {
        cableway_request_release(request);
        return rc;
    }
    *out = &request->ompi;
    return OMPI_SUCCESS;
}

int cableway_pml_send(const void *address, size_t count, ompi_datatype_t *datatype, int dest, int tag,
                      mca_pml_base_send_mode_t mode, ompi_communicator_t *communicator)
{
    struct cableway_buffer buffer;
    int rc;
    if (OPAL_UNLIKELY(MCA_PML_BASE_SEND_BUFFERED == mode)) {
        ompi_request_t *request;
        rc = cableway_pml_isend(address, count, datatype, dest, tag, mode, communicator, &request);
        if (OMPI_SUCCESS == rc) {
            (void) ompi_request_free(&request);
        }
        return rc;
    }
    rc = cableway_describe(&buffer, address, count, datatype);
    if (OMPI_SUCCESS != rc) {
        return rc;
    }
    rc = cableway_send(cableway_handle(communicator), dest, tag, &buffer, mode_of(mode));
    return rc < 0 ? cableway_error(-rc) : OMPI_SUCCESS;
}

/* --- receives --- */

static int irecv_init(void *address, size_t count, ompi_datatype_t *datatype, int source, int tag,
                      ompi_communicator_t *communicator, ompi_request_t **out)
{
    cableway_request_t *request = cableway_request_new(communicator, address, count, datatype, source, tag, true);
    request->kind = CABLEWAY_RECEIVE;
    *out = &request->ompi;
    return OMPI_SUCCESS;
}

int cableway_pml_irecv(void *address, size_t count, ompi_datatype_t *datatype, int source, int tag,
                       ompi_communicator_t *communicator, ompi_request_t **out)
{
    cableway_request_t *request = cableway_request_new(communicator, address, count, datatype, source, tag, false);
    int rc;
    request->kind = CABLEWAY_RECEIVE;
    rc = cableway_request_begin(request);
    if (OMPI_SUCCESS != rc) {
        cableway_request_release(request);
        return rc;
    }
    *out = &request->ompi;
    return OMPI_SUCCESS;
}

static int finish_receive(const struct cableway_status *result, ompi_status_public_t *status)
{
    if (MPI_STATUS_IGNORE != status) {
        cableway_set_status(status, result);
    }
    return cableway_error(result->code);
}

int cableway_pml_recv(void *address, size_t count, ompi_datatype_t *datatype, int source, int tag,
                      ompi_communicator_t *communicator, ompi_status_public_t *status)
{
    struct cableway_buffer buffer;
    struct cableway_status result;
    int rc = cableway_describe(&buffer, address, count, datatype);
    if (OMPI_SUCCESS != rc) {
        return rc;
    }
    cableway_recv(cableway_handle(communicator), source, tag, &buffer, &result);
    return finish_receive(&result, status);
}

int cableway_pml_start(size_t count, ompi_request_t **requests)
{
    for (size_t i = 0; i < count; i++) {
        if (NULL == requests[i] || OMPI_REQUEST_PML != requests[i]->req_type) {
            continue;
        }
        int rc = cableway_request_begin((cableway_request_t *) requests[i]);
        if (OMPI_SUCCESS != rc) {
            return rc;
        }
    }
    return OMPI_SUCCESS;
}

/* --- probes --- */

static int look(int source, int tag, ompi_communicator_t *communicator, int *found, ompi_message_t **message,
                ompi_status_public_t *status)
{
    struct cableway_status result;
    void *taken = NULL;
    int rc = cableway_iprobe(cableway_handle(communicator), source, tag, &result, NULL != message ? &taken : NULL);
    if (rc < 0) {
        return cableway_error(-rc);
    }
    *found = rc;
    if (!rc) {
        return OMPI_SUCCESS;
    }
    if (MPI_STATUS_IGNORE != status) {
        cableway_set_status(status, &result);
    }
    if (NULL != message) {
        ompi_message_t *made = ompi_message_alloc();
        if (NULL == made) {
            return OMPI_ERR_OUT_OF_RESOURCE;
        }
        made->comm = communicator;
        made->req_ptr = taken;
        made->peer = result.source;
        made->count = result.len;
        *message = made;
    }
    return OMPI_SUCCESS;
}

static int iprobe(int source, int tag, ompi_communicator_t *communicator, int *found, ompi_status_public_t *status)
{
    int rc = look(source, tag, communicator, found, NULL, status);
    if (OMPI_SUCCESS == rc && !*found) {
        opal_progress();
        rc = look(source, tag, communicator, found, NULL, status);
    }
    return rc;
}

static int probe(int source, int tag, ompi_communicator_t *communicator, ompi_status_public_t *status)
{
    int rc, found = 0;
    while (OMPI_SUCCESS == (rc = look(source, tag, communicator, &found, NULL, status)) && !found) {
        opal_progress();
    }
    return rc;
}

static int improbe(int source, int tag, ompi_communicator_t *communicator, int *found, ompi_message_t **message,
                   ompi_status_public_t *status)
{
    int rc = look(source, tag, communicator, found, message, status);
    if (OMPI_SUCCESS == rc && !*found) {
        opal_progress();
        rc = look(source, tag, communicator, found, message, status);
    }
    return rc;
}

static int mprobe(int source, int tag, ompi_communicator_t *communicator, ompi_message_t **message,
                  ompi_status_public_t *status)
{
    int rc, found = 0;
    while (OMPI_SUCCESS == (rc = look(source, tag, communicator, &found, message, status)) && !found) {
        opal_progress();
    }
    return rc;
}

/* Takes the engine's message out of Open MPI's, which is done with. */
static void *take_message(ompi_message_t **message)
{
    void *taken = (*message)->req_ptr;
    ompi_message_return(*message);
    *message = MPI_MESSAGE_NULL;
    return taken;
}

static int imrecv(void *address, size_t count, ompi_datatype_t *datatype, ompi_message_t **message,
                  ompi_request_t **out)
{
    struct cableway_buffer buffer;
    cableway_request_t *request;
    int rc = cableway_describe(&buffer, address, count, datatype);
    if (OMPI_SUCCESS != rc) {
        return rc;
    }
    request = cableway_request_new((*message)->comm, address, count, datatype, (*message)->peer, MPI_ANY_TAG, false);
    request->kind = CABLEWAY_RECEIVE;
    request->ompi.req_state = OMPI_REQUEST_ACTIVE;
    (void) OPAL_THREAD_ADD_FETCH32(&request->references, 1);
    *out = &request->ompi;
    rc = cableway_imrecv(take_message(message), &buffer, request->engine);
    return rc < 0 ? cableway_error(-rc) : OMPI_SUCCESS;
}

static int mrecv(void *address, size_t count, ompi_datatype_t *datatype, ompi_message_t **message,
                 ompi_status_public_t *status)
{
    struct cableway_buffer buffer;
    struct cableway_status result;
    int rc = cableway_describe(&buffer, address, count, datatype);
    if (OMPI_SUCCESS != rc) {
        return rc;
    }
    cableway_mrecv(take_message(message), &buffer, &result);
    return finish_receive(&result, status);
}

/* --- the rest --- */

static int dump(ompi_communicator_t *communicator, int verbose)
{
    (void) verbose;
    cableway_dump(cableway_handle(communicator));
    return OMPI_SUCCESS;
}

mca_pml_base_module_t cableway_module = {
    .pml_add_procs = add_procs,
    .pml_del_procs = del_procs,
    .pml_enable = enable,
    .pml_progress = cableway_progress,
    .pml_add_comm = add_comm,
    .pml_del_comm = del_comm,
    .pml_irecv_init = irecv_init,
    .pml_irecv = cableway_shortcut_irecv,
    .pml_recv = cableway_shortcut_recv,
    .pml_isend_init = isend_init,
    .pml_isend = cableway_shortcut_isend,
    .pml_send = cableway_shortcut_send,
    .pml_iprobe = iprobe,
    .pml_probe = probe,
    .pml_start = cableway_pml_start,
    .pml_improbe = improbe,
    .pml_mprobe = mprobe,
    .pml_imrecv = imrecv,
    .pml_mrecv = mrecv,
    .pml_dump = dump,
    CABLEWAY_MODULE_FIELDS
    .pml_max_contextid = INT_MAX,
    .pml_max_tag = INT_MAX,
};
