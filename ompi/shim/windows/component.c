/* The osc component mca_osc_cableway. */
#include "windows.h"

#include "../exposed/exposed.h"

#include "ompi/mca/coll/coll.h"

#include <limits.h>
#include <stdlib.h>
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

/* Returns whether this process needs a window of ../exposed: it has device memory in the window, asks for some, or may
 * attach some. */
static bool needs_exposed(void **base, size_t size, const char *kind, int flavor)
{
    switch (flavor) {
    case MPI_WIN_FLAVOR_CREATE: return cableway_devices_present() && cableway_on_device(*base, size);
    case MPI_WIN_FLAVOR_DYNAMIC: return cableway_devices_present();
    case MPI_WIN_FLAVOR_ALLOCATE: return cableway_window_asks_for_device(kind);
    default: return false;
    }
}

/* On the heap, because an operation that this process no longer waits for still writes there. */
struct answers {
    int here[2], anywhere[2];
};

/* Finds out whether a window was created in any process, and whether that failed in any. The others may never answer a
 * process where it failed at once: they may wait for it within their component. So that process returns its error after
 * SECONDS, as it would without Cableway. */
static int agree_on_creation(bool created, ompi_communicator_t *communicator, bool *anywhere, bool *failed)
{
    enum { SECONDS = 60 };
    struct answers *answers = calloc(1, sizeof *answers);
    ompi_request_t *request = MPI_REQUEST_NULL;
    int over = 0;
    if (NULL == answers) {
        return OMPI_ERR_OUT_OF_RESOURCE;
    }
    answers->here[created ? 0 : 1] = 1;
    int rc = communicator->c_coll->coll_iallreduce(answers->here, answers->anywhere, 2, &ompi_mpi_int.dt,
                                                   &ompi_mpi_op_max.op, communicator, &request,
                                                   communicator->c_coll->coll_iallreduce_module);
    if (OMPI_SUCCESS != rc) {
        free(answers);
        return rc;
    }
    const double end = PMPI_Wtime() + SECONDS;
    do {
        rc = ompi_request_test(&request, &over, MPI_STATUS_IGNORE);
    } while (OMPI_SUCCESS == rc && !over && (created || PMPI_Wtime() < end));
    if (!over) {
        return OMPI_SUCCESS != rc ? rc : OMPI_ERR_TIMEOUT;
    }
    *anywhere = answers->anywhere[0];
    *failed = answers->anywhere[1];
    free(answers);
    return rc;
}

/* Has another component create the window. Sets *nowhere if that failed in all processes, which then may try another
 * way. If it failed in some of them, it fails in all. */
static int create_by(ompi_osc_base_component_t *other, ompi_win_t *win, void **base, size_t size, int unit,
                     ompi_communicator_t *communicator, opal_info_t *info, int flavor, int *model, bool *nowhere)
{
    int rc = other->osc_select(win, base, size, unit, communicator, info, flavor, model);
    bool created = OMPI_SUCCESS == rc, anywhere = true, failed = true;
    int agreed = agree_on_creation(created, communicator, &anywhere, &failed);
    *nowhere = OMPI_SUCCESS == agreed && !anywhere;
    if (*nowhere) {
        /* The component may have left functions there that take the window for its own. */
        (void) opal_hash_table_remove_all(&win->super.s_subscriber_table);
    }
    if (!created) {
        return rc;
    }
    if (OMPI_SUCCESS == agreed && failed) {
        /* It stays allocated: to free it takes all processes. */
        win->w_osc_module = NULL;
        return OMPI_ERR_NOT_SUPPORTED;
    }
    return agreed;
}

static int select_component(ompi_win_t *win, void **base, size_t size, int unit, ompi_communicator_t *communicator,
                            opal_info_t *info, int flavor, int *model)
{
    enum { EXPOSED, FOUND, MISSING, ANSWERS };
    char kind[MPI_MAX_INFO_VAL] = "";
    int here[ANSWERS] = {0}, anywhere[ANSWERS] = {0}, error = OMPI_ERR_NOT_SUPPORTED;
    ompi_osc_base_component_t *other = NULL;
    if (MPI_WIN_FLAVOR_ALLOCATE == flavor) {
        cableway_info_value(info, "cableway_memory_kind", kind, sizeof kind);
    }
    here[EXPOSED] = needs_exposed(base, size, kind, flavor);
    if (!here[EXPOSED]) {
        other = best_other_component(win, base, size, unit, communicator, info, flavor, &error);
        here[NULL != other ? FOUND : MISSING] = 1;
    }
    int rc = cableway_exposed_largest(here, anywhere, ANSWERS, communicator);
    if (OMPI_SUCCESS != rc) {
        return rc;
    }
    if (!anywhere[EXPOSED]) {
        bool nowhere = !anywhere[FOUND];
        if (anywhere[FOUND] && !anywhere[MISSING]) {
            error = create_by(other, win, base, size, unit, communicator, info, flavor, model, &nowhere);
            if (OMPI_SUCCESS == error) {
                error = cableway_window_add(win);
                if (OMPI_SUCCESS == error) {
                    cableway_window_functions(win->w_osc_module);
                }
                return error;
            }
        }
        /* There is no second way to memory that processes share. */
        if (!nowhere || MPI_WIN_FLAVOR_SHARED == flavor) {
            return error;
        }
    }
    return cableway_exposed_create(win, base, size, unit, communicator, kind, flavor, model);
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
