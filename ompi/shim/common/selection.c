/* The selection of a PML, and the line that reports why this component was not selected.
 *
 * Open MPI opens every component that its parameter `pml` allows. It initializes those that `pml` names, or a default
 * list (ob1, ucx and cm) if `pml` names none, and selects the one with the highest priority. This component adds its
 * name to the default list. So an installation needs no value of `pml`, and if this component cannot run, Open MPI
 * selects another one. With `pml = cableway` there is no other one, and Open MPI aborts the job. */
#include "shim.h"

#include "opal/mca/base/mca_base_var.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Whether Open MPI has opened the component but not initialized it yet. */
static bool awaiting_init;

/* Returns the value of the parameter `pml`, or NULL if it names no component to use. */
static const char *named_components(void)
{
    char **value = NULL;
    int index = mca_base_var_find("ompi", "pml", NULL, NULL);
    if (0 > index || OPAL_SUCCESS != mca_base_var_get_value(index, &value, NULL, NULL) || NULL == value) {
        return NULL;
    }
    return NULL == *value || '\0' == **value || '^' == **value ? NULL : *value;
}

/* Returns whether Open MPI aborts the job if this component cannot run. Open MPI uses only the first name of a list. */
static bool is_required(void)
{
    const char *named = named_components();
    return NULL != named && 0 == strncmp(named, "cableway", strlen("cableway"));
}

int cableway_selection_open(void)
{
    awaiting_init = true;
    if (NULL == named_components()) {
        /* Open MPI frees the name. */
        char *name = strdup("cableway");
        if (NULL == name || 0 > opal_pointer_array_add(&mca_pml_base_pml, name)) {
            free(name);
            return OMPI_ERR_OUT_OF_RESOURCE;
        }
    }
    return OMPI_SUCCESS;
}

void cableway_selection_initialized(void)
{
    awaiting_init = false;
}

const char *cableway_other_pml_selected(void)
{
    const char *selected = mca_pml_base_selected_component.pmlm_version.mca_component_name;
    return '\0' == selected[0] || 0 == strcmp(selected, "cableway") ? NULL : selected;
}

void cableway_selection_close(void)
{
    const char *named = named_components();
    if (awaiting_init && NULL != named && NULL != cableway_other_pml_selected()) {
        cableway_report_unused(CABLEWAY_REPORT_ONCE_PER_NODE, "Open MPI tries only the first name of pml = %s", named);
    }
    awaiting_init = false;
}

void cableway_report_unused(enum cableway_report_by report_by, const char *format, ...)
{
    const uint16_t local_rank = (uint16_t) ompi_process_info.my_local_rank;
    char reason[1024];
    va_list arguments;
    if (CABLEWAY_REPORT_ONCE_PER_NODE == report_by && 0 != local_rank && UINT16_MAX != local_rank) {
        return;
    }
    va_start(arguments, format);
    vsnprintf(reason, sizeof reason, format, arguments);
    va_end(arguments);
    /* opal_show_help cannot be used: Open MPI 4.1.4 of Debian 12 loses such messages on their way to mpirun. */
    opal_output(0, is_required() ? "cableway: cannot run, and pml = cableway allows no other: %s"
                                 : "cableway: not used, another pml takes its place: %s", reason);
}
