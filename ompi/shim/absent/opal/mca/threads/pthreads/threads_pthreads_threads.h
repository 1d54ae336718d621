/* As threads_pthreads_mutex.h beside it: how a thread of Open MPI 5.0 gives way. */
#ifndef CABLEWAY_THREADS_PTHREADS_THREADS_H
#define CABLEWAY_THREADS_PTHREADS_THREADS_H

typedef void (*opal_threads_pthreads_yield_fn_t)(void);

/* Set by the library as its parameters say. */
OPAL_DECLSPEC extern opal_threads_pthreads_yield_fn_t opal_threads_pthreads_yield_fn;

static inline void opal_thread_yield(void)
{
    opal_threads_pthreads_yield_fn();
}

#endif
