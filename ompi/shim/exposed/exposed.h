/* Windows in device memory: a module of the osc framework over the engine's windows.
 *
 * Open MPI's components access a window by the CPU. So this module serves each window that has device memory in any
 * process, and each dynamic one where a process has devices. Attaching is local, so that nobody knows before. It serves
 * windows in host memory, too, if the component that Open MPI would choose cannot create them.
 *
 * The first part is implemented in Rust (src/windows/). Its functions return an enum cableway_code, or one of
 * enum cableway_window_code. */
#ifndef CABLEWAY_EXPOSED_H
#define CABLEWAY_EXPOSED_H

#include "shim.h"

#include "ompi/mca/osc/base/base.h"
#include "ompi/mca/osc/osc.h"
#include "ompi/op/op.h"
#include "ompi/win/win.h"

#include "../staging.h"

enum cableway_window_code {
    CABLEWAY_WINDOW_RANGE = 100, /* outside the target's memory */
    CABLEWAY_WINDOW_EPOCH,       /* a call out of order */
    CABLEWAY_WINDOW_ATTACH,      /* memory that cannot be attached or detached */
    CABLEWAY_WINDOW_OPERATION,   /* no such reduction of such elements */
};

enum cableway_change {
    CABLEWAY_PUT,
    CABLEWAY_GET,
    CABLEWAY_ACCUMULATE,
    CABLEWAY_GET_ACCUMULATE,
    CABLEWAY_COMPARE_SWAP,
};

enum cableway_combine { CABLEWAY_COMBINE_REPLACE, CABLEWAY_COMBINE_KEEP, CABLEWAY_COMBINE_REDUCE };

/* An operation. `reach` is the target's memory, as offsets from the displacement. */
struct cableway_window_access {
    int change, combine;
    uint32_t target, operation, element;
    int64_t displacement;
    struct cableway_buffer reach, origin, expected, result;
};

/* Creates a window of the members of a communicator that carries nothing else but collectives. `dynamic` windows have no
 * memory yet. Returns NULL on failure, which is logged. */
void *cableway_exposed_new(void *communicator, void *address, uint64_t len, uint32_t unit, bool dynamic);
/* Ends a window after all members have finished. */
void cableway_exposed_free(void *window);
/* Returns whether the value of the info key cableway_memory_kind asks for memory that a device's driver allocates. A value
 * that names no kind does, too, and the allocation fails. */
bool cableway_window_asks_for_device(const char *kind);
/* Allocates memory of that kind, which is on the calling thread's current device unless it is host memory. Returns NULL on
 * failure, which is logged. */
void *cableway_window_allocate(const char *kind, uint64_t len, void **address);
void cableway_window_deallocate(void *memory);
/* Starts an operation. If `owner` is not NULL, shim_window_completed is called once it is complete, perhaps during this
 * call. */
int cableway_exposed_start(void *window, const struct cableway_window_access *access, void *owner);
int cableway_exposed_attach(void *window, void *address, uint64_t len);
int cableway_exposed_detach(void *window, const void *address);
int cableway_exposed_fence(void *window, bool followed);
/* `ranks` are those of the communicator. */
int cableway_exposed_begin(void *window, const int *ranks, size_t count);
int cableway_exposed_end(void *window);
int cableway_exposed_post(void *window, const int *ranks, size_t count);
int cableway_exposed_wait(void *window);
int cableway_exposed_test(void *window, bool *over);
int cableway_exposed_lock(void *window, uint32_t target, bool exclusive);
int cableway_exposed_unlock(void *window, uint32_t target);
int cableway_exposed_lock_all(void *window);
int cableway_exposed_unlock_all(void *window);
int cableway_exposed_flush(void *window, uint32_t target);
int cableway_exposed_flush_all(void *window);
/* Completes what is left before all members free the window. */
int cableway_exposed_finish(void *window);

/* --- implemented by the shim --- */

void shim_window_completed(void *owner, int code);
/* Returns the packed size of an element that an operation combines, or 0 if MPI has no such combination. Both numbers
 * come from a peer: they are Fortran handles, which are alike in all processes. */
size_t shim_window_element_size(uint32_t operation, uint32_t element);
/* Returns whether kernels combine such elements, packed, and sets their numbers of the operation and the elements. */
bool shim_window_kernel(uint32_t operation, uint32_t element, int *of_kernel, int *element_of_kernel);
/* Combines `count` packed elements in host memory, which are aligned. */
bool shim_window_reduce(uint32_t operation, uint32_t element, void *into, const void *from, size_t count);

/* --- within the shim --- */

struct cableway_exposed {
    ompi_osc_base_module_t super;
    ompi_communicator_t *communicator; /* the window's own */
    void *window;
    void *memory; /* what the window has allocated, or NULL */
};
typedef struct cableway_exposed cableway_exposed_t;

static inline cableway_exposed_t *cableway_exposed_of(const ompi_win_t *win)
{
    return (cableway_exposed_t *) win->w_osc_module;
}

/* Creates a window, and sets `*base` if it is to allocate the memory, which is that of a device if `kind` asks for
 * it. All members of `communicator` make this call. */
int cableway_exposed_create(ompi_win_t *win, void **base, size_t size, int unit, ompi_communicator_t *communicator,
                            const char *kind, int flavor, int *model);
int cableway_exposed_error(int code);
/* Sets each of `count` values of `anywhere` to the largest one among the processes. */
int cableway_exposed_largest(const int *here, int *anywhere, int count, ompi_communicator_t *communicator);
/* Fill a window's table. */
void cableway_exposed_operations(ompi_osc_base_module_t *table);
void cableway_exposed_synchronization(ompi_osc_base_module_t *table);
/* Creates an active request for an operation that is about to start. */
ompi_request_t *cableway_exposed_request(ompi_win_t *win);
/* Frees the request of an operation that could not start. */
void cableway_exposed_request_discard(ompi_request_t *request);

#endif
