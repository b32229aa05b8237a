/* The row primitives of struct k_isa, written once over a vector of LANES floats.
 *
 * Included by each isa_NAME.c after it has defined LANES (4, 8 or 16), TILE_M and
 *     vf_fma(a, b, c)   a*b + c
 *     vf_fold(v)        the sum of the vector's halves or quarters, as a v4
 *     vu_widen8(b)      the first LANES bytes as u32; vu_widen16, vu_narrow16: u16 and back
 * Everything else uses the compiler's vector extension, so one text serves every instruction
 * set. OWN_GROUPS is defined where the file has its own group_e4m3 and group_e2m1, OWN_TILE
 * where it has its own put_full_tile, OWN_KEEP its own vi_any and keep_lanes. */
#ifndef LANES
#error "define LANES, TILE_M and the primitives first"
#endif

#include <math.h>

#include "kernels/isa.h"
#include "kernels/isa_index.h"
#include "kernels/isa_lanes.h"

/* ---- products -----------------------------------------------------------------------------
 */

#define EACH_TILE(tile)                                                                        \
    switch (m * 8 + n) {                                                                       \
    case 8 + 1:                                                                                \
        tile(1, 1);                                                                            \
        break;                                                                                 \
    case 8 + 2:                                                                                \
        tile(1, 2);                                                                            \
        break;                                                                                 \
    case 8 + 3:                                                                                \
        tile(1, 3);                                                                            \
        break;                                                                                 \
    case 8 + 4:                                                                                \
        tile(1, 4);                                                                            \
        break;                                                                                 \
    case 16 + 1:                                                                               \
        tile(2, 1);                                                                            \
        break;                                                                                 \
    case 16 + 2:                                                                               \
        tile(2, 2);                                                                            \
        break;                                                                                 \
    case 16 + 3:                                                                               \
        tile(2, 3);                                                                            \
        break;                                                                                 \
    case 16 + 4:                                                                               \
        tile(2, 4);                                                                            \
        break;                                                                                 \
    case 24 + 1:                                                                               \
        tile(3, 1);                                                                            \
        break;                                                                                 \
    case 24 + 2:                                                                               \
        tile(3, 2);                                                                            \
        break;                                                                                 \
    case 24 + 3:                                                                               \
        tile(3, 3);                                                                            \
        break;                                                                                 \
    case 24 + 4:                                                                               \
        tile(3, 4);                                                                            \
        break;                                                                                 \
    case 32 + 1:                                                                               \
        tile(4, 1);                                                                            \
        break;                                                                                 \
    case 32 + 2:                                                                               \
        tile(4, 2);                                                                            \
        break;                                                                                 \
    case 32 + 3:                                                                               \
        tile(4, 3);                                                                            \
        break;                                                                                 \
    case 32 + 4:                                                                               \
        tile(4, 4);                                                                            \
        break;                                                                                 \
    default:                                                                                   \
        break;                                                                                 \
    }

/* Writes the folded accumulators of one tile row. */
INLINE void put_sums(const vf *acc, size_t n, float *y)
{
    v4 s = v4_sums(vf_fold(acc[0]), vf_fold(acc[1]), vf_fold(acc[2]), vf_fold(acc[3]));
    for (size_t j = 0; j < n; j++)
        y[j] = s[j];
}

INLINE void put_tile(vf acc[][K_TILE_N], size_t m, size_t n, float *y, size_t ldy)
{
#ifdef OWN_TILE
    if (m == TILE_M && n == K_TILE_N) {
        put_full_tile(acc, y, ldy);
        return;
    }
#endif
#pragma GCC unroll 4
    for (size_t i = 0; i < m; i++)
        put_sums(acc[i], n, y + i * ldy);
}

/* One step of a tile: LANES inputs from k on, or the `part` that is left. */
INLINE void step_f32(vf acc[][K_TILE_N], const void *const *x, size_t m, const void *const *w,
                     size_t n, size_t k, size_t part, bool w_is_bf16)
{
    vf wv[K_TILE_N];
#pragma GCC unroll 4
    for (size_t j = 0; j < n; j++)
        wv[j] = w_is_bf16 ? vf_from_bf16((const uint16_t *)w[j] + k, part)
                          : vf_load_part((const float *)w[j] + k, part);
#pragma GCC unroll 4
    for (size_t i = 0; i < m; i++) {
        vf xv = vf_load_part((const float *)x[i] + k, part);
#pragma GCC unroll 4
        for (size_t j = 0; j < n; j++)
            acc[i][j] = vf_fma(xv, wv[j], acc[i][j]);
    }
}

INLINE void tile_f32(const void *const *x, size_t m, const void *const *w, size_t n, size_t len,
                     float *y, size_t ldy, bool w_is_bf16)
{
    vf acc[TILE_M][K_TILE_N] = {{{0}}};
    size_t k = 0;
    for (; k + LANES <= len; k += LANES)
        step_f32(acc, x, m, w, n, k, LANES, w_is_bf16);
    if (k < len)
        step_f32(acc, x, m, w, n, k, len - k, w_is_bf16);
    put_tile(acc, m, n, y, ldy);
}

#define TILE_F32(M, N) tile_f32(x, M <= TILE_M ? M : TILE_M, w, N, len, y, ldy, false)
#define TILE_F32_BF16(M, N) tile_f32(x, M <= TILE_M ? M : TILE_M, w, N, len, y, ldy, true)

static void dot_f32(const void *const *x, size_t m, const void *const *w, size_t n, size_t len,
                    float *y, size_t ldy)
{
    EACH_TILE(TILE_F32)
}

static void dot_f32_bf16(const void *const *x, size_t m, const void *const *w, size_t n,
                         size_t len, float *y, size_t ldy){EACH_TILE(TILE_F32_BF16)}

/* x . y over one row, in the same order as the tiles. */
INLINE float dot_row(const float *x, const float *y, size_t n)
{
    float s;
    const void *xs[1] = {x}, *ys[1] = {y};
    tile_f32(xs, 1, ys, 1, n, &s, 1, false);
    return s;
}

/* ---- attention ----------------------------------------------------------------------------
 */

/* m rows of p over columns [j, j + cols*LANES) of v; the last vector may be partial. */
INLINE void weighted_tile(const float *p, size_t ldp, const void *const *v, size_t n, size_t m,
                          size_t d, size_t j, size_t cols, size_t part, float *out)
{
    vf acc[TILE_M][4];
#pragma GCC unroll 4
    for (size_t i = 0; i < m; i++)
#pragma GCC unroll 4
        for (size_t c = 0; c < cols; c++)
            acc[i][c] = vf_load_part(out + i * d + j + c * LANES, part);
    for (size_t t = 0; t < n; t++) {
        vf vv[4];
#pragma GCC unroll 4
        for (size_t c = 0; c < cols; c++)
            vv[c] = vf_load_part((const float *)v[t] + j + c * LANES, part);
#pragma GCC unroll 4
        for (size_t i = 0; i < m; i++) {
            vf pv = vf_all(p[i * ldp + t]);
#pragma GCC unroll 4
            for (size_t c = 0; c < cols; c++)
                acc[i][c] = vf_fma(pv, vv[c], acc[i][c]);
        }
    }
#pragma GCC unroll 4
    for (size_t i = 0; i < m; i++)
#pragma GCC unroll 4
        for (size_t c = 0; c < cols; c++)
            vf_store_part(out + i * d + j + c * LANES, acc[i][c], part);
}

INLINE void weighted_rows(const float *p, size_t ldp, const void *const *v, size_t n, size_t m,
                          size_t d, float *out)
{
    size_t j = 0;
    for (; j + 4 * LANES <= d; j += 4 * LANES)
        weighted_tile(p, ldp, v, n, m, d, j, 4, LANES, out);
    for (; j + LANES <= d; j += LANES)
        weighted_tile(p, ldp, v, n, m, d, j, 1, LANES, out);
    if (j < d)
        weighted_tile(p, ldp, v, n, m, d, j, 1, d - j, out);
}

static void weighted(const float *p, size_t ldp, const void *const *v, size_t n, size_t m,
                     size_t d, float *out)
{
    for (; m >= TILE_M; m -= TILE_M, p += TILE_M * ldp, out += TILE_M * d)
        weighted_rows(p, ldp, v, n, TILE_M, d, out);
    for (; m >= 2; m -= 2, p += 2 * ldp, out += 2 * d)
        weighted_rows(p, ldp, v, n, 2, d, out);
    for (; m; m--, p += ldp, out += d)
        weighted_rows(p, ldp, v, n, 1, d, out);
}

static void exp_minus(float *s, size_t n, float max)
{
    for (size_t j = 0; j < n; j += LANES) {
        size_t part = n - j < LANES ? n - j : LANES;
        vf_store_part(s + j, vf_exp(vf_load_part(s + j, part) - vf_all(max)), part);
    }
}

static float softmax(float *s, size_t n, float scale, float sink)
{
    float max = sink, sum = 0;
    for (size_t j = 0; j < n; j++) {
        s[j] *= scale;
        max = s[j] > max ? s[j] : max;
    }
    exp_minus(s, n, max);
    vf lanes = vf_all(0);
    for (size_t j = 0; j < n; j += LANES)
        lanes += vf_load_part(s + j, n - j < LANES ? n - j : LANES);
    exp_minus(&sink, 1, max);
    sum = vf_sum(lanes);
    return sum + sink;
}

/* ---- elementwise --------------------------------------------------------------------------
 */

static void swiglu(float *g, const float *u, size_t n, float limit, float weight)
{
    for (size_t j = 0; j < n; j += LANES) {
        size_t part = n - j < LANES ? n - j : LANES;
        vf gv = vf_min(vf_load_part(g + j, part), vf_all(limit));
        vf uv = vf_max(vf_min(vf_load_part(u + j, part), vf_all(limit)), vf_all(-limit));
        vf silu = gv / (vf_all(1) + vf_exp(-gv));
        vf_store_part(g + j, silu * uv * vf_all(weight), part);
    }
}

static void round_bf16(const float *x, size_t n, float *y)
{
    for (size_t j = 0; j < n; j += LANES) {
        size_t part = n - j < LANES ? n - j : LANES;
        vf_store_part(y + j, vf_bf16(vf_load_part(x + j, part)), part);
    }
}

INLINE vf vf_round(vf v, enum k_round round)
{
    return round == K_BF16 ? vf_bf16(v) : v;
}

static void rmsnorm(const struct k_rmsnorm *a, size_t i)
{
    const float *x = a->x + i * k_stride(a->x_stride, a->d);
    float *y = a->y + i * a->d;
    float r = 1 / sqrtf(dot_row(x, x, a->d) / (float)a->d + a->eps);
    for (size_t j = 0; j < a->d; j += LANES) {
        size_t part = a->d - j < LANES ? a->d - j : LANES;
        vf v = vf_load_part(x + j, part) * vf_all(r);
        if (a->w)
            v = vf_load_part(a->w + j, part) * v;
        vf_store_part(y + j, vf_round(v, a->round), part);
    }
}

static void collapse(const struct k_hc_collapse *a, size_t i)
{
    size_t d = a->d;
    const float *x = a->x + i * a->hc * d;
    for (size_t j = 0; j < d; j += LANES) {
        size_t part = d - j < LANES ? d - j : LANES;
        vf sum = vf_all(0);
        for (uint32_t c = 0; c < a->hc; c++) {
            vf pre = vf_all(a->pre ? a->pre[i * a->hc + c] : 1);
            sum = vf_fma(pre, vf_load_part(x + c * d + j, part), sum);
        }
        if (!a->pre)
            sum /= vf_all((float)a->hc);
        vf_store_part(a->h + i * d + j, vf_round(sum, a->round), part);
    }
}

static void update(const struct k_hc_update *a, size_t i)
{
    uint32_t hc = a->hc;
    size_t d = a->d;
    const float *x = a->x + i * hc * d, *comb = a->comb + i * hc * hc;
    const float *post = a->post + i * hc;
    float *out = a->out + i * hc * d;
    for (size_t j = 0; j < d; j += LANES) {
        size_t part = d - j < LANES ? d - j : LANES;
        vf y = vf_load_part(a->y + i * d + j, part), in[K_MAX_HC];
        for (uint32_t b = 0; b < hc; b++)
            in[b] = vf_load_part(x + b * d + j, part); /* out may be x */
        for (uint32_t c = 0; c < hc; c++) {
            vf sum = vf_all(post[c]) * y;
            for (uint32_t b = 0; b < hc; b++)
                sum = vf_fma(vf_all(comb[b * hc + c]), in[b], sum);
            vf_store_part(out + c * d + j, vf_round(sum, a->round), part);
        }
    }
}

static float sigmoid(float x)
{
    float e = -x;
    exp_minus(&e, 1, 0);
    return 1 / (1 + e);
}

static void engram_stream(const struct k_engram_gate *a, size_t i, uint32_t c)
{
    size_t d = a->d;
    float *x = a->x + (i * a->hc + c) * d;
    const float *key = a->kv + (i * (a->hc + 1) + c) * d;
    const float *value = a->kv + (i * (a->hc + 1) + a->hc) * d;
    vf lanes = vf_all(0);
    for (size_t j = 0; j < d; j += LANES) {
        size_t part = d - j < LANES ? d - j : LANES;
        vf w = vf_load_part(a->qw + c * d + j, part) * vf_load_part(a->kw + c * d + j, part);
        lanes = vf_fma(vf_load_part(x + j, part) * w, vf_load_part(key + j, part), lanes);
    }
    float dot = vf_sum(lanes);
    dot /= sqrtf(dot_row(x, x, d) / (float)d + a->eps);
    dot /= sqrtf(dot_row(key, key, d) / (float)d + a->eps);
    dot /= sqrtf((float)d);
    float size = fabsf(dot), root = sqrtf(size < 1e-6f ? 1e-6f : size);
    float gate = sigmoid(dot < 0 ? -root : root);
    for (size_t j = 0; j < d; j += LANES) {
        size_t part = d - j < LANES ? d - j : LANES;
        vf v = vf_fma(vf_all(gate), vf_load_part(value + j, part), vf_load_part(x + j, part));
        vf_store_part(x + j, vf_round(v, a->round), part);
    }
    if (a->gate)
        a->gate[i * a->hc + c] = gate;
}

static void engram_gate(const struct k_engram_gate *a, size_t i)
{
    for (uint32_t c = 0; c < a->hc; c++)
        engram_stream(a, i, c);
}

/* ---- stored values ------------------------------------------------------------------------
 */

/* Where expanded values go. */
enum dest { TO_F32, TO_BF16 };

INLINE void put(void *dst, enum dest to, size_t at, vf v)
{
    if (to == TO_BF16)
        vf_store_bf16((uint16_t *)dst + at, v);
    else
        vf_store_part((float *)dst + at, v, LANES);
}

/* n (a multiple of 32) E4M3 values, one E8M0 scale for each 32. */
INLINE void expand_e4m3(const uint8_t *codes, const uint8_t *scale, size_t n, void *dst,
                        enum dest to)
{
    for (size_t g = 0; g < n / 32; g++) {
        vf s = vf_all(k_e8m0_to_f32(scale[g]));
#pragma GCC unroll 8
        for (size_t j = g * 32; j < g * 32 + 32; j += LANES)
            put(dst, to, j, vf_from_e4m3(codes + j) * s);
    }
}

/* Group g of `size` E2M1 values with one scale, pairs in bytes. */
INLINE void expand_e2m1(const uint8_t *codes, size_t g, size_t size, float scale, void *dst,
                        enum dest to)
{
#pragma GCC unroll 8
    for (size_t j = g * size; j < (g + 1) * size; j += LANES)
        put(dst, to, j, vf_from_e2m1(codes + j / 2) * vf_all(scale));
}

#ifndef OWN_GROUPS
/* 32 values with one E8M0 scale, to bf16. */
INLINE void group_e4m3(const uint8_t *codes, const uint8_t *scale, uint16_t *y)
{
    expand_e4m3(codes, scale, 32, y, TO_BF16);
}

INLINE void group_e2m1(const uint8_t *codes, const uint8_t *scale, uint16_t *y)
{
    expand_e2m1(codes, 0, 32, k_e8m0_to_f32(*scale), y, TO_BF16);
}
#endif

static void expand(const struct k_weight *w, size_t o, uint16_t *y)
{
    size_t n = w->n_in;
    const uint8_t *data = w->data;
    if (w->type == K_W_FP8_32X32) {
        for (size_t g = 0; g < n / 32; g++)
            group_e4m3(data + o * n + g * 32, w->scale + o / 32 * (n / 32) + g, y + g * 32);
    } else if (w->type == K_W_FP4_1X32) {
        for (size_t g = 0; g < n / 32; g++)
            group_e2m1(data + o * (n / 2) + g * 16, w->scale + o * (n / 32) + g, y + g * 32);
    } else {
        memcpy(y, data + o * n * 2, n * 2);
    }
}

#if LANES == 16
/* n (even) groups of 16 E2M1 values. A lane takes a byte: its two codes are looked up apart and
 * zipped, and scales are converted together. */
INLINE void decode_groups(const uint8_t *codes, v16b scale, size_t n, float *x)
{
    const vi low = {0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23};
    float s[LANES];
    vf_store_part(s, vf_e4m3(vu_widen8(scale)), LANES);
#pragma GCC unroll 8
    for (size_t g = 0; g < n; g += 2) {
        vu pairs = vu_load_bytes(codes + g * 8);
        vf even = vf_e2m1(pairs), odd = vf_e2m1(pairs >> 4);
        vf_store_part(x + g * 16, __builtin_shuffle(even, odd, low) * vf_all(s[g]), LANES);
        vf_store_part(x + g * 16 + 16, __builtin_shuffle(even, odd, low + 8) * vf_all(s[g + 1]),
                      LANES);
    }
}
#endif

/* d E2M1 values, one E4M3 scale for each 16. */
static void decode_fp4_16(const uint8_t *codes, const uint8_t *scale, size_t d, float *x)
{
    size_t g = 0, n = d / 16;
#if LANES == 16
    for (; n - g >= 16; g += 16)
        decode_groups(codes + g * 8, load_bytes(scale + g, 16), 16, x + g * 16);
    for (; n - g >= 8; g += 8)
        decode_groups(codes + g * 8, load_bytes(scale + g, 8), 8, x + g * 16);
#endif
    for (; g < n; g++)
        expand_e2m1(codes, g, 16, k_e4m3_to_f32(scale[g]), x, TO_F32);
}

static void decode(enum k_format format, const uint8_t *row, uint32_t d, float *x)
{
    switch (format) {
    case K_ROW_F32:
        memcpy(x, row, (size_t)d * 4);
        break;
    case K_ROW_FP8_32:
        expand_e4m3(row, row + d, d, x, TO_F32);
        break;
    case K_ROW_FP4_16:
        decode_fp4_16(row, row + d / 2, d, x);
        break;
    case K_ROW_FP4_32:
        for (uint32_t g = 0; g < d / 32; g++)
            expand_e2m1(row, g, 32, k_e8m0_to_f32(row[d / 2 + g]), x, TO_F32);
        break;
    }
}

#define ISA_TABLE(isa_name, class_name, bf16_dot, codes_dot, rows, bytes, ...)                 \
    {                                                                                          \
        .name = isa_name, .numerics = class_name, .tile_m = TILE_M, .dot_f32 = dot_f32,        \
        .dot_f32_bf16 = dot_f32_bf16, .dot_bf16 = bf16_dot, .dot_codes = codes_dot,            \
        .weighted = weighted, .softmax = softmax, .exp_minus = exp_minus,                      \
        .decode_columns = decode_columns, .dot_columns = dot_columns, .index_sum = index_sum,  \
        .block_max = block_max, .best_add = best_add, .best_cut = best_cut, .swiglu = swiglu,  \
        .to_rows = rows, .row_bytes = bytes, .round_bf16 = round_bf16, .expand = expand,       \
        .decode = decode, .rmsnorm = rmsnorm, .collapse = collapse, .update = update,          \
        .engram_gate = engram_gate, __VA_ARGS__                                                \
    }
