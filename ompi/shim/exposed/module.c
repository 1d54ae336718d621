/* Creates and frees windows in device memory. */
#include "exposed.h"

#include <stdlib.h>

static int win_shared_query(ompi_win_t *win, int rank, size_t *size, int *unit, void *base)
{
    (void) win, (void) rank, (void) size, (void) unit, (void) base;
    return MPI_ERR_RMA_FLAVOR;
}

static int win_attach(ompi_win_t *win, void *base, size_t size)
{
    return cableway_exposed_error(cableway_exposed_attach(cableway_exposed_of(win)->window, base, size));
}

static int win_detach(ompi_win_t *win, const void *base)
{
    return cableway_exposed_error(cableway_exposed_detach(cableway_exposed_of(win)->window, base));
}

static int win_barrier(const ompi_communicator_t *communicator)
{
    return communicator->c_coll->coll_barrier((ompi_communicator_t *) communicator,
                                              communicator->c_coll->coll_barrier_module);
}

/* Frees a window's description and the memory that it has allocated. */
static void win_discard(cableway_exposed_t *self)
{
    if (NULL != self && NULL != self->memory) {
        cableway_window_deallocate(self->memory);
    }
    free(self);
}

static int win_free(ompi_win_t *win)
{
    cableway_exposed_t *self = cableway_exposed_of(win);
    int rc = cableway_exposed_error(cableway_exposed_finish(self->window));
    if (MPI_ERR_RMA_SYNC == rc) {
        return rc;
    }
    /* After it no member has anything to ask. */
    int synchronized = win_barrier(self->communicator);
    rc = OMPI_SUCCESS == rc ? synchronized : rc;
    cableway_exposed_free(self->window);
    (void) ompi_comm_free(&self->communicator);
    if (OMPI_SUCCESS != rc) {
        /* Operations of the others may still use the memory, so it stays allocated. */
        self->memory = NULL;
    }
    win_discard(self);
    win->w_osc_module = NULL;
    return rc;
}

static int win_fence(int assertion, ompi_win_t *win)
{
    cableway_exposed_t *self = cableway_exposed_of(win);
    int rc = cableway_exposed_error(cableway_exposed_fence(self->window, 0 == (assertion & MPI_MODE_NOSUCCEED)));
    if (MPI_ERR_RMA_SYNC == rc) {
        return rc;
    }
    /* The others wait, whatever has failed here. */
    int synchronized = win_barrier(self->communicator);
    return OMPI_SUCCESS == rc ? synchronized : rc;
}

int cableway_exposed_largest(const int *here, int *anywhere, int count, ompi_communicator_t *communicator)
{
    return communicator->c_coll->coll_allreduce(here, anywhere, count, &ompi_mpi_int.dt, &ompi_mpi_op_max.op,
                                                communicator, communicator->c_coll->coll_allreduce_module);
}

/* Fails in all processes if one has failed. */
static int win_agree(int rc, ompi_communicator_t *communicator)
{
    int failed = OMPI_SUCCESS != rc, any = 1;
    int reduced = cableway_exposed_largest(&failed, &any, 1, communicator);
    if (OMPI_SUCCESS != rc) {
        return rc;
    }
    return OMPI_SUCCESS != reduced ? reduced : any ? OMPI_ERR_OUT_OF_RESOURCE : OMPI_SUCCESS;
}

/* Sets *memory to what the window exposes in this process. */
static int win_memory(cableway_exposed_t *self, void **base, size_t size, const char *kind, int flavor, void **memory)
{
    if (MPI_WIN_FLAVOR_ALLOCATE == flavor) {
        *base = NULL;
        if (0 != size && NULL == (self->memory = cableway_window_allocate(kind, size, base))) {
            return OMPI_ERR_OUT_OF_RESOURCE;
        }
    }
    /* A dynamic window has no memory yet, and `base` is NULL. */
    *memory = NULL != base ? *base : NULL;
    return OMPI_SUCCESS;
}

int cableway_exposed_create(ompi_win_t *win, void **base, size_t size, int unit, ompi_communicator_t *communicator,
                            const char *kind, int flavor, int *model)
{
    cableway_exposed_t *self = calloc(1, sizeof *self);
    ompi_communicator_t *own = MPI_COMM_NULL;
    int rc = ompi_comm_dup(communicator, &own);
    if (OMPI_SUCCESS != rc) {
        free(self);
        return rc;
    }
    rc = OMPI_ERR_OUT_OF_RESOURCE;
    void *memory = NULL;
    if (NULL != self && OMPI_SUCCESS == win_memory(self, base, size, kind, flavor, &memory)) {
        self->communicator = own;
        self->window = cableway_exposed_new(cableway_handle(own), memory, size, (uint32_t) unit,
                                            MPI_WIN_FLAVOR_DYNAMIC == flavor);
        rc = NULL != self->window ? OMPI_SUCCESS : rc;
    }
    rc = win_agree(rc, own);
    if (OMPI_SUCCESS != rc) {
        if (NULL != self && NULL != self->window) {
            cableway_exposed_free(self->window);
        }
        (void) ompi_comm_free(&own);
        win_discard(self);
        return rc;
    }
    self->super.osc_win_shared_query = win_shared_query;
    self->super.osc_win_attach = win_attach;
    self->super.osc_win_detach = win_detach;
    self->super.osc_free = win_free;
    self->super.osc_fence = win_fence;
    cableway_exposed_operations(&self->super);
    cableway_exposed_synchronization(&self->super);
    win->w_osc_module = &self->super;
    *model = MPI_WIN_UNIFIED;
    return OMPI_SUCCESS;
}
