/* AVX-512 with vdpbf16ps: a lane takes two neighbouring inputs at a time. The instruction
 * rounds each of its two sums to nearest even and reads and writes subnormals as zero. */
#include "kernels/isa_zmm.h"

INLINE __m512bh load_bf16(const uint16_t *p, size_t part)
{
    if (part == 2 * LANES)
        return (__m512bh)_mm512_loadu_si512(p);
    return (__m512bh)_mm512_maskz_loadu_epi16((__mmask32)((1u << part) - 1), p);
}

INLINE void step_bf16(vf acc[][K_TILE_N], const void *const *x, size_t m, const void *const *w,
                      size_t n, size_t k, size_t part)
{
    __m512bh wv[K_TILE_N];
#pragma GCC unroll 4
    for (size_t j = 0; j < n; j++)
        wv[j] = load_bf16((const uint16_t *)w[j] + k, part);
#pragma GCC unroll 4
    for (size_t i = 0; i < m; i++) {
        __m512bh xv = load_bf16((const uint16_t *)x[i] + k, part);
#pragma GCC unroll 4
        for (size_t j = 0; j < n; j++)
            acc[i][j] = (vf)_mm512_dpbf16_ps((__m512)acc[i][j], xv, wv[j]);
    }
}

INLINE void tile_bf16(const void *const *x, size_t m, const void *const *w, size_t n,
                      size_t len, float *y, size_t ldy)
{
    vf acc[TILE_M][K_TILE_N] = {{{0}}};
    size_t k = 0;
    for (; k + 2 * LANES <= len; k += 2 * LANES)
        step_bf16(acc, x, m, w, n, k, 2 * LANES);
    if (k < len)
        step_bf16(acc, x, m, w, n, k, len - k);
#pragma GCC unroll 4
    for (size_t i = 0; i < m; i++)
        put_sums(acc[i], n, y + i * ldy);
}

#define TILE_BF16(M, N) tile_bf16(x, M, w, N, len, y, ldy)

static void dot_bf16(const void *const *x, size_t m, const void *const *w, size_t n, size_t len,
                     float *y, size_t ldy)
{
    EACH_TILE(TILE_BF16)
}

/* ---- products with codes ------------------------------------------------------------------
 *
 * For few rows reading and expanding the weights is all the work: here they go from codes to
 * the product in registers. Values and order of sums are those of dot_bf16 over expanded rows.
 */

#define SCALES 16 /* groups whose scales are looked at together */

/* What each scale adds to the exponent of bf16 bits, twice in 32 bits. False: one is not plain.
 */
INLINE bool exponents(const uint8_t *scale, size_t n, uint32_t out[SCALES])
{
    __mmask16 some = (__mmask16)(n < SCALES ? (1u << n) - 1 : 0xffff);
    __m512i s = _mm512_cvtepu8_epi32(_mm_mask_loadu_epi8(_mm_set1_epi8(127), some, scale));
    __mmask16 low = _mm512_cmplt_epu32_mask(s, _mm512_set1_epi32(10));
    __mmask16 high = _mm512_cmpgt_epu32_mask(s, _mm512_set1_epi32(246));
    __m512i add = _mm512_slli_epi32(_mm512_sub_epi32(s, _mm512_set1_epi32(127)), 7);
    add = _mm512_mask_blend_epi16(0xaaaaaaaau, add, _mm512_slli_epi32(add, 16));
    _mm512_storeu_si512(out, add);
    return !(low | high);
}

/* Asks for what lies one tile further on: rows are too short for the machine to see them
 * coming. */
INLINE void ask_ahead(const uint8_t *codes, size_t row_bytes, size_t n, size_t n_bytes)
{
    for (size_t j = 0; j < n; j++)
        for (size_t i = 0; i < n_bytes; i += 64)
            _mm_prefetch((const char *)codes + (j + n) * row_bytes + i, _MM_HINT_T0);
}

/* Adds the products with 32 weights that are bf16 by now. */
INLINE void add_products(vf acc[][K_TILE_N], const void *const *x, size_t m, size_t j, size_t k,
                         __m512i w)
{
#pragma GCC unroll 4
    for (size_t i = 0; i < m; i++) {
        __m512bh xv = load_bf16((const uint16_t *)x[i] + k, 2 * LANES);
        acc[i][j] = (vf)_mm512_dpbf16_ps((__m512)acc[i][j], xv, (__m512bh)w);
    }
}

/* 32 E2M1 codes by a table of the 16 values times the scale. A byte b becomes the 16-bit
 * indices b and b >> 4: the table has its values twice, as only the low five bits of an index
 * count. */
INLINE __m512i codes_e2m1(const uint8_t *pairs, uint32_t exponent)
{
    const __m512i values = _mm512_broadcast_i64x4(
        _mm256_setr_epi16(0, 0x3f00, 0x3f80, 0x3fc0, 0x4000, 0x4040, 0x4080, 0x40c0,
                          (int16_t)0x8000, (int16_t)0xbf00, (int16_t)0xbf80, (int16_t)0xbfc0,
                          (int16_t)0xc000, (int16_t)0xc040, (int16_t)0xc080, (int16_t)0xc0c0));
    __m512i table = _mm512_mask_add_epi16(values, 0xfefefefeu, values, /* zeros stay */
                                          _mm512_set1_epi32((int)exponent));
    __m512i b = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)pairs));
    return _mm512_permutexvar_epi16(_mm512_or_si512(b, _mm512_slli_epi32(b, 12)), table);
}

INLINE bool tile_e2m1(const void *const *x, size_t m, const struct k_weight *w, size_t o,
                      size_t n, float *y, size_t ldy)
{
    vf acc[TILE_M][K_TILE_N] = {{{0}}};
    size_t groups = w->n_in / 32;
    const uint8_t *codes = (const uint8_t *)w->data + o * groups * 16;
    const uint8_t *scale = w->scale + o * groups;
    for (size_t g0 = 0; g0 < groups; g0 += SCALES) {
        uint32_t exponent[K_TILE_N][SCALES];
        size_t part = groups - g0 < SCALES ? groups - g0 : SCALES;
        for (size_t j = 0; j < n; j++)
            if (!exponents(scale + j * groups + g0, part, exponent[j]))
                return false;
        ask_ahead(codes + g0 * 16, groups * 16, n, part * 16);
        for (size_t g = 0; g < part; g++)
#pragma GCC unroll 4
            for (size_t j = 0; j < n; j++)
                add_products(acc, x, m, j, (g0 + g) * 32,
                             codes_e2m1(codes + (j * groups + g0 + g) * 16, exponent[j][g]));
    }
#pragma GCC unroll 4
    for (size_t i = 0; i < m; i++)
        put_sums(acc[i], n, y + i * ldy);
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
    size_t groups = w->n_in / 32;
    const uint8_t *codes = (const uint8_t *)w->data + o * w->n_in;
    const uint8_t *scale = w->scale + o / 32 * groups;
    if (o / 32 != (o + n - 1) / 32) /* two rows of scales */
        return false;
    for (size_t g0 = 0; g0 < groups; g0 += SCALES) {
        uint32_t exponent[SCALES];
        size_t part = groups - g0 < SCALES ? groups - g0 : SCALES;
        if (!exponents(scale + g0, part, exponent))
            return false;
        ask_ahead(codes + g0 * 32, w->n_in, n, part * 32);
        for (size_t g = 0; g < part; g++) {
            __m512i add = _mm512_set1_epi32((int)exponent[g]);
            __m512i small = _mm512_mask_add_epi16(k_small, 0xfeu, k_small, add);
            add = _mm512_add_epi16(add, _mm512_set1_epi16(120 * 128));
#pragma GCC unroll 4
            for (size_t j = 0; j < n; j++)
                add_products(
                    acc, x, m, j, (g0 + g) * 32,
                    codes_e4m3(codes + j * w->n_in + (g0 + g) * 32, add, small, &most));
        }
    }
    if (_mm512_cmpeq_epi16_mask(most, _mm512_set1_epi16(0x7f0)))
        return false;
#pragma GCC unroll 4
    for (size_t i = 0; i < m; i++)
        put_sums(acc[i], n, y + i * ldy);
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
const struct k_isa k_isa_avx512bf16 =
    ISA_TABLE("avx512bf16", "cpu-avx512bf16/1", dot_bf16, dot_codes);
