/* Attention of a run of consecutive tokens of one sequence: one softmax over the window, the
 * selected compressed rows and a sink, per head. Key = value, one KV head for all heads.
 *
 * q     [n][n_head][d] f32; query i stands at position pos0 + i
 * ring  [window] rows of window_format: position p < pos0 lies in slot p % window
 * keys  [n] rows of window_format: the run's own keys, positions pos0 .. pos0+n-1. The ring
 *       is not written: the caller copies the run's last `window` keys into it afterwards,
 *       so that how a segment is cut into runs changes nothing
 * rows  compressed rows of row_format, numbers 0 .. ; NULL without
 * sel   [n][n_sel] i32: row numbers, ascending; -1 is skipped wherever it stands. NULL without
 * sink  [n_head] f32: a logit that takes weight and gives no value
 * out   [n][n_head][d] f32; may not overlap q
 *
 * from, to: only queries from .. to-1 are computed (to 0: all n); everything else is as without
 *
 * Query i sees window positions max(lo, p+1-window) .. p, p = pos0 + i (oldest first), then its
 * rows. lo is the first position whose key exists: 0, or the start of a replayed tail. With
 * `block` (draft layers) there is no causal mask inside the run: every query sees ring
 * positions max(lo, pos0-window) .. pos0-1, then all n keys.
 *
 * s_t = scale * (q k_t); out = sum_t e^(s_t-M) k_t / (sum_t e^(s_t-M) + e^(sink-M)). A query
 * without any visible key gives zeros. K_EXACT: sums over keys in the order above, M the
 * largest s. prob = K_BF16 is the released reference's form: online over blocks of 64 list
 * entries (a -1 counts as one, and the window as `window`, missing ones last), M the running
 * maximum, e^(s-M) rounded to bf16 in front of the value but not in the denominator. `round`
 * rounds out.
 *
 * With `runs`: one call for all rows of a list of runs, from row `row0` of the batch on, which
 * is where the first run begins and what q, out, keys and sel begin with. A run's pos0 and lo,
 * and its ring, ring_at bytes behind the beginning, and rows, of source `source`, take the
 * place of those members; n is the number of rows of all, most the largest of one run. from and
 * to are 0. The bits are those of a call for each run.
 *
 * Tolerance: K_TOL_ATTENTION * max|k| with K_EXACT.
 * Source: model.md sections 5 (4.), 11.3, 12. */
#ifndef KERNELS_ATTENTION_H
#define KERNELS_ATTENTION_H

#include "kernels/run.h"

#define K_TOL_ATTENTION 5e-6f

struct k_attention {
    const float *q;
    float *out;
    size_t n;
    uint32_t n_head, d;

    const void *ring, *keys;
    enum k_format window_format;
    uint32_t window; /* W; 0: no window keys at all (ring and keys unused) */
    uint64_t pos0, lo;
    bool block;
    size_t from, to;

    const void *rows;
    enum k_format row_format;
    const int32_t *sel;
    uint32_t n_sel;

    const struct k_run *runs; /* memory of the backend; NULL: one run, as the members say */
    uint32_t n_runs, row0, most;
    uint32_t source, layer_class;
    size_t ring_at;

    const float *sink;
    float scale; /* d^-1/2 */
    enum k_round prob, round;
};

#endif
