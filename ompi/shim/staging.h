/* Host copies of device buffers, implemented in Rust, for the parts of Open MPI that support host memory only. */
#ifndef CABLEWAY_STAGING_H
#define CABLEWAY_STAGING_H

#include "cableway.h"

enum cableway_access { CABLEWAY_READ = 1, CABLEWAY_WRITE = 2 };

/* One block of a buffer argument, and how the call accesses it. */
struct cableway_block {
    struct cableway_buffer buffer;
    int access;
};

/* Returns whether a driver is loaded. Without one there is no device memory, and nothing below needs to be called. */
bool cableway_devices_present(void);
bool cableway_on_device(const void *address, uint64_t len);

/* Allocates a host copy of an argument's blocks if one of them is in device memory, and sets *base to the address of
 * the host copy. Otherwise leaves *staging and *base unchanged. Copies no data yet. Pass *staging == NULL for a call's
 * first argument. cableway_staging_free frees the copies. This function, fill and drain return an enum
 * cableway_code. */
int cableway_staging_add(void **staging, void **base, const struct cableway_block *blocks, size_t count);
/* Copies what the call reads to the host. `staging` may be NULL. */
int cableway_staging_fill(void *staging);
/* Copies what the call wrote back to the device. `staging` may be NULL. */
int cableway_staging_drain(void *staging);
void cableway_staging_free(void *staging);

#endif
