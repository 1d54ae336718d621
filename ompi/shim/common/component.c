/* The component: found by Open MPI under its name, asked once whether it can serve. */
#include "component.h"

#include "opal/util/arch.h"

#include <string.h>

static int component_register(void);
static int component_open(void);
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
        .mca_open_component = component_open,
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
    const char *built_for = cableway_other_structures();
    if (NULL != built_for) {
        cableway_refuse(CABLEWAY_ON_EVERY_PROCESS,
                        "this is the %s, and the Open MPI that loads it has other structures; "
                        "`cableway ompi status` says more",
                        built_for);
        /* Open MPI adds no words of its own. */
        return OPAL_ERR_NOT_AVAILABLE;
    }
    return cableway_variables_register((const mca_base_component_t *) mca_pml_cableway_component);
}

static int component_open(void)
{
    return cableway_selection_open();
}

static int component_close(void)
{
    cableway_selection_close();
    return OMPI_SUCCESS;
}

/* Makes the engine, or says why not. */
static const char *start_engine(bool threads)
{
    char id[320];
    const char *reason;
    struct cableway_job job = {
        .number = OMPI_PROC_MY_NAME->jobid,
        .architecture = opal_local_arch,
        .threads = threads,
    };
    if (OMPI_SUCCESS != cableway_before_modex(threads)) {
        return "Open MPI's own transports cannot be initialised";
    }
    if (NULL != (reason = cableway_enter(threads)) || cableway_entered()) {
        return reason;
    }
    cableway_job(&job, id, sizeof id);
    return 0 == cableway_start(&job, &reason) ? NULL : reason;
}

/* NULL, or why this component cannot be used; then nothing is left behind. */
static const char *start(bool threads)
{
    const char *reason = cableway_variables_apply();
    if (NULL != reason) {
        return reason;
    }
    OBJ_CONSTRUCT(&cableway_requests, opal_free_list_t);
    if (OPAL_SUCCESS != opal_free_list_init(&cableway_requests, sizeof(cableway_request_t), 64,
                                            OBJ_CLASS(cableway_request_t), 0, 64, 16, -1, 64, NULL, 0, NULL, NULL,
                                            NULL)) {
        reason = "there is no memory for requests";
    } else {
        if (OMPI_SUCCESS != cableway_bsend_init(threads)) {
            reason = "buffered sends cannot be initialised";
        } else {
            reason = start_engine(threads);
        }
        if (NULL != reason) {
            cableway_bsend_fini();
        }
    }
    if (NULL != reason) {
        OBJ_DESTRUCT(&cableway_requests);
    }
    return reason;
}

/* Why this component was not used before. A process tries once: peers may keep what it published then. */
static const char *refusal;

static mca_pml_base_module_t *component_init(int *priority, bool progress_threads, bool threads)
{
    const int best_so_far = *priority;
    (void) progress_threads;
    *priority = cableway_priority;
    cableway_selection_initialized();
    if (NULL == refusal && best_so_far >= cableway_priority) {
        cableway_refuse(CABLEWAY_ON_EVERY_PROCESS, "its priority is %d, and pml_cableway_priority is %d", best_so_far,
                        cableway_priority);
        return NULL;
    }
    if (NULL != refusal || NULL != (refusal = start(threads))) {
        cableway_refuse(CABLEWAY_ON_THIS_PROCESS, "%s", refusal);
        return NULL;
    }
    cableway_waiting_begin(threads);
    return &cableway_module;
}

/* At the end of MPI, or while it begins if Open MPI selected another component. */
static int component_finalize(void)
{
    const char *instead = cableway_selected_instead();
    cableway_calls_end();
    cableway_waiting_end();
    if (NULL == instead || cableway_entered()) {
        cableway_leave();
    } else {
        cableway_refuse(CABLEWAY_ON_EVERY_PROCESS, "%s has a higher priority, and pml_cableway_priority is %d", instead,
                        cableway_priority);
        cableway_discard();
        refusal = "another pml was preferred before in this process";
    }
    cableway_bsend_fini();
    cableway_datatype_close();
    OBJ_DESTRUCT(&cableway_requests);
    return OMPI_SUCCESS;
}
