/* y = w x for n rows, with the roundings of the precision mode around it.
 *
 * w  k_weight [n_out][n_in], any type, packed or not
 * x  [n] rows of n_groups*n_in f32, x_stride floats apart (0: dense)
 * y  [n] rows of n_out f32, y_stride floats apart (0: dense); may not overlap x
 *
 * Groups (wo_a): output row o of group g = o / (n_out/n_groups) reads x[g*n_in .. (g+1)*n_in).
 * `in` rounds x as it is read (x is untouched): K_EXACT, K_BF16 (mode fast), K_FP8_32 (mode
 * official, in front of FP8 and FP4 weights). `out` rounds y: K_EXACT or K_BF16.
 * The sum over n_in runs in an order that depends on n_in alone. ref: double, rounded once.
 * Tolerance: |y - ref| <= K_TOL_LINEAR * sum |w||x|.
 * Source: model.md sections 2.1, 3, 5 (groups), 18. */
#ifndef KERNELS_LINEAR_H
#define KERNELS_LINEAR_H

#include "kernels/types.h"

#define K_TOL_LINEAR 2e-6f

struct k_linear {
    const struct k_weight *w;
    const float *x;
    float *y;
    size_t n, x_stride, y_stride;
    enum k_round in, out;
};

#endif
