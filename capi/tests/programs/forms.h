/* Calls of collective functions in both forms. */
#ifndef FORMS_H
#define FORMS_H

#include "job.h"

/* Whether collective functions are called in their nonblocking form. */
static int nonblocking;
static cableway_request *under_way;

/* Waits for an operation that has begun. */
static inline int ended(int code)
{
    return CABLEWAY_SUCCESS == code ? cableway_wait(&under_way, NULL) : code;
}

/* Performs a collective function in one of its forms. */
#define EITHER(name, ...)                                                                                             \
    (nonblocking ? ended(cableway_i##name(__VA_ARGS__, &under_way)) : cableway_##name(__VA_ARGS__))

#endif
