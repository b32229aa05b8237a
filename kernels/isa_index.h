/* The indexer's part of struct k_isa over a vector of LANES floats: keys side by side, a lane
 * being a key, and the best of a stream of scores. Included by isa_rows.h. */
#ifndef KERNELS_ISA_INDEX_H
#define KERNELS_ISA_INDEX_H

#include <math.h>

#include "kernels/isa.h"
#include "kernels/isa_lanes.h"

/* ---- scores -------------------------------------------------------------------------------
 */

/* m rows of q against 4 LANES columns. */
INLINE void columns_tile(const void *const *q, size_t m, const float *columns, size_t d,
                         float *y, size_t ldy)
{
    vf acc[TILE_M][4] = {{{0}}};
    for (size_t k = 0; k < d; k++) {
        vf v[4];
#pragma GCC unroll 4
        for (size_t c = 0; c < 4; c++)
            v[c] = vf_load_part(columns + k * K_COLUMNS + c * LANES, LANES);
#pragma GCC unroll 4
        for (size_t i = 0; i < m; i++) {
            vf qv = vf_all(((const float *)q[i])[k]);
#pragma GCC unroll 4
            for (size_t c = 0; c < 4; c++)
                acc[i][c] = vf_fma(qv, v[c], acc[i][c]);
        }
    }
#pragma GCC unroll 4
    for (size_t i = 0; i < m; i++)
#pragma GCC unroll 4
        for (size_t c = 0; c < 4; c++)
            vf_store_part(y + i * ldy + c * LANES, acc[i][c], LANES);
}

#define COLUMNS_TILE(M)                                                                        \
    case M:                                                                                    \
        columns_tile(q, (M) <= TILE_M ? (M) : TILE_M, columns + r, d, y + r, ldy);             \
        break;

static void dot_columns(const void *const *q, size_t m, const float *columns, size_t d,
                        float *y, size_t ldy)
{
    for (size_t r = 0; r < K_COLUMNS; r += 4 * LANES)
        switch (m) {
            COLUMNS_TILE(1)
            COLUMNS_TILE(2)
            COLUMNS_TILE(3)
            COLUMNS_TILE(4)
        default:
            break;
        }
}

/* Eight values of LANES rows: those of the 32 bits at `at` in each. */
INLINE void eight_columns(const uint8_t *const *row, size_t at, vf scale, float *out)
{
    uint32_t words[LANES];
    vu w;
    for (size_t r = 0; r < LANES; r++)
        memcpy(&words[r], row[r] + at, sizeof *words);
    memcpy(&w, words, sizeof w);
#pragma GCC unroll 8
    for (unsigned k = 0; k < 8; k++)
        vf_store_part(out + k * K_COLUMNS, vf_e2m1(w >> (4 * k)) * scale, LANES);
}

INLINE void columns_e2m1(const uint8_t *const *row, uint32_t d, float *out)
{
    for (uint32_t g = 0; g < d / 32; g++) {
        vf scale = {0};
        for (size_t r = 0; r < LANES; r++)
            scale[r] = k_e8m0_to_f32(row[r][d / 2 + g]);
        for (uint32_t j = 0; j < 4; j++)
            eight_columns(row, g * 16 + j * 4, scale, out + (g * 32 + j * 8) * K_COLUMNS);
    }
}

static void decode_columns(enum k_format format, const uint8_t *const *row, size_t n,
                           uint32_t d, float *columns)
{
    const uint8_t *some[LANES];
    for (size_t r = 0; r < K_COLUMNS; r += LANES) {
        if (r >= n) { /* nobody looks at them, but they are computed with */
            for (uint32_t k = 0; k < d; k++)
                vf_store_part(columns + k * K_COLUMNS + r, vf_all(0), LANES);
            continue;
        }
        for (size_t i = 0; i < LANES; i++)
            some[i] = row[r + i < n ? r + i : n - 1];
        if (format == K_ROW_FP4_32) {
            columns_e2m1(some, d, columns + r);
            continue;
        }
        for (size_t i = 0; i < LANES; i++)
            for (uint32_t k = 0; k < d; k++)
                memcpy(columns + k * K_COLUMNS + r + i, some[i] + k * sizeof(float),
                       sizeof(float));
    }
}

static void index_sum(const float *s, size_t lds, const float *w, size_t n_head, size_t n,
                      enum k_round round, float *score)
{
    for (size_t r = 0; r < n; r += LANES) {
        size_t part = n - r < LANES ? n - r : LANES;
        vf sum = vf_all(0);
        for (size_t h = 0; h < n_head; h++) {
            vf dot = vf_load_part(s + h * lds + r, part), weight = vf_all(w[h]);
            if (round == K_BF16)
                sum += vf_bf16(vf_relu(vf_bf16(dot)) * weight);
            else
                sum = vf_fma(vf_relu(dot), weight, sum);
        }
        vf_store_part(score + r, round == K_BF16 ? vf_bf16(sum) : sum, part);
    }
}

/* Of LANES scores the largest of each `rows` neighbours, in all of their lanes. */
INLINE vf fold_blocks(vf v, uint32_t rows)
{
    v = vf_select(v == v, v, vf_all(-INFINITY));
    for (uint32_t step = 1; step < rows; step *= 2) {
        vf other = __builtin_shuffle(v, vi_lane() ^ (int32_t)step);
        v = vf_select(v > other, v, other);
    }
    return v;
}

static void block_max(const float *score, size_t n, size_t row0, uint32_t rows, float *best)
{
    size_t r = 0;
    float folded[LANES];
    if (rows <= LANES && LANES % rows == 0 && row0 % rows == 0)
        for (; r + LANES <= n; r += LANES) {
            vf_store_part(folded, fold_blocks(vf_load_part(score + r, LANES), rows), LANES);
            for (size_t j = 0; j < LANES; j += rows)
                best[(row0 + r + j) / rows] = folded[j];
        }
    for (; r < n; r++) {
        float *of = &best[(row0 + r) / rows];
        *of = score[r] > *of ? score[r] : *of;
    }
}

/* ---- the best of many ---------------------------------------------------------------------
 */

#ifndef OWN_KEEP
/* Appends the lanes of `mask` to score and row, which hold n; all LANES behind them are
 * written. Returns how many they hold then. */
INLINE uint32_t keep_lanes(float *score, int32_t *row, uint32_t n, vf v, vi rows, vi mask)
{
    for (size_t i = 0; i < LANES; i++) {
        score[n] = v[i];
        row[n] = rows[i];
        n += (uint32_t)mask[i] & 1;
    }
    return n;
}
#endif

/* Order of scores as order of integers: -0 is 0. */
INLINE vi rank_of(vf v)
{
    vi bits = (vi)(v + vf_all(0));
    return bits ^ ((bits >> 31) & INT32_MAX);
}

INLINE float score_of(int32_t rank)
{
    float x;
    int32_t bits = rank ^ ((rank >> 31) & INT32_MAX);
    memcpy(&x, &bits, sizeof x);
    return x;
}

INLINE uint32_t count_from(const int32_t *rank, uint32_t n, int32_t from)
{
    vi count = {0};
    uint32_t sum = 0;
    for (uint32_t i = 0; i < n; i += LANES)
        count -= vi_load(rank + i) >= from;
    for (size_t i = 0; i < LANES; i++)
        sum += (uint32_t)count[i];
    return sum;
}

/* Ranks of b's scores; lanes behind the last get one below all others. */
INLINE void rank_all(const struct k_best *b, int32_t *low, int32_t *high)
{
    vi least = (vi){0} + INT32_MAX, most = (vi){0} + INT32_MIN;
    for (uint32_t i = 0; i < b->n; i += LANES) {
        vi rank = rank_of(vf_load_part(b->score + i, LANES));
        vi is_there = vi_lane() + (int32_t)i < (int32_t)b->n;
        rank = (rank & is_there) | (~is_there & INT32_MIN);
        memcpy(b->rank + i, &rank, sizeof rank);
        most = vi_select(rank > most, rank, most);
        least = vi_select(is_there & (rank < least), rank, least);
    }
    *low = least[0];
    *high = most[0];
    for (size_t i = 1; i < LANES; i++) {
        *low = least[i] < *low ? least[i] : *low;
        *high = most[i] > *high ? most[i] : *high;
    }
}

/* The largest rank that at least k have or exceed, or a lower one that exactly k do. */
INLINE int32_t border(const struct k_best *b, int32_t low, int32_t high)
{
    while (low < high && b->n > b->k) {
        uint32_t half = ((uint32_t)high - (uint32_t)low + 1) / 2;
        int32_t mid = (int32_t)((uint32_t)low + half);
        uint32_t count = count_from(b->rank, b->n, mid);
        if (count == b->k)
            return mid;
        if (count > b->k)
            low = mid;
        else
            high = mid - 1;
    }
    return low;
}

static void best_cut(struct k_best *b)
{
    int32_t low, high;
    if (b->n < b->k || !b->k)
        return;
    rank_all(b, &low, &high);
    low = border(b, low, high);
    uint32_t above = low < high ? count_from(b->rank, b->n, low + 1) : 0;
    uint32_t equal = b->k - above, kept = 0; /* of those with rank low the first stay */
    bool ties = count_from(b->rank, b->n, low) != b->k;
    vi least = (vi){0} + INT32_MAX;
    for (uint32_t i = 0; i < b->n; i += LANES) {
        vi rank = vi_load(b->rank + i), stays = rank >= low;
        for (size_t j = 0; ties && j < LANES; j++)
            if (rank[j] == low && !equal)
                stays[j] = 0;
            else
                equal -= rank[j] == low;
        least = vi_select(stays & (rank < least), rank, least);
        kept = keep_lanes(b->score, b->row, kept, vf_load_part(b->score + i, LANES),
                          vi_load(b->row + i), stays);
    }
    b->n = kept;
    low = least[0];
    for (size_t i = 1; i < LANES; i++)
        low = least[i] < low ? least[i] : low;
    b->bound = score_of(low);
    b->is_bounded = true;
}

static void best_add(struct k_best *b, const float *score, const int32_t *row, int32_t row0,
                     size_t n)
{
    if (b->n + n > k_best_room(b->k))
        best_cut(b);
    for (size_t r = 0; r < n; r += LANES) {
        size_t part = n - r < LANES ? n - r : LANES;
        vf v = vf_load_part(score + r, part);
        vi stays = vi_lane() < (int32_t)part;
        if (b->is_bounded)
            stays &= v > vf_all(b->bound);
        if (!vi_any(stays))
            continue;
        vi rows = vi_lane() + (row0 + (int32_t)r);
        if (row)
            memcpy(&rows, row + r, part * sizeof *row);
        v = vf_select(v == v, v, vf_all(-INFINITY));
        b->n = keep_lanes(b->score, b->row, b->n, v, rows, stays);
    }
    if (!b->is_bounded)
        best_cut(b);
}

#endif
