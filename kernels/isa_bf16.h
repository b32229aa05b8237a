/* Products of bf16 values, in the text that two ways to multiply them share: isa_avx512bf16.c
 * with one instruction for two products, isa_fma_avx512bf16.c with two. Their bits are the
 * same.
 *
 * The including file has isa_zmm.h before it and defines
 *
 *     struct inputs                 32 inputs of a row
 *     load_inputs(row, k)           from k on, a multiple of 32
 *     struct weights                32 weights of a row
 *     weights_of(w)                 from bf16 in order
 *     weights_e2m1(codes, scale)    from 16 bytes of codes and a plain scale
 *     multiply(acc, x, w)           lane j of acc plus x[2j+1] w[2j+1], rounded, plus
 *                                   x[2j] w[2j], rounded
 *     enter(), leave()              around the products of a tile
 *     ROW_BYTES, to_rows()          what a row is */
#ifndef KERNELS_ISA_BF16_H
#define KERNELS_ISA_BF16_H

#define GROUP 32 /* inputs of a step, and codes that share a scale */

INLINE __m512i load_bf16(const uint16_t *p, size_t part)
{
    if (part == GROUP)
        return _mm512_loadu_si512(p);
    return _mm512_maskz_loadu_epi16((__mmask32)((1u << part) - 1), p);
}

INLINE void step_bf16(vf acc[][K_TILE_N], const void *const *x, size_t m, const void *const *w,
                      size_t n, size_t k, size_t part)
{
    struct weights wv[K_TILE_N];
#pragma GCC unroll 4
    for (size_t j = 0; j < n; j++)
        wv[j] = weights_of(load_bf16((const uint16_t *)w[j] + k, part));
#pragma GCC unroll 4
    for (size_t i = 0; i < m; i++) {
        struct inputs xv = load_inputs(x[i], k);
#pragma GCC unroll 4
        for (size_t j = 0; j < n; j++)
            acc[i][j] = multiply(acc[i][j], xv, wv[j]);
    }
}

INLINE void tile_bf16(const void *const *x, size_t m, const void *const *w, size_t n,
                      size_t len, float *y, size_t ldy)
{
    vf acc[TILE_M][K_TILE_N] = {{{0}}};
    unsigned mode = enter(acc, m, n);
    size_t k = 0;
    for (; k + GROUP <= len; k += GROUP)
        step_bf16(acc, x, m, w, n, k, GROUP);
    if (k < len)
        step_bf16(acc, x, m, w, n, k, len - k);
    leave(acc, m, n, mode);
    put_tile(acc, m, n, y, ldy);
}

#define TILE_BF16(M, N) tile_bf16(x, M, w, N, len, y, ldy)

static void dot_bf16(const void *const *x, size_t m, const void *const *w, size_t n, size_t len,
                     float *y, size_t ldy){EACH_TILE(TILE_BF16)}

/* ---- products with codes ------------------------------------------------------------------
 *
 * For few rows reading and expanding the weights is all the work: here they go from codes to
 * the product in registers. Values and order of sums are those of dot_bf16 over expanded rows.
 */

#define PART 16 /* groups that are asked for together */

INLINE bool scales_are_plain(const uint8_t *scale, size_t n)
{
    __mmask64 odd = 0;
    for (size_t i = 0; i < n; i += 64) {
        __mmask64 some = n - i < 64 ? ((__mmask64)1 << (n - i)) - 1 : ~(__mmask64)0;
        __m512i s = _mm512_mask_loadu_epi8(_mm512_set1_epi8(127), some, scale + i);
        s = _mm512_sub_epi8(s, _mm512_set1_epi8(10));
        odd |= _mm512_cmpgt_epu8_mask(s, _mm512_set1_epi8((char)(246 - 10)));
    }
    return !odd;
}

/* Asks for what lies one tile further on: rows are too short for the machine to see them
 * coming. */
INLINE void ask_ahead(const uint8_t *codes, size_t row_bytes, size_t n, size_t n_bytes)
{
    for (size_t j = 0; j < n; j++)
        for (size_t i = 0; i < n_bytes; i += 64)
            _mm_prefetch((const char *)codes + (j + n) * row_bytes + i, _MM_HINT_T0);
}

/* Adds the products of group g of weight row j. */
INLINE void add_products(vf acc[][K_TILE_N], const void *const *x, size_t m, size_t j, size_t g,
                         struct weights w)
{
#pragma GCC unroll 4
    for (size_t i = 0; i < m; i++)
        acc[i][j] = multiply(acc[i][j], load_inputs(x[i], g * GROUP), w);
}

INLINE bool tile_e2m1(const void *const *x, size_t m, const struct k_weight *w, size_t o,
                      size_t n, float *y, size_t ldy)
{
    vf acc[TILE_M][K_TILE_N] = {{{0}}};
    size_t groups = w->n_in / GROUP, row = groups * GROUP / 2;
    const uint8_t *codes = (const uint8_t *)w->data + o * row;
    const uint8_t *scale = w->scale + o * groups;
    if (!scales_are_plain(scale, n * groups))
        return false;
    unsigned mode = enter(acc, m, n);
    for (size_t g0 = 0; g0 < groups; g0 += PART) {
        size_t end = groups - g0 < PART ? groups : g0 + PART;
        ask_ahead(codes + g0 * GROUP / 2, row, n, (end - g0) * GROUP / 2);
        for (size_t g = g0; g < end; g++)
#pragma GCC unroll 4
            for (size_t j = 0; j < n; j++)
                add_products(
                    acc, x, m, j, g,
                    weights_e2m1(codes + j * row + g * GROUP / 2, scale[j * groups + g]));
    }
    leave(acc, m, n, mode);
    put_tile(acc, m, n, y, ldy);
    return true;
}

/* 32 E4M3 codes. The four bits of the exponent move to their place in bf16; subnormals, which
 * have none, come from a table. *most: the largest magnitude so far, NaN's being 0x7f0. */
INLINE __m512i codes_e4m3(const uint8_t *codes, __m512i exponent, __m512i small, __m512i *most)
{
    __m512i c = _mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i *)(const void *)codes));
    __m512i v = _mm512_and_si512(_mm512_slli_epi16(c, 4), _mm512_set1_epi16(0x7f0));
    __mmask32 is_small = _mm512_testn_epi16_mask(v, _mm512_set1_epi16(0x780));
    *most = _mm512_max_epu16(*most, v);
    v = _mm512_mask_permutexvar_epi16(_mm512_add_epi16(v, exponent), is_small, c, small);
    return _mm512_ternarylogic_epi32(v, c, _mm512_set1_epi16((int16_t)0x8000), 0xf8);
}

INLINE bool tile_e4m3(const void *const *x, size_t m, const struct k_weight *w, size_t o,
                      size_t n, float *y, size_t ldy)
{
    const __m512i k_small =
        _mm512_castsi128_si512(/* k * 2^-9 */
                               _mm_setr_epi16(0, 0x3b00, 0x3b80, 0x3bc0, 0x3c00, 0x3c20, 0x3c40,
                                              0x3c60));
    vf acc[TILE_M][K_TILE_N] = {{{0}}};
    __m512i most = _mm512_setzero_si512();
    size_t groups = w->n_in / GROUP;
    const uint8_t *codes = (const uint8_t *)w->data + o * w->n_in;
    const uint8_t *scale = w->scale + o / 32 * groups;
    if (o / 32 != (o + n - 1) / 32 || !scales_are_plain(scale, groups)) /* two rows of scales */
        return false;
    unsigned mode = enter(acc, m, n);
    for (size_t g0 = 0; g0 < groups; g0 += PART) {
        size_t end = groups - g0 < PART ? groups : g0 + PART;
        ask_ahead(codes + g0 * GROUP, w->n_in, n, (end - g0) * GROUP);
        for (size_t g = g0; g < end; g++) {
            __m512i add = _mm512_set1_epi16((int16_t)((scale[g] - 127) * 128));
            __m512i small = _mm512_mask_add_epi16(k_small, 0xfeu, k_small, add);
            add = _mm512_add_epi16(add, _mm512_set1_epi16(120 * 128));
#pragma GCC unroll 4
            for (size_t j = 0; j < n; j++)
                add_products(
                    acc, x, m, j, g,
                    weights_of(codes_e4m3(codes + j * w->n_in + g * GROUP, add, small, &most)));
        }
    }
    leave(acc, m, n, mode);
    if (_mm512_cmpeq_epi16_mask(most, _mm512_set1_epi16(0x7f0)))
        return false;
    put_tile(acc, m, n, y, ldy);
    return true;
}

#define TILE_CODES(M, N)                                                                       \
    return w->type == K_W_FP4_1X32 ? tile_e2m1(x, M, w, o, N, y, ldy)                          \
                                   : tile_e4m3(x, M, w, o, N, y, ldy)

static bool dot_codes(const void *const *x, size_t m, const struct k_weight *w, size_t o,
                      size_t n, float *y, size_t ldy)
{
    EACH_TILE(TILE_CODES)
    return false;
}

#endif
