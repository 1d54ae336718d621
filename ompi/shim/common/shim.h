/* Declarations shared by all files of the shim. */
#ifndef CABLEWAY_COMMON_SHIM_H
#define CABLEWAY_COMMON_SHIM_H

#include "ompi_config.h"

#include "ompi/communicator/communicator.h"
#include "ompi/datatype/ompi_datatype.h"
#include "ompi/mca/pml/base/base.h"
#include "ompi/mca/pml/pml.h"
#include "ompi/message/message.h"
#include "ompi/proc/proc.h"
#include "ompi/request/request.h"
#include "ompi/runtime/mpiruntime.h"

#include <string.h>

#include "../cableway.h"
#include "version.h"

/* Fills an exported component structure when the object is loaded. The symbol is defined in Rust, because the linker
 * script of a Rust library hides every symbol that Rust does not export. */
#define CABLEWAY_EXPORT_COMPONENT(symbol, component)                                                                   \
    __attribute__((constructor)) static void export_component(void)                                                    \
    {                                                                                                                  \
        if (sizeof(component) <= cableway_component_bytes) {                                                           \
            memcpy(symbol, &(component), sizeof(component));                                                           \
        }                                                                                                              \
    }
extern const size_t cableway_component_bytes;

/* A point-to-point request: Open MPI's request, the shim's fields, and the engine's request.
 *
 * `references` counts the owners: the program (or the part of Open MPI that holds the request) until req_free, and the
 * engine from each start until its completion is reported. Dropping the last reference recycles the request. So a
 * request may be freed while it is active, and restarted from its own completion callback.
 *
 * A plain receive is started only once and needs no counter: `references` is CABLEWAY_UNCOUNTED, and req_complete tells
 * the owner. When it is complete, only the program owns it. Before that, req_free stores CABLEWAY_FREED in
 * req_complete, and completion recycles the request. The completion callback runs before the request is complete
 * (`in_callback`), and owns the request while it runs. */
struct cableway_request {
    ompi_request_t ompi;
    volatile int32_t references;
    bool in_callback;
    enum { CABLEWAY_SEND, CABLEWAY_RECEIVE, CABLEWAY_BUFFERED } kind;
    ompi_communicator_t *communicator;
    ompi_datatype_t *datatype;
    void *address;
    size_t count;
    int peer, tag;
    mca_pml_base_send_mode_t mode;
    void *bsend_buffer; /* the copy of a buffered send, in the program's attached buffer; NULL if it is empty */
    _Alignas(64) unsigned char engine[CABLEWAY_REQUEST_BYTES];
};
typedef struct cableway_request cableway_request_t;
enum { CABLEWAY_UNCOUNTED = -1 };
#define CABLEWAY_FREED ((void *) 4L)
OBJ_CLASS_DECLARATION(cableway_request_t);

extern opal_free_list_t cableway_requests;
extern mca_pml_base_module_t cableway_module;

/* Fills in `job`, and writes the job's id to `id`. */
void cableway_describe_job(struct cableway_job *job, char *id, size_t room);
/* Returns NULL if Open MPI's structures have the sizes that this was built for, else the version that it was built
 * for. */
const char *cableway_incompatible_build(void);
extern int cableway_priority;
extern bool cableway_explain_enabled;
int cableway_variables_register(const mca_base_component_t *self);
/* Passes the parameters that the user set to the engine. Returns NULL, or the reason why a value is invalid. */
const char *cableway_variables_apply(void);

/* Open MPI opens the component and initializes it. If it selects another one, it closes this one. */
int cableway_selection_open(void);
void cableway_selection_initialized(void);
/* Returns the name of the selected PML if it is another one, else NULL. */
const char *cableway_other_pml_selected(void);
void cableway_selection_close(void);

enum cableway_report_by {
    CABLEWAY_REPORT_BY_EACH_PROCESS,
    CABLEWAY_REPORT_ONCE_PER_NODE, /* for what happens in every process of a node */
};
/* Reports in one line why this component is not used. */
void cableway_report_unused(enum cableway_report_by report_by, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

int cableway_error(int code);
/* Describes a program's buffer to the engine. */
int cableway_describe(struct cableway_buffer *out, const void *address, size_t count, ompi_datatype_t *datatype);
void cableway_datatype_close(void);

cableway_request_t *cableway_request_new(ompi_communicator_t *communicator, const void *address, size_t count,
                                         ompi_datatype_t *datatype, int peer, int tag, bool persistent);
void cableway_request_release(cableway_request_t *request);
/* Returns the memory of a buffered send's copy to the program's attached buffer. */
void cableway_buffered_release(cableway_request_t *copy);
/* Starts the operation of a request, which may complete it at once. On failure the request is not completed. `location`
 * is NULL, or what a failed attempt to send at once has found out about the buffer. */
int cableway_request_begin(cableway_request_t *request, const struct cableway_location *location);
/* Completes a request that could not be started with an error, which the waiting call then reports. The call that
 * starts the operation must not return the error: MPI_Finalize crashes if one of its own messages fails that way. */
void cableway_request_fail(cableway_request_t *request, int error);
int cableway_pml_start(size_t count, ompi_request_t **requests);

/* Begins or ends the interception of calls that Open MPI passes to no component, such as MPI_Pack. */
void cableway_interception_begin(void);
void cableway_interception_end(void);

/* Replaces Open MPI's functions that wait for requests, if `threads`, or restores them. */
void cableway_wait_functions_install(bool threads);
void cableway_wait_functions_restore(void);

/* The fast path of the four commonest calls (fast_path.c). It falls back to send.c and receive.c. */
int cableway_fast_send(const void *address, size_t count, ompi_datatype_t *datatype, int dest, int tag,
                           mca_pml_base_send_mode_t mode, ompi_communicator_t *communicator);
int cableway_fast_isend(const void *address, size_t count, ompi_datatype_t *datatype, int dest, int tag,
                            mca_pml_base_send_mode_t mode, ompi_communicator_t *communicator, ompi_request_t **out);
int cableway_fast_recv(void *address, size_t count, ompi_datatype_t *datatype, int source, int tag,
                           ompi_communicator_t *communicator, ompi_status_public_t *status);
int cableway_fast_irecv(void *address, size_t count, ompi_datatype_t *datatype, int source, int tag,
                            ompi_communicator_t *communicator, ompi_request_t **out);
int cableway_pml_send(const void *address, size_t count, ompi_datatype_t *datatype, int dest, int tag,
                      mca_pml_base_send_mode_t mode, ompi_communicator_t *communicator);
int cableway_pml_isend(const void *address, size_t count, ompi_datatype_t *datatype, int dest, int tag,
                       mca_pml_base_send_mode_t mode, ompi_communicator_t *communicator, ompi_request_t **out);
/* Starts a send that could not leave at once. `location` is as for cableway_request_begin. */
int cableway_isend_at(const void *address, size_t count, ompi_datatype_t *datatype, int dest, int tag,
                      mca_pml_base_send_mode_t mode, ompi_communicator_t *communicator,
                      const struct cableway_location *location, ompi_request_t **out);
/* Returns a completed request for a send that failed at once. */
int cableway_isend_failed(int error, int dest, int tag, ompi_communicator_t *communicator, ompi_request_t **out);
int cableway_pml_recv(void *address, size_t count, ompi_datatype_t *datatype, int source, int tag,
                      ompi_communicator_t *communicator, ompi_status_public_t *status);
int cableway_pml_irecv(void *address, size_t count, ompi_datatype_t *datatype, int source, int tag,
                       ompi_communicator_t *communicator, ompi_request_t **out);

/* Returns whether a buffer is contiguous, and where it starts and how long it is. */
static inline bool cableway_contiguous(const void *address, size_t count, const ompi_datatype_t *datatype, void **start,
                                    uint64_t *len)
{
    const opal_datatype_t *type = &datatype->super;
    *len = type->size * count;
    *start = (char *) address + type->true_lb;
    return OPAL_LIKELY(((type->flags & OPAL_DATATYPE_FLAG_CONTIGUOUS)
                        && (1 == count || (type->flags & OPAL_DATATYPE_FLAG_NO_GAPS)))
                       || 0 == *len);
}

/* Sets all fields of a receive's status but MPI_ERROR, which only calls that return MPI_ERR_IN_STATUS may set. */
static inline void cableway_set_status(ompi_status_public_t *to, const struct cableway_status *from)
{
    to->MPI_SOURCE = from->source;
    to->MPI_TAG = from->tag;
    to->_ucount = from->len;
    to->_cancelled = from->cancelled;
}

/* Requests and matched messages keep their communicator alive. Predefined communicators are never freed, and not
 * counted. */
static inline void cableway_retain_communicator(ompi_communicator_t *communicator)
{
    if (OPAL_UNLIKELY(!OMPI_COMM_IS_INTRINSIC(communicator))) {
        OBJ_RETAIN(communicator);
    }
}

/* Drops an operation's reference to its communicator. After a failure the reference is kept, because Open MPI calls the
 * communicator's error handler later: such a communicator is never freed. */
static inline void cableway_release_communicator(ompi_communicator_t *communicator, int error)
{
    if (OPAL_UNLIKELY(!OMPI_COMM_IS_INTRINSIC(communicator)) && OPAL_LIKELY(OMPI_SUCCESS == error)) {
        OBJ_RELEASE(communicator);
    }
}

/* Returns whether MPI_Finalize has reached the point after which the program cannot call MPI. */
static inline bool cableway_is_finalizing(void)
{
    return OMPI_MPI_STATE_FINALIZE_PAST_COMM_SELF_DESTRUCT <= ompi_mpi_state;
}

/* Returns whether Open MPI has selected this PML. */
static inline bool cableway_is_selected(void)
{
    return mca_pml.pml_send == cableway_module.pml_send;
}

static inline void *cableway_handle(ompi_communicator_t *communicator)
{
    return (void *) communicator->c_pml_comm;
}

#endif
