/* Rotary position embedding: interleaved pairs, last rope_dim values of each head.
 *
 * Angles come from a table made for the rows at hand (k_rope_table), so that one table serves
 * queries, keys and the inverse rotation of a chunk, in every layer with the same inv_freq.
 * Source: model.md section 5, "RoPE". */
#ifndef KERNELS_ROPE_H
#define KERNELS_ROPE_H

#include "kernels/types.h"

#ifdef __cplusplus
extern "C" {
#endif

struct k_rope_config {
    uint32_t rope_dim; /* even */
    double base;       /* 10000, or compress_rope_theta in layers with ratio > 0 */
    bool yarn;         /* scale for long context as below; in layers with ratio > 0 */
    double factor, beta_fast, beta_slow;
    uint32_t original_max_position;
};

/* inv_freq [rope_dim/2] f32, host memory: base^(-2i/rope_dim), with YaRN's ramp between
 * floor(c(beta_fast)) and ceil(c(beta_slow)), c(t) = rope_dim ln(orig/(2 pi t)) / (2 ln base),
 * both clamped to [0, rope_dim-1] and at least 1e-3 apart. Same roundings as the reference. */
void k_rope_inv_freq(const struct k_rope_config *c, float *inv_freq);

/* cos, sin [n][half] f32 of fp32(pos[i]) * inv_freq[j] (an f32 product), reduced exactly.
 * Same bits on every host backend; within 1 ulp of the true value of that f32 angle. */
struct k_rope_table {
    const uint64_t *pos; /* [n], each < 2^24 */
    const float *inv_freq;
    float *cos, *sin;
    size_t n;
    uint32_t half; /* rope_dim / 2 */
};

/* Rotates in place. x [n] rows of n_head*d f32, x_stride floats apart (0: dense); row i uses
 * table row i. inverse: by the negative angle. round (K_EXACT, K_BF16) applies to the rotated
 * values only. Computed in f32: two products, one sum. */
struct k_rope {
    float *x;
    const float *cos, *sin; /* [n][half] */
    size_t n, x_stride;
    uint32_t n_head, d, half;
    bool inverse;
    enum k_round round;
};

#ifdef __cplusplus
}
#endif
#endif
