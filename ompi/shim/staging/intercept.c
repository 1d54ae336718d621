/* Provides host copies to the intercepted MPI functions (ompi/intercept). */
#include "staged.h"

#include "../intercept.h"

#include "ompi/errhandler/errcode-internal.h"
#include "ompi/errhandler/errhandler.h"

#include <dlfcn.h>

static int code(int rc)
{
    return OMPI_SUCCESS == rc ? MPI_SUCCESS : ompi_errcode_get_mpi_code(rc);
}

static int stage(void **staging, void **base, size_t count, void *datatype, int access)
{
    return code(cableway_stage_one(staging, base, count, datatype, access));
}

static int stage_bytes(void **staging, void **base, size_t len, int access)
{
    return code(cableway_stage_one(staging, base, len, &ompi_mpi_byte.dt, access));
}

static int fill(void *staging)
{
    return code(cableway_error(cableway_staging_fill(staging)));
}

static int finish(void *staging, int result)
{
    return MPI_SUCCESS == result ? code(cableway_staging_finish(staging, OMPI_SUCCESS))
                                 : (cableway_staging_free(staging), result);
}

static int request(void **handle, void *staging)
{
    return code(cableway_staging_request((ompi_request_t **) handle, staging, NULL));
}

static const struct cableway_intercept component = {
    .version = 2,
    .present = cableway_devices_present,
    .on_device = cableway_on_device,
    .stage = stage,
    .stage_bytes = stage_bytes,
    .fill = fill,
    .finish = finish,
    .request = request,
    .release = cableway_staging_free,
};

void cableway_interception_begin(void)
{
    cableway_intercept_attach_fn *attach;
    *(void **) &attach = dlsym(RTLD_DEFAULT, "cableway_intercept_attach");
    if (NULL != attach && attach(&component)) {
        /* The preload library intercepts every call. */
        return;
    }
    /* Any function of Open MPI's library serves, as long as no tool interposes on it. */
    cableway_intercept_begin(&component, (const void *) ompi_errhandler_invoke);
}

void cableway_interception_end(void)
{
    cableway_intercept_end();
}
