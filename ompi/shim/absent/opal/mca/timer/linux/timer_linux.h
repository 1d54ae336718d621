/* Replaces a header that Open MPI 5.0's installed headers include, but some packages (Debian 13's) leave out: the
 * library's clock. */
#ifndef CABLEWAY_TIMER_LINUX_H
#define CABLEWAY_TIMER_LINUX_H

#include <stdint.h>

typedef uint64_t opal_timer_t;

OPAL_DECLSPEC extern opal_timer_t (*opal_timer_base_get_cycles)(void);
OPAL_DECLSPEC extern opal_timer_t (*opal_timer_base_get_usec)(void);
OPAL_DECLSPEC extern opal_timer_t opal_timer_base_get_freq(void);

#define OPAL_TIMER_CYCLE_NATIVE 1
#define OPAL_TIMER_CYCLE_SUPPORTED 1
#define OPAL_TIMER_USEC_NATIVE 1
#define OPAL_TIMER_USEC_SUPPORTED 1

#endif
