/* Chooses experts from the router's logits.
 *
 * logits    [n][n_expert] f32 (a linear with the gate weight)
 * bias      [n_expert] f32: added for the choice only
 * bias_alt  [n_expert] f32 or NULL: used instead for rows where alt[i] != 0 (image tokens)
 * alt       [n] u8 or NULL
 * expert    [n][top_k] i32: descending score + bias; equal: lower number first
 * weight    [n][top_k] f32: s_e = sqrt(softplus(logit_e)); with norm and top_k > 1 divided by
 *           (sum of the chosen + 1e-20); times scale
 *
 * A NaN logit is chosen last. top_k <= min(K_MAX_TOP_K, n_expert). In double on every host
 * backend, rounded once: same bits. Source: model.md section 8. */
#ifndef KERNELS_ROUTE_H
#define KERNELS_ROUTE_H

#include "kernels/types.h"

struct k_route {
    const float *logits, *bias, *bias_alt;
    const uint8_t *alt;
    int32_t *expert;
    float *weight;
    size_t n;
    uint32_t n_expert, top_k;
    bool norm;   /* norm_topk_prob */
    float scale; /* routed_scaling_factor */
};

#endif
