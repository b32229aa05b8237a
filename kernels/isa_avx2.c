/* AVX2 and FMA: eight lanes, 16 registers. */
#include <immintrin.h>

#define LANES 8
#define TILE_M 2
#include "kernels/isa_types.h"

INLINE vf vf_fma(vf a, vf b, vf c)
{
    return (vf)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
}

INLINE v4 vf_fold(vf v)
{
    return (v4)_mm_add_ps(_mm256_castps256_ps128((__m256)v),
                          _mm256_extractf128_ps((__m256)v, 1));
}

INLINE vu vu_widen8(v16b b)
{
    return (vu)_mm256_cvtepu8_epi32((__m128i)b);
}

INLINE vu vu_widen16(vh h)
{
    return (vu)_mm256_cvtepu16_epi32((__m128i)h);
}

INLINE vh vu_narrow16(vu u)
{
    __m256i lo = _mm256_and_si256((__m256i)u, _mm256_set1_epi32(0xffff));
    return (vh)_mm_packus_epi32(_mm256_castsi256_si128(lo), _mm256_extracti128_si256(lo, 1));
}

#include "kernels/isa_rows.h"

const struct k_isa k_isa_avx2 =
    ISA_TABLE("avx2", "cpu-avx2/2", NULL, NULL, NULL, 0, .query_codes = NULL);
