/* Index scores on tensor cores: rows are the M of the product, heads the N. A warp keeps 64
 * rows in registers as fragments, decoded once, and every query of the block comes by; so a key
 * costs its 68 bytes and its decoding once for 32 queries of 32 heads.
 *
 * Which of the d values stands where in a fragment is free as long as rows and queries agree:
 * here a lane has d / 4 consecutive ones, which are whole words of codes. A product runs over
 * them in ascending steps of 16, the weighted sum over the heads of a lane ascending, then over
 * lanes: neither depends on how many rows or queries there are. Queries are two terms
 * (half.cuh); on the FP4 grid, where a mode with grids has them, the low one is zero and left
 * out, which changes no bit. */
#include "kernels/half.cuh"
#include "kernels/index_rows.cuh"

#define THREADS 256u
#define WARPS (THREADS / K_WARP)
#define TILES 4u /* of 16 rows, a warp's */
#define BLOCK_ROWS (WARPS * TILES * 16)
#define MAX_D 128u
#define MAX_HEADS 32u
#define MAX_QUERIES 32u /* of a block */
#define STEPS (MAX_D / 16)

/* One term of a query as the second operand: by head / 8, step, and lane. */
struct index_term {
    uint2 pair[MAX_HEADS / 8][STEPS][K_WARP];
};

struct index_query {
    struct index_term term[2]; /* high and low */
    float w[MAX_HEADS];        /* times what the head's values were divided by */
    uint32_t low;              /* is there a low term? */
    uint32_t padding[3];
};

/* A block a query, a warp a head at a time, a lane four of its values. */
__global__ void index_terms(struct k_index a, struct index_query *queries)
{
    K_SHARED(uint32_t, low); /* [warps] */
    struct index_query *out = &queries[blockIdx.x];
    uint32_t warp = threadIdx.x / K_WARP, lane = threadIdx.x % K_WARP, steps = a.d / 16;
    uint32_t mine = 0;
    for (uint32_t h = warp; h < (a.n_head + 7) / 8 * 8; h += blockDim.x / K_WARP) {
        const float *q = a.q + (blockIdx.x * (size_t)a.n_head + h) * a.d + lane * 4;
        bool there = h < a.n_head && lane * 4 < a.d;
        float x[4] = {};
        uint32_t most = 0;
        for (unsigned v = 0; v < 4 && there; v++) {
            x[v] = q[v];
            uint32_t u = k_f32_bits(x[v]) & 0x7fffffffu;
            most = u > most ? u : most;
        }
        uint32_t exponent = k_half_query_exponent(most);
        float down = k_half_query_down(exponent);
        uint2 high, rest;
        k_half_split(x[0] * down, x[1] * down, &high.x, &rest.x);
        k_half_split(x[2] * down, x[3] * down, &high.y, &rest.y);
        mine |= (rest.x | rest.y) & 0x7fff7fffu;
        if (lane < a.d / 4) {
            uint32_t at = h % 8 * 4 + lane / steps;
            out->term[0].pair[h / 8][lane % steps][at] = high;
            out->term[1].pair[h / 8][lane % steps][at] = rest;
        }
        if (lane == 0)
            out->w[h] = h < a.n_head ? a.w[blockIdx.x * (size_t)a.n_head + h] *
                                           k_f32_from_bits((exponent - K_HALF_QUERY_BITS) << 23)
                                     : 0;
    }
    uint32_t any = __ballot_sync(K_ALL_LANES, mine != 0);
    if (lane == 0)
        low[warp] = any;
    __syncthreads();
    if (threadIdx.x == 0) {
        for (uint32_t w = 1; w < blockDim.x / K_WARP; w++)
            any |= low[w];
        out->low = any != 0;
    }
}

/* Word of codes: those of eight values. */
__device__ static inline uint32_t code_word(const uint8_t *p)
{
    if ((uintptr_t)p % 4 == 0)
        return *(const uint32_t *)p;
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

/* This lane's values of a row as pairs [step][2], divided by 2^(exponent - 127), which is
 * returned. NULL: zeros. */
__device__ static inline float load_row(const struct k_index &a, const uint8_t *row,
                                        uint32_t pair[STEPS][2])
{
    uint32_t exponent = 0, first = threadIdx.x % 4 * (a.d / 4);
    const uint8_t *scale = row + a.d / 2;
    for (uint32_t g = 0; row && g < a.d / 32; g++)
        exponent = k_half_exponent(K_ROW_FP4_32, exponent, scale[g]);
    K_UNROLL
    for (uint32_t k = 0; k < STEPS; k += 2) {
        uint32_t word = 0, factor = 0, j = first + k * 4;
        if (row && k < a.d / 16) {
            word = code_word(row + j / 2);
            factor = k_half_factor(K_ROW_FP4_32, exponent, scale[j / 32]);
        }
        K_UNROLL
        for (unsigned v = 0; v < 4; v++)
            pair[k + v / 2][v % 2] = k_half_mul(k_half_e2m1(word >> v * 8), factor);
    }
    return k_e8m0_to_f32((uint8_t)exponent);
}

/* The rows of a warp as the first operand, and what they were divided by. Rows of a lane in a
 * tile: lane / 4 and that + 8. */
struct warp_rows {
    uint32_t pair[TILES][STEPS][4];
    float factor[TILES][2];
};

__device__ static inline void load_rows(const struct k_index &a, size_t row_bytes, size_t row0,
                                        size_t n_row, struct warp_rows *rows)
{
    K_UNROLL
    for (unsigned t = 0; t < TILES; t++) {
        K_UNROLL
        for (unsigned r = 0; r < 2; r++) {
            size_t row = row0 + t * 16 + r * 8 + threadIdx.x % K_WARP / 4;
            uint32_t pair[STEPS][2];
            rows->factor[t][r] = load_row(
                a,
                row < n_row ? (const uint8_t *)a.keys + row * row_bytes : (const uint8_t *)NULL,
                pair);
            K_UNROLL
            for (unsigned k = 0; k < STEPS; k++)
                rows->pair[t][k][r] = pair[k][0], rows->pair[t][k][r + 2] = pair[k][1];
        }
    }
}

/* sum [tile][row of the lane] += weighted products with the eight heads from h * 8 on. */
__device__ static inline void add_heads(const struct k_index &a, const struct warp_rows &rows,
                                        const struct index_term term[2], const float *w,
                                        bool low, unsigned h, unsigned tiles,
                                        float sum[TILES][2])
{
    float x[TILES][4] = {};
    unsigned lane = threadIdx.x % K_WARP;
    K_UNROLL
    for (unsigned k = 0; k < STEPS; k++) {
        if (k >= a.d / 16)
            break;
        for (int part = low; part >= 0; part--) {
            uint2 pair = term[part].pair[h][k][lane];
            uint32_t b[2] = {pair.x, pair.y};
            K_UNROLL
            for (unsigned t = 0; t < TILES; t++)
                if (t < tiles)
                    k_half_mma(x[t], rows.pair[t][k], b);
        }
    }
    K_UNROLL
    for (unsigned at = 0; at < TILES * 4; at++) {
        float dot = k_rounded(x[at / 4][at % 4], a.score_round);
        float weight = w[h * 8 + lane % 4 * 2 + at % 2], *to = &sum[at / 4][at % 4 / 2];
        dot = dot < 0 ? 0 : dot;
        *to = a.score_round == K_BF16 ? *to + k_bf16(dot * weight) : fmaf(dot, weight, *to);
    }
}

/* Scores of the warp's rows for query i: -inf where not visible. */
__device__ static inline void write_scores(const struct k_index &a,
                                           const struct warp_rows &rows, float sum[TILES][2],
                                           size_t row0, size_t visible, float *score)
{
    unsigned lane = threadIdx.x % K_WARP;
    K_UNROLL
    for (unsigned at = 0; at < TILES * 2; at++) {
        float x = sum[at / 2][at % 2];
        x += __shfl_xor_sync(K_ALL_LANES, x, 1);
        x += __shfl_xor_sync(K_ALL_LANES, x, 2);
        size_t row = row0 + at * 8 + lane / 4;
        if (lane % 4 == 0 && row < a.n_row)
            score[row] = row < visible
                             ? k_rounded(x * rows.factor[at / 2][at % 2], a.score_round)
                             : -INFINITY;
    }
}

/* Two queries: the one that is multiplied and the next. */
struct score_shared {
    struct index_term term[2][2];
    float w[2][MAX_HEADS];
    uint32_t low[MAX_QUERIES];
};

/* What a thread carries of a query from device to shared memory. */
struct carried {
    uint4 term[2][sizeof(struct index_term) / 16 / THREADS];
    float w;
};

__device__ static inline void carry(const struct index_query *q, bool low, struct carried *c)
{
    K_UNROLL
    for (unsigned at = 0; at < sizeof c->term / sizeof(uint4); at++) {
        unsigned per = sizeof c->term[0] / sizeof(uint4);
        if (at / per == 0 || low)
            c->term[at / per][at % per] =
                ((const uint4 *)&q->term[at / per])[at % per * THREADS + threadIdx.x];
    }
    if (threadIdx.x < MAX_HEADS)
        c->w = q->w[threadIdx.x];
}

__device__ static inline void put_down(const struct carried &c, bool low,
                                       struct index_term term[2], float *w)
{
    K_UNROLL
    for (unsigned at = 0; at < sizeof c.term / sizeof(uint4); at++) {
        unsigned per = sizeof c.term[0] / sizeof(uint4);
        if (at / per == 0 || low)
            ((uint4 *)&term[at / per])[at % per * THREADS + threadIdx.x] =
                c.term[at / per][at % per];
    }
    if (threadIdx.x < MAX_HEADS)
        w[threadIdx.x] = c.w;
}

/* blockIdx: x rows, y queries, `together` of them. */
__global__ void index_score_mma(struct k_index a, size_t row_bytes,
                                const struct index_query *queries, uint32_t together,
                                float *score)
{
    K_SHARED(struct score_shared, s);
    size_t first = (size_t)blockIdx.y * together, last = first + together;
    size_t row0 = (size_t)blockIdx.x * BLOCK_ROWS + threadIdx.x / K_WARP * (TILES * 16);
    last = last < a.n ? last : a.n;
    k_single_run(a, first); /* of several runs, every query is a block's only one */
    if (a.runs && (size_t)blockIdx.x * BLOCK_ROWS >= k_visible_rows(a, first))
        return; /* the whole block: n_row is a bound, and nobody reads scores behind */
    size_t n_row = k_visible_rows(a, last - 1);
    struct warp_rows rows;
    struct carried next = {};
    for (size_t i = first + threadIdx.x; i < last; i += THREADS)
        s->low[i - first] = queries[i].low;
    load_rows(a, row_bytes, row0, n_row < a.n_row ? n_row : a.n_row, &rows);
    __syncthreads();
    carry(&queries[first], s->low[0], &next);
    for (size_t i = first; i < last; i++) {
        unsigned which = (i - first) % 2;
        bool low = s->low[i - first];
        size_t visible = k_visible_rows(a, i);
        size_t tiles = visible > row0 ? (visible - row0 + 15) / 16 : 0;
        float sum[TILES][2] = {};
        put_down(next, low, s->term[which], s->w[which]);
        __syncthreads(); /* the other half was read before this barrier's predecessor */
        if (i + 1 < last)
            carry(&queries[i + 1], s->low[i + 1 - first], &next);
        for (unsigned h = 0; h * 8 < a.n_head && tiles; h++)
            add_heads(a, rows, s->term[which], s->w[which], low, h,
                      tiles < TILES ? (unsigned)tiles : TILES, sum);
        write_scores(a, rows, sum, row0, visible, score + i * a.n_row);
    }
}

bool k_index_score_mma_cuda(struct kernels *k, const struct k_index *a, float *score)
{
    if (a->format != K_ROW_FP4_32 || a->d % 32 || a->d > MAX_D || a->n_head > MAX_HEADS)
        return false;
    struct index_query *queries = (struct index_query *)k_cuda_scratch(
        k, K_CUDA_INDEX_QUERY, a->n * sizeof(struct index_query));
    if (!queries)
        return true; /* kept as a failure */
    size_t blocks = k_div_up((size_t)a->n_row, BLOCK_ROWS);
    size_t together = a->n * blocks / (2 * (size_t)k->ctx->multiprocessors);
    together = together < 1 || a->runs ? 1 : together > MAX_QUERIES ? MAX_QUERIES : together;
    K_LAUNCH(index_terms, dim3((unsigned)a->n), dim3(128), 128 / K_WARP * sizeof(uint32_t), k,
             *a, queries);
    K_LAUNCH(index_score_mma, dim3((unsigned)blocks, k_div_up(a->n, together)), dim3(THREADS),
             sizeof(struct score_shared), k, *a, k_row_bytes(a->format, a->d), queries,
             (uint32_t)together, score);
    return true;
}
