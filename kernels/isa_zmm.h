/* Sixteen lanes and 32 registers: what the AVX-512 files share. */
#include <immintrin.h>
#include <stdbool.h>

#define LANES 16
#define TILE_M 4
#include "kernels/isa.h"
#include "kernels/isa_types.h"

INLINE vf vf_fma(vf a, vf b, vf c)
{
    return (vf)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
}

INLINE v4 vf_fold(vf v)
{
    __m256 half =
        _mm256_add_ps(_mm512_castps512_ps256((__m512)v), _mm512_extractf32x8_ps((__m512)v, 1));
    return (v4)_mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
}

INLINE __m512 halves(__m512 a, __m512 b) /* of a, of b: lower plus upper half */
{
    return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee));
}

INLINE __m512 quarters(__m512 a, __m512 b) /* the same inside the halves of each */
{
    return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));
}

INLINE __m512 pairs(__m512 a, __m512 b) /* in each quarter 0+1, 2+3 of a, then of b */
{
    return _mm512_add_ps(_mm512_shuffle_ps(a, b, 0x88), _mm512_shuffle_ps(a, b, 0xdd));
}

/* Sixteen sums at once, each in the order of vf_fold and v4_sums. */
#define OWN_TILE
INLINE void put_full_tile(vf acc[][K_TILE_N], float *y, size_t ldy)
{
    __m512 row[TILE_M];
#pragma GCC unroll 4
    for (size_t i = 0; i < TILE_M; i++)
        row[i] = quarters(halves((__m512)acc[i][0], (__m512)acc[i][1]),
                          halves((__m512)acc[i][2], (__m512)acc[i][3]));
    __m512 sums = pairs(pairs(row[0], row[1]), pairs(row[2], row[3])); /* by column */
    sums = _mm512_permutexvar_ps(
        _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15), sums);
    _mm_storeu_ps(y, _mm512_castps512_ps128(sums));
    _mm_storeu_ps(y + ldy, _mm512_extractf32x4_ps(sums, 1));
    _mm_storeu_ps(y + 2 * ldy, _mm512_extractf32x4_ps(sums, 2));
    _mm_storeu_ps(y + 3 * ldy, _mm512_extractf32x4_ps(sums, 3));
}

INLINE vu vu_widen8(v16b b)
{
    return (vu)_mm512_cvtepu8_epi32((__m128i)b);
}

INLINE vu vu_widen16(vh h)
{
    return (vu)_mm512_cvtepu16_epi32((__m256i)h);
}

INLINE vh vu_narrow16(vu u)
{
    return (vh)_mm512_cvtepi32_epi16((__m512i)u);
}

#define OWN_KEEP
INLINE bool vi_any(vi mask)
{
    return _mm512_movepi32_mask((__m512i)mask);
}

INLINE uint32_t keep_lanes(float *score, int32_t *row, uint32_t n, vf v, vi rows, vi mask)
{
    __mmask16 m = _mm512_movepi32_mask((__m512i)mask);
    _mm512_storeu_ps(score + n, _mm512_maskz_compress_ps(m, (__m512)v));
    _mm512_storeu_si512(row + n, _mm512_maskz_compress_epi32(m, (__m512i)rows));
    return n + (uint32_t)__builtin_popcount(m);
}

/* Weights go straight to bf16 bits, 32 at a time: a power-of-two scale is an addition to the
 * exponent field. That holds while every result is a normal bf16; other scales (the caller's
 * test) take the way through f32. */
INLINE bool scale_is_plain(uint8_t scale)
{
    return scale >= 10 && scale <= 246;
}

INLINE __m512i scaled(__m512i bf16, uint8_t scale)
{
    __m512i add = _mm512_set1_epi16((int16_t)((scale - 127) * 128));
    return _mm512_add_epi16(bf16, add);
}

/* 32 E4M3 codes; scale_is_plain(scale) */
INLINE __m512i bf16_from_e4m3(__m256i codes, uint8_t scale)
{
    const __m512i small = _mm512_castsi128_si512(
        _mm_setr_epi16(/* k * 2^-9 */
                       0, 0x3b00, 0x3b80, 0x3bc0, 0x3c00, 0x3c20, 0x3c40, 0x3c60));
    __m512i c = _mm512_cvtepu8_epi16(codes);
    __m512i magnitude = _mm512_and_si512(c, _mm512_set1_epi16(0x7f));
    __m512i v = _mm512_add_epi16(_mm512_slli_epi16(magnitude, 4), _mm512_set1_epi16(120 * 128));
    v = _mm512_mask_permutexvar_epi16(
        v, _mm512_cmplt_epu16_mask(magnitude, _mm512_set1_epi16(8)), magnitude, small);
    v = _mm512_maskz_mov_epi16(_mm512_test_epi16_mask(magnitude, magnitude), scaled(v, scale));
    v = _mm512_mask_mov_epi16(v, _mm512_cmpeq_epi16_mask(magnitude, _mm512_set1_epi16(0x7f)),
                              _mm512_set1_epi16(0x7fc0));
    return _mm512_or_si512(
        v, _mm512_slli_epi16(_mm512_andnot_si512(_mm512_set1_epi16(0x7f), c), 8));
}

/* 32 E2M1 codes from 16 bytes; scale_is_plain(scale) */
INLINE __m512i bf16_from_e2m1(__m128i pairs, uint8_t scale)
{
    const __m512i table = _mm512_castsi256_si512(
        _mm256_setr_epi16(0, 0x3f00, 0x3f80, 0x3fc0, 0x4000, 0x4040, 0x4080, 0x40c0,
                          (int16_t)0x8000, (int16_t)0xbf00, (int16_t)0xbf80, (int16_t)0xbfc0,
                          (int16_t)0xc000, (int16_t)0xc040, (int16_t)0xc080, (int16_t)0xc0c0));
    __m256i bytes = _mm256_cvtepu8_epi16(pairs); /* ..hi.lo. in 16 bits */
    bytes = _mm256_or_si256(_mm256_and_si256(bytes, _mm256_set1_epi16(15)),
                            _mm256_slli_epi16(_mm256_srli_epi16(bytes, 4), 8));
    __m512i c = _mm512_cvtepu8_epi16(bytes);
    __m512i v = _mm512_permutexvar_epi16(c, table);
    return _mm512_mask_mov_epi16(v, _mm512_test_epi16_mask(c, _mm512_set1_epi16(7)),
                                 scaled(v, scale));
}

#define OWN_GROUPS
INLINE void group_e4m3(const uint8_t *codes, const uint8_t *scale, uint16_t *y);
INLINE void group_e2m1(const uint8_t *codes, const uint8_t *scale, uint16_t *y);

#include "kernels/isa_rows.h"

INLINE void group_e4m3(const uint8_t *codes, const uint8_t *scale, uint16_t *y)
{
    if (scale_is_plain(*scale))
        _mm512_storeu_si512(
            y,
            bf16_from_e4m3(_mm256_loadu_si256((const __m256i *)(const void *)codes), *scale));
    else
        expand_e4m3(codes, scale, 32, y, TO_BF16);
}

INLINE void group_e2m1(const uint8_t *codes, const uint8_t *scale, uint16_t *y)
{
    if (scale_is_plain(*scale))
        _mm512_storeu_si512(
            y, bf16_from_e2m1(_mm_loadu_si128((const __m128i *)(const void *)codes), *scale));
    else
        expand_e2m1(codes, 0, 32, k_e8m0_to_f32(*scale), y, TO_BF16);
}
