/* Pools `ratio` consecutive tokens into one latent: a softmax over their gates, per channel.
 *
 * u, g  [n*ratio][d] f32: value and gate of each token, groups one after another. A pending
 *       token of an incomplete group is the caller's to keep and to put in front
 * out   [n][d] f32: sum_t softmax(g)_t u_t over the group, rounded by `round` (K_EXACT,
 *       K_BF16); may not overlap u or g
 *
 * With `runs`: u and g are rows of the batch, from `row0` on, out its groups from `first` on, n
 * of them, those of no run left as they are. A group that an earlier run began has its first
 * token in the run's `pending`, of source `source`; ratio is 2 then.
 *
 * n counts groups. 1 <= ratio <= K_MAX_RATIO; with ratio 1 the result is u (g is not read and
 * may be NULL). Tolerance: K_TOL_COMPRESS relative to the largest |u| of the group.
 * Source: model.md section 6. */
#ifndef KERNELS_COMPRESS_H
#define KERNELS_COMPRESS_H

#include "kernels/run.h"

#define K_TOL_COMPRESS 1e-6f

struct k_compress {
    const float *u, *g;
    float *out;
    size_t n;
    uint32_t ratio, d;
    enum k_round round;
    const struct k_run *runs; /* memory of the backend; NULL: groups lie in u and g */
    uint32_t n_runs, row0, first, source;
};

#endif
