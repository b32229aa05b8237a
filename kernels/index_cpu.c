/* Index scores and the choice in one pass, without a matrix of scores: a tile of keys is
 * decoded once for a group of queries, and each query keeps the best it has seen. The rows are
 * cut into one part a thread; what the parts kept is put together in order of rows, so the
 * choice does not depend on the cut. Where candidates restrict a query, it goes through its own
 * list. */
#include <assert.h>
#include <math.h>

#include "kernels/isa.h"

#define GROUP_QUERIES 32

/* A tile of keys as values, and in both forms. */
static size_t column_bytes(uint32_t d)
{
    return (size_t)d * K_COLUMNS * sizeof(float);
}

static size_t key_bytes(uint32_t d)
{
    return column_bytes(d) + (size_t)(d / 4 + d / 32) * K_COLUMNS * sizeof(uint32_t);
}

/* Values of each array of a k_best, so that the next one begins on a cache line. */
static size_t best_values(uint32_t k)
{
    return (k_best_room(k) + 31) / 16 * 16;
}

struct query {
    size_t n;     /* rows that it may choose from: the first n, or its list */
    bool trivial; /* everything is chosen anyway: no scores are needed */
    bool has_list, wants_blocks;
    bool is_coded; /* its rows of q are codes, too */
};

/* A tile of keys side by side, as values and as codes: each is made when a query wants it. */
struct keys {
    void *columns, *codes;
    bool has_columns, has_codes;
};

struct index_job {
    const struct k_isa *isa;
    const struct k_index *a;
    size_t query0, n_query; /* the group */
    size_t unit;            /* tiles of an item: whole blocks */
    struct query *query;
    uint8_t *codes; /* [n_query][n_head] rows of query_codes; NULL: products of values only */
    size_t code_bytes;
    int32_t *list; /* [n_query][list_max] with blocks_in */
    size_t list_max;
    struct k_best *best; /* [n_parts][GROUP_QUERIES] */
    size_t n_parts;
    float *block_score; /* [n_query][n_block] with blocks_out */
    size_t n_block;
    uint8_t *scratch; /* of a thread: two tiles of keys in both forms, scores, dot products */
    size_t stride;
    int32_t *rank; /* of a thread: for best_cut */
    size_t rank_stride;
};

/* ---- scores -------------------------------------------------------------------------------
 */

static size_t visible_blocks(const struct k_index *a, size_t i)
{
    return (k_index_visible(a, i) + a->block_rows - 1) / a->block_rows;
}

/* Whether every visible row is a candidate: blocks ascend, and the last of them stands in its
 * place. */
static bool all_rows(const struct k_index *a, size_t i)
{
    size_t n = a->blocks_in ? visible_blocks(a, i) : 0;
    return !n || (n <= a->n_blocks && a->blocks_in[i * a->n_blocks + n - 1] == (int32_t)n - 1);
}

static bool make_codes(const struct index_job *job, size_t q)
{
    const struct k_index *a = job->a;
    for (size_t h = 0, row = q * a->n_head; h < a->n_head && job->codes; h++, row++)
        if (!job->isa->query_codes(a->q + (job->query0 * a->n_head + row) * a->d, a->d,
                                   job->codes + row * job->code_bytes))
            return false;
    return job->codes;
}

static void begin_query(const struct index_job *job, size_t q)
{
    const struct k_index *a = job->a;
    struct query *query = &job->query[q];
    size_t i = job->query0 + q;
    query->has_list = !all_rows(a, i);
    query->n = query->has_list ? k_index_candidates(a, i, job->list + q * job->list_max)
                               : k_index_visible(a, i);
    query->wants_blocks = a->blocks_out && visible_blocks(a, i) > a->n_blocks;
    query->trivial = !a->score && !query->wants_blocks && (query->n <= a->top_k || !a->sel);
    query->is_coded = !query->trivial && make_codes(job, q);
    for (size_t b = 0; b < job->n_block; b++)
        job->block_score[q * job->n_block + b] = -INFINITY;
    for (size_t row = 0; a->score && row < a->n_row; row++)
        a->score[i * a->n_row + row] = -INFINITY;
}

static void begin_queries(void *arg, size_t first, size_t last, uint32_t thread)
{
    (void)thread;
    for (size_t q = first; q < last; q++)
        begin_query(arg, q);
}

static size_t tile_rows(size_t n, size_t row0)
{
    return n - row0 < K_COLUMNS ? n - row0 : K_COLUMNS;
}

/* n rows side by side as the query wants them: from row0 on, or those of a list. */
static const void *keys_for(const struct index_job *job, const struct query *query, size_t row0,
                            const int32_t *list, size_t n, struct keys *keys)
{
    const struct k_index *a = job->a;
    size_t bytes = k_row_bytes(a->format, a->d);
    const uint8_t *row[K_COLUMNS];
    if (query->is_coded ? keys->has_codes : keys->has_columns)
        return query->is_coded ? keys->codes : keys->columns;
    for (size_t r = 0; r < n; r++)
        row[r] = (const uint8_t *)a->keys + (list ? (size_t)list[r] : row0 + r) * bytes;
    if (query->is_coded) {
        keys->has_codes = true;
        job->isa->key_codes(row, n, a->d, keys->codes);
        return keys->codes;
    }
    keys->has_columns = true;
    job->isa->decode_columns(a->format, row, n, a->d, keys->columns);
    return keys->columns;
}

/* dots[r] <- row r of the n_queries from query q on, times a tile of keys. */
static void multiply(const struct index_job *job, size_t q, size_t n_queries, const void *tile,
                     float *dots)
{
    const struct k_index *a = job->a;
    bool is_coded = job->query[q].is_coded;
    size_t row = q * a->n_head, n = n_queries * a->n_head;
    const void *x[K_TILE_M_MAX];
    for (size_t at = 0, m; at < n; at += m) {
        m = n - at < job->isa->tile_m ? n - at : job->isa->tile_m;
        for (size_t j = 0; j < m; j++)
            x[j] = is_coded ? (const void *)(job->codes + (row + at + j) * job->code_bytes)
                            : a->q + (job->query0 * a->n_head + row + at + j) * a->d;
        float *y = dots + at * K_COLUMNS;
        if (is_coded)
            job->isa->dot_key_codes(x, m, tile, a->d, y, K_COLUMNS);
        else
            job->isa->dot_columns(x, m, tile, a->d, y, K_COLUMNS);
    }
}

/* The dot products of query q with the m rows from row0 on (of its list, where it has one) are
 * there. */
static void take_scores(const struct index_job *job, size_t q, size_t row0, size_t m,
                        const float *dots, float *score, struct k_best *best)
{
    const struct k_index *a = job->a;
    const struct query *query = &job->query[q];
    size_t i = job->query0 + q;
    const int32_t *list = query->has_list ? job->list + q * job->list_max + row0 : NULL;
    job->isa->index_sum(dots, K_COLUMNS, a->w + i * a->n_head, a->n_head, m, a->score_round,
                        score);
    if (a->score)
        memcpy(a->score + i * a->n_row + row0, score, m * sizeof *score);
    if (query->wants_blocks)
        job->isa->block_max(score, m, row0, a->block_rows, job->block_score + q * job->n_block);
    if (best->k)
        job->isa->best_add(best, score, list, (int32_t)row0, m);
}

/* Queries from q on that can share one call of multiply: their rows of q fill a tile. Later
 * ones see more rows. */
static size_t together(const struct index_job *job, size_t q)
{
    const struct query *query = &job->query[q];
    size_t most = job->isa->tile_m / job->a->n_head, n = 1;
    while (n < most && q + n < job->n_query && !query[n].has_list && !query[n].trivial &&
           query[n].is_coded == query->is_coded)
        n++;
    return n;
}

/* One tile of rows, for every query of the group. */
static void score_tile(const struct index_job *job, size_t row0, struct k_best *best,
                       uint8_t *scratch)
{
    const struct k_index *a = job->a;
    struct keys all = {.columns = scratch, .codes = scratch + column_bytes(a->d)};
    struct keys own = {.columns = scratch + key_bytes(a->d)};
    own.codes = (uint8_t *)own.columns + column_bytes(a->d);
    float *score = (float *)(void *)(scratch + 2 * key_bytes(a->d)), *dots = score + K_COLUMNS;
    for (size_t q = 0, n; q < job->n_query; q += n) {
        const struct query *query = &job->query[q];
        const void *tile;
        n = 1;
        if (row0 >= query->n || query->trivial)
            continue;
        if (query->has_list) {
            own.has_columns = own.has_codes = false;
            tile = keys_for(job, query, 0, job->list + q * job->list_max + row0,
                            tile_rows(query->n, row0), &own);
        } else {
            tile = keys_for(job, query, row0, NULL, tile_rows(a->n_row, row0), &all);
            n = together(job, q);
        }
        multiply(job, q, n, tile, dots);
        for (size_t j = 0; j < n; j++)
            take_scores(job, q + j, row0, tile_rows(query[j].n, row0),
                        dots + j * a->n_head * K_COLUMNS, score, &best[q + j]);
    }
}

/* A thread's share of the rows is a part of its own. */
static void score_tiles(void *arg, size_t first, size_t last, uint32_t thread)
{
    const struct index_job *job = arg;
    for (size_t tile = first * job->unit; tile < last * job->unit; tile++)
        score_tile(job, tile * K_COLUMNS, job->best + thread * GROUP_QUERIES,
                   job->scratch + thread * job->stride);
}

/* ---- the choice ---------------------------------------------------------------------------
 */

static void put_rows(const int32_t *row, size_t n, size_t n_out, int32_t *out)
{
    for (size_t j = 0; j < n_out; j++)
        out[j] = j >= n ? -1 : row ? row[j] : (int32_t)j;
}

/* From what each part kept; part 0 has the first rows. */
static void choose_rows(const struct index_job *job, size_t q, int32_t *rank)
{
    const struct k_index *a = job->a;
    int32_t *sel = a->sel + (job->query0 + q) * a->top_k;
    struct k_best *all = &job->best[q];
    const struct query *query = &job->query[q];
    if (query->n <= a->top_k) {
        put_rows(query->has_list ? job->list + q * job->list_max : NULL, query->n, a->top_k,
                 sel);
        return;
    }
    all->rank = rank;
    for (size_t part = 1; part < job->n_parts; part++) {
        const struct k_best *more = all + part * GROUP_QUERIES;
        for (size_t at = 0; at < more->n; at += K_COLUMNS)
            job->isa->best_add(all, more->score + at, more->row + at, 0,
                               tile_rows(more->n, at));
    }
    job->isa->best_cut(all);
    put_rows(all->row, all->n, a->top_k, sel);
}

static void choose_blocks(const struct index_job *job, size_t q, struct k_best *best)
{
    const struct k_index *a = job->a;
    size_t i = job->query0 + q;
    size_t n = visible_blocks(a, i);
    int32_t *out = a->blocks_out + i * a->n_blocks;
    float *score = job->block_score + q * job->n_block;
    if (!job->query[q].wants_blocks) {
        put_rows(NULL, n, a->n_blocks, out);
        return;
    }
    score[n - 1] = INFINITY; /* the newest block, always */
    for (size_t at = 0; at < n; at += K_COLUMNS)
        job->isa->best_add(best, score + at, NULL, (int32_t)at, tile_rows(n, at));
    job->isa->best_cut(best);
    put_rows(best->row, best->n, a->n_blocks, out);
}

static void choose_queries(void *arg, size_t first, size_t last, uint32_t thread)
{
    const struct index_job *job = arg;
    const struct k_index *a = job->a;
    int32_t *rank = job->rank + thread * job->rank_stride;
    for (size_t q = first; q < last; q++) {
        if (a->sel)
            choose_rows(job, q, rank);
        if (a->blocks_out) {
            float *score = (float *)(void *)(rank + best_values(a->n_blocks));
            struct k_best best = {.score = score, .rank = rank, .k = a->n_blocks};
            best.row = rank + 2 * best_values(a->n_blocks);
            choose_blocks(job, q, &best);
        }
    }
}

/* ---- the op -------------------------------------------------------------------------------
 */

static void run_group(struct kernels *k, struct index_job *job)
{
    const struct k_index *a = job->a;
    size_t longest = 0, unit = job->unit * K_COLUMNS;
    k_run(k, begin_queries, job, job->n_query, job->list ? job->n_query * job->list_max : 0);
    for (size_t q = 0; q < job->n_query; q++) {
        if (!job->query[q].trivial && job->query[q].n > longest)
            longest = job->query[q].n;
        for (size_t part = 0; part < job->n_parts; part++) {
            struct k_best *best = &job->best[part * GROUP_QUERIES + q];
            best->n = 0;
            best->is_bounded = false;
            best->rank = job->rank + part * job->rank_stride;
        }
    }
    k_run(k, score_tiles, job, (longest + unit - 1) / unit,
          job->n_query * longest * a->n_head * a->d / 8);
    k_run(k, choose_queries, job, job->n_query, job->n_query * (job->n_block + a->top_k) * 2);
}

/* Room for what the queries of a group keep, in each part. */
static void lay_out_best(struct kernels *k, struct index_job *job)
{
    const struct k_index *a = job->a;
    uint32_t most = a->blocks_out && a->n_blocks > a->top_k ? a->n_blocks : a->top_k;
    size_t n = job->n_parts * GROUP_QUERIES, values = best_values(a->top_k);
    job->rank_stride = 3 * best_values(most);
    job->best = k_scratch(k, K_SLOT_INDEX_BEST,
                          n * (sizeof *job->best + 8 * values) +
                              job->n_parts * job->rank_stride * sizeof *job->rank);
    if (!job->best)
        return;
    int32_t *at = (int32_t *)(void *)(job->best + n);
    job->rank = at + n * 2 * values;
    for (size_t i = 0; i < n; i++, at += 2 * values)
        job->best[i] = (struct k_best){
            .score = (float *)(void *)at, .row = at + values, .k = a->sel ? a->top_k : 0};
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
    struct index_job job = {.isa = k->ctx->isa, .a = &args, .n_parts = k_threads(k)};
    size_t group = a->n < GROUP_QUERIES ? a->n : GROUP_QUERIES;
    size_t heads = a->n_head > job.isa->tile_m ? a->n_head : job.isa->tile_m;
    job.unit = a->blocks_out && K_COLUMNS % a->block_rows ? a->block_rows : 1;
    job.n_block = a->blocks_out ? (size_t)a->n_row / a->block_rows + 1 : 0;
    job.scratch = k_scratch_threads(
        k, K_SLOT_OP, 2 * key_bytes(a->d) + K_COLUMNS * (1 + heads) * sizeof(float),
        &job.stride);
    job.query = k_scratch(k, K_SLOT_INDEX_QUERY, group * sizeof *job.query);
    if (job.isa->query_codes && a->format == K_ROW_FP4_32) {
        job.code_bytes = (a->d / 4 + a->d / 16) * sizeof(uint32_t);
        job.codes = k_scratch(k, K_SLOT_INDEX_CODES, group * a->n_head * job.code_bytes);
    }
    if (a->blocks_in) {
        job.list_max = (size_t)a->n_blocks * a->block_rows;
        job.list_max = job.list_max < a->n_row ? job.list_max : (size_t)a->n_row;
        job.list = k_scratch(k, K_SLOT_INDEX_LIST, group * job.list_max * sizeof *job.list);
    }
    if (a->blocks_out)
        job.block_score = k_scratch(k, K_SLOT_INDEX_SCORE, group * job.n_block * sizeof(float));
    lay_out_best(k, &job);
    for (; job.query0 < a->n && !k_failed(k); job.query0 += group) {
        job.n_query = a->n - job.query0 < group ? a->n - job.query0 : group;
        run_group(k, &job);
    }
}
