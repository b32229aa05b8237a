/* What the CPU backend needs of an instruction set: products of small tiles and row primitives.
 *
 * The drivers (*_cpu.c) are written once over this table; isa_NAME.c fills it by including
 * isa_rows.h with its vector width. Internal to kernels/.
 *
 * Order of sums: a product over `len` runs in LANES partial sums (lane j takes the inputs
 * congruent j), folded in a fixed tree. It depends on `len` only, never on the tile around it.
 */
#ifndef KERNELS_ISA_H
#define KERNELS_ISA_H

#include "kernels/host.h"

#define K_TILE_N 4     /* weight rows of a tile */
#define K_COLUMNS 64   /* index keys that are scored together */
#define K_TILE_M_MAX 4 /* most input rows of a tile; isa->tile_m is what registers allow */

/* y[i*ldy + j] = sum_k x[i][k] w[j][k] for i < m <= tile_m, j < n <= K_TILE_N. */
typedef void k_dot(const void *const *x, size_t m, const void *const *w, size_t n, size_t len,
                   float *y, size_t ldy);

/* The k best of a stream of scores, with the rows that have them, in the order they came; equal
 * scores: the earlier one. NaN counts as -inf, -0 as 0. A caller sets k and the arrays, each of
 * k_best_room(k) + 16 values (one vector is written whole), and the rest to 0. */
struct k_best {
    float *score;
    int32_t *row, *rank; /* rank: scratch of best_cut, may be shared */
    uint32_t n, k;
    bool is_bounded; /* only scores above bound can be among the k best now */
    float bound;
};

static inline size_t k_best_room(uint32_t k)
{
    return 2 * (size_t)k + K_COLUMNS;
}

struct k_isa {
    const char *name, *numerics;
    size_t tile_m;

    k_dot *dot_f32;      /* both f32 */
    k_dot *dot_f32_bf16; /* x f32, w bf16 */
    k_dot *dot_bf16;     /* x by to_rows, w bf16; NULL where the machine multiplies f32 only */
    /* As dot_bf16 with rows [o, o + n) of an FP8 or FP4 weight, expanded on the way: same bits.
     * False: not these rows (a NaN, scales out of the middle range), nothing was written. NULL:
     * rows have to be expanded first. */
    bool (*dot_codes)(const void *const *x, size_t m, const struct k_weight *w, size_t o,
                      size_t n, float *y, size_t ldy);

    /* out[i][j] += sum_t p[i*ldp + t] v[t][j], in order of t < n; i < m, rows of v f32 [d],
     * rows of out d apart */
    void (*weighted)(const float *p, size_t ldp, const void *const *v, size_t n, size_t m,
                     size_t d, float *out);
    /* s <- e^(s*scale - M), M = max(s*scale, sink); returns sum + e^(sink - M) */
    float (*softmax)(float *s, size_t n, float scale, float sink);
    /* s <- e^(s - max) */
    void (*exp_minus)(float *s, size_t n, float max);
    /* Rows of index keys (K_ROW_FP4_32 or K_ROW_F32) side by side: columns [d][K_COLUMNS], row
     * r < n <= K_COLUMNS in column r, others anything finite. Values as decode. */
    void (*decode_columns)(enum k_format format, const uint8_t *const *row, size_t n,
                           uint32_t d, float *columns);
    /* y[i*ldy + r] = sum_k q_i[k] columns[k][r], in order of k; i < m <= tile_m */
    void (*dot_columns)(const void *const *q, size_t m, const float *columns, size_t d,
                        float *y, size_t ldy);
    /* The same from codes, for rows of K_ROW_FP4_32: bytes of row d / 4 words, then two words
     * for each 32. NULL: the machine cannot. query_codes, of a row of q: false where a group of
     * 32 values has no step that divides them, as values on the FP4 grid have; key_codes: a
     * tile of K_COLUMNS times (d / 4 + d / 32) words. dot_key_codes rounds once for each 32
     * values. */
    bool (*query_codes)(const float *q, uint32_t d, void *row);
    void (*key_codes)(const uint8_t *const *row, size_t n, uint32_t d, void *tile);
    void (*dot_key_codes)(const void *const *q, size_t m, const void *tile, uint32_t d,
                          float *y, size_t ldy);
    /* score[r] = sum_h max(s[h*lds + r], 0) w[h], in order of h, with k_index's roundings */
    void (*index_sum)(const float *s, size_t lds, const float *w, size_t n_head, size_t n,
                      enum k_round round, float *score);
    /* best[b] <- the largest of best[b] and the scores of rows [b * rows, (b + 1) * rows), of
     * which n are given, from row0 on; best begins as -inf. NaN: passed over. */
    void (*block_max)(const float *score, size_t n, size_t row0, uint32_t rows, float *best);
    /* n <= K_COLUMNS more scores, of rows row[i], or from row0 on where row is NULL. */
    void (*best_add)(struct k_best *b, const float *score, const int32_t *row, int32_t row0,
                     size_t n);
    /* Leaves the k best of what was added, in order. */
    void (*best_cut)(struct k_best *b);
    /* g <- silu(min(g, limit)) * clamp(u, -limit, limit) * weight */
    void (*swiglu)(float *g, const float *u, size_t n, float limit, float weight);

    /* x rounded to bf16 as dot_bf16 and dot_codes want a row: row_bytes for each of
     * k_row_width(n) values, those behind x zeros. NULL with dot_bf16. */
    void (*to_rows)(const float *x, size_t n, void *y);
    size_t row_bytes;
    void (*round_bf16)(const float *x, size_t n, float *y);
    /* Row o of a BF16, FP8 or FP4 weight as bf16. */
    void (*expand)(const struct k_weight *w, size_t o, uint16_t *y);
    /* As k_decode_row: same bits. */
    void (*decode)(enum k_format format, const uint8_t *row, uint32_t d, float *x);

    /* Row i of the op. */
    void (*rmsnorm)(const struct k_rmsnorm *a, size_t i);
    void (*collapse)(const struct k_hc_collapse *a, size_t i);
    void (*update)(const struct k_hc_update *a, size_t i);
    void (*engram_gate)(const struct k_engram_gate *a, size_t i);
};

extern const struct k_isa k_isa_portable, k_isa_avx2, k_isa_avx512, k_isa_avx512bf16,
    k_isa_fma_avx512bf16;

/* Values of a row that to_rows makes of n. */
static inline size_t k_row_width(size_t n)
{
    return (n + 31) / 32 * 32;
}

/* Rows to multiply: f32, or bf16 as to_rows leaves them; each `len` values, anywhere in memory.
 */
struct k_rows {
    const void *const *row;
    size_t n;
    bool bf16;
};

/* y[i*ldy + o - first] = row_i . w_o for first <= o < last. `scratch` holds
 * k_block_scratch(w, last - first) bytes when w has to be expanded. bf16 rows need
 * isa->dot_bf16 and a weight that is not F32. */
void k_product_block(const struct k_isa *isa, const struct k_rows *x, const struct k_weight *w,
                     size_t first, size_t last, void *scratch, float *y, size_t ldy);
size_t k_block_scratch(const struct k_weight *w, size_t n_out);
/* Output rows of one block for n input rows: large blocks reuse inputs from cache. */
size_t k_block_rows(size_t n);

/* n rows of n_parts * width values as products want them: for K_EXACT pointers to x itself,
 * else to rounded copies made in slot_values, by to_rows part by part where the backend can.
 * false: failure kept. */
bool k_rows_prepare(struct kernels *k, const float *x, size_t n, size_t x_stride, size_t width,
                    size_t n_parts, enum k_round round, bool want_f32, enum k_slot slot_values,
                    enum k_slot slot_rows, struct k_rows *out);
/* Bytes of one part of such a row. */
size_t k_rows_part_bytes(const struct k_isa *isa, const struct k_rows *x, size_t width);

void k_hc_mix_cpu(struct kernels *k, const struct k_hc_mix *a);
void k_hc_collapse_cpu(struct kernels *k, const struct k_hc_collapse *a);
void k_hc_update_cpu(struct kernels *k, const struct k_hc_update *a);
void k_rmsnorm_cpu(struct kernels *k, const struct k_rmsnorm *a);
void k_linear_cpu(struct kernels *k, const struct k_linear *a);
void k_decode_cpu(struct kernels *k, const struct k_decode *a);
void k_attention_cpu(struct kernels *k, const struct k_attention *a);
void k_index_cpu(struct kernels *k, const struct k_index *a);
void k_moe_cpu(struct kernels *k, const struct k_moe *a);
void k_moe_part_cpu(struct kernels *k, const struct k_moe *a);
void k_moe_sum_cpu(struct kernels *k, const struct k_moe *a);
void k_engram_gate_cpu(struct kernels *k, const struct k_engram_gate *a);

#endif
