// Exchanges of data that is not reduced (one_shot.h). The argument is that of a reduction without elements.

#include "reduce.h"

REDUCING void cableway_one_shot(const struct Reduction reduction) {
    gathered(reduction.job, reduction.one_shot);
    end(reduction.job);
}
