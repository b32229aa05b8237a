/* The sums of isa_avx512bf16.c by multiply-adds, bit for bit: where a machine does four of
 * these in the time of one vdpbf16ps (Sapphire Rapids: two a clock against one in two clocks)
 * they are twice as fast. A row is f32, 16 inputs of even place before 16 of odd place in
 * each 32. */
#include "kernels/isa_e2m1_table.h"
#include "kernels/isa_zmm.h"

struct inputs {
    vf even, odd;
};

struct weights {
    vf even, odd;
};

INLINE struct inputs load_inputs(const void *row, size_t k)
{
    const float *p = (const float *)row + k;
    return (struct inputs){(vf)_mm512_loadu_ps(p), (vf)_mm512_loadu_ps(p + LANES)};
}

INLINE struct weights weights_of(__m512i bf16)
{
    return (struct weights){(vf)_mm512_slli_epi32(bf16, 16),
                            (vf)_mm512_and_si512(bf16, _mm512_set1_epi32(-65536))};
}

INLINE vf multiply(vf acc, struct inputs x, struct weights w)
{
    return vf_fma(x.even, w.even, vf_fma(x.odd, w.odd, acc));
}

#define AS_F32(bits) (uint32_t)(bits) << 16
#define ROW_F32(s)                                                                             \
    {                                                                                          \
        E2M1_ROW(s, AS_F32)                                                                    \
    }
static const _Alignas(64) uint32_t e2m1[256][16] = E2M1_TABLE(ROW_F32);

/* Four bits of an index count in a table of 16. */
INLINE struct weights weights_e2m1(const uint8_t *codes, uint8_t scale)
{
    __m512i b = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)codes));
    __m512 table = _mm512_load_ps(e2m1[scale]);
    return (struct weights){(vf)_mm512_permutexvar_ps(b, table),
                            (vf)_mm512_permutexvar_ps(_mm512_srli_epi32(b, 4), table)};
}

#define FLUSH_TO_ZERO 0x8000u
#define SUBNORMALS_ARE_ZERO 0x0040u

/* No product may be moved out of the part between enter() and leave(). */
INLINE void pin(vf acc[][K_TILE_N], size_t m, size_t n)
{
#pragma GCC unroll 4
    for (size_t i = 0; i < m; i++)
#pragma GCC unroll 4
        for (size_t j = 0; j < n; j++)
            __asm__ volatile("" : "+v"(acc[i][j]));
}

INLINE unsigned enter(vf acc[][K_TILE_N], size_t m, size_t n)
{
    unsigned mode = _mm_getcsr();
    _mm_setcsr(mode | FLUSH_TO_ZERO | SUBNORMALS_ARE_ZERO);
    pin(acc, m, n);
    return mode;
}

INLINE void leave(vf acc[][K_TILE_N], size_t m, size_t n, unsigned mode)
{
    pin(acc, m, n);
    _mm_setcsr(mode);
}

#include "kernels/isa_bf16.h"
#include "kernels/isa_vnni.h"

#define ROW_BYTES 4
static void to_rows(const float *x, size_t n, void *y)
{
    const __m512i even =
        _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    float *out = y;
    for (size_t k = 0; k < n; k += GROUP, out += GROUP) {
        size_t part = n - k < GROUP ? n - k : GROUP, low = part < LANES ? part : LANES;
        __m512 a = (__m512)vf_bf16(vf_load_part(x + k, low));
        __m512 b = (__m512)vf_bf16(vf_load_part(x + k + low, part - low));
        _mm512_storeu_ps(out, _mm512_permutex2var_ps(a, even, b));
        _mm512_storeu_ps(out + LANES, _mm512_permutex2var_ps(
                                          a, _mm512_add_epi32(even, _mm512_set1_epi32(1)), b));
    }
}

const struct k_isa k_isa_fma_avx512bf16 = ISA_TABLE(
    "avx512bf16-fma", "cpu-avx512bf16/3", dot_bf16, dot_codes, to_rows, ROW_BYTES,
    .query_codes = query_codes, .key_codes = key_codes, .dot_key_codes = dot_key_codes);
