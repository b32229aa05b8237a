#include "kernels/index.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/host.h"

/* 1 where row i of the scores is worse than row j: NaN as -inf, equal: the later one. */
static int by_score(const void *i, const void *j, void *score)
{
    int32_t a = *(const int32_t *)i, b = *(const int32_t *)j;
    float x = ((const float *)score)[a], y = ((const float *)score)[b];
    x = x != x ? -INFINITY : x;
    y = y != y ? -INFINITY : y;
    return x != y ? (x < y) - (x > y) : (a > b) - (a < b);
}

static int by_row(const void *i, const void *j)
{
    int32_t a = *(const int32_t *)i, b = *(const int32_t *)j;
    return (a > b) - (a < b);
}

/* A pool of 2 k is cut to its k best whenever it is full. */
uint32_t k_top_k(const float *score, size_t n, uint32_t k, int32_t *out, int32_t *pool)
{
    uint32_t kept = n < k ? (uint32_t)n : k;
    size_t m = 0;
    for (size_t i = 0; i < n && k; i++) {
        pool[m++] = (int32_t)i;
        if (m < 2 * (size_t)k && i + 1 < n)
            continue;
        qsort_r(pool, m, sizeof *pool, by_score, (void *)(uintptr_t)score);
        m = m < k ? m : k;
    }
    qsort(pool, kept, sizeof *pool, by_row);
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
    job.n_pool = 2 * (size_t)(a->top_k > a->n_blocks ? a->top_k : a->n_blocks);
    job.n_list = a->blocks_in ? (size_t)a->n_blocks * a->block_rows : 0;
    job.n_block = a->blocks_out ? (size_t)a->n_row / a->block_rows + 1 : 0;
    size_t values = a->d + (size_t)a->n_row + job.n_block + job.n_list + job.n_pool;
    job.scratch = k_scratch_threads(k, K_SLOT_OP, values * 4, &job.stride);
    if (job.scratch)
        k_run(k, index_queries, &job, a->n, a->n * a->n_row * a->n_head * a->d);
}
