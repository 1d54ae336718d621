/* The interface between the component and the intercepted MPI functions (ompi/intercept): host copies of device
 * buffers. */
#ifndef CABLEWAY_INTERCEPT_H
#define CABLEWAY_INTERCEPT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Functions that return an int return MPI's error codes. Datatypes and requests are MPI handles. */
struct cableway_intercept {
    uint32_t version; /* 2 */
    bool (*present)(void);
    bool (*on_device)(const void *address, uint64_t len);
    int (*stage)(void **staging, void **base, size_t count, void *datatype, int access);
    int (*stage_bytes)(void **staging, void **base, size_t len, int access);
    int (*fill)(void *staging);
    /* Ends a call that returned `code`: copies back if that is MPI_SUCCESS, and frees the copies. */
    int (*finish)(void *staging, int code);
    /* Replaces a request by one that copies back when it completes, and then frees the copies. */
    int (*request)(void **request, void *staging);
    void (*release)(void *staging);
};

/* The preload library exports a function of this type as cableway_intercept_attach. It returns false if the versions
 * differ; the library then passes every call on unchanged. */
typedef bool cableway_intercept_attach_fn(const struct cableway_intercept *component);

/* Redirects the program's MPI calls to the intercepted functions, unless the parameter `intercept` is false. `code` is
 * the address of any function of the MPI library. */
void cableway_intercept_begin(const struct cableway_intercept *component, const void *code);
/* Undoes the redirection. */
void cableway_intercept_end(void);

#endif
