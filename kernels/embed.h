/* Looks up one row of a table for each id and copies it into every residual stream.
 *
 * w    [n_row][d]          K_W_BF16 or K_W_F32: rows are w->n_out, d is w->n_in
 * ids  [n]                 each < w->n_out (the caller has checked)
 * x    [n][copies][d]      f32; identical copies
 * pre  [n][copies]         f32 or NULL; set to (1, 0, 0, ...): layer 0's collapse
 *
 * Exact. Also the Markov embedding of the draft head (copies = 1, pre = NULL).
 * Source: model.md section 4, steps 2 and 3; section 12. */
#ifndef KERNELS_EMBED_H
#define KERNELS_EMBED_H

#include "kernels/types.h"

struct k_embed {
    const struct k_weight *w;
    const uint32_t *ids;
    float *x, *pre;
    size_t n;
    uint32_t copies;
};

#endif
