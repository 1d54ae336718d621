/* The functions of the coll module. Macros define the three forms of each operation. The engine performs it if the
 * members have agreed on that. Otherwise the lower module does, with host copies in place of device buffers. */
#include "arguments.h"
#include "performed.h"
#include "prepare.h"

#include "ompi/info/info.h"

/* Begins each function: evaluates `how` with the description `d` of the call and the result of describing it, if the
 * engine performs the call. */
#define PERFORM(name, how)                                                                                             \
    cableway_collectives_t *self = (cableway_collectives_t *) module;                                                  \
    bool inter = OMPI_COMM_IS_INTER(comm);                                                                             \
    if (OPAL_LIKELY(cableway_engine_may_perform(self, comm))                                                           \
        && OPAL_UNLIKELY(cableway_engine_performs(self, inter ? BETWEEN_##name : COUNTED_##name,                       \
                                                  inter ? UINT64_MAX : SIZE_##name))) {                                \
        struct cableway_described d = {.send = NULL};                                                                  \
        int described = DESCRIBE_##name;                                                                               \
        if (CABLEWAY_NOT_OURS != described) {                                                                          \
            return how;                                                                                                \
        }                                                                                                              \
        cableway_described_release(&d);                                                                                \
    }

/* Stages the buffers if a driver is loaded. */
#define PREPARE(name, is_persistent)                                                                                   \
    struct cableway_call call = BUFFERS_##name, given = call;                                                          \
    mca_coll_base_comm_coll_t *lower = &self->lower;                                                                   \
    int rc;                                                                                                            \
    if (OPAL_UNLIKELY(cableway_devices_present())) {                                                                   \
        call.persistent = is_persistent;                                                                               \
        rc = PREPARE_##name;                                                                                           \
        if (OMPI_SUCCESS != rc) {                                                                                      \
            cableway_call_discard(&call);                                                                              \
            return rc;                                                                                                 \
        }                                                                                                              \
        if (NULL != call.staging && NULL != self->members) {                                                           \
            cableway_collectives_want(self->members, given.send, given.recv);                                          \
        }                                                                                                              \
    }

#define FILL()                                                                                                         \
    if (OMPI_SUCCESS != (rc = cableway_error(cableway_staging_fill(call.staging)))) {                                  \
        cableway_staging_free(call.staging);                                                                           \
        return rc;                                                                                                     \
    }

#define DEFINE(name)                                                                                                   \
    static int name(PARAMETERS_##name, mca_coll_base_module_t *module)                                                 \
    {                                                                                                                  \
        PERFORM(name, cableway_perform(self, &d, described))                                                           \
        PREPARE(name, false)                                                                                           \
        if (OPAL_LIKELY(NULL == call.staging)) {                                                                       \
            return lower->coll_##name(ARGUMENTS_##name, lower->coll_##name##_module);                                  \
        }                                                                                                              \
        FILL()                                                                                                         \
        rc = lower->coll_##name(ARGUMENTS_##name, lower->coll_##name##_module);                                        \
        return cableway_staging_finish(call.staging, rc);                                                              \
    }                                                                                                                  \
                                                                                                                       \
    static int i##name(PARAMETERS_##name, ompi_request_t **request, mca_coll_base_module_t *module)                    \
    {                                                                                                                  \
        PERFORM(name, cableway_perform_later(self, &d, described, comm, false, request))                               \
        PREPARE(name, false)                                                                                           \
        if (OPAL_LIKELY(NULL == call.staging)) {                                                                       \
            return lower->coll_i##name(ARGUMENTS_##name, request, lower->coll_i##name##_module);                       \
        }                                                                                                              \
        FILL()                                                                                                         \
        rc = lower->coll_i##name(ARGUMENTS_##name, request, lower->coll_i##name##_module);                             \
        if (OMPI_SUCCESS != rc) {                                                                                      \
            cableway_staging_free(call.staging);                                                                       \
            return rc;                                                                                                 \
        }                                                                                                              \
        return cableway_staging_request(request, call.staging, comm);                                                  \
    }                                                                                                                  \
                                                                                                                       \
    static int name##_init(PARAMETERS_##name, ompi_info_t *info, ompi_request_t **request,                             \
                           mca_coll_base_module_t *module)                                                             \
    {                                                                                                                  \
        PERFORM(name, cableway_perform_later(self, &d, described, comm, true, request))                                \
        PREPARE(name, true)                                                                                            \
        rc = lower->coll_##name##_init(ARGUMENTS_##name, info, request, lower->coll_##name##_init_module);             \
        if (OPAL_LIKELY(NULL == call.staging) || OMPI_SUCCESS != rc) {                                                 \
            cableway_call_discard(&call);                                                                              \
            return rc;                                                                                                 \
        }                                                                                                              \
        return cableway_staging_persistent(request, &call, comm);                                                      \
    }

CABLEWAY_COLLECTIVES(DEFINE)

static bool on_device(const void *address, int count, ompi_datatype_t *datatype)
{
    struct cableway_buffer buffer;
    return OMPI_SUCCESS == cableway_describe(&buffer, address, (size_t) count, datatype)
           && cableway_on_device(buffer.address, bytes_of(count, datatype));
}

/* Open MPI calls this function of MPI_COMM_SELF's module. */
static int reduce_local(const void *in, void *inout, int count, ompi_datatype_t *dtype, struct ompi_op_t *op,
                        mca_coll_base_module_t *module)
{
    cableway_collectives_t *self = (cableway_collectives_t *) module;
    struct cableway_call call_ = {.send = in, .recv = inout}, *call = &call_;
    mca_coll_base_comm_coll_t *lower = &self->lower;
    int rc = OMPI_SUCCESS;
    if (OPAL_UNLIKELY(cableway_devices_present())) {
        if (NULL != self->members && (on_device(in, count, dtype) || on_device(inout, count, dtype))) {
            struct cableway_described d;
            rc = cableway_describe_reduction(&d, CABLEWAY_REDUCE_LOCAL, in, inout, count, dtype, op, 0,
                                             &ompi_mpi_comm_self.comm);
            return cableway_perform(self, &d, rc);
        }
        rc = first_error(SEND_ONE(count, dtype), RECV_ONE(count, dtype, READ | WRITE));
        rc = first_error(rc, cableway_error(cableway_staging_fill(call->staging)));
    }
    if (OMPI_SUCCESS == rc) {
        rc = lower->coll_reduce_local(call->send, call->recv, count, dtype, op, lower->coll_reduce_local_module);
    }
    return cableway_staging_finish(call->staging, rc);
}

void cableway_collectives_functions(mca_coll_base_module_t *module)
{
#define SET(name)                                                                                                      \
    module->coll_##name = name;                                                                                        \
    module->coll_i##name = i##name;                                                                                    \
    module->coll_##name##_init = name##_init;
    CABLEWAY_COLLECTIVES(SET)
    module->coll_reduce_local = reduce_local;
}
