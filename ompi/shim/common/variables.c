/* Registers Cableway's parameters as MCA parameters (`ompi_info --param pml cableway --level 9`), and its counters as
 * MPI_T performance variables. */
#include "shim.h"

#include "opal/mca/base/mca_base_pvar.h"
#include "opal/mca/base/mca_base_var.h"

#include <stdlib.h>
#include <string.h>

int cableway_priority = 60;
static int verbose;
/* The values of the parameters, in the order of the table. Open MPI writes the array and frees the strings when it
 * deregisters the variables, which may happen before or after it closes the component. So the array is never freed. */
static char **values;
/* Open MPI's index of each parameter. */
static int *indices;

static int counter_value(const mca_base_pvar_t *variable, void *value, void *object)
{
    (void) object;
    *(unsigned long long *) value =
        cableway_is_selected() ? cableway_counter_value((size_t) (uintptr_t) variable->ctx) : 0;
    return OMPI_SUCCESS;
}

/* The context is the index of the queue: posted receives or unexpected messages. */
static int queue_value(const mca_base_pvar_t *variable, void *value, void *object)
{
    uint32_t lengths[2] = {0, 0};
    ompi_communicator_t *communicator = object;
    if (cableway_is_selected() && NULL != communicator->c_pml_comm) {
        cableway_queue_lengths(cableway_handle(communicator), &lengths[0], &lengths[1]);
    }
    *(unsigned *) value = lengths[(uintptr_t) variable->ctx];
    return OMPI_SUCCESS;
}

/* Tells Open MPI that a bound handle has one value. */
static int queue_bound(mca_base_pvar_t *variable, mca_base_pvar_event_t event, void *object, int *count)
{
    (void) variable, (void) object;
    if (MCA_BASE_PVAR_HANDLE_BIND == event) {
        *count = 1;
    }
    return OMPI_SUCCESS;
}

static void register_performance_variables(const mca_base_component_t *self)
{
    const mca_base_pvar_flag_t flags = MCA_BASE_PVAR_FLAG_READONLY | MCA_BASE_PVAR_FLAG_CONTINUOUS;
    const char *name, *help;
    for (size_t i = 0; cableway_counter_row(i, &name, &help); i++) {
        (void) mca_base_component_pvar_register(self, name, help, OPAL_INFO_LVL_4, MCA_BASE_PVAR_CLASS_COUNTER,
                                                MCA_BASE_VAR_TYPE_UNSIGNED_LONG_LONG, NULL, MCA_BASE_VAR_BIND_NO_OBJECT,
                                                flags, counter_value, NULL, NULL, (void *) (uintptr_t) i);
    }
    (void) mca_base_component_pvar_register(self, "posted_receives", "Posted receives that wait for a message",
                                            OPAL_INFO_LVL_4, MCA_BASE_PVAR_CLASS_SIZE, MCA_BASE_VAR_TYPE_UNSIGNED_INT,
                                            NULL, MCA_BASE_VAR_BIND_MPI_COMM, flags, queue_value, NULL, queue_bound,
                                            (void *) 0);
    (void) mca_base_component_pvar_register(self, "unexpected_messages", "Unexpected messages that wait for a receive",
                                            OPAL_INFO_LVL_4, MCA_BASE_PVAR_CLASS_SIZE, MCA_BASE_VAR_TYPE_UNSIGNED_INT,
                                            NULL, MCA_BASE_VAR_BIND_MPI_COMM, flags, queue_value, NULL, queue_bound,
                                            (void *) 1);
}

int cableway_variables_register(const mca_base_component_t *self)
{
    const char *name, *value, *help;
    size_t rows = 0;

    (void) mca_base_component_var_register(self, "priority", "Priority of the component", MCA_BASE_VAR_TYPE_INT, NULL,
                                           0, MCA_BASE_VAR_FLAG_SETTABLE, OPAL_INFO_LVL_9,
                                           MCA_BASE_VAR_SCOPE_READONLY, &cableway_priority);
    (void) mca_base_component_var_register(self, "verbose",
                                           "Log level: 0 warnings, 1 decisions and their reasons, 10 debug, 100 trace",
                                           MCA_BASE_VAR_TYPE_INT, NULL, 0, MCA_BASE_VAR_FLAG_SETTABLE, OPAL_INFO_LVL_3,
                                           MCA_BASE_VAR_SCOPE_LOCAL, &verbose);
    (void) mca_base_component_var_register(self, "explain",
                                           "Whether rank 0 prints the protocol for each message size, and the reason",
                                           MCA_BASE_VAR_TYPE_BOOL, NULL, 0, MCA_BASE_VAR_FLAG_SETTABLE, OPAL_INFO_LVL_3,
                                           MCA_BASE_VAR_SCOPE_LOCAL, &cableway_explain_enabled);
    while (cableway_parameter_row(rows, &name, &value, &help)) {
        rows++;
    }
    if (NULL == values && NULL == (values = calloc(rows, sizeof *values))) {
        return OMPI_ERR_OUT_OF_RESOURCE;
    }
    if (NULL == indices && NULL == (indices = calloc(rows, sizeof *indices))) {
        return OMPI_ERR_OUT_OF_RESOURCE;
    }
    for (size_t i = 0; i < rows; i++) {
        (void) cableway_parameter_row(i, &name, &value, &help);
        values[i] = (char *) value;
        indices[i] = mca_base_component_var_register(self, name, help, MCA_BASE_VAR_TYPE_STRING, NULL, 0, 0,
                                                     OPAL_INFO_LVL_4, MCA_BASE_VAR_SCOPE_READONLY, &values[i]);
    }
    register_performance_variables(self);
    return OMPI_SUCCESS;
}

/* Returns whether the user set a parameter, even to its default value. */
static bool is_set(int index)
{
    mca_base_var_source_t source = MCA_BASE_VAR_SOURCE_DEFAULT;
    return 0 <= index && OPAL_SUCCESS == mca_base_var_get_value(index, NULL, &source, NULL)
           && MCA_BASE_VAR_SOURCE_DEFAULT != source;
}

const char *cableway_variables_apply(void)
{
    const char *name, *value, *help;
    cableway_set_verbosity(verbose);
    for (size_t i = 0; cableway_parameter_row(i, &name, &value, &help); i++) {
        const char *reason;
        if (NULL == values[i] || (0 == strcmp(values[i], value) && !is_set(indices[i]))) {
            continue;
        }
        if (0 != cableway_set_parameter(name, values[i], &reason)) {
            return reason;
        }
    }
    return NULL;
}
