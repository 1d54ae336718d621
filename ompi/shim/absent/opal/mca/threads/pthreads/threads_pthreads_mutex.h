/* Replaces a header that Open MPI 5.0's installed headers include, but some packages (Debian 13's) leave out: the
 * pthread types of Open MPI's structures, and the operations that its inline functions call. */
#ifndef CABLEWAY_THREADS_PTHREADS_MUTEX_H
#define CABLEWAY_THREADS_PTHREADS_MUTEX_H

#include "opal/class/opal_object.h"
#include "opal/sys/atomic.h"

#include <pthread.h>
#include <stdbool.h>

typedef pthread_mutex_t opal_thread_internal_mutex_t;
typedef pthread_cond_t opal_thread_internal_cond_t;

#define OPAL_THREAD_INTERNAL_MUTEX_INITIALIZER PTHREAD_MUTEX_INITIALIZER
#define OPAL_THREAD_INTERNAL_COND_INITIALIZER PTHREAD_COND_INITIALIZER

static inline int opal_thread_internal_mutex_init(opal_thread_internal_mutex_t *mutex, bool recursive)
{
    pthread_mutexattr_t attributes;
    int rc = pthread_mutexattr_init(&attributes);
    if (0 == rc) {
        if (recursive) {
            (void) pthread_mutexattr_settype(&attributes, PTHREAD_MUTEX_RECURSIVE);
        }
        rc = pthread_mutex_init(mutex, &attributes);
        (void) pthread_mutexattr_destroy(&attributes);
    }
    return 0 == rc ? OPAL_SUCCESS : OPAL_ERROR;
}

static inline void opal_thread_internal_mutex_lock(opal_thread_internal_mutex_t *mutex)
{
    (void) pthread_mutex_lock(mutex);
}

static inline int opal_thread_internal_mutex_trylock(opal_thread_internal_mutex_t *mutex)
{
    return 0 != pthread_mutex_trylock(mutex);
}

static inline void opal_thread_internal_mutex_unlock(opal_thread_internal_mutex_t *mutex)
{
    (void) pthread_mutex_unlock(mutex);
}

static inline void opal_thread_internal_mutex_destroy(opal_thread_internal_mutex_t *mutex)
{
    (void) pthread_mutex_destroy(mutex);
}

static inline int opal_thread_internal_cond_init(opal_thread_internal_cond_t *condition)
{
    return 0 == pthread_cond_init(condition, NULL) ? OPAL_SUCCESS : OPAL_ERROR;
}

static inline void opal_thread_internal_cond_wait(opal_thread_internal_cond_t *condition,
                                                  opal_thread_internal_mutex_t *mutex)
{
    (void) pthread_cond_wait(condition, mutex);
}

static inline void opal_thread_internal_cond_signal(opal_thread_internal_cond_t *condition)
{
    (void) pthread_cond_signal(condition);
}

static inline void opal_thread_internal_cond_broadcast(opal_thread_internal_cond_t *condition)
{
    (void) pthread_cond_broadcast(condition);
}

static inline void opal_thread_internal_cond_destroy(opal_thread_internal_cond_t *condition)
{
    (void) pthread_cond_destroy(condition);
}

#endif
