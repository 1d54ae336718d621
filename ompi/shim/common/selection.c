/* This component's part in Open MPI's choice of a PML, and the line that says why it was not chosen.
 *
 * Open MPI opens every component that its parameter `pml` allows. Then it initialises those that `pml` names, or ob1, ucx
 * and cm if it names none, and takes the one of the highest priority. This component adds its own name to the latter. So
 * an installation needs no value of `pml`, and if the component cannot run, Open MPI takes the next one. With
 * `pml = cableway` there is no next one, and Open MPI ends the job. */
#include "component.h"

#include "opal/mca/base/mca_base_var.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Whether Open MPI has opened the component and not yet initialised it. */
static bool awaited;

/* The parameter `pml`, or NULL if it names no component to use. */
static const char *named_components(void)
{
    char **value = NULL;
    int index = mca_base_var_find("ompi", "pml", NULL, NULL);
    if (0 > index || OPAL_SUCCESS != mca_base_var_get_value(index, &value, NULL, NULL) || NULL == value) {
        return NULL;
    }
    return NULL == *value || '\0' == **value || '^' == **value ? NULL : *value;
}

/* Whether Open MPI ends the job if this component cannot run. Of a list it heeds the first name. */
static bool is_required(void)
{
    const char *named = named_components();
    return NULL != named && 0 == strncmp(named, "cableway", strlen("cableway"));
}

int cableway_selection_open(void)
{
    awaited = true;
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
    awaited = false;
}

const char *cableway_selected_instead(void)
{
    const char *selected = mca_pml_base_selected_component.pmlm_version.mca_component_name;
    return '\0' == selected[0] || 0 == strcmp(selected, "cableway") ? NULL : selected;
}

void cableway_selection_close(void)
{
    const char *named = named_components();
    if (awaited && NULL != named && NULL != cableway_selected_instead()) {
        cableway_refuse(CABLEWAY_ON_EVERY_PROCESS, "of pml = %s Open MPI tries the first name only", named);
    }
    awaited = false;
}

void cableway_refuse(enum cableway_occurrence occurrence, const char *format, ...)
{
    const uint16_t local_rank = (uint16_t) ompi_process_info.my_local_rank;
    char reason[1024];
    va_list arguments;
    if (CABLEWAY_ON_EVERY_PROCESS == occurrence && 0 != local_rank && UINT16_MAX != local_rank) {
        return;
    }
    va_start(arguments, format);
    vsnprintf(reason, sizeof reason, format, arguments);
    va_end(arguments);
    /* Not by opal_show_help: Open MPI 4.1.4 of Debian 12 loses such messages on their way to mpirun. */
    opal_output(0, is_required() ? "cableway: cannot run, and pml = cableway allows no other: %s"
                                 : "cableway: not used, another pml takes its place: %s", reason);
}
