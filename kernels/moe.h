/* Mixture of experts: the chosen experts of each token and the shared one.
 *
 * x       [n][d] f32
 * expert  [n][top_k] i32, weight [n][top_k] f32: from k_route; a number < 0 is skipped
 * experts [n_expert]: w1, w3 [inter][d], w2 [d][inter], of any type; only those that occur in
 *         `expert` are touched
 * shared  one more expert for every token, without a weight; NULL: none. Its inter may differ
 * y       [n][d] f32; may not overlap x
 *
 * One expert: g = min(w1 x, limit); u = clamp(w3 x, -limit, limit); a = silu(g) u, times the
 * token's weight (routed experts); w2 a. A token's experts are summed in ascending order of
 * their number, the shared one last, whatever other tokens are in the call.
 *
 * in    rounds x, and a in front of w2: K_EXACT, K_BF16, K_FP8_32 (bf16 first, as everywhere)
 * mid   rounds the outputs of w1, w3 and w2 of each expert: K_EXACT, K_BF16 (official)
 * out   rounds y
 *
 * Piece by piece, where not all experts are in memory at once: any number of moe_part calls
 * over the same arguments, then one moe_sum, give the bits of one moe call.
 *
 * part    [n][top_k + 1][d] f32: what each chosen expert gives for a token, the shared one last
 * only    [n_expert + 1] u8, for moe_part: where not 0 the expert is computed into part; the
 *         last one is the shared expert
 * moe_part reads x, expert, weight, only and the experts it computes, moe_sum expert and part.
 * The arrays `experts` and `only` and the struct `shared` are the host's on every backend; what
 * their weights point at is the backend's.
 *
 * table   [n_expert + 1] or NULL: `experts`, all of them, and `shared` behind them, in memory
 * of the backend, where they stay from call to call. A backend that needs them there takes them
 * along with each call otherwise
 *
 * Tolerance: K_TOL_MOE * sum |w2||a|: errors of the inner products pass through silu.
 * Source: model.md section 8. */
#ifndef KERNELS_MOE_H
#define KERNELS_MOE_H

#include "kernels/types.h"

#define K_TOL_MOE 2e-5f

struct k_expert {
    struct k_weight w1, w3, w2;
};

struct k_moe {
    const float *x;
    const int32_t *expert;
    const float *weight;
    const struct k_expert *experts, *shared, *table;
    float *y;
    size_t n;
    uint32_t d, top_k, n_expert;
    float limit; /* swiglu_limit */
    enum k_round in, mid, out;
    float *part;         /* moe_part, moe_sum */
    const uint8_t *only; /* moe_part */
};

#endif
