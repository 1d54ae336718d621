/* Errors of MPIX calls. */
#include "streams.h"

#include "ompi/errhandler/errcode-internal.h"
#include "ompi/errhandler/errhandler.h"

int cableway_mpix_failed(ompi_communicator_t *communicator, int code, const char *call)
{
    if (NULL == communicator) {
        communicator = &ompi_mpi_comm_world.comm;
    }
    return OMPI_ERRHANDLER_INVOKE(communicator, code, call);
}
