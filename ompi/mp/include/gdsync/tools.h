/* Memory for words that the host, streams and kernels use. */
#ifndef CABLEWAY_GDSYNC_TOOLS_H
#define CABLEWAY_GDSYNC_TOOLS_H

#ifndef __GDSYNC_H__
#error "include gdsync.h instead"
#endif

GDS_BEGIN_DECLS

typedef struct gds_mem_desc {
    unsigned long long original_d_ptr; /* CUdeviceptr */
    unsigned long long d_ptr;          /* the address on the device */
    void *h_ptr;                       /* the address on the host */
    void *bar_ptr;
    int flags;
    size_t alloc_size;
    void *registration;
} gds_mem_desc_t;

/* Allocates whole pages of host memory for GDS_MEMORY_HOST, all zero, for the current context. Device memory that the CPU
 * maps, GDS_MEMORY_GPU, is refused with EOPNOTSUPP. */
int gds_alloc_mapped_memory(gds_mem_desc_t *desc, size_t size, int flags);
int gds_free_mapped_memory(gds_mem_desc_t *desc);

GDS_END_DECLS

#endif
