/* x = round(x * by), value by value, in place.
 *
 * x  [n] f32
 *
 * One f32 product, rounded by `round` (K_EXACT or K_BF16): same bits on every backend. The head
 * weights of the indexer. Source: model.md section 7. */
#ifndef KERNELS_SCALE_H
#define KERNELS_SCALE_H

#include "kernels/types.h"

struct k_scale {
    float *x;
    size_t n;
    float by;
    enum k_round round;
};

#endif
