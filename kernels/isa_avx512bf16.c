/* AVX-512 with vdpbf16ps: a lane takes two neighbouring inputs at a time. The instruction
 * rounds each of its two sums to nearest even and reads and writes subnormals as zero. */
#include "kernels/isa_e2m1_table.h"
#include "kernels/isa_zmm.h"

struct inputs {
    __m512bh v;
};

struct weights {
    __m512i v;
};

INLINE struct inputs load_inputs(const void *row, size_t k)
{
    return (struct inputs){(__m512bh)_mm512_loadu_si512((const uint16_t *)row + k)};
}

INLINE struct weights weights_of(__m512i bf16)
{
    return (struct weights){bf16};
}

INLINE vf multiply(vf acc, struct inputs x, struct weights w)
{
    return (vf)_mm512_dpbf16_ps((__m512)acc, x.v, (__m512bh)w.v);
}

/* Twice, as five bits of an index count in a table of 32. */
#define AS_U16(bits) (uint16_t)(bits)
#define ROW_U16(s)                                                                             \
    {                                                                                          \
        E2M1_ROW(s, AS_U16), E2M1_ROW(s, AS_U16)                                               \
    }
static const _Alignas(64) uint16_t e2m1[256][32] = E2M1_TABLE(ROW_U16);

/* A byte b becomes the 16-bit indices b and b >> 4. */
INLINE struct weights weights_e2m1(const uint8_t *codes, uint8_t scale)
{
    __m512i b = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)codes));
    return (struct weights){_mm512_permutexvar_epi16(
        _mm512_or_si512(b, _mm512_slli_epi32(b, 12)), _mm512_load_si512(e2m1[scale]))};
}

INLINE unsigned enter(vf acc[][K_TILE_N], size_t m, size_t n)
{
    (void)acc, (void)m, (void)n;
    return 0;
}

INLINE void leave(vf acc[][K_TILE_N], size_t m, size_t n, unsigned mode)
{
    (void)acc, (void)m, (void)n, (void)mode;
}

#include "kernels/isa_bf16.h"
#include "kernels/isa_vnni.h"

#define ROW_BYTES 2
static void to_rows(const float *x, size_t n, void *y)
{
    uint16_t *out = y;
    for (size_t j = 0; j < k_row_width(n); j += LANES) {
        size_t left = j < n ? n - j : 0;
        vf_store_bf16(out + j, vf_load_part(x + j, left < LANES ? left : LANES));
    }
}

const struct k_isa k_isa_avx512bf16 = ISA_TABLE(
    "avx512bf16-dot", "cpu-avx512bf16/3", dot_bf16, dot_codes, to_rows, ROW_BYTES,
    .query_codes = query_codes, .key_codes = key_codes, .dot_key_codes = dot_key_codes);
