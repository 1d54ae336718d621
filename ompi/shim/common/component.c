/* The component: found by Open MPI under its name, asked once whether it can serve. */
#include "component.h"

#include "ompi/mca/pml/base/base.h"
#include "opal/util/arch.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int component_register(void);
static int component_close(void);
static mca_pml_base_module_t *component_init(int *priority, bool progress_threads, bool threads);
static int component_finalize(void);

/* The component structure that Open MPI looks up is exported from Rust, whose linker script lists what is visible;
 * this is what it holds, copied there as the object is loaded. */
static const mca_pml_base_component_t component = {
    .pmlm_version = {
        CABLEWAY_PML_VERSION,
        .mca_component_name = "cableway",
        MCA_BASE_MAKE_VERSION(component, 0, 1, 0),
        .mca_register_component_params = component_register,
        .mca_close_component = component_close,
    },
    .pmlm_data = {MCA_BASE_METADATA_PARAM_NONE},
    .pmlm_init = component_init,
    .pmlm_finalize = component_finalize,
};

extern unsigned char mca_pml_cableway_component[];
CABLEWAY_LAY_OUT(mca_pml_cableway_component, component)

static int component_register(void)
{
    if (!cableway_same_structures()) {
        return OMPI_ERR_NOT_SUPPORTED;
    }
    return cableway_variables_register((const mca_base_component_t *) mca_pml_cableway_component);
}

static mca_pml_base_module_t *component_init(int *out, bool progress_threads, bool threads)
{
    char id[320];
    const char *reason;
    struct cableway_job job = {
        .number = OMPI_PROC_MY_NAME->jobid,
        .architecture = opal_local_arch,
        .threads = threads,
    };
    (void) progress_threads;
    *out = cableway_priority;

    OBJ_CONSTRUCT(&cableway_requests, opal_free_list_t);
    if (OPAL_SUCCESS != opal_free_list_init(&cableway_requests, sizeof(cableway_request_t), 64,
                                            OBJ_CLASS(cableway_request_t), 0, 64, 16, -1, 64, NULL, 0, NULL, NULL, NULL)
        || OMPI_SUCCESS != cableway_variables_apply()
        || OMPI_SUCCESS != cableway_bsend_init(threads)
        || OMPI_SUCCESS != cableway_before_modex(threads)
        || OMPI_SUCCESS != cableway_enter(threads)) {
        return NULL;
    }
    cableway_waiting_begin(threads);
    if (cableway_entered()) {
        return &cableway_module;
    }
    if (OMPI_SUCCESS != cableway_job(&job, id, sizeof id)) {
        return NULL;
    }
    if (0 != cableway_start(&job, &reason)) {
        cableway_show_help("not-started", reason);
        return NULL;
    }
    return &cableway_module;
}

static int component_finalize(void)
{
    cableway_waiting_end();
    cableway_leave();
    cableway_bsend_fini();
    cableway_datatype_close();
    OBJ_DESTRUCT(&cableway_requests);
    return OMPI_SUCCESS;
}

static int component_close(void)
{
    cableway_variables_release();
    return OMPI_SUCCESS;
}
