/* The windows of this process and the host copies of their pending operations. */
#include "windows.h"

struct pending {
    opal_list_item_t super;
    int target;
    void *staging;
};
typedef struct pending pending_t;
static OBJ_CLASS_INSTANCE(pending_t, opal_list_item_t, NULL, NULL);

static void construct(cableway_window_t *window)
{
    OBJ_CONSTRUCT(&window->lock, opal_mutex_t);
    OBJ_CONSTRUCT(&window->pending, opal_list_t);
}

static void destruct(cableway_window_t *window)
{
    opal_list_item_t *item;
    while (NULL != (item = opal_list_remove_first(&window->pending))) {
        cableway_staging_free(((pending_t *) item)->staging);
        OBJ_RELEASE(item);
    }
    OBJ_DESTRUCT(&window->pending);
    OBJ_DESTRUCT(&window->lock);
}

OBJ_CLASS_INSTANCE(cableway_window_t, opal_list_item_t, construct, destruct);

static opal_mutex_t lock = OPAL_MUTEX_STATIC_INIT;
static opal_list_t *windows;
/* The number of windows removed so far. It invalidates the threads' caches of the last window. */
static volatile int32_t removed;
static _Thread_local cableway_window_t *last;
static _Thread_local int32_t last_seen;

cableway_window_t *cableway_window_of(ompi_win_t *win)
{
    cableway_window_t *window, *found = NULL;
    if (OPAL_LIKELY(NULL != last && last_seen == removed && last->win == win)) {
        return last;
    }
    opal_mutex_atomic_lock(&lock);
    OPAL_LIST_FOREACH(window, windows, cableway_window_t) {
        if (window->win == win) {
            found = window;
            break;
        }
    }
    last_seen = removed;
    opal_mutex_atomic_unlock(&lock);
    last = found;
    return found;
}

int cableway_window_add(ompi_win_t *win)
{
    cableway_window_t *window = OBJ_NEW(cableway_window_t);
    if (NULL == window) {
        return OMPI_ERR_OUT_OF_RESOURCE;
    }
    window->win = win;
    window->lower = *win->w_osc_module;
    opal_mutex_atomic_lock(&lock);
    if (NULL == windows) {
        windows = OBJ_NEW(opal_list_t);
    }
    opal_list_append(windows, &window->super);
    opal_mutex_atomic_unlock(&lock);
    return OMPI_SUCCESS;
}

void cableway_window_remove(cableway_window_t *window)
{
    opal_mutex_atomic_lock(&lock);
    opal_list_remove_item(windows, &window->super);
    removed++;
    opal_mutex_atomic_unlock(&lock);
    OBJ_RELEASE(window);
}

int cableway_window_track(cableway_window_t *window, int target, void *staging)
{
    pending_t *pending = OBJ_NEW(pending_t);
    if (NULL == pending) {
        return OMPI_ERR_OUT_OF_RESOURCE;
    }
    pending->target = target;
    pending->staging = staging;
    opal_mutex_atomic_lock(&window->lock);
    opal_list_append(&window->pending, &pending->super);
    opal_mutex_atomic_unlock(&window->lock);
    return OMPI_SUCCESS;
}

int cableway_window_complete(cableway_window_t *window, int target)
{
    pending_t *pending, *after;
    int rc = OMPI_SUCCESS;
    if (OPAL_LIKELY(opal_list_is_empty(&window->pending))) {
        return rc;
    }
    opal_mutex_atomic_lock(&window->lock);
    OPAL_LIST_FOREACH_SAFE(pending, after, &window->pending, pending_t) {
        if (CABLEWAY_EVERY_TARGET == target || pending->target == target) {
            opal_list_remove_item(&window->pending, &pending->super);
            int drained = cableway_staging_finish(pending->staging, OMPI_SUCCESS);
            rc = OMPI_SUCCESS == rc ? drained : rc;
            OBJ_RELEASE(pending);
        }
    }
    opal_mutex_atomic_unlock(&window->lock);
    return rc;
}
