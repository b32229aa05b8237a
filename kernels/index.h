/* Scores every visible compressed row for each query of a run and keeps the best.
 *
 * q     [n][n_head][d] f32, rotated and on its grid already; query i is at position pos0 + i
 * w     [n][n_head] f32: head weights, scaled by d^-1/2 n_head^-1/2 already; may be negative
 * keys  [n_row] rows of `format`: the index keys of the row source, the run's own included
 * sel   [n][top_k] i32: chosen row numbers ascending, then -1; may be NULL for a pure source of
 *       candidates
 *
 * Query at p sees rows 0 .. (p+1)/ratio - 1, all of which must be < n_row.
 *     score[j] = sum_h max(q_h k_j, 0) w_h           sum over h in order of h (index_mma.cu: in
 *                                                    another order, the same for every call)
 * The best min(top_k, visible) are kept; equal scores: lower row first. A NaN score counts as
 * -inf but stays selectable.
 * score_round = K_BF16 is the released reference's form: q_h k_j rounded, relu, times w
 * rounded, summed in f32, rounded.
 *
 * Candidates, in blocks of block_rows rows (the candidate source and the layers above it):
 * blocks_out [n][n_blocks] i32, ascending, then -1: the blocks with the largest row score; the
 *       block of the newest visible row always, equal: lower block first. NULL: not wanted
 * blocks_in  [n][n_blocks] i32 as another call wrote it: only rows of these blocks can be
 *       chosen. NULL: no filter. Not together with blocks_out
 * score [n][n_row] f32 or NULL: the scores, -inf where not visible, before any filter (for
 *       tests and evals: with it every row is scored)
 *
 * With `runs`: one call for all rows of a list of runs, from row `row0` of the batch on, which
 * is where the first run begins and what q, w, sel and the blocks begin with. A run's pos0 and
 * its keys, of source `source`, take the place of those members; n_row is then no more than a
 * bound for what any of them sees. score is NULL. The bits are those of a call for each run.
 *
 * Exact in what it selects up to rounding of the scores: compare selections where the gap
 * between the k-th and the next score is above K_TOL_INDEX * sum |q||k||w|.
 * Source: model.md section 7. */
#ifndef KERNELS_INDEX_H
#define KERNELS_INDEX_H

#include "kernels/run.h"

#define K_TOL_INDEX 2e-6f

struct k_index {
    const float *q, *w;
    const void *keys;
    enum k_format format; /* K_ROW_FP4_32 or K_ROW_F32 */
    int32_t *sel;
    size_t n;
    uint64_t n_row, pos0;
    uint32_t n_head, d, ratio, top_k;

    uint32_t block_rows, n_blocks; /* candidate_block_size, candidate_topk_blocks */
    int32_t *blocks_out;
    const int32_t *blocks_in;

    const struct k_run *runs; /* memory of the backend; NULL: one run, as the members say */
    uint32_t n_runs, row0, source;

    float *score;
    enum k_round score_round;
};

#ifdef __cplusplus
extern "C" {
#endif

/* The k best of n scores, as the reference chooses: writes k' = min(k, n) indices into out in
 * ascending order and returns k'. NaN counts as -inf; equal: lower index first. -0 equals 0.
 * pool [2 k] is scratch. */
uint32_t k_top_k(const float *score, size_t n, uint32_t k, int32_t *out, int32_t *pool);

#ifdef __cplusplus
}
#endif
#endif
