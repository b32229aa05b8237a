/* Sixteen lanes and 32 registers: what the AVX-512 files share. */
#include <immintrin.h>

#define LANES 16
#define TILE_M 4
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

#include "kernels/isa_rows.h"
