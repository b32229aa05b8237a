/* Index scores in two steps for a group of queries: scores by tiles of rows, then the choice by
 * query. A tile is decoded once for the whole group; where candidates restrict a query, it
 * scores its own list instead. */
#include <assert.h>
#include <math.h>

#include "kernels/isa.h"

#define GROUP_BYTES (64u << 20) /* scores and lists of one group of queries */

struct index_job {
    const struct k_isa *isa;
    const struct k_index *a;
    size_t query0, n_query; /* the group */
    size_t list_max;        /* candidates of one query at most; without blocks_in n_row */
    size_t n_block;
    float *score;  /* [n_query][list_max] */
    int32_t *list; /* [n_query][list_max] with blocks_in, but for queries with all_rows() */
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

/* Every visible row is a candidate: ascending blocks, and the last of them stands in its place.
 */
static bool all_rows(const struct k_index *a, size_t i)
{
    size_t n =
        (k_index_visible(a, i) + a->block_rows - 1) / (a->block_rows ? a->block_rows : 1);
    return !a->blocks_in || !n ||
           (n <= a->n_blocks && a->blocks_in[i * a->n_blocks + n - 1] == (int32_t)n - 1);
}

static void list_queries(void *arg, size_t first, size_t last, uint32_t thread)
{
    const struct index_job *job = arg;
    (void)thread;
    for (size_t q = first; q < last; q++) {
        size_t i = job->query0 + q;
        job->n_list[q] = all_rows(job->a, i)
                             ? k_index_visible(job->a, i)
                             : k_index_candidates(job->a, i, job->list + q * job->list_max);
    }
}

/* Scores of query i against the first m of the rows side by side. */
static void score_tile(const struct index_job *job, size_t i, const float *columns, size_t m,
                       float *dots, float *score)
{
    const struct k_index *a = job->a;
    const struct k_isa *isa = job->isa;
    for (size_t h = 0; h < a->n_head; h += isa->tile_m) {
        const void *q[K_TILE_M_MAX];
        size_t n = a->n_head - h < isa->tile_m ? a->n_head - h : isa->tile_m;
        for (size_t j = 0; j < n; j++)
            q[j] = a->q + (i * a->n_head + h + j) * a->d;
        isa->dot_columns(q, n, columns, a->d, dots + h * K_COLUMNS, K_COLUMNS);
    }
    isa->index_sum(dots, K_COLUMNS, a->w + i * a->n_head, a->n_head, m, a->score_round, score);
}

/* Puts n rows side by side: from row0 on, or those of a list. */
static void decode_tile(const struct index_job *job, size_t row0, const int32_t *list, size_t n,
                        float *columns)
{
    const struct k_index *a = job->a;
    size_t bytes = k_row_bytes(a->format, a->d);
    const uint8_t *row[K_COLUMNS];
    for (size_t r = 0; r < n; r++)
        row[r] = (const uint8_t *)a->keys + (list ? (size_t)list[r] : row0 + r) * bytes;
    job->isa->decode_columns(a->format, row, n, a->d, columns);
}

static size_t tile_rows(size_t n, size_t row0)
{
    return n - row0 < K_COLUMNS ? n - row0 : K_COLUMNS;
}

/* Item: one tile of rows, for every query of the group. */
static void score_tiles(void *arg, size_t first, size_t last, uint32_t thread)
{
    const struct index_job *job = arg;
    const struct k_index *a = job->a;
    float *columns = (float *)(void *)(job->scratch + thread * job->stride);
    float *own = columns + K_COLUMNS * a->d, *dots = own + K_COLUMNS * a->d;
    for (size_t tile = first; tile < last; tile++) {
        size_t row0 = tile * K_COLUMNS;
        bool decoded = false;
        for (size_t q = 0; q < job->n_query; q++) {
            size_t i = job->query0 + q, n = job->n_list[q];
            if (row0 >= n || trivial(a, i))
                continue;
            bool all = all_rows(a, i);
            if (!all)
                decode_tile(job, 0, job->list + q * job->list_max + row0, tile_rows(n, row0),
                            own);
            else if (!decoded) /* later queries see more of them */
                decode_tile(job, row0, NULL, tile_rows(a->n_row, row0), columns);
            decoded = decoded || all;
            score_tile(job, i, all ? columns : own, tile_rows(n, row0), dots,
                       job->score + q * job->list_max + row0);
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
    for (uint32_t j = 0; !all_rows(a, i) && j < kept; j++)
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
    k_run(k, score_tiles, job, (longest + K_COLUMNS - 1) / K_COLUMNS,
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
    if (a->runs) {
        k_index_runs(k, a, k_index_cpu);
        return;
    }
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
    size_t values = (size_t)K_COLUMNS * (2 * (size_t)a->d + a->n_head);
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
