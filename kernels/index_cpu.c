/* Index scores in two steps for a group of queries: scores by tiles of rows, then the choice by
 * query. A tile is decoded once for the whole group; where candidates restrict a query, it
 * scores its own list instead. */
#include <assert.h>
#include <math.h>

#include "kernels/isa.h"

#define TILE 64                 /* rows decoded together */
#define GROUP_BYTES (64u << 20) /* scores and lists of one group of queries */

struct index_job {
    const struct k_isa *isa;
    const struct k_index *a;
    size_t query0, n_query; /* the group */
    size_t list_max;        /* candidates of one query at most; without blocks_in n_row */
    size_t n_block;
    float *score;  /* [n_query][list_max] */
    int32_t *list; /* [n_query][list_max] with blocks_in, else NULL */
    size_t *n_list;
    uint8_t *scratch;
    size_t stride;
};

/* Everything visible is chosen anyway: no scores are needed. */
static bool trivial(const struct k_index *a, size_t i)
{
    size_t n = k_index_visible(a, i);
    bool blocks = a->blocks_out && (n + a->block_rows - 1) / a->block_rows > a->n_blocks;
    return !a->score && !blocks && (n <= a->top_k || !a->sel);
}

static void list_queries(void *arg, size_t first, size_t last, uint32_t thread)
{
    const struct index_job *job = arg;
    (void)thread;
    for (size_t q = first; q < last; q++) {
        size_t i = job->query0 + q;
        job->n_list[q] = job->list
                             ? k_index_candidates(job->a, i, job->list + q * job->list_max)
                             : k_index_visible(job->a, i);
    }
}

/* Scores of query i against m decoded rows. */
static void score_tile(const struct index_job *job, size_t i, const void *const *key, size_t m,
                       float *dots, float *score)
{
    const struct k_index *a = job->a;
    const struct k_isa *isa = job->isa;
    for (size_t h = 0; h < a->n_head; h += isa->tile_m) {
        const void *q[K_TILE_M_MAX];
        size_t n = a->n_head - h < isa->tile_m ? a->n_head - h : isa->tile_m;
        for (size_t j = 0; j < n; j++)
            q[j] = a->q + (i * a->n_head + h + j) * a->d;
        for (size_t r = 0; r < m; r += K_TILE_N)
            isa->dot_f32(q, n, key + r, m - r < K_TILE_N ? m - r : K_TILE_N, a->d,
                         dots + h * TILE + r, TILE);
    }
    isa->index_sum(dots, TILE, a->w + i * a->n_head, a->n_head, m, a->score_round, score);
}

/* Item: one tile of rows, for every query of the group. */
static void score_tiles(void *arg, size_t first, size_t last, uint32_t thread)
{
    const struct index_job *job = arg;
    const struct k_index *a = job->a;
    float *keys = (float *)(void *)(job->scratch + thread * job->stride);
    float *dots = keys + TILE * a->d;
    size_t bytes = k_row_bytes(a->format, a->d);
    const void *key[TILE];
    for (size_t r = 0; r < TILE; r++)
        key[r] = keys + r * a->d;
    for (size_t tile = first; tile < last; tile++) {
        size_t row0 = tile * TILE, decoded = 0;
        for (size_t q = 0; q < job->n_query; q++) {
            size_t i = job->query0 + q, n = job->n_list[q];
            if (row0 >= n || trivial(a, i))
                continue;
            size_t m = n - row0 < TILE ? n - row0 : TILE;
            const int32_t *list = job->list ? job->list + q * job->list_max + row0 : NULL;
            for (size_t r = list ? 0 : decoded; r < m; r++)
                job->isa->decode(a->format,
                                 (const uint8_t *)a->keys +
                                     (list ? (size_t)list[r] : row0 + r) * bytes,
                                 a->d, keys + r * a->d);
            decoded = m > decoded ? m : decoded;
            score_tile(job, i, key, m, dots, job->score + q * job->list_max + row0);
        }
    }
}

static void choose(const struct index_job *job, size_t q, uint8_t *scratch)
{
    const struct k_index *a = job->a;
    size_t i = job->query0 + q, n = job->n_list[q];
    float *block_score = (float *)(void *)scratch;
    int32_t *pool = (int32_t *)(void *)(block_score + job->n_block);
    const float *score = job->score + q * job->list_max;
    int32_t *sel = a->sel ? a->sel + i * a->top_k : NULL;
    if (a->score)
        for (size_t row = 0; row < a->n_row; row++)
            a->score[i * a->n_row + row] = row < n ? score[row] : -INFINITY;
    if (a->blocks_out)
        k_index_blocks(a, i, score, block_score, pool);
    if (!sel)
        return;
    uint32_t kept = k_top_k(score, n, a->top_k, sel, pool);
    for (uint32_t j = 0; job->list && j < kept; j++)
        sel[j] = job->list[q * job->list_max + (size_t)sel[j]];
    for (uint32_t j = kept; j < a->top_k; j++)
        sel[j] = -1;
}

static void choose_queries(void *arg, size_t first, size_t last, uint32_t thread)
{
    const struct index_job *job = arg;
    for (size_t q = first; q < last; q++)
        choose(job, q, job->scratch + thread * job->stride);
}

static void run_group(struct kernels *k, struct index_job *job)
{
    size_t longest = 0;
    k_run(k, list_queries, job, job->n_query, job->list ? job->n_query * job->list_max : 0);
    for (size_t q = 0; q < job->n_query; q++)
        if (!trivial(job->a, job->query0 + q) && job->n_list[q] > longest)
            longest = job->n_list[q];
    k_run(k, score_tiles, job, (longest + TILE - 1) / TILE,
          job->n_query * longest * job->a->n_head * job->a->d / 8);
    k_run(k, choose_queries, job, job->n_query, job->n_query * longest * 2);
}

/* Filtered and unfiltered scores are asked for together only by tests and evals. */
static void scores_only(struct kernels *k, const struct k_index *a)
{
    struct k_index all = *a;
    all.blocks_in = NULL;
    all.blocks_out = NULL;
    all.sel = NULL;
    k_index_cpu(k, &all);
}

void k_index_cpu(struct kernels *k, const struct k_index *a)
{
    struct k_index args = *a;
    if (k_failed(k) || !a->n)
        return;
    assert(a->ratio > 0 && a->n_row <= INT32_MAX && !(a->blocks_in && a->blocks_out));
    assert(a->block_rows > 0 || (!a->blocks_in && !a->blocks_out));
    if (a->blocks_in && a->score) {
        scores_only(k, a);
        args.score = NULL;
    }
    struct index_job job = {.isa = k->ctx->isa, .a = &args};
    job.list_max = (size_t)a->n_row;
    if (a->blocks_in && (size_t)a->n_blocks * a->block_rows < job.list_max)
        job.list_max = (size_t)a->n_blocks * a->block_rows;
    job.n_block = a->blocks_out ? (size_t)a->n_row / a->block_rows + 1 : 0;
    size_t pool = 4 * (size_t)(a->top_k > a->n_blocks ? a->top_k : a->n_blocks);
    size_t values = (size_t)TILE * (a->d + a->n_head);
    values = values > job.n_block + pool ? values : job.n_block + pool;
    size_t group = GROUP_BYTES / (8 * job.list_max + 1) + 1;
    group = group < a->n ? group : a->n;
    job.scratch = k_scratch_threads(k, K_SLOT_OP, values * 4, &job.stride);
    job.score = k_scratch(k, K_SLOT_INDEX_SCORE, group * job.list_max * 4);
    job.n_list = k_scratch(k, K_SLOT_INDEX_COUNT, group * sizeof *job.n_list);
    if (a->blocks_in)
        job.list = k_scratch(k, K_SLOT_INDEX_LIST, group * job.list_max * 4);
    for (; job.query0 < a->n && !k_failed(k); job.query0 += group) {
        job.n_query = a->n - job.query0 < group ? a->n - job.query0 : group;
        run_group(k, &job);
    }
}
