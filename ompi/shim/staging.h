/* Host copies of device buffers, made in Rust, for the parts of Open MPI that only know host memory. */
#ifndef CABLEWAY_STAGING_H
#define CABLEWAY_STAGING_H

#include "cableway.h"

enum cableway_access { CABLEWAY_READ = 1, CABLEWAY_WRITTEN = 2 };

/* A part of an argument, and what the call does with it. */
struct cableway_block {
    struct cableway_buffer buffer;
    int access;
};

/* Without a driver nothing is device memory, and none of the rest needs to be called. */
bool cableway_devices_present(void);
bool cableway_on_device(const void *address, uint64_t len);

/* If one of an argument's blocks is on a device, makes room for a host copy of all, to be freed with *staging, and sets
 * *base to the address that stands for it. Otherwise leaves both as they are. Copies nothing yet. *staging may be NULL
 * at first. Returns an enum cableway_code, as the others do. */
int cableway_staging_add(void **staging, void **base, const struct cableway_block *blocks, size_t count);
/* Copies what the call reads to the host. Of NULL: nothing. */
int cableway_staging_fill(void *staging);
/* Copies what the call wrote back to the device. Of NULL: nothing. */
int cableway_staging_drain(void *staging);
void cableway_staging_free(void *staging);

#endif
