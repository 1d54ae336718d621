/* Replaces a missing header, as threads_pthreads_mutex.h does: how a thread yields. */
#ifndef CABLEWAY_THREADS_PTHREADS_THREADS_H
#define CABLEWAY_THREADS_PTHREADS_THREADS_H

typedef void (*opal_threads_pthreads_yield_fn_t)(void);

/* Open MPI's library sets this according to its MCA parameters. */
OPAL_DECLSPEC extern opal_threads_pthreads_yield_fn_t opal_threads_pthreads_yield_fn;

static inline void opal_thread_yield(void)
{
    opal_threads_pthreads_yield_fn();
}

#endif
