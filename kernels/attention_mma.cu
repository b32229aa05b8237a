/* Attention on tensor cores. A block decodes 64 keys of a query's list into shared memory, once
 * for its heads, which are the M of both products: scores = q k, then out = p k, by the terms
 * of half.cuh. Against f32 operands that costs twice the products of the formula.
 *
 * The order of sums is that of the list whatever the launch: a tile of 64 entries has a
 * maximum, a sum of weights (eight keys at a time) and sums of values of its own, from zero,
 * and tiles are added ascending. So many queries may go through whole lists (attention_mma),
 * and few may spread their tiles over blocks (attention_mma_tile, attention_mma_add): the bits
 * are the same. In the reference's online form a tile has the running maximum instead of its
 * own, and goes through whole lists only. */
#include "kernels/attention_keys.cuh"
#include "kernels/half.cuh"

#define THREADS 256u
#define WARPS (THREADS / K_WARP)
#define BLOCK K_ATTENTION_BLOCK
#define MAX_D 512u
#define PITCH (MAX_D + 8) /* fp16: rows four banks apart, matrices without conflicts */
#define P_PITCH (BLOCK + 8)
#define SLICE 32u /* columns of values that are summed at a time */
#define P_BITS 14 /* weights are multiplied by this power of two, where the key is large */

/* HEADS is 16 or 64: one or four tiles of 16. */
template <unsigned HEADS> struct attention_shared {
    __align__(16) uint16_t q[2][HEADS][PITCH]; /* high and low terms */
    __align__(16) uint16_t key[BLOCK][PITCH];
    __align__(16) uint16_t p[2][HEADS][P_PITCH];
    float warp_max[WARPS * 16 / HEADS][HEADS];
    float sum[BLOCK / 8][HEADS];
    float q_factor[HEADS];   /* brings a product of terms to a scaled score */
    float key_factor[BLOCK]; /* the same for a key; 0: there is none */
    uint8_t exponent[BLOCK]; /* of a key: key_factor as a power of two */
};

/* Who does what: a warp has a tile of 16 heads, and of a block of keys `keys`, of the columns
 * of values `columns`. Rows of a thread: lane / 4 and that + 8. */
template <unsigned HEADS> struct warp_share {
    static constexpr unsigned GROUPS = WARPS * 16 / HEADS; /* warps of a tile of heads */
    static constexpr unsigned KEYS = BLOCK / GROUPS, COLUMNS = MAX_D / GROUPS;
    unsigned lane, head, group;
    bool idle; /* its heads do not exist */
};

template <unsigned HEADS>
__device__ static inline struct warp_share<HEADS> share_of(const struct k_attention &a) {
    struct warp_share<HEADS> w;
    unsigned warp = threadIdx.x / K_WARP;
    w.lane = threadIdx.x % K_WARP;
    w.head = warp % (HEADS / 16) * 16;
    w.group = warp / (HEADS / 16);
    w.idle = blockIdx.y * HEADS + w.head >= a.n_head;
    return w;
}

/* e^x to 2 ulp; NaN for NaN. */
__device__ static inline float
exp_f32(float x)
{
    if (!(x >= -103.0f && x <= 88.7f))
        return x < 0 ? 0 : x > 0 ? INFINITY : x;
    float n = fmaf(x, 0x1.715476p0f, 0x1.8p23f) - 0x1.8p23f;
    float r = fmaf(n, -0x1.62e4p-1f, x); /* exact: the constant has 13 bits */
    r = fmaf(n, -0x1.7f7d1cp-20f, r);
    float p = 1.0f / 5040.0f;
    p = fmaf(p, r, 1.0f / 720.0f);
    p = fmaf(p, r, 1.0f / 120.0f);
    p = fmaf(p, r, 1.0f / 24.0f);
    p = fmaf(p, r, 1.0f / 6.0f);
    p = fmaf(p, r, 0.5f);
    int whole = (int)n, half = whole / 2;
    return fmaf(r * r, p, r + 1) * k_f32_from_bits((uint32_t)(127 + half) << 23) *
           k_f32_from_bits((uint32_t)(127 + whole - half) << 23);
}

/* The queries of the block's heads as terms, a warp a head at a time. */
template <unsigned HEADS>
__device__ static inline void stage_queries(struct attention_shared<HEADS> *s,
                                            const struct k_attention &a, size_t i)
{
    unsigned lane = threadIdx.x % K_WARP;
    for (unsigned h = threadIdx.x / K_WARP; h < HEADS; h += WARPS) {
        size_t head = blockIdx.y * HEADS + h;
        const float *q = head < a.n_head ? a.q + (i * a.n_head + head) * a.d : NULL;
        uint32_t most = 0;
        for (uint32_t j = lane; q && j < a.d; j += K_WARP) {
            uint32_t u = k_f32_bits(q[j]) & 0x7fffffffu;
            most = u > most ? u : most;
        }
        uint32_t exponent = k_half_query_exponent(most);
        float down = k_half_query_down(exponent);
        for (uint32_t j = lane * 2; j < a.d; j += 2 * K_WARP) {
            uint32_t high = 0, low = 0;
            if (q)
                k_half_split(q[j] * down, q[j + 1] * down, &high, &low);
            *(uint32_t *)&s->q[0][h][j] = high;
            *(uint32_t *)&s->q[1][h][j] = low;
        }
        if (lane == 0)
            s->q_factor[h] = k_f32_from_bits((exponent - K_HALF_QUERY_BITS) << 23) * a.scale;
    }
}

/* Codes of 16 values, `bytes` of them, as words. */
__device__ static inline void load_codes(const uint8_t *p, uint32_t bytes, uint32_t word[4])
{
    if ((uintptr_t)p % bytes == 0 && bytes == 16) {
        uint4 v = *(const uint4 *)p;
        word[0] = v.x, word[1] = v.y, word[2] = v.z, word[3] = v.w;
    } else if ((uintptr_t)p % bytes == 0) {
        uint2 v = *(const uint2 *)p;
        word[0] = v.x, word[1] = v.y;
    } else {
        for (uint32_t b = 0; b < bytes; b += 4)
            word[b / 4] = (uint32_t)p[b] | (uint32_t)p[b + 1] << 8 | (uint32_t)p[b + 2] << 16 |
                          (uint32_t)p[b + 3] << 24;
    }
}

/* 16 values of a row from value j on, divided by 2^(exponent - 127). */
__device__ static inline void decode_unit(enum k_format format, const uint8_t *row, uint32_t d,
                                          uint32_t j, uint32_t exponent, uint16_t *out)
{
    bool fp8 = format == K_ROW_FP8_32;
    uint32_t code[4], pair[8], group = format == K_ROW_FP4_16 ? 16 : 32;
    uint32_t factor = k_half_factor(format, exponent, row[(fp8 ? d : d / 2) + j / group]);
    load_codes(row + (fp8 ? j : j / 2), fp8 ? 16 : 8, code);
    K_UNROLL
    for (unsigned v = 0; v < 8; v++)
        if (fp8) {
            uint32_t two = code[v / 2] >> v % 2 * 16;
            pair[v] = k_half_e4m3((two << 8 & 0xff00u) | (two << 16 & 0xff000000u));
        } else {
            pair[v] = k_half_e2m1(code[v / 4] >> v % 4 * 8);
        }
    for (unsigned v = 0; v < 8; v++)
        pair[v] = k_half_mul(pair[v], factor);
    *(uint4 *)out = {pair[0], pair[1], pair[2], pair[3]};
    *(uint4 *)(out + 8) = {pair[4], pair[5], pair[6], pair[7]};
}

/* n entries of the list from `from` on, four threads a key; zeros where one is missing, and up
 * to a multiple of 16. */
template <unsigned HEADS>
__device__ static inline void stage_keys(struct attention_shared<HEADS> *s,
                                         const struct k_attention &a,
                                         const struct k_key_list &l, size_t i, uint32_t from,
                                         uint32_t n, size_t window_bytes, size_t row_bytes)
{
    uint32_t t = threadIdx.x / 4, part = threadIdx.x % 4, exponent = 0;
    const uint8_t *row =
        t < n ? k_key_at(a, l, i, from + t, window_bytes, row_bytes) : (const uint8_t *)NULL;
    enum k_format format = from + t < l.pad ? a.window_format : a.row_format;
    uint32_t group = format == K_ROW_FP4_16 ? 16 : 32;
    const uint8_t *scale = row + (format == K_ROW_FP8_32 ? a.d : a.d / 2);
    for (uint32_t g = part; row && g < a.d / group; g += 4)
        exponent = k_half_exponent(format, exponent, scale[g]);
    for (int bits = 2; bits; bits /= 2) {
        uint32_t other = __shfl_xor_sync(K_ALL_LANES, exponent, bits);
        exponent = other > exponent ? other : exponent;
    }
    for (uint32_t j = part * 16; t < (n + 15) / 16 * 16 && j < a.d; j += 64) {
        uint16_t *out = &s->key[t][j];
        if (row)
            decode_unit(format, row, a.d, j, exponent, out);
        else
            *(uint4 *)out = *(uint4 *)(out + 8) = {0, 0, 0, 0};
    }
    if (part == 0) {
        s->exponent[t] = (uint8_t)exponent;
        s->key_factor[t] = row ? k_e8m0_to_f32((uint8_t)exponent) : 0;
    }
}

/* x[k][..]: products of the warp's heads with its keys, before any factor. Sums of 128 values,
 * added ascending. */
template <unsigned HEADS>
__device__ static inline void products(const struct attention_shared<HEADS> *s,
                                       const struct warp_share<HEADS> &w, uint32_t d,
                                       uint32_t n, float x[warp_share<HEADS>::KEYS / 8][4])
{
    const unsigned TILES = warp_share<HEADS>::KEYS / 8;
    unsigned lane = w.lane, key0 = w.group * warp_share<HEADS>::KEYS;
    K_UNROLL
    for (unsigned at = 0; at < TILES * 4; at++)
        x[at / 4][at % 4] = 0;
    for (uint32_t j0 = 0; j0 < d; j0 += 128) {
        float piece[TILES][4];
        K_UNROLL
        for (unsigned at = 0; at < TILES * 4; at++)
            piece[at / 4][at % 4] = 0;
        for (uint32_t j = j0; j < j0 + 128 && j < d; j += 32) {
            uint32_t q[2][2][4]; /* half of the 32, term */
            K_UNROLL
            for (unsigned m = 0; m < 4; m++)
                k_half_load(q[m / 2][m % 2],
                            &s->q[m % 2][w.head + lane % 16][j + m / 2 * 16 + lane / 16 * 8]);
            K_UNROLL
            for (unsigned k = 0; k < TILES; k++) {
                uint32_t key[4];
                if (key0 + k * 8 >= n)
                    continue;
                k_half_load(key, &s->key[key0 + k * 8 + lane % 8][j + lane / 8 * 8]);
                K_UNROLL
                for (unsigned m = 0; m < 4; m++)
                    k_half_mma(piece[k], q[m / 2][1 - m % 2], key + m / 2 * 2);
            }
        }
        K_UNROLL
        for (unsigned at = 0; at < TILES * 4; at++)
            x[at / 4][at % 4] += piece[at / 4][at % 4];
    }
}

/* Largest exponent of the keys that are there: values are summed divided by it. */
template <unsigned HEADS>
__device__ static inline uint32_t largest_exponent(const struct attention_shared<HEADS> *s)
{
    uint32_t lane = threadIdx.x % K_WARP, most = 0;
    for (uint32_t t = lane; t < BLOCK; t += K_WARP)
        if (s->key_factor[t] != 0 && s->exponent[t] > most)
            most = s->exponent[t];
    for (int bits = 16; bits; bits /= 2) {
        uint32_t other = __shfl_xor_sync(K_ALL_LANES, most, bits);
        most = other > most ? other : most;
    }
    return most;
}

/* What a tile gives for the two heads of a thread. */
struct tile_weights {
    float max[2]; /* of its scores; -inf: no key is there */
    float sum[2];
    uint32_t exponent; /* of the sums of values */
};

/* What weights are relative to: the tile's maximum, or, online, the running one. */
__device__ static inline float base_of(bool online, float running, float max)
{
    return online && running > max ? running : max == -INFINITY ? 0 : max;
}

/* Scores of a tile, its weights as terms in s->p, their sums. All threads call it, after
 * stage_keys and a barrier; `running` is the maximum of the tiles before. */
template <unsigned HEADS>
__device__ static inline struct tile_weights weigh(struct attention_shared<HEADS> *s,
                                                   const struct k_attention &a,
                                                   const struct warp_share<HEADS> &w,
                                                   uint32_t n, const float running[2])
{
    typedef struct warp_share<HEADS> share;
    const unsigned TILES = share::KEYS / 8;
    unsigned row = w.head + w.lane / 4;
    struct tile_weights tile = {{-INFINITY, -INFINITY}, {0, 0}, largest_exponent(s)};
    float x[TILES][4];
    if (!w.idle)
        products<HEADS>(s, w, a.d, n, x);
    K_UNROLL
    for (unsigned at = 0; at < TILES * 4 && !w.idle; at++) {
        unsigned key = w.group * share::KEYS + at / 4 * 8 + w.lane % 4 * 2 + at % 2;
        float *score = &x[at / 4][at % 4], factor = s->key_factor[key];
        *score = factor == 0 ? -INFINITY : *score * factor * s->q_factor[row + at % 4 / 2 * 8];
        tile.max[at % 4 / 2] = *score > tile.max[at % 4 / 2] ? *score : tile.max[at % 4 / 2];
    }
    for (unsigned r = 0; r < 2; r++) {
        for (int bits = 2; bits; bits /= 2) {
            float other = __shfl_xor_sync(K_ALL_LANES, tile.max[r], bits);
            tile.max[r] = other > tile.max[r] ? other : tile.max[r];
        }
        if (w.lane % 4 == 0)
            s->warp_max[w.group][row + r * 8] = tile.max[r];
    }
    __syncthreads();
    for (unsigned r = 0; r < 2; r++)
        for (unsigned g = 0; g < share::GROUPS; g++) {
            float other = s->warp_max[g][row + r * 8];
            tile.max[r] = other > tile.max[r] ? other : tile.max[r];
        }
    K_UNROLL
    for (unsigned at = 0; at < TILES * 2 && !w.idle; at++) {
        unsigned k = at / 2, r = at % 2, key = w.group * share::KEYS + k * 8 + w.lane % 4 * 2;
        float base = base_of(a.prob == K_BF16, running[r], tile.max[r]);
        float p0 = exp_f32(x[k][r * 2] - base), p1 = exp_f32(x[k][r * 2 + 1] - base);
        float sum = p0 + p1;
        for (int bits = 2; bits; bits /= 2)
            sum += __shfl_xor_sync(K_ALL_LANES, sum, bits);
        if (w.lane % 4 == 0)
            s->sum[w.group * TILES + k][row + r * 8] = sum;
        uint32_t high, low;
        float up[2];
        for (unsigned c = 0; c < 2; c++) {
            int shift = (int)s->exponent[key + c] - (int)tile.exponent + P_BITS;
            up[c] = k_f32_from_bits((uint32_t)(shift < -120 ? 0 : shift + 127) << 23);
        }
        k_half_split(k_rounded(p0, a.prob) * up[0], k_rounded(p1, a.prob) * up[1], &high, &low);
        *(uint32_t *)&s->p[0][row + r * 8][key] = high;
        *(uint32_t *)&s->p[1][row + r * 8][key] = low;
    }
    __syncthreads();
    for (unsigned r = 0; r < 2 && !w.idle; r++)
        for (unsigned k = 0; k < BLOCK / 8; k++)
            tile.sum[r] += s->sum[k][row + r * 8];
    return tile;
}

/* v[c][..]: sums of weights and values over the n keys, for 32 columns from `column` on. */
template <unsigned HEADS>
__device__ static inline void weighted_values(const struct attention_shared<HEADS> *s,
                                              const struct warp_share<HEADS> &w, uint32_t n,
                                              uint32_t exponent, unsigned column,
                                              float v[SLICE / 8][4])
{
    unsigned lane = w.lane;
    K_UNROLL
    for (unsigned at = 0; at < SLICE / 2; at++)
        v[at / 4][at % 4] = 0;
    for (unsigned k = 0; k < n; k += 16) {
        uint32_t p[2][4];
        for (unsigned term = 0; term < 2; term++)
            k_half_load(p[term], &s->p[term][w.head + lane % 16][k + lane / 16 * 8]);
        K_UNROLL
        for (unsigned c = 0; c < SLICE / 8; c += 2) {
            uint32_t key[4];
            k_half_load_transposed(key, &s->key[k + lane % 16][column + c * 8 + lane / 16 * 8]);
            K_UNROLL
            for (unsigned m = 0; m < 4; m++)
                k_half_mma(v[c + m / 2], p[1 - m % 2], key + m / 2 * 2);
        }
    }
    float up = k_e8m0_to_f32((uint8_t)exponent);
    K_UNROLL
    for (unsigned at = 0; at < SLICE / 2; at++)
        v[at / 4][at % 4] *= k_f32_from_bits((127u - P_BITS) << 23) * up;
}

/* Sums of a head over the tiles so far. */
struct head_sums {
    float max, weight;
};

/* Takes a tile in: what was summed times *before, the tile times *now. */
__device__ static inline void add_tile(struct head_sums *h, bool online, float max, float sum,
                                       float *before, float *now)
{
    float all = max > h->max ? max : h->max;
    *before = max == -INFINITY ? 1 : exp_f32(h->max - all);
    *now = max == -INFINITY ? 0 : online ? 1 : exp_f32(max - all);
    h->max = all;
    h->weight = fmaf(h->weight, *before, sum * *now);
}

/* Sums begin with nothing, and a maximum that is the sink's or, online, the reference's. */
__device__ static inline struct head_sums no_tiles(const struct k_attention &a, size_t head)
{
    struct head_sums h = {a.prob == K_BF16 ? -1e30f : a.sink[head], 0};
    return h;
}

__device__ static inline float weight_with_sink(const struct head_sums &h, float sink)
{
    return h.weight + exp_f32(sink - h.max);
}

/* A block the heads of a query, through its whole list. */
template <unsigned HEADS>
__global__ void attention_mma(struct k_attention a, size_t window_bytes, size_t row_bytes)
{
    typedef struct warp_share<HEADS> share;
    const unsigned SLICES = share::COLUMNS / SLICE;
    typedef struct attention_shared<HEADS> shared;
    K_SHARED(shared, s);
    size_t i = a.from + blockIdx.x;
    k_single_run(a, i, window_bytes);
    struct k_key_list l = k_keys_of(a, i);
    share w = share_of<HEADS>(a);
    size_t head0 = blockIdx.y * HEADS + w.head + w.lane / 4;
    struct head_sums h[2] = {};
    for (unsigned r = 0; r < 2; r++)
        if (head0 + r * 8 < a.n_head)
            h[r] = no_tiles(a, head0 + r * 8);
    float value[SLICES][SLICE / 8][4] = {};
    uint32_t n = l.pad + l.n_sel;
    stage_queries<HEADS>(s, a, i);
    for (uint32_t b = 0; b < n; b += BLOCK) {
        uint32_t in_tile = n - b < BLOCK ? n - b : BLOCK;
        float running[2] = {h[0].max, h[1].max}, before[2], now[2];
        stage_keys<HEADS>(s, a, l, i, b, in_tile, window_bytes, row_bytes);
        __syncthreads();
        struct tile_weights tile = weigh<HEADS>(s, a, w, in_tile, running);
        for (unsigned r = 0; r < 2; r++)
            add_tile(&h[r], a.prob == K_BF16, tile.max[r], tile.sum[r], &before[r], &now[r]);
        K_UNROLL
        for (unsigned c = 0; c < SLICES; c++) {
            unsigned column = w.group * share::COLUMNS + c * SLICE;
            float v[SLICE / 8][4];
            if (w.idle || column >= a.d)
                continue;
            weighted_values<HEADS>(s, w, in_tile, tile.exponent, column, v);
            K_UNROLL
            for (unsigned at = 0; at < SLICE / 2; at++) {
                float *sum = &value[c][at / 4][at % 4];
                *sum = fmaf(*sum, before[at % 4 / 2], v[at / 4][at % 4] * now[at % 4 / 2]);
            }
        }
        __syncthreads();
    }
    K_UNROLL
    for (unsigned at = 0; at < SLICES * SLICE / 2; at++) {
        unsigned c = at / (SLICE / 2), part = at % (SLICE / 2), r = part % 4 / 2;
        size_t head = head0 + r * 8;
        uint32_t j =
            w.group * share::COLUMNS + c * SLICE + part / 4 * 8 + w.lane % 4 * 2 + part % 2;
        if (head < a.n_head && j < a.d)
            a.out[(i * a.n_head + head) * a.d + j] = k_rounded(
                n ? value[c][part / 4][part % 4] / weight_with_sink(h[r], a.sink[head]) : 0,
                a.round);
    }
}

/* What a tile gave, apart: of query i in the call, head and tile t the place is
 * (i n_head + head) tiles + t. */
struct attention_parts {
    float *value; /* [..][d] */
    float *max, *sum;
    uint32_t tiles;
};

/* blockIdx.z: the tile. */
template <unsigned HEADS>
__global__ void attention_mma_tile(struct k_attention a, size_t window_bytes, size_t row_bytes,
                                   struct attention_parts parts)
{
    typedef struct warp_share<HEADS> share;
    typedef struct attention_shared<HEADS> shared;
    K_SHARED(shared, s);
    size_t i = a.from + blockIdx.x;
    k_single_run(a, i, window_bytes);
    struct k_key_list l = k_keys_of(a, i);
    share w = share_of<HEADS>(a);
    uint32_t n = l.pad + l.n_sel, b = blockIdx.z * BLOCK;
    if (b >= n)
        return; /* the whole block; attention_mma_add knows */
    n = n - b < BLOCK ? n - b : BLOCK;
    const float running[2] = {-INFINITY, -INFINITY};
    stage_queries<HEADS>(s, a, i);
    stage_keys<HEADS>(s, a, l, i, b, n, window_bytes, row_bytes);
    __syncthreads();
    struct tile_weights tile = weigh<HEADS>(s, a, w, n, running);
    size_t head0 = blockIdx.y * HEADS + w.head + w.lane / 4;
    for (unsigned c = 0; c < share::COLUMNS / SLICE; c++) {
        unsigned column = w.group * share::COLUMNS + c * SLICE;
        float v[SLICE / 8][4];
        if (w.idle || column >= a.d)
            continue;
        weighted_values<HEADS>(s, w, n, tile.exponent, column, v);
        K_UNROLL
        for (unsigned at = 0; at < SLICE / 2; at++) {
            size_t head = head0 + at % 4 / 2 * 8;
            size_t place = (blockIdx.x * a.n_head + head) * parts.tiles + blockIdx.z;
            if (head < a.n_head)
                parts.value[place * a.d + column + at / 4 * 8 + w.lane % 4 * 2 + at % 2] =
                    v[at / 4][at % 4];
        }
    }
    for (unsigned r = 0; r < 2; r++)
        if (head0 + r * 8 < a.n_head && w.group == 0 && w.lane % 4 == 0) {
            size_t place = (blockIdx.x * a.n_head + head0 + r * 8) * parts.tiles + blockIdx.z;
            parts.max[place] = tile.max[r], parts.sum[place] = tile.sum[r];
        }
}

/* A block a head of a query: its tiles ascending. */
__global__ void attention_mma_add(struct k_attention a, size_t window_bytes,
                                  struct attention_parts parts)
{
    size_t i = a.from + blockIdx.x, head = blockIdx.y;
    k_single_run(a, i, window_bytes);
    struct k_key_list l = k_keys_of(a, i);
    uint32_t n = l.pad + l.n_sel;
    for (uint32_t j = threadIdx.x; j < a.d; j += blockDim.x) {
        struct head_sums h = no_tiles(a, head);
        float value = 0, before, now;
        for (uint32_t t = 0; t * BLOCK < n; t++) {
            size_t place = (blockIdx.x * a.n_head + head) * parts.tiles + t;
            add_tile(&h, false, parts.max[place], parts.sum[place], &before, &now);
            value = fmaf(value, before, parts.value[place * a.d + j] * now);
        }
        a.out[(i * a.n_head + head) * a.d + j] =
            k_rounded(n ? value / weight_with_sink(h, a.sink[head]) : 0, a.round);
    }
}

template <unsigned HEADS>
static void launch_whole(struct kernels *k, const struct k_attention &a)
{
    auto attention_mma = ::attention_mma<HEADS>;
    dim3 grid((unsigned)(k_attention_to(a) - a.from), k_div_up(a.n_head, HEADS));
    K_LAUNCH(attention_mma, grid, dim3(THREADS), sizeof(struct attention_shared<HEADS>), k, a,
             k_row_bytes(a.window_format, a.d), k_row_bytes(a.row_format, a.d));
}

static void launch_tiles(struct kernels *k, const struct k_attention &a, uint32_t tiles)
{
    auto attention_mma_tile = ::attention_mma_tile<16>;
    unsigned n = (unsigned)(k_attention_to(a) - a.from);
    size_t places = (size_t)n * a.n_head * tiles;
    float *p =
        (float *)k_cuda_scratch(k, K_CUDA_ATTENTION_PART, places * (a.d + 2) * sizeof(float));
    if (!p)
        return;
    struct attention_parts parts = {p, p + places * a.d, p + places * (a.d + 1), tiles};
    K_LAUNCH(attention_mma_tile, dim3(n, k_div_up(a.n_head, 16), tiles), dim3(THREADS),
             sizeof(struct attention_shared<16>), k, a, k_row_bytes(a.window_format, a.d),
             k_row_bytes(a.row_format, a.d), parts);
    K_LAUNCH(attention_mma_add, dim3(n, a.n_head), dim3(128), 0, k, a,
             k_row_bytes(a.window_format, a.d), parts);
}

bool k_attention_mma_cuda(struct kernels *k, const struct k_attention *a)
{
    size_t n = k_attention_to(*a) - a->from, fill = (size_t)k->ctx->multiprocessors;
    size_t n_max = k_attention_most(*a);
    size_t shared = (size_t)k->ctx->shared_bytes, groups = k_div_up(a->n_head, 16);
    if (a->d % 32 || a->d > MAX_D || shared < sizeof(struct attention_shared<16>) ||
        (a->window && a->window_format == K_ROW_F32) ||
        (a->n_sel && a->row_format == K_ROW_F32))
        return false;
    if (a->prob == K_EXACT && n_max && n * groups < fill)
        launch_tiles(k, *a, k_div_up(n_max, BLOCK));
    else if (n * k_div_up(a->n_head, 64) < fill || shared < sizeof(struct attention_shared<64>))
        launch_whole<16>(k, *a);
    else
        launch_whole<64>(k, *a);
    return true;
}
