/* The table of functions that libcableway_mpix.so looks up, and what the engine calls for streams. */
#include "streams.h"

#include "opal/util/output.h"

static bool active(void)
{
    return OMPI_MPI_STATE_INIT_COMPLETED <= ompi_mpi_state && !cableway_is_finalizing() && cableway_is_selected();
}

static const struct cableway_mpix table = {
    .version = 1,
    .active = active,
    .stream_create = cableway_mpix_stream_create,
    .stream_free = cableway_mpix_stream_free,
    .info_set_hex = cableway_mpix_info_set_hex,
    .communicator_create = cableway_mpix_communicator_create,
    .communicator_stream = cableway_mpix_communicator_stream,
    .enqueue = cableway_mpix_enqueue,
    .collective = cableway_mpix_collective,
    .wait = cableway_mpix_wait,
};

const struct cableway_mpix *shim_mpix(void)
{
    return &table;
}

void shim_use_threads(void)
{
    /* No thread is within a lock of Open MPI: the only thread is within an MPIX call of the program. */
    (void) opal_set_using_threads(true);
    cableway_wait_functions_install(true);
}

void shim_stream_status(void *status, const struct cableway_status *result)
{
    ompi_status_public_t *to = status;
    cableway_set_status(to, result);
    if (CABLEWAY_OK != result->code) {
        to->MPI_ERROR = cableway_error(result->code);
    }
}
