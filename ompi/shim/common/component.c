/* The PML component mca_pml_cableway. */
#include "shim.h"

#include "opal/util/arch.h"

#include <string.h>

static int component_register(void);
static int component_open(void);
static int component_close(void);
static mca_pml_base_module_t *component_init(int *priority, bool progress_threads, bool threads);
static int component_finalize(void);

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
CABLEWAY_EXPORT_COMPONENT(mca_pml_cableway_component, component)

static int component_register(void)
{
    const char *built_for = cableway_incompatible_build();
    if (NULL != built_for) {
        cableway_report_unused(CABLEWAY_REPORT_ONCE_PER_NODE,
                               "this is the %s, but the structures of the running Open MPI differ; "
                               "run `cableway ompi status` for details",
                               built_for);
        /* For this code Open MPI prints no message of its own. */
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

/* Starts the engine. Returns NULL, or the reason why it cannot start. */
static const char *start_engine(bool threads)
{
    char id[320];
    const char *reason;
    struct cableway_job job = {
        .number = OMPI_PROC_MY_NAME->jobid,
        .architecture = opal_local_arch,
        .threads = threads,
    };
    if (OMPI_SUCCESS != cableway_init_stock_btls(threads)) {
        return "Open MPI's own transports cannot be initialized";
    }
    if (NULL != (reason = cableway_session_begin(threads)) || cableway_engine_persists()) {
        return reason;
    }
    cableway_describe_job(&job, id, sizeof id);
    return 0 == cableway_start(&job, &reason) ? NULL : reason;
}

/* Initializes the component. Returns NULL, or the reason why it cannot be used after undoing everything. */
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
        reason = "no memory is left for requests";
    } else {
        if (OMPI_SUCCESS != cableway_bsend_init(threads)) {
            reason = "buffered sends cannot be initialized";
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

/* The reason why this component could not be used. A process tries only once, because peers may keep the addresses that
 * it published at the first attempt. */
static const char *refusal;

static mca_pml_base_module_t *component_init(int *priority, bool progress_threads, bool threads)
{
    const int best_so_far = *priority;
    (void) progress_threads;
    *priority = cableway_priority;
    cableway_selection_initialized();
    if (NULL == refusal && best_so_far >= cableway_priority) {
        cableway_report_unused(CABLEWAY_REPORT_ONCE_PER_NODE, "its priority is %d, and pml_cableway_priority is %d",
                               best_so_far, cableway_priority);
        return NULL;
    }
    if (NULL != refusal || NULL != (refusal = start(threads))) {
        cableway_report_unused(CABLEWAY_REPORT_BY_EACH_PROCESS, "%s", refusal);
        return NULL;
    }
    cableway_wait_functions_install(threads);
    return &cableway_module;
}

/* Open MPI calls this in MPI_Finalize, and in MPI_Init if it selected another component. */
static int component_finalize(void)
{
    const char *instead = cableway_other_pml_selected();
    cableway_interception_end();
    cableway_wait_functions_restore();
    if (NULL == instead || cableway_engine_persists()) {
        cableway_session_end();
    } else {
        cableway_report_unused(CABLEWAY_REPORT_ONCE_PER_NODE,
                               "%s has a higher priority, and pml_cableway_priority is %d", instead,
                               cableway_priority);
        cableway_discard();
        refusal = "this process has selected another pml before";
    }
    cableway_bsend_fini();
    cableway_datatype_close();
    OBJ_DESTRUCT(&cableway_requests);
    return OMPI_SUCCESS;
}
