/* The component: found by Open MPI under its name, asked once whether it can serve. */
#include "component.h"

#include "ompi/mca/pml/base/base.h"
#include "opal/mca/base/mca_base_var.h"
#include "opal/util/arch.h"
#include "opal/util/show_help.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int component_register(void);
static int component_close(void);
static mca_pml_base_module_t *component_init(int *priority, bool progress_threads, bool threads);
static int component_finalize(void);

static int priority = 60;

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
extern const size_t cableway_component_room;

__attribute__((constructor)) static void lay_out(void)
{
    if (sizeof component <= cableway_component_room) {
        memcpy(mca_pml_cableway_component, &component, sizeof component);
    }
}

/* Storage of the variables, which Open MPI writes; index as in the table. */
static char **values;

static int component_register(void)
{
    const mca_base_component_t *self = (const mca_base_component_t *) mca_pml_cableway_component;
    const char *name, *value, *help;
    size_t rows = 0;

    if (!cableway_same_structures()) {
        return OMPI_ERR_NOT_SUPPORTED;
    }
    (void) mca_base_component_var_register(self, "priority", "Priority of the component", MCA_BASE_VAR_TYPE_INT, NULL, 0,
                                           MCA_BASE_VAR_FLAG_SETTABLE, OPAL_INFO_LVL_9, MCA_BASE_VAR_SCOPE_READONLY,
                                           &priority);
    while (cableway_parameter_row(rows, &name, &value, &help)) {
        rows++;
    }
    if (NULL == values && NULL == (values = calloc(rows, sizeof *values))) {
        return OMPI_ERR_OUT_OF_RESOURCE;
    }
    for (size_t i = 0; i < rows; i++) {
        (void) cableway_parameter_row(i, &name, &value, &help);
        values[i] = (char *) value;
        (void) mca_base_component_var_register(self, name, help, MCA_BASE_VAR_TYPE_STRING, NULL, 0, 0, OPAL_INFO_LVL_4,
                                               MCA_BASE_VAR_SCOPE_READONLY, &values[i]);
    }
    return OMPI_SUCCESS;
}

/* Hands every variable that somebody set to the engine's parameters. */
static int apply_variables(void)
{
    const char *name, *value, *help;
    for (size_t i = 0; cableway_parameter_row(i, &name, &value, &help); i++) {
        if (NULL != values[i] && 0 != strcmp(values[i], value) && 0 != cableway_set_parameter(name, values[i])) {
            return OMPI_ERR_BAD_PARAM;
        }
    }
    return OMPI_SUCCESS;
}

static mca_pml_base_module_t *component_init(int *out, bool progress_threads, bool threads)
{
    char id[320];
    struct cableway_job job = {
        .number = OMPI_PROC_MY_NAME->jobid,
        .architecture = opal_local_arch,
        .threads = threads,
    };
    (void) progress_threads;
    *out = priority;

    OBJ_CONSTRUCT(&cableway_requests, opal_free_list_t);
    if (OPAL_SUCCESS != opal_free_list_init(&cableway_requests, sizeof(cableway_request_t), 64,
                                            OBJ_CLASS(cableway_request_t), 0, 64, 16, -1, 64, NULL, 0, NULL, NULL, NULL)
        || OMPI_SUCCESS != apply_variables()
        || OMPI_SUCCESS != cableway_bsend_init(threads)
        || OMPI_SUCCESS != cableway_before_modex(threads)
        || OMPI_SUCCESS != cableway_enter(threads)) {
        return NULL;
    }
    if (cableway_entered()) {
        return &cableway_module;
    }
    if (OMPI_SUCCESS != cableway_job(&job, id, sizeof id)) {
        return NULL;
    }
    return 0 == cableway_start(&job) ? &cableway_module : NULL;
}

static int component_finalize(void)
{
    cableway_leave();
    cableway_bsend_fini();
    cableway_datatype_close();
    OBJ_DESTRUCT(&cableway_requests);
    return OMPI_SUCCESS;
}

static int component_close(void)
{
    free(values);
    values = NULL;
    return OMPI_SUCCESS;
}
