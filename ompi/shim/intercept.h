/* What functions that stand before Open MPI's own use of the component: host copies of buffers. */
#ifndef CABLEWAY_INTERCEPT_H
#define CABLEWAY_INTERCEPT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Functions that return an int return MPI's error codes. Types and requests are MPI's handles. */
struct cableway_intercept {
    uint32_t version; /* 2 */
    bool (*present)(void);
    bool (*on_device)(const void *address, uint64_t len);
    int (*stage)(void **staging, void **base, size_t count, void *datatype, int access);
    int (*stage_bytes)(void **staging, void **base, size_t len, int access);
    int (*fill)(void *staging);
    /* After the call answered `code`: copies back, if that is success, and frees. */
    int (*finish)(void *staging, int code);
    /* Replaces a request by one that copies back as it completes, and then frees. */
    int (*request)(void **request, void *staging);
    void (*release)(void *staging);
};

/* The preload library exports this as cableway_intercept_attach. False: it is of another version, and serves nothing. */
typedef bool cableway_intercept_attach_fn(const struct cableway_intercept *component);

/* Redirects the program's calls to the component's functions, unless the parameter `intercept` forbids it. `code` is a
 * function of the library that has MPI's. */
void cableway_intercept_begin(const struct cableway_intercept *component, const void *code);
/* Undoes that. */
void cableway_intercept_end(void);

#endif
