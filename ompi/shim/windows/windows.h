/* One-sided operations on windows in host memory, with origin and result buffers in device memory. Windows in device
 * memory are in ../exposed.
 *
 * Open MPI's osc components access local buffers with the CPU. This component has the highest priority. It lets the
 * best other component create a window in host memory, and then replaces functions in the window's table. If the
 * other component can create the window in no process, the window becomes one of ../exposed. The replacements stage
 * device buffers. A host copy lives until the synchronization that completes the operation, which copies results to the
 * device. */
#ifndef CABLEWAY_WINDOWS_H
#define CABLEWAY_WINDOWS_H

#include "shim.h"

#include "ompi/mca/osc/base/base.h"
#include "ompi/mca/osc/osc.h"
#include "ompi/op/op.h"
#include "ompi/win/win.h"

#include "../staging/staged.h"

/* The state of one window. */
struct cableway_window {
    opal_list_item_t super;
    ompi_win_t *win;
    ompi_osc_base_module_t lower; /* the functions that this component replaced */
    opal_mutex_t lock;
    opal_list_t pending; /* host copies of operations that no synchronization has completed yet */
};
typedef struct cableway_window cableway_window_t;
OBJ_CLASS_DECLARATION(cableway_window_t);

/* Returns the state of a window that cableway_window_add has added. */
cableway_window_t *cableway_window_of(ompi_win_t *win);
/* Adds a window, with the functions that it has now. */
int cableway_window_add(ompi_win_t *win);
/* Frees the state of a window and its host copies. */
void cableway_window_remove(cableway_window_t *window);

/* Keeps a host copy until operations to `target` complete. */
int cableway_window_track(cableway_window_t *window, int target, void *staging);
enum { CABLEWAY_EVERY_TARGET = -1 };
/* Copies back the results of all operations to `target`, which have completed, and frees their host copies. */
int cableway_window_complete(cableway_window_t *window, int target);

/* Replaces the functions of a window that was added. */
void cableway_window_functions(ompi_osc_base_module_t *table);

#endif
