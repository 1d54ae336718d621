/* What the engine asks of the host: addresses of processes, and time for the host's other components. */
#include "component.h"

#include "ompi/mca/rte/rte.h"
#include "opal/mca/pmix/pmix.h"
#include "opal/runtime/opal_progress.h"

int shim_modex_put(const char *key, const uint8_t *bytes, size_t len)
{
    int rc;
    OPAL_MODEX_SEND_STRING(rc, OPAL_PMIX_GLOBAL, (char *) key, bytes, len);
    return rc;
}

int shim_modex_get(uint32_t rank, const char *key, uint8_t **bytes, size_t *len)
{
    int rc;
    opal_process_name_t name = {.jobid = OMPI_PROC_MY_NAME->jobid, .vpid = rank};
    *bytes = NULL;
    *len = 0;
    OPAL_MODEX_RECV_STRING(rc, key, &name, bytes, len);
    return OPAL_SUCCESS == rc ? 0 : OPAL_ERR_NOT_FOUND == rc ? 1 : -1;
}

void shim_host_progress(void)
{
    opal_progress();
}

void shim_log(const char *line)
{
    opal_output(0, "cableway: %s", line);
}
