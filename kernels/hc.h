/* Hyper-connections: hc residual streams per token, mixed by coefficients computed from them.
 *
 * Streams are X [n][hc][d] f32, hc <= K_MAX_HC. One half of a layer is
 *
 *     hc_collapse   h = sum_c pre_c X_c                 pre of the half before
 *     rmsnorm, attention or MoE: h -> y
 *     hc_mix        X -> pre', post, comb               from the stream that came in
 *     hc_update     X'_c = post_c y + sum_b comb[b][c] X_b
 *
 * Sums in f32 (ref: double), coefficients in f32. Tolerance: K_TOL_HC relative to the largest
 * magnitude in the row. Source: model.md section 4. */
#ifndef KERNELS_HC_H
#define KERNELS_HC_H

#include "kernels/types.h"

#define K_TOL_HC 1e-5f

/* Coefficients of one half, from the stream before it.
 *
 * x      [n][hc][d]
 * fn     K_W_F32 [(2+hc)*hc][hc*d]; its product with x is never rounded
 * scale  [3], base [(2+hc)*hc]   f32
 * pre    [n][hc]       sigmoid(m*scale0 + base) + hc_eps
 * post   [n][hc]       2 sigmoid(m*scale1 + base)
 * comb   [n][hc][hc]   row softmax + hc_eps, then `iters` column and iters-1 row normalisations
 *                      (each divides by sum + hc_eps), columns first and last
 * with m = fn x * rsqrt(mean(x^2) + norm_eps). */
struct k_hc_mix {
    const float *x;
    const struct k_weight *fn;
    const float *scale, *base;
    float *pre, *post, *comb;
    size_t n;
    uint32_t hc, d;
    uint32_t iters; /* at least 1 */
    float hc_eps, norm_eps;
};

/* h [n][d] = sum_c pre[n][c] x[n][c], rounded by `round` (K_EXACT or K_BF16). pre NULL: the
 * mean over the streams (input of the draft layers). h may not alias x. */
struct k_hc_collapse {
    const float *x, *pre;
    float *h;
    size_t n;
    uint32_t hc, d;
    enum k_round round;
};

/* out [n][hc][d]: out_c = post_c y + sum_b comb[b][c] x_b, rounded by `round`. comb is applied
 * transposed: summed over its first index. out may be x itself, not overlap it otherwise. */
struct k_hc_update {
    const float *x, *y, *post, *comb;
    float *out;
    size_t n;
    uint32_t hc, d;
    enum k_round round;
};

#endif
