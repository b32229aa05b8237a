#include "kernels/index.h"

#include <assert.h>
#include <math.h>

#include "kernels/host.h"

/* Order of scores as order of integers: NaN as -inf, -0 as 0. */
static uint32_t rank_of(float x)
{
    uint32_t u;
    x = x != x ? -INFINITY : x == 0 ? 0.0f : x;
    memcpy(&u, &x, sizeof u);
    return u ^ ((0 - (u >> 31)) | 0x80000000u); /* no branch: signs are as good as random */
}

static float score_of(uint32_t rank)
{
    float x;
    uint32_t u = rank ^ (rank >> 31 ? 0x80000000u : UINT32_MAX);
    memcpy(&x, &u, sizeof x);
    return x;
}

#define N_BUCKETS 1024u

/* Narrows [*low, *high], at first the range of all ranks, until the k best are all above *high
 * and the first *n_inside inside: either all inside are among the k best, or they are equal. */
static void find_border(const uint32_t *rank, size_t m, uint32_t k, uint32_t *low,
                        uint32_t *high, uint32_t *n_inside)
{
    for (;;) {
        uint32_t count[N_BUCKETS + 1] = {0}, span = *high - *low, shift = 0, b;
        while (span >> shift >= N_BUCKETS)
            shift++;
        for (size_t i = 0; i < m; i++) {
            uint32_t at = rank[i] - *low;
            count[at > span ? N_BUCKETS : at >> shift]++;
        }
        for (b = span >> shift; count[b] < k; b--)
            k -= count[b];
        uint32_t end = ((b + 1) << shift) - 1;
        *high = *low + (end < span ? end : span);
        *low += b << shift;
        *n_inside = k;
        if (count[b] == k || !shift)
            return;
    }
}

/* Keeps the k best of the pool, in the order they stand in; returns the lowest score kept. Of
 * equal ones the first stay. */
static float shrink(const float *score, int32_t *pool, size_t m, uint32_t k)
{
    uint32_t *rank = (uint32_t *)(pool + 2 * (size_t)k);
    uint32_t low = UINT32_MAX, high = 0, inside, kept = 0;
    for (size_t i = 0; i < m; i++) {
        rank[i] = rank_of(score[pool[i]]);
        low = rank[i] < low ? rank[i] : low;
        high = rank[i] > high ? rank[i] : high;
    }
    find_border(rank, m, k, &low, &high, &inside);
    uint32_t lowest = UINT32_MAX;
    for (size_t i = 0; i < m; i++) { /* no branches: which row stays is as good as random */
        uint32_t is_inside = rank[i] >= low && rank[i] <= high && inside;
        uint32_t stays = is_inside || rank[i] > high;
        inside -= is_inside;
        lowest = stays && rank[i] < lowest ? rank[i] : lowest;
        pool[kept] = pool[i];
        kept += stays;
    }
    return score_of(lowest);
}

/* Rows come in ascending order into a pool of 2 k, which is cut to its k best when it is full;
 * a row that is not better than the worst of these is passed over at once. */
uint32_t k_top_k(const float *score, size_t n, uint32_t k, int32_t *out, int32_t *pool)
{
    uint32_t kept = n < k ? (uint32_t)n : k;
    size_t m = kept, cap = 2 * (size_t)k;
    for (uint32_t i = 0; i < kept; i++)
        pool[i] = (int32_t)i;
    if (kept && kept < n) {
        float bound = shrink(score, pool, m, k);
        for (size_t i = kept; i < n; i++) {
            if (!(score[i] > bound))
                continue;
            pool[m++] = (int32_t)i;
            if (m == cap) {
                bound = shrink(score, pool, m, k);
                m = k;
            }
        }
        if (m > k)
            (void)shrink(score, pool, m, k);
    }
    memcpy(out, pool, kept * sizeof *out);
    return kept;
}

size_t k_index_visible(const struct k_index *a, size_t i)
{
    size_t n = (size_t)((a->pos0 + i + 1) / a->ratio);
    assert(n <= a->n_row);
    return n;
}

size_t k_index_candidates(const struct k_index *a, size_t i, int32_t *list)
{
    size_t visible = k_index_visible(a, i), n = 0;
    const int32_t *blocks = a->blocks_in + i * a->n_blocks;
    for (uint32_t b = 0; b < a->n_blocks && blocks[b] >= 0; b++) {
        size_t first = (size_t)blocks[b] * a->block_rows, end = first + a->block_rows;
        for (size_t row = first; row < end && row < visible; row++)
            list[n++] = (int32_t)row;
    }
    return n;
}

void k_index_blocks(const struct k_index *a, size_t i, const float *score, float *block_score,
                    int32_t *pool)
{
    size_t visible = k_index_visible(a, i);
    size_t n = (visible + a->block_rows - 1) / a->block_rows;
    int32_t *out = a->blocks_out + i * a->n_blocks;
    for (size_t b = 0; b < n && n > a->n_blocks;
         b++) { /* else all are kept whatever they score */
        size_t end = (b + 1) * a->block_rows;
        float best = -INFINITY;
        for (size_t row = b * a->block_rows; row < end && row < visible; row++)
            best = score[row] > best ? score[row] : best;
        block_score[b] = b + 1 == n ? INFINITY : best;
    }
    uint32_t kept = k_top_k(block_score, n, a->n_blocks, out, pool);
    for (uint32_t b = kept; b < a->n_blocks; b++)
        out[b] = -1;
}

/* Scratch of one thread: row values, scores, block scores, candidate list, pool. */
struct index_job {
    const struct k_index *a;
    uint8_t *scratch;
    size_t stride, n_list, n_pool, n_block;
};

static float score_row(const struct k_index *a, size_t i, const float *key)
{
    double sum = 0;
    for (uint32_t h = 0; h < a->n_head; h++) {
        double dot = k_dot_ref(a->q + (i * a->n_head + h) * a->d, key, a->d);
        double w = (double)a->w[i * a->n_head + h];
        if (a->score_round == K_BF16) {
            dot = (double)k_bf16((float)dot);
            sum += (double)k_bf16((float)((dot < 0 ? 0 : dot) * w));
        } else {
            sum += (dot < 0 ? 0 : dot) * w;
        }
    }
    return k_round_to((float)sum, a->score_round);
}

static void index_query(const struct index_job *job, size_t i, uint8_t *scratch)
{
    const struct k_index *a = job->a;
    float *key = (float *)(void *)scratch, *score = key + a->d;
    float *block_score = score + a->n_row;
    int32_t *list = (int32_t *)(void *)(block_score + job->n_block);
    int32_t *pool = list + job->n_list;
    size_t visible = k_index_visible(a, i), bytes = k_row_bytes(a->format, a->d);
    for (size_t row = 0; row < visible; row++) {
        k_decode_row(a->format, (const uint8_t *)a->keys + row * bytes, a->d, key);
        score[row] = score_row(a, i, key);
    }
    if (a->score)
        for (size_t row = 0; row < a->n_row; row++)
            a->score[i * a->n_row + row] = row < visible ? score[row] : -INFINITY;
    if (a->blocks_out)
        k_index_blocks(a, i, score, block_score, pool);
    if (!a->sel)
        return;
    int32_t *sel = a->sel + i * a->top_k;
    uint32_t kept;
    if (a->blocks_in) {
        size_t n = k_index_candidates(a, i, list);
        for (size_t j = 0; j < n; j++)
            score[j] = score[list[j]]; /* list[j] >= j: ascending */
        kept = k_top_k(score, n, a->top_k, sel, pool);
        for (uint32_t j = 0; j < kept; j++)
            sel[j] = list[sel[j]];
    } else {
        kept = k_top_k(score, visible, a->top_k, sel, pool);
    }
    for (uint32_t j = kept; j < a->top_k; j++)
        sel[j] = -1;
}

static void index_queries(void *arg, size_t first, size_t last, uint32_t thread)
{
    const struct index_job *job = arg;
    for (size_t i = first; i < last; i++)
        index_query(job, i, job->scratch + thread * job->stride);
}

void k_index_ref(struct kernels *k, const struct k_index *a)
{
    if (a->runs) {
        k_index_runs(k, a, k_index_ref);
        return;
    }
    if (k_failed(k) || !a->n)
        return;
    assert(a->ratio > 0 && a->n_row <= INT32_MAX);
    assert(a->block_rows > 0 || (!a->blocks_in && !a->blocks_out));
    struct index_job job = {.a = a};
    job.n_pool = 4 * (size_t)(a->top_k > a->n_blocks ? a->top_k : a->n_blocks);
    job.n_list = a->blocks_in ? (size_t)a->n_blocks * a->block_rows : 0;
    job.n_block = a->blocks_out ? (size_t)a->n_row / a->block_rows + 1 : 0;
    size_t values = a->d + (size_t)a->n_row + job.n_block + job.n_list + job.n_pool;
    job.scratch = k_scratch_threads(k, K_SLOT_OP, values * 4, &job.stride);
    if (job.scratch)
        k_run(k, index_queries, &job, a->n, a->n * a->n_row * a->n_head * a->d);
}
