/* Engram: rows of a large hashed table, and the gate that adds them to the streams.
 *
 * Source: model.md section 9.3. The hash itself is engine/'s: it needs token ids only. */
#ifndef KERNELS_ENGRAM_H
#define KERNELS_ENGRAM_H

#include "kernels/types.h"

/* Expands table rows: out [n][n_id][d] f32 = e4m3 * 2^(scale-127), exact.
 *
 * codes  [n_row][d] E4M3, scales [n_row][d/32] E8M0; id row i, n_id ids each, all < n_row. The
 *        engine may hand in a small copy of only the needed rows and ids that count in it. */
struct k_engram_rows {
    const uint8_t *codes, *scales;
    const uint64_t *ids; /* [n][n_id] */
    float *out;
    size_t n;
    uint32_t n_id, d; /* d % 32 == 0 */
};

/* Puts rows into places of a table kept in memory: row at[i] of it becomes row i of `from`.
 * Exact: bytes are copied.
 *
 * codes  [][d] E4M3, scales [][d/32] E8M0: the table; from_codes [n][d], from_scales [n][d/32]
 * at     [n], each another row; nothing may overlap */
struct k_engram_put {
    uint8_t *codes, *scales;
    const uint8_t *from_codes, *from_scales;
    const uint64_t *at;
    size_t n;
    uint32_t d; /* d % 32 == 0 */
};

/* X_c <- X_c + gate_c V, per token and stream:
 *     rms(v) = sqrt(mean v^2 + eps)
 *     dot_c  = sum X_c qw_c kw_c K_c / (rms(X_c) rms(K_c) sqrt(d))
 *     gate_c = sigmoid(sign(dot_c) sqrt(max(|dot_c|, 1e-6))), sign of zero +
 *
 * x     [n][hc][d] f32, in place
 * kv    [n][(hc+1)*d] f32: hc keys, then the value
 * qw, kw [hc][d] f32
 * dead  [n] u8 or NULL: where not 0 the row of x stays as it is
 * gate  [n][hc] f32 or NULL: the gates, 0 for dead rows
 * round (K_EXACT, K_BF16) of the new x. Sums in f32 lanes (ref: double).
 * Tolerance: K_TOL_ENGRAM relative to the largest magnitude of the row. */
#define K_TOL_ENGRAM 1e-5f

struct k_engram_gate {
    float *x;
    const float *kv, *qw, *kw;
    const uint8_t *dead;
    float *gate;
    size_t n;
    uint32_t hc, d;
    float eps;
    enum k_round round;
};

#endif
