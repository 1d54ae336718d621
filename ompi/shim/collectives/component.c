/* The coll component mca_coll_cableway and its modules.
 *
 * Open MPI enables modules in ascending priority, and each replaces functions of the previous ones. This component's
 * module has the highest priority. It saves the functions that it replaces, and calls them. */
#include "collectives.h"
#include "operations.h"

#include "ompi/mca/coll/base/coll_tags.h"

#include <string.h>

enum { PRIORITY = 95 };

/* The engine's collectives use the tags below (coll/src/run/tags.rs). */
_Static_assert(MCA_COLL_BASE_TAG_NEIGHBOR_END > -(1 << 30) - 2048, "Open MPI has tags that the engine uses");

static int init_query(bool progress_threads, bool threads)
{
    (void) progress_threads, (void) threads;
    return OMPI_SUCCESS;
}

static uint64_t first_of(ompi_group_t *group)
{
    opal_process_name_t name = ompi_group_get_proc_name(group, 0);
    return (uint64_t) name.jobid << 32 | name.vpid;
}

/* Of the two groups of an intercommunicator, which have no process in common, the first one is that whose rank 0 has the
 * lower name. */
static struct cableway_between groups_of(ompi_communicator_t *communicator)
{
    ompi_communicator_t *own = communicator->c_local_comm;
    struct cableway_between between = {.first = false};
    if (OMPI_COMM_IS_INTER(communicator)) {
        between.first = first_of(communicator->c_local_group) < first_of(communicator->c_remote_group);
        between.local = (uint32_t) ompi_comm_size(communicator);
        between.own = NULL != own ? cableway_handle(own) : NULL;
    }
    return between;
}

static int enable(mca_coll_base_module_t *module, ompi_communicator_t *communicator)
{
    cableway_collectives_t *self = (cableway_collectives_t *) module;
    self->lower = *communicator->c_coll;
    /* Leave out what no lower module implements. */
#define KEEP(function)                                                                                                 \
    if (NULL == self->lower.coll_##function) {                                                                         \
        self->lower.coll_##function##_module = NULL;                                                                   \
        self->super.coll_##function = NULL;                                                                            \
    } else if (NULL != self->lower.coll_##function##_module) {                                                         \
        OBJ_RETAIN(self->lower.coll_##function##_module);                                                              \
    }
#define EACH(name) KEEP(name) KEEP(i##name) KEEP(name##_init)
    CABLEWAY_COLLECTIVES(EACH)
    KEEP(reduce_local)
#undef EACH
    if (NULL != cableway_handle(communicator)) {
        struct cableway_between between = groups_of(communicator);
        self->members = cableway_collectives_new(cableway_handle(communicator),
                                                 OMPI_COMM_IS_INTER(communicator) ? &between : NULL);
    }
    return OMPI_SUCCESS;
}

static void construct(cableway_collectives_t *self)
{
    memset(&self->lower, 0, sizeof self->lower);
    self->members = NULL;
    self->super.coll_module_enable = enable;
    cableway_collectives_functions(&self->super);
}

static void destruct(cableway_collectives_t *self)
{
#define RELEASE(function)                                                                                              \
    if (NULL != self->lower.coll_##function##_module) {                                                                \
        OBJ_RELEASE(self->lower.coll_##function##_module);                                                             \
    }
#define EACH(name) RELEASE(name) RELEASE(i##name) RELEASE(name##_init)
    CABLEWAY_COLLECTIVES(EACH)
    RELEASE(reduce_local)
#undef EACH
    if (NULL != self->members) {
        cableway_collectives_free(self->members, !cableway_is_finalizing());
    }
}

OBJ_CLASS_INSTANCE(cableway_collectives_t, mca_coll_base_module_t, construct, destruct);

/* Reports once if the PML was selected from another object. Each object has an engine of its own, and only the PML's
 * runs. */
static void report_copied_object(void)
{
    static bool reported;
    if (!reported && NULL == cableway_other_pml_selected()) {
        reported = true;
        opal_output(0, "cableway: collectives and one-sided operations do not support device memory: "
                       "mca_coll_cableway.so and mca_osc_cableway.so are copies of mca_pml_cableway.so; replace them by "
                       "links to it");
    }
}

static mca_coll_base_module_t *communicator_query(ompi_communicator_t *communicator, int *priority)
{
    (void) communicator;
    /* With another PML the engine does not run. */
    if (!cableway_is_selected()) {
        report_copied_object();
        return NULL;
    }
    *priority = PRIORITY;
    return (mca_coll_base_module_t *) OBJ_NEW(cableway_collectives_t);
}

static const mca_coll_base_component_t component = {
    .collm_version = {
        CABLEWAY_COLL_VERSION,
        .mca_component_name = "cableway",
        MCA_BASE_MAKE_VERSION(component, 0, 1, 0),
    },
    .collm_data = {MCA_BASE_METADATA_PARAM_NONE},
    .collm_init_query = init_query,
    .collm_comm_query = communicator_query,
};

extern unsigned char mca_coll_cableway_component[];
CABLEWAY_EXPORT_COMPONENT(mca_coll_cableway_component, component)
