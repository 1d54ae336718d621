/* Services of the host for the engine: the job, what others have published, progress and output. */
#include "shim.h"

#include "opal/mca/pmix/pmix-internal.h"
#include "opal/runtime/opal_progress.h"

#include <stdio.h>

void cableway_describe_job(struct cableway_job *job, char *id, size_t room)
{
    job->rank = OMPI_PROC_MY_NAME->vpid;
    job->size = ompi_process_info.num_procs;
    job->local_size = ompi_process_info.num_local_peers + 1;
    job->id = id;
    job->threads = cableway_session_threads();
    snprintf(id, room, "ompi-%s", ompi_process_info.myprocid.nspace);
}

int shim_modex_get(uint64_t process, const char *key, uint8_t **bytes, size_t *len)
{
    int rc;
    opal_process_name_t name = {.jobid = (uint32_t) (process >> 32), .vpid = (uint32_t) process};
    *bytes = NULL;
    *len = 0;
    OPAL_MODEX_RECV_STRING(rc, key, &name, bytes, len);
    return PMIX_SUCCESS == rc ? 0 : PMIX_ERR_NOT_FOUND == rc ? 1 : -1;
}

void shim_host_progress(void)
{
    opal_progress();
}

void shim_log(const char *line)
{
    opal_output(0, "cableway: %s", line);
}
