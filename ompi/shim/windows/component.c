/* The osc component mca_osc_cableway. */
#include "windows.h"

#include "../exposed/exposed.h"

#include "ompi/mca/coll/coll.h"

#include <limits.h>
#include <string.h>

extern unsigned char mca_osc_cableway_component[];

static int init(bool progress_threads, bool threads)
{
    (void) progress_threads, (void) threads;
    return OMPI_SUCCESS;
}

static int finalize(void)
{
    return OMPI_SUCCESS;
}

static int query(ompi_win_t *win, void **base, size_t size, int unit, ompi_communicator_t *communicator,
                 opal_info_t *info, int flavor)
{
    (void) win, (void) base, (void) size, (void) unit, (void) communicator, (void) info, (void) flavor;
    return cableway_is_selected() ? INT_MAX : -1;
}

/* Returns the other component with the highest priority for a window. */
static ompi_osc_base_component_t *best_other_component(ompi_win_t *win, void **base, size_t size, int unit,
                                                     ompi_communicator_t *communicator, opal_info_t *info, int flavor,
                                                     int *error)
{
    ompi_osc_base_component_t *best = NULL;
    mca_base_component_list_item_t *item;
    int best_priority = -1;
    *error = OMPI_ERR_NOT_SUPPORTED;
    OPAL_LIST_FOREACH(item, &ompi_osc_base_framework.framework_components, mca_base_component_list_item_t) {
        ompi_osc_base_component_t *other = (ompi_osc_base_component_t *) item->cli_component;
        if ((unsigned char *) other == mca_osc_cableway_component) {
            continue;
        }
        int priority = other->osc_query(win, base, size, unit, communicator, info, flavor);
        if (MPI_WIN_FLAVOR_SHARED == flavor && OMPI_ERR_RMA_SHARED == priority) {
            *error = OMPI_ERR_RMA_SHARED;
            return NULL;
        }
        if (priority > best_priority) {
            best_priority = priority;
            best = other;
        }
    }
    return best;
}

/* Returns the largest of the values of all processes in *anywhere. */
static int largest(int here, int *anywhere, ompi_communicator_t *communicator)
{
    return communicator->c_coll->coll_allreduce(&here, anywhere, 1, &ompi_mpi_int.dt, &ompi_mpi_op_max.op, communicator,
                                                communicator->c_coll->coll_allreduce_module);
}

/* Returns the kinds of memory that the program asks for, or an empty string. `value` holds them. */
static const char *asked_kinds(opal_info_t *info, char value[MPI_MAX_INFO_VAL])
{
    /* The base of the program's object, which begins with it. */
    MPI_Info whole = (MPI_Info) info;
    int found = 0;
    if (NULL != whole && MPI_INFO_NULL != whole) {
        (void) PMPI_Info_get(whole, "mpi_memory_alloc_kinds", MPI_MAX_INFO_VAL - 1, value, &found);
    }
    return found ? value : "";
}

/* Sets *ours if a process has device memory in the window, asks for some, or may attach some. All processes get the same
 * answer. */
static int agree(void **base, size_t size, const char *kinds, int flavor, ompi_communicator_t *communicator, bool *ours)
{
    int here = 0, anywhere = 0, rc;
    if (MPI_WIN_FLAVOR_CREATE == flavor) {
        here = cableway_devices_present() && cableway_on_device(*base, size);
    } else if (MPI_WIN_FLAVOR_DYNAMIC == flavor) {
        here = cableway_devices_present();
    } else if (MPI_WIN_FLAVOR_ALLOCATE == flavor) {
        here = cableway_window_asks_for_device(kinds);
    } else {
        *ours = false;
        return OMPI_SUCCESS;
    }
    rc = largest(here, &anywhere, communicator);
    *ours = 0 != anywhere;
    return rc;
}

/* Has another component create the window. Sets *nowhere if that failed in all processes, which then may try another way. */
static int create_by_others(ompi_win_t *win, void **base, size_t size, int unit, ompi_communicator_t *communicator,
                            opal_info_t *info, int flavor, int *model, bool *nowhere)
{
    int rc, created, anywhere = 0;
    ompi_osc_base_component_t *other = best_other_component(win, base, size, unit, communicator, info, flavor, &rc);
    if (NULL != other) {
        rc = other->osc_select(win, base, size, unit, communicator, info, flavor, model);
    }
    created = OMPI_SUCCESS == rc;
    int agreed = largest(created, &anywhere, communicator);
    *nowhere = OMPI_SUCCESS == agreed && !anywhere;
    return created ? agreed : rc;
}

static int select_component(ompi_win_t *win, void **base, size_t size, int unit, ompi_communicator_t *communicator,
                            opal_info_t *info, int flavor, int *model)
{
    char value[MPI_MAX_INFO_VAL];
    const char *kinds = asked_kinds(info, value);
    bool ours = false;
    int rc = agree(base, size, kinds, flavor, communicator, &ours);
    if (OMPI_SUCCESS == rc && !ours) {
        bool nowhere = false;
        rc = create_by_others(win, base, size, unit, communicator, info, flavor, model, &nowhere);
        if (OMPI_SUCCESS == rc) {
            return cableway_window_add(win);
        }
        /* For memory that processes share there is no second way. */
        ours = nowhere && MPI_WIN_FLAVOR_SHARED != flavor;
    }
    return ours ? cableway_exposed_create(win, base, size, unit, communicator, kinds, flavor, model) : rc;
}

static const ompi_osc_base_component_t component = {
    .osc_version = {
        OMPI_OSC_BASE_VERSION_3_0_0,
        .mca_component_name = "cableway",
        MCA_BASE_MAKE_VERSION(component, 0, 1, 0),
    },
    .osc_data = {MCA_BASE_METADATA_PARAM_NONE},
    .osc_init = init,
    .osc_query = query,
    .osc_select = select_component,
    .osc_finalize = finalize,
};

CABLEWAY_EXPORT_COMPONENT(mca_osc_cableway_component, component)
