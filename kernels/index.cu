/* Scores of all visible rows for a few queries at a time, then the best of them: a radix search
 * for the k-th score over the order of scores as integers, and one pass that keeps ascending
 * order. The matrix of scores is scratch of bounded size. */
#include "kernels/index_rows.cuh"
#include "kernels/quant_groups.h"

#define THREADS 256u
#define SCORE_ROWS 64u               /* of a block */
#define MAX_SCORES ((size_t)1 << 26) /* of one round */

/* Order of scores as order of integers: NaN as -inf, -0 as 0. */
__device__ static inline uint32_t rank_of(float x)
{
    x = x != x ? -INFINITY : x == 0 ? 0.0f : x;
    uint32_t u = k_f32_bits(x);
    return u ^ ((0 - (u >> 31)) | 0x80000000u);
}

__device__ static inline float key_value(enum k_format format, const uint8_t *row, uint32_t d,
                                         uint32_t j)
{
    if (format == K_ROW_F32)
        return ((const float *)row)[j];
    return k_e2m1_to_f32((uint8_t)(row[j / 2] >> (j % 2 * 4))) *
           k_e8m0_to_f32(row[d / 2 + j / 32]);
}

/* In plain instructions, a thread a row, for one query: score [blockIdx.y][row], -inf where not
 * visible. The query and the block's rows lie in shared memory, rows side by side. */
__global__ void index_score(struct k_index a, size_t row_bytes, float *score)
{
    K_SHARED(float, keys); /* [d][SCORE_ROWS] */
    float *query = keys + (size_t)a.d * SCORE_ROWS;
    size_t i = blockIdx.y, row0 = (size_t)blockIdx.x * SCORE_ROWS, row = row0 + threadIdx.x;
    k_single_run(a, i);
    size_t visible = k_visible_rows(a, i);
    if (a.runs && row0 >= visible)
        return; /* the whole block: n_row is a bound, and nobody reads scores behind */
    for (uint32_t at = threadIdx.x; at < a.n_head * a.d; at += SCORE_ROWS)
        query[at] = a.q[i * a.n_head * a.d + at];
    for (uint32_t j = 0; j < a.d && row < visible; j++)
        keys[j * SCORE_ROWS + threadIdx.x] =
            key_value(a.format, (const uint8_t *)a.keys + row * row_bytes, a.d, j);
    __syncthreads();
    if (row >= a.n_row)
        return;
    float sum = 0;
    for (uint32_t h = 0; h < a.n_head && row < visible; h++) {
        float dot = 0, w = a.w[i * a.n_head + h];
        for (uint32_t j = 0; j < a.d; j++)
            dot = fmaf(query[h * a.d + j], keys[j * SCORE_ROWS + threadIdx.x], dot);
        dot = k_rounded(dot, a.score_round);
        dot = dot < 0 ? 0 : dot;
        sum = a.score_round == K_BF16 ? sum + k_bf16(dot * w) : fmaf(dot, w, sum);
    }
    score[i * a.n_row + row] = row < visible ? k_rounded(sum, a.score_round) : -INFINITY;
}

/* Best score of each block of rows; the newest visible block wins over all. */
__global__ void index_block_best(struct k_index a, const float *score, size_t n_max,
                                 float *best)
{
    size_t i = blockIdx.y, b = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    k_single_run(a, i);
    size_t visible = k_visible_rows(a, i), n = (visible + a.block_rows - 1) / a.block_rows;
    if (b >= n_max)
        return;
    float max = -INFINITY;
    for (size_t row = b * a.block_rows; row < (b + 1) * a.block_rows && row < visible; row++)
        max = score[i * a.n_row + row] > max ? score[i * a.n_row + row] : max;
    best[i * n_max + b] = b + 1 == n ? INFINITY : max;
}

struct top_k_shared {
    uint32_t count[256];
    uint32_t warp_above[THREADS / K_WARP], warp_equal[THREADS / K_WARP];
};

/* Entry t of what a query chooses from: a row number. */
struct candidates {
    const int32_t *blocks; /* NULL: all of them, t itself */
    uint32_t block_rows;
};

__device__ static inline size_t candidate(const struct candidates &c, size_t t)
{
    return c.blocks ? (size_t)c.blocks[t / c.block_rows] * c.block_rows + t % c.block_rows : t;
}

/* The rank of the k-th best of n entries, and how many entries of that very rank belong to the
 * best. By bytes from the top; all threads of the block. */
__device__ static inline uint32_t kth_rank(struct top_k_shared *s, const float *score,
                                           const struct candidates &c, size_t n, uint32_t k,
                                           uint32_t *n_equal)
{
    uint32_t prefix = 0;
    for (int shift = 24; shift >= 0; shift -= 8) {
        for (uint32_t b = threadIdx.x; b < 256; b += THREADS)
            s->count[b] = 0;
        __syncthreads();
        for (size_t t = threadIdx.x; t < n; t += THREADS) {
            uint32_t rank = rank_of(score[candidate(c, t)]);
            if (shift == 24 || rank >> (shift + 8) == prefix)
                atomicAdd(&s->count[rank >> shift & 255u], 1u);
        }
        __syncthreads();
        uint32_t b = 255;
        for (; s->count[b] < k; b--)
            k -= s->count[b];
        prefix = prefix << 8 | b;
        __syncthreads();
    }
    *n_equal = k;
    return prefix;
}

/* out [top_k]: the best k of n entries ascending, then -1. All threads of the block. */
__device__ static inline void top_k(struct top_k_shared *s, const float *score,
                                    const struct candidates &c, size_t n, uint32_t k,
                                    int32_t *out)
{
    uint32_t kept = n < k ? (uint32_t)n : k, n_equal = 0, border = 0;
    uint32_t warp = threadIdx.x / K_WARP, lane = threadIdx.x % K_WARP;
    if (kept)
        border = kth_rank(s, score, c, n, kept, &n_equal);
    uint32_t above_before = 0, equal_before = 0;
    for (size_t t0 = 0; kept && t0 < n; t0 += THREADS) {
        size_t t = t0 + threadIdx.x;
        uint32_t rank = t < n ? rank_of(score[candidate(c, t)]) : 0;
        bool above = t < n && rank > border, equal = t < n && rank == border;
        uint32_t above_votes = __ballot_sync(K_ALL_LANES, above);
        uint32_t equal_votes = __ballot_sync(K_ALL_LANES, equal);
        if (lane == 0) {
            s->warp_above[warp] = (uint32_t)__popc(above_votes);
            s->warp_equal[warp] = (uint32_t)__popc(equal_votes);
        }
        __syncthreads();
        uint32_t before = (1u << lane) - 1, above_at = above_before, equal_at = equal_before;
        for (uint32_t w = 0; w < THREADS / K_WARP; w++) {
            if (w < warp)
                above_at += s->warp_above[w], equal_at += s->warp_equal[w];
            above_before += s->warp_above[w], equal_before += s->warp_equal[w];
        }
        above_at += (uint32_t)__popc(above_votes & before);
        equal_at += (uint32_t)__popc(equal_votes & before);
        /* Of equal ones the first n_equal stay: a row's place counts those before it. */
        if (above || (equal && equal_at < n_equal))
            out[above_at + (equal_at < n_equal ? equal_at : n_equal)] =
                (int32_t)candidate(c, t);
        __syncthreads();
    }
    for (uint32_t t = kept + threadIdx.x; t < k; t += THREADS)
        out[t] = -1;
}

/* A block a query: the best blocks of rows. */
__global__ void index_choose_blocks(struct k_index a, const float *best, size_t n_max)
{
    K_SHARED(struct top_k_shared, s);
    size_t i = blockIdx.x;
    k_single_run(a, i);
    size_t n = (k_visible_rows(a, i) + a.block_rows - 1) / a.block_rows;
    struct candidates all = {NULL, 0};
    top_k(s, best + i * n_max, all, n, a.n_blocks, a.blocks_out + i * a.n_blocks);
}

/* A block a query: the best rows, of all or of those in blocks_in. */
__global__ void index_choose_rows(struct k_index a, const float *score)
{
    K_SHARED(struct top_k_shared, s);
    size_t i = blockIdx.x;
    k_single_run(a, i);
    size_t n = k_visible_rows(a, i);
    struct candidates c = {NULL, a.block_rows};
    if (a.blocks_in) {
        /* Blocks are ascending; only the last can reach past what is visible. */
        uint32_t used = 0;
        c.blocks = a.blocks_in + i * a.n_blocks;
        while (used < a.n_blocks && c.blocks[used] >= 0 &&
               (size_t)c.blocks[used] * a.block_rows < n)
            used++;
        size_t last = used ? (size_t)c.blocks[used - 1] * a.block_rows : 0;
        size_t rest = n - last < a.block_rows ? n - last : a.block_rows;
        n = used ? (size_t)(used - 1) * a.block_rows + rest : 0;
    }
    top_k(s, score + i * a.n_row, c, n, a.top_k, a.sel + i * a.top_k);
}

__global__ void index_copy_scores(const float *from, float *to, size_t n)
{
    size_t at = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (at < n)
        to[at] = from[at];
}

static void run_round(struct kernels *k, const struct k_index *a, float *score, float *best,
                      size_t n_blocks_max)
{
    size_t row_bytes = k_row_bytes(a->format, a->d);
    unsigned n = (unsigned)a->n;
    if (a->n_row && !k_index_score_mma_cuda(k, a, score))
        K_LAUNCH(index_score, dim3(k_div_up((size_t)a->n_row, SCORE_ROWS), n), dim3(SCORE_ROWS),
                 (size_t)a->d * (SCORE_ROWS + a->n_head) * sizeof(float), k, *a, row_bytes,
                 score);
    if (a->score && a->n_row)
        K_LAUNCH(index_copy_scores, dim3(k_div_up(a->n * (size_t)a->n_row, THREADS)),
                 dim3(THREADS), 0, k, score, a->score, a->n * (size_t)a->n_row);
    if (a->blocks_out) {
        if (n_blocks_max)
            K_LAUNCH(index_block_best, dim3(k_div_up(n_blocks_max, THREADS), n), dim3(THREADS),
                     0, k, *a, score, n_blocks_max, best);
        K_LAUNCH(index_choose_blocks, dim3(n), dim3(THREADS), sizeof(struct top_k_shared), k,
                 *a, best, n_blocks_max);
    }
    if (a->sel)
        K_LAUNCH(index_choose_rows, dim3(n), dim3(THREADS), sizeof(struct top_k_shared), k, *a,
                 score);
}

void k_index_cuda(struct kernels *k, const struct k_index *a)
{
    if (!a->n)
        return;
    size_t n_row = (size_t)a->n_row, step = MAX_SCORES / (n_row ? n_row : 1);
    size_t n_blocks_max = a->blocks_out ? (n_row + a->block_rows - 1) / a->block_rows : 0;
    step = step < 1 ? 1 : step > 4096 ? 4096 : step;
    step = step < a->n ? step : a->n;
    float *score =
        (float *)k_cuda_scratch(k, K_CUDA_INDEX_SCORE, (step * n_row + 1) * sizeof(float));
    float *best = (float *)k_cuda_scratch(k, K_CUDA_INDEX_BLOCK,
                                          (step * n_blocks_max + 1) * sizeof(float));
    if (!score || !best)
        return;
    for (size_t i = 0; i < a->n; i += step) {
        struct k_index round = *a;
        round.n = a->n - i < step ? a->n - i : step;
        round.pos0 += i, round.row0 += (uint32_t)i;
        round.q += i * a->n_head * a->d, round.w += i * a->n_head;
        round.sel = a->sel ? a->sel + i * a->top_k : NULL;
        round.blocks_out = a->blocks_out ? a->blocks_out + i * a->n_blocks : NULL;
        round.blocks_in = a->blocks_in ? a->blocks_in + i * a->n_blocks : NULL;
        round.score = a->score ? a->score + i * n_row : NULL;
        run_round(k, &round, score, best, n_blocks_max);
    }
}
