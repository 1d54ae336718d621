/* What the preloaded library calls of the component. It is found by its one exported function, of which the component
 * is told nothing else; a library of another version ignores the call. */
#ifndef CABLEWAY_PRELOAD_H
#define CABLEWAY_PRELOAD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Functions that return an int return MPI's error codes. Types and requests are MPI's handles. */
struct cableway_preload {
    uint32_t version; /* 1 */
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

typedef void cableway_preload_attach_fn(const struct cableway_preload *component);

#endif
