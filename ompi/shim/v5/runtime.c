/* What the engine asks of the host: the job, addresses of processes, and time for the host's other components. */
#include "component.h"

#include "opal/mca/pmix/pmix-internal.h"
#include "opal/runtime/opal_progress.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define SECRET_KEY "cableway.secret"

static bool random_bytes(uint8_t *bytes, size_t len)
{
    int file = open("/dev/urandom", O_RDONLY | O_CLOEXEC);
    bool read_all = file >= 0 && (ssize_t) len == read(file, bytes, len);
    if (file >= 0) {
        (void) close(file);
    }
    return read_all;
}

/* The runtime of 5.0 hands out no key to the processes of a job, so rank 0 makes one. Getting it waits until it is
 * there. */
static int share_secret(uint8_t secret[32])
{
    opal_process_name_t first = {.jobid = OMPI_PROC_MY_NAME->jobid, .vpid = 0};
    uint8_t *bytes = NULL;
    size_t len = 0;
    int rc;
    if (0 == OMPI_PROC_MY_NAME->vpid) {
        if (!random_bytes(secret, 32)) {
            return OMPI_ERROR;
        }
        if (1 == ompi_process_info.num_procs) {
            return OMPI_SUCCESS;
        }
        OPAL_MODEX_SEND_STRING(rc, PMIX_GLOBAL, SECRET_KEY, secret, 32);
        return PMIX_SUCCESS == rc && PMIX_SUCCESS == PMIx_Commit() ? OMPI_SUCCESS : OMPI_ERROR;
    }
    OPAL_MODEX_RECV_STRING(rc, SECRET_KEY, &first, &bytes, &len);
    if (PMIX_SUCCESS == rc && 32 == len) {
        memcpy(secret, bytes, 32);
    } else {
        rc = PMIX_ERROR;
    }
    free(bytes);
    return PMIX_SUCCESS == rc ? OMPI_SUCCESS : OMPI_ERROR;
}

int cableway_job(struct cableway_job *job, char *id, size_t room)
{
    job->rank = OMPI_PROC_MY_NAME->vpid;
    job->size = ompi_process_info.num_procs;
    job->local_size = ompi_process_info.num_local_peers + 1;
    job->id = id;
    job->threads = cableway_with_threads();
    snprintf(id, room, "ompi-%s", ompi_process_info.myprocid.nspace);
    return share_secret(job->secret);
}

int shim_modex_put(const char *key, const uint8_t *bytes, size_t len)
{
    int rc;
    OPAL_MODEX_SEND_STRING(rc, PMIX_GLOBAL, key, bytes, len);
    return PMIX_SUCCESS == rc ? cableway_remember(key, bytes, len) : -1;
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
