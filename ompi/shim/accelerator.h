/* Device memory for Open MPI's own parts, in Rust. Needs no engine. */
#ifndef CABLEWAY_ACCELERATOR_H
#define CABLEWAY_ACCELERATOR_H

#include "cableway.h"

/* Whether device memory can turn up in this process. */
bool cableway_accelerator_start(void);
/* 0: host memory. 1: a device's, 2: managed; *device is set. */
int cableway_accelerator_check(const void *address, int *device);
/* The driver's id of an allocation, 0 if it has none. */
uint64_t cableway_accelerator_buffer_id(const void *address);
/* Copies between any two kinds of memory, which may overlap, and waits. Returns an enum cableway_code. */
int cableway_accelerator_copy(void *to, const void *from, size_t len);
/* Device memory; NULL where there is none left. */
void *cableway_accelerator_allocate(int device, size_t len);
/* False if it is not from there. */
bool cableway_accelerator_release(void *address);

#endif
