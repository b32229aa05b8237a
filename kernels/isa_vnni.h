/* Index scores from FP4 codes by products of bytes (AVX-512 VNNI), four a lane: key values as
 * 2v + 12, query values as whole multiples of a power of two. A group of 32 is summed exactly,
 * so only the sum over groups rounds. Included where isa_rows.h was. */
#ifndef KERNELS_ISA_VNNI_H
#define KERNELS_ISA_VNNI_H

#define CODES 32    /* of one scale */
#define KEY_ZERO 12 /* the byte of a key's 0 */

/* What query_codes makes of a row: d bytes, then for each group what its sum begins with, then
 * its scale. */
INLINE const int32_t *query_start(const void *row, uint32_t d)
{
    return (const int32_t *)(const void *)((const uint8_t *)row + d);
}

INLINE const float *query_scale(const void *row, uint32_t d)
{
    return (const float *)(const void *)((const uint8_t *)row + d + d / CODES * 4);
}

/* 16 values times inv; false: not all of them are whole. */
INLINE bool whole_values(const float *q, __m512 inv, __m512i *out)
{
    __m512 v = _mm512_mul_ps(_mm512_loadu_ps(q), inv);
    *out = _mm512_cvtps_epi32(v);
    return _mm512_cmpneq_ps_mask(_mm512_cvtepi32_ps(*out), v) == 0;
}

INLINE uint32_t largest_bits(const float *q)
{
    __m512i magnitude = _mm512_set1_epi32(INT32_MAX);
    __m512i a = _mm512_and_si512(_mm512_loadu_si512(q), magnitude);
    __m512i b = _mm512_and_si512(_mm512_loadu_si512(q + LANES), magnitude);
    return _mm512_reduce_max_epu32(_mm512_max_epu32(a, b));
}

/* The largest of a group becomes 32 to 63: half of the smallest FP4 step is then whole. */
static bool query_group(const float *q, int8_t *codes, int32_t *start, float *scale)
{
    __m512i a, b;
    uint32_t largest = largest_bits(q), exponent = largest >> 23;
    if (largest && (exponent < 16 || exponent == 255))
        return false;
    exponent = largest ? exponent : 127;
    __m512 inv = _mm512_set1_ps(k_f32_from_bits((259 - exponent) << 23));
    if (!whole_values(q, inv, &a) || !whole_values(q + LANES, inv, &b))
        return false;
    *start = -KEY_ZERO * (_mm512_reduce_add_epi32(a) + _mm512_reduce_add_epi32(b));
    *scale = k_f32_from_bits((exponent - 6) << 23); /* of a key's 2v */
    /* eight values as a word of codes has them: those of low, then of high nibbles */
    const __m256i order =
        _mm256_setr_epi8(0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15, 0, 2, 4, 6, 1, 3,
                         5, 7, 8, 10, 12, 14, 9, 11, 13, 15);
    __m256i bytes = _mm256_set_m128i(_mm512_cvtepi32_epi8(b), _mm512_cvtepi32_epi8(a));
    _mm256_storeu_si256((__m256i *)(void *)codes, _mm256_shuffle_epi8(bytes, order));
    return true;
}

static bool query_codes(const float *q, uint32_t d, void *row)
{
    int8_t *codes = row;
    int32_t *start = (int32_t *)(void *)(codes + d);
    float *scale = (float *)(void *)(start + d / CODES);
    for (uint32_t g = 0; g < d / CODES; g++)
        if (!query_group(q + g * CODES, codes + g * CODES, start + g, scale + g))
            return false;
    return true;
}

/* The 32 bits at `at` in each of 16 rows. */
INLINE __m512i words_at(const uint8_t *const *row, size_t at)
{
    __m512i offset = _mm512_set1_epi64((int64_t)at);
    __m512i a = _mm512_add_epi64(_mm512_loadu_si512(row), offset);
    __m512i b = _mm512_add_epi64(_mm512_loadu_si512(row + 8), offset);
    return _mm512_inserti64x4(_mm512_castsi256_si512(_mm512_i64gather_epi32(a, NULL, 1)),
                              _mm512_i64gather_epi32(b, NULL, 1), 1);
}

/* 16 rows of one group into their columns. */
INLINE void key_group(const uint8_t *const *row, uint32_t d, uint32_t g, uint32_t *columns,
                      float *scale)
{
    const __m512i bytes = _mm512_broadcast_i32x4(
        _mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0));
    const __m512i low = _mm512_set1_epi8(15);
    for (size_t r = 0; r < LANES; r++)
        scale[r] = k_e8m0_to_f32(row[r][d / 2 + g]);
    for (size_t j = 0; j < CODES / 8; j++) {
        __m512i w = words_at(row, g * (CODES / 2) + j * 4);
        uint32_t *to = columns + 2 * j * K_COLUMNS;
        _mm512_storeu_si512(to, _mm512_shuffle_epi8(bytes, _mm512_and_si512(w, low)));
        w = _mm512_and_si512(_mm512_srli_epi32(w, 4), low);
        _mm512_storeu_si512(to + K_COLUMNS, _mm512_shuffle_epi8(bytes, w));
    }
}

/* A tile: [d / 4][K_COLUMNS] words of four bytes, then [d / 32][K_COLUMNS] scales. */
static void key_codes(const uint8_t *const *row, size_t n, uint32_t d, void *tile)
{
    uint32_t *columns = tile;
    float *scale = (float *)(void *)(columns + d / 4 * K_COLUMNS);
    const uint8_t *some[LANES];
    for (size_t r = 0; r < K_COLUMNS; r += LANES) {
        for (size_t i = 0; i < LANES; i++)
            some[i] = row[r + i < n ? r + i : n - 1];
        for (uint32_t g = 0; g < d / CODES; g++)
            key_group(some, d, g, columns + g * (CODES / 4) * K_COLUMNS + r,
                      scale + g * K_COLUMNS + r);
    }
}

INLINE void add_group(__m512 sum[][4], const void *const *q, size_t m, const uint32_t *columns,
                      const float *scale, uint32_t d, uint32_t g)
{
    __m512i acc[TILE_M][4];
#pragma GCC unroll 4
    for (size_t i = 0; i < m; i++)
#pragma GCC unroll 4
        for (size_t c = 0; c < 4; c++)
            acc[i][c] = _mm512_set1_epi32(query_start(q[i], d)[g]);
    for (size_t j = g * (CODES / 4); j < (g + 1) * (CODES / 4); j++) {
        __m512i v[4];
#pragma GCC unroll 4
        for (size_t c = 0; c < 4; c++)
            v[c] = _mm512_loadu_si512(columns + j * K_COLUMNS + c * LANES);
#pragma GCC unroll 4
        for (size_t i = 0; i < m; i++) {
            __m512i qv = _mm512_set1_epi32(((const int32_t *)q[i])[j]);
#pragma GCC unroll 4
            for (size_t c = 0; c < 4; c++)
                acc[i][c] = _mm512_dpbusd_epi32(acc[i][c], v[c], qv);
        }
    }
#pragma GCC unroll 4
    for (size_t c = 0; c < 4; c++) {
        __m512 key = _mm512_loadu_ps(scale + g * K_COLUMNS + c * LANES);
#pragma GCC unroll 4
        for (size_t i = 0; i < m; i++) {
            __m512 both = _mm512_mul_ps(key, _mm512_set1_ps(query_scale(q[i], d)[g]));
            sum[i][c] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(acc[i][c]), both, sum[i][c]);
        }
    }
}

INLINE void codes_tile(const void *const *q, size_t m, const void *tile, uint32_t d, float *y,
                       size_t ldy)
{
    const uint32_t *columns = tile;
    const float *scale = (const float *)(const void *)(columns + d / 4 * K_COLUMNS);
    __m512 sum[TILE_M][4] = {{{0}}};
    for (uint32_t g = 0; g < d / CODES; g++)
        add_group(sum, q, m, columns, scale, d, g);
#pragma GCC unroll 4
    for (size_t i = 0; i < m; i++)
#pragma GCC unroll 4
        for (size_t c = 0; c < 4; c++)
            _mm512_storeu_ps(y + i * ldy + c * LANES, sum[i][c]);
}

#define CODES_TILE(M)                                                                          \
    case M:                                                                                    \
        codes_tile(q, M, tile, d, y, ldy);                                                     \
        break;

static void dot_key_codes(const void *const *q, size_t m, const void *tile, uint32_t d,
                          float *y, size_t ldy)
{
    switch (m) {
        CODES_TILE(1)
        CODES_TILE(2)
        CODES_TILE(3)
        CODES_TILE(4)
    default:
        break;
    }
}

#endif
