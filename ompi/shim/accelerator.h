/* Device memory for Open MPI's accelerator framework, implemented in Rust. These functions need no engine. */
#ifndef CABLEWAY_ACCELERATOR_H
#define CABLEWAY_ACCELERATOR_H

#include "cableway.h"

/* Returns whether this process may use device memory. */
bool cableway_accelerator_start(void);
/* Returns 0 for host memory, 1 for device memory and 2 for managed memory. Sets *device unless it is host memory. */
int cableway_accelerator_check(const void *address, int *device);
/* Returns the driver's id of an allocation, or 0 if it has none. */
uint64_t cableway_accelerator_buffer_id(const void *address);
/* Copies between host and device memory in any direction and waits for the copy. The ranges may overlap. Returns an
 * enum cableway_code. */
int cableway_accelerator_copy(void *to, const void *from, size_t len);
/* Allocates device memory. Returns NULL on failure. */
void *cableway_accelerator_allocate(int device, size_t len);
/* Frees memory from cableway_accelerator_allocate. Returns false for any other address. */
bool cableway_accelerator_release(void *address);

#endif
