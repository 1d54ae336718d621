/* The part of LibGDSync 2.2's interface that means something without its network card, over the messages of mp.h. Link
 * with -lcableway_mp.
 *
 * A stream waits for words, writes words and bytes, starts sends and waits for requests, all by one call, in the order of
 * the descriptors. There are no queue pairs of verbs: a send request is made of a request of mp_send_prepare by
 * gds_prepare_mp_send, and a wait request of any request of mp.h by gds_prepare_mp_wait. docs/libgdsync.md says more.
 *
 * Functions return 0 or an error number, and write why they failed to stderr: EINVAL for a wrong argument, EFAULT for memory
 * that no device reaches, EOPNOTSUPP for what only the card can do, EIO for all else. mp_init was called before. */
#ifndef CABLEWAY_GDSYNC_H
#define CABLEWAY_GDSYNC_H
#define __GDSYNC_H__

#include <stddef.h>
#include <stdint.h>

#include <mp.h>

/* mp.h includes CUDA's headers, where they are. Without them the types are as the headers declare them. */
#ifndef CABLEWAY_MP_HAS_CUDA
typedef struct CUstream_st *CUstream;
typedef unsigned long long CUdeviceptr;
#endif

#ifdef __cplusplus
#define GDS_BEGIN_DECLS extern "C" {
#define GDS_END_DECLS }
#else
#define GDS_BEGIN_DECLS
#define GDS_END_DECLS
#endif

#include <gdsync/core.h>
#include <gdsync/tools.h>

#endif
