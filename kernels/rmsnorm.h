/* y = w * (x * rsqrt(mean(x^2) + eps)), row by row.
 *
 * x  [n] rows of d f32, x_stride floats apart (0: dense)
 * w  [d] f32 (a BF16 norm weight expanded), NULL: all ones
 * y  [n][d] f32, dense; may be x itself when x is dense
 *
 * Rounded by `round` (K_EXACT or K_BF16) at the end. Sum of squares in f32 lanes (ref: double).
 * A row of zeros gives zeros (eps = 1e-20 is a normal f32). Tolerance: K_TOL_RMSNORM relative.
 * Source: model.md section 3, "RMSNorm". */
#ifndef KERNELS_RMSNORM_H
#define KERNELS_RMSNORM_H

#include "kernels/types.h"

#define K_TOL_RMSNORM 2e-6f

struct k_rmsnorm {
    const float *x, *w;
    float *y;
    size_t n, x_stride;
    uint32_t d;
    float eps;
    enum k_round round;
};

#endif
