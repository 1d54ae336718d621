/* One-sided operations from and to device memory of this process.
 *
 * Open MPI has a component for each way of reaching another process's memory, and each touches its own process's buffers
 * with the CPU. Ours is asked first, lets the best of the others serve the window, and puts its own functions into the
 * window's table, before theirs. A device buffer is replaced by a host copy, which lives until the synchronisation that
 * ends the operation; what was fetched is then copied to the device. */
#ifndef CABLEWAY_WINDOWS_H
#define CABLEWAY_WINDOWS_H

#include "component.h"

#include "ompi/mca/osc/base/base.h"
#include "ompi/mca/osc/osc.h"
#include "ompi/op/op.h"
#include "ompi/win/win.h"

#include "../staging/staged.h"

/* What is kept of a window. */
struct cableway_window {
    opal_list_item_t super;
    ompi_win_t *win;
    ompi_osc_base_module_t under; /* the functions that ours replaced */
    opal_mutex_t lock;
    opal_list_t pending; /* operations on host copies that no synchronisation has ended yet */
};
typedef struct cableway_window cableway_window_t;
OBJ_CLASS_DECLARATION(cableway_window_t);

/* Of a window that was adopted. */
cableway_window_t *cableway_window_of(ompi_win_t *win);
int cableway_window_adopt(ompi_win_t *win);
/* Forgets the window, and every host copy with it. */
void cableway_window_forget(cableway_window_t *window);

/* Keeps a host copy until an operation to `target` has ended. */
int cableway_window_keep(cableway_window_t *window, int target, void *staging);
enum { CABLEWAY_EVERY_TARGET = -1 };
/* The operations to `target` have ended: copies back what they fetched, and frees the copies. */
int cableway_window_settle(cableway_window_t *window, int target);

/* Writes our functions over those of the window's own table. */
void cableway_window_functions(ompi_osc_base_module_t *table);

#endif
