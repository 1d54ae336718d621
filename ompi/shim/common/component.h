/* What the files of the shim share. */
#ifndef CABLEWAY_COMPONENT_H
#define CABLEWAY_COMPONENT_H

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

/* The structures that Open MPI looks up are exported from Rust, whose linker script lists what is visible; what they hold
 * is copied there as the object is loaded. */
#define CABLEWAY_LAY_OUT(symbol, component)                                                                            \
    __attribute__((constructor)) static void lay_out(void)                                                             \
    {                                                                                                                  \
        if (sizeof(component) <= cableway_component_room) {                                                            \
            memcpy(symbol, &(component), sizeof(component));                                                           \
        }                                                                                                              \
    }
extern const size_t cableway_component_room;

/* A request of ours: Open MPI's part, ours, the engine's.
 *
 * `references` counts who may still touch it: the program (or whoever of Open MPI holds it) until req_free, and the
 * engine from a start until its completion has been reported. Whoever drops the last one recycles it; so a request
 * may be freed while active, and started again from within its own completion callback.
 *
 * A plain receive is started once, so that its req_complete says as much, at no further cost; its `references` are
 * CABLEWAY_UNCOUNTED. Complete: it is the program's alone. Else freeing it leaves CABLEWAY_FREED there, and whoever
 * completes it recycles it; but a completion callback, which runs before it is complete (`reporting`), owns it. */
struct cableway_request {
    ompi_request_t ompi;
    volatile int32_t references;
    bool reporting;
    enum { CABLEWAY_SEND, CABLEWAY_RECEIVE, CABLEWAY_BUFFERED } kind;
    ompi_communicator_t *communicator;
    ompi_datatype_t *datatype;
    void *address;
    size_t count;
    int peer, tag;
    mca_pml_base_send_mode_t mode;
    void *attached; /* a buffered send's copy, in the program's attached buffer; NULL if it is empty */
    _Alignas(64) unsigned char engine[CABLEWAY_REQUEST_BYTES];
};
typedef struct cableway_request cableway_request_t;
enum { CABLEWAY_UNCOUNTED = -1 };
#define CABLEWAY_FREED ((void *) 4L)
OBJ_CLASS_DECLARATION(cableway_request_t);

extern opal_free_list_t cableway_requests;
extern mca_pml_base_module_t cableway_module;

/* Describes the job to the engine; its id is written to `id`. */
void cableway_job(struct cableway_job *job, char *id, size_t room);
/* The version that this was built for if Open MPI's structures differ from it, else NULL. */
const char *cableway_other_structures(void);
extern int cableway_priority;
extern bool cableway_explain_wanted;
int cableway_variables_register(const mca_base_component_t *self);
/* NULL, or why a value cannot be used. */
const char *cableway_variables_apply(void);

/* Open MPI opens the component, initialises it, perhaps selects another, and closes this one. */
int cableway_selection_open(void);
void cableway_selection_initialized(void);
/* The name of the PML that was selected if that is another one, else NULL. */
const char *cableway_selected_instead(void);
void cableway_selection_close(void);

enum cableway_occurrence {
    CABLEWAY_ON_THIS_PROCESS,
    CABLEWAY_ON_EVERY_PROCESS, /* of this node, so that one process tells it */
};
/* Tells the user in one line why this component is not used. */
void cableway_refuse(enum cableway_occurrence occurrence, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

int cableway_error(int code);
/* Describes a program's buffer to the engine. */
int cableway_describe(struct cableway_buffer *out, const void *address, size_t count, ompi_datatype_t *datatype);
void cableway_datatype_close(void);

cableway_request_t *cableway_request_new(ompi_communicator_t *communicator, const void *address, size_t count,
                                         ompi_datatype_t *datatype, int peer, int tag, bool persistent);
void cableway_request_release(cableway_request_t *request);
/* Gives the room of a buffered send's copy back to the attached buffer. */
void cableway_buffered_left(cableway_request_t *copy);
int cableway_request_begin(cableway_request_t *request);
/* Completes a request that could not be started. Whoever waits for it reports the error. A call that starts an operation
 * does not return it: MPI_Finalize crashes where that happens to its own messages. */
void cableway_request_fail(cableway_request_t *request, int error);
/* The same; of a send, with what is known of its buffer, or NULL. */
int cableway_request_begin_at(cableway_request_t *request, const struct cableway_place *place);
int cableway_pml_start(size_t count, ompi_request_t **requests);

/* Has calls that no component is asked about, such as MPI_Pack, take device memory, or crash on it again. */
void cableway_calls_begin(void);
void cableway_calls_end(void);

/* Has threads that wait for requests wait our way, or Open MPI's again. */
void cableway_waiting_begin(bool threads);
void cableway_waiting_end(void);

/* The calls that programs make most. What shortcut.c does not do at once, send.c and receive.c do. */
int cableway_shortcut_send(const void *address, size_t count, ompi_datatype_t *datatype, int dest, int tag,
                           mca_pml_base_send_mode_t mode, ompi_communicator_t *communicator);
int cableway_shortcut_isend(const void *address, size_t count, ompi_datatype_t *datatype, int dest, int tag,
                            mca_pml_base_send_mode_t mode, ompi_communicator_t *communicator, ompi_request_t **out);
int cableway_shortcut_recv(void *address, size_t count, ompi_datatype_t *datatype, int source, int tag,
                           ompi_communicator_t *communicator, ompi_status_public_t *status);
int cableway_shortcut_irecv(void *address, size_t count, ompi_datatype_t *datatype, int source, int tag,
                            ompi_communicator_t *communicator, ompi_request_t **out);
int cableway_pml_send(const void *address, size_t count, ompi_datatype_t *datatype, int dest, int tag,
                      mca_pml_base_send_mode_t mode, ompi_communicator_t *communicator);
int cableway_pml_isend(const void *address, size_t count, ompi_datatype_t *datatype, int dest, int tag,
                       mca_pml_base_send_mode_t mode, ompi_communicator_t *communicator, ompi_request_t **out);
/* Goes on where a send did not leave at once; place as for cableway_request_begin_at. */
int cableway_isend_at(const void *address, size_t count, ompi_datatype_t *datatype, int dest, int tag,
                      mca_pml_base_send_mode_t mode, ompi_communicator_t *communicator,
                      const struct cableway_place *place, ompi_request_t **out);
/* Gives out a request of a send that failed at once. */
int cableway_isend_failed(int error, int dest, int tag, ompi_communicator_t *communicator, ompi_request_t **out);
int cableway_pml_recv(void *address, size_t count, ompi_datatype_t *datatype, int source, int tag,
                      ompi_communicator_t *communicator, ompi_status_public_t *status);
int cableway_pml_irecv(void *address, size_t count, ompi_datatype_t *datatype, int source, int tag,
                       ompi_communicator_t *communicator, ompi_request_t **out);

/* Whether a buffer is one run of bytes, as most are, and which. */
static inline bool cableway_one_run(const void *address, size_t count, const ompi_datatype_t *datatype, void **start,
                                    uint64_t *len)
{
    const opal_datatype_t *type = &datatype->super;
    *len = type->size * count;
    *start = (char *) address + type->true_lb;
    return OPAL_LIKELY(((type->flags & OPAL_DATATYPE_FLAG_CONTIGUOUS)
                        && (1 == count || (type->flags & OPAL_DATATYPE_FLAG_NO_GAPS)))
                       || 0 == *len);
}

/* What a receive tells the program: all but MPI_ERROR, which belongs to the calls that return MPI_ERR_IN_STATUS. */
static inline void cableway_set_status(ompi_status_public_t *to, const struct cableway_status *from)
{
    to->MPI_SOURCE = from->source;
    to->MPI_TAG = from->tag;
    to->_ucount = from->len;
    to->_cancelled = from->cancelled;
}

/* A request keeps its communicator alive, and so does a message that a probe took; the predefined ones are never freed. */
static inline void cableway_hold_communicator(ompi_communicator_t *communicator)
{
    if (OPAL_UNLIKELY(!OMPI_COMM_IS_INTRINSIC(communicator))) {
        OBJ_RETAIN(communicator);
    }
}

/* The end of an operation, which failed or not. Open MPI tells the communicator's error handler of a failure after this, so
 * that such a communicator must not end with the operation: it is never freed. */
static inline void cableway_done_with_communicator(ompi_communicator_t *communicator, int error)
{
    if (OPAL_UNLIKELY(!OMPI_COMM_IS_INTRINSIC(communicator)) && OPAL_LIKELY(OMPI_SUCCESS == error)) {
        OBJ_RELEASE(communicator);
    }
}

/* Whether MPI_Finalize has come so far that the program makes no call of MPI any more. */
static inline bool cableway_is_ending(void)
{
    return OMPI_MPI_STATE_FINALIZE_PAST_COMM_SELF_DESTRUCT <= ompi_mpi_state;
}

/* Whether Open MPI has selected this PML. */
static inline bool cableway_is_selected(void)
{
    return mca_pml.pml_send == cableway_module.pml_send;
}

static inline void *cableway_handle(ompi_communicator_t *communicator)
{
    return (void *) communicator->c_pml_comm;
}

#endif
