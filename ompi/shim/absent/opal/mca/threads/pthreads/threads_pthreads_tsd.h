/* Replaces a missing header, as threads_pthreads_mutex.h does: keys of thread-specific data. */
#ifndef CABLEWAY_THREADS_PTHREADS_TSD_H
#define CABLEWAY_THREADS_PTHREADS_TSD_H

#include "opal/constants.h"

#include <pthread.h>

typedef pthread_key_t opal_tsd_key_t;

static inline int opal_tsd_key_delete(opal_tsd_key_t key)
{
    return 0 == pthread_key_delete(key) ? OPAL_SUCCESS : OPAL_ERROR;
}

static inline int opal_tsd_set(opal_tsd_key_t key, void *value)
{
    return 0 == pthread_setspecific(key, value) ? OPAL_SUCCESS : OPAL_ERROR;
}

static inline int opal_tsd_get(opal_tsd_key_t key, void **value)
{
    *value = pthread_getspecific(key);
    return OPAL_SUCCESS;
}

#endif
