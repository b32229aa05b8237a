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

const struct k_isa k_isa_avx512bf16 = ISA_TABLE("avx512bf16", "cpu-avx512bf16/1", dot_bf16);
