/* Attention: what a query sees is decoded, then heads in blocks: scores as a product of heads
 * by keys, softmax, and the weighted sum of the same keys.
 *
 * Neighbouring queries see almost the same keys, so a thread keeps decoded ones: window keys by
 * position modulo the window, rows by number modulo a table. A row whose place another row of
 * the same query holds is decoded beside the table. A call for one query, as decode makes them,
 * has nothing to share: all of its keys are decoded beside. Keys in f32 are used where they
 * are. */
#include <assert.h>
#include <math.h>

#include "kernels/isa.h"

#define HEADS 16      /* most heads of one item, so that one query can use several threads */
#define LEAST_HEADS 4 /* an item's thread decodes the keys for itself: fewer do not pay */
#define BLOCK 64      /* list entries of one step of the reference's online softmax */
#define CACHE_LINE 64

/* Scratch of one thread. */
struct work {
    const uint8_t **list; /* [n_max] what the query sees */
    const void **key;     /* [n_max] the same decoded, f32 [d] each */
    float *score;         /* [HEADS][n_max] */
    float *cache;         /* [n_cache + n_beside + 1][d]: places, decoded beside, zeros */
    const uint8_t **tag;  /* [n_cache] whose row a place holds */
    size_t *user;         /* [n_cache] the last query that used it, from 1 */
    size_t query, n;      /* whose keys these are, from 1; how many */
};

struct attention_job {
    const struct k_isa *isa;
    const struct k_attention *a;
    uint8_t *scratch;
    size_t stride, n_max, heads, head_blocks; /* heads of one item; items of one query */
    size_t n_window, n_table; /* places for window keys and for rows (a power of two, or 0) */
    size_t n_beside;          /* keys that may have none of them */
};

static size_t n_cache(const struct attention_job *job)
{
    return job->n_window + job->n_table;
}

static size_t work_bytes(const struct attention_job *job)
{
    size_t floats = HEADS * job->n_max + (n_cache(job) + job->n_beside + 1) * job->a->d;
    return floats * sizeof(float) + 2 * job->n_max * sizeof(void *) +
           n_cache(job) * (sizeof(void *) + sizeof(size_t)) + 64;
}

static struct work work_of(const struct attention_job *job, uint32_t thread)
{
    uint8_t *p = job->scratch + thread * job->stride;
    struct work w = {.query = 0};
    w.list = (const uint8_t **)(void *)p;
    w.key = (const void **)(w.list + job->n_max);
    w.tag = (const uint8_t **)(void *)(w.key + job->n_max);
    w.user = (size_t *)(void *)(w.tag + n_cache(job));
    w.score = (float *)(void *)(w.user + n_cache(job));
    w.cache = w.score + HEADS * job->n_max;
    memset(w.tag, 0, n_cache(job) * sizeof *w.tag);
    memset(w.user, 0, n_cache(job) * sizeof *w.user);
    memset(w.cache + (n_cache(job) + job->n_beside) * job->a->d, 0,
           job->a->d * sizeof *w.cache);
    return w;
}

/* The place of a stored row in the cache. */
static size_t place_of(const struct attention_job *job, const uint8_t *row, bool window)
{
    const struct k_attention *a = job->a;
    size_t bytes = k_row_bytes(window ? a->window_format : a->row_format, a->d);
    const uint8_t *ring = a->ring, *keys = a->keys;
    if (!window)
        return job->n_window +
               ((size_t)(row - (const uint8_t *)a->rows) / bytes & (job->n_table - 1));
    if (row >= keys && row < keys + a->n * bytes) {
        size_t i = (size_t)(row - keys) / bytes;
        return a->block ? a->window + i : (size_t)((a->pos0 + i) % a->window);
    }
    return (size_t)(row - ring) / bytes;
}

static const float *decode_beside(const struct attention_job *job, struct work *w,
                                  enum k_format format, const uint8_t *row, size_t *n_beside)
{
    float *key = w->cache + (n_cache(job) + (*n_beside)++) * job->a->d;
    job->isa->decode(format, row, job->a->d, key);
    return key;
}

static const float *decoded(const struct attention_job *job, struct work *w, const uint8_t *row,
                            bool window, size_t *n_beside)
{
    const struct k_attention *a = job->a;
    enum k_format format = window ? a->window_format : a->row_format;
    if (format == K_ROW_F32 && (uintptr_t)row % sizeof(float) == 0)
        return (const float *)(const void *)row;
    if (!job->n_table)
        return decode_beside(job, w, format, row, n_beside);
    size_t place = place_of(job, row, window);
    float *key = w->cache + place * a->d;
    if (w->tag[place] != row) {
        if (w->user[place] == w->query)
            return decode_beside(job, w, format, row, n_beside);
        w->tag[place] = row;
        job->isa->decode(format, row, a->d, key);
    }
    w->user[place] = w->query;
    return key;
}

/* Rows that the indexer chose lie anywhere in memory, a miss in every cache each. A thread's
 * first query finds none of them decoded, and behind a decode step there is no other: so all
 * are asked for at once, where reading one after the other would wait for each. */
static void ask_ahead(const struct attention_job *job, const struct work *w, size_t first,
                      size_t n)
{
    size_t bytes = k_row_bytes(job->a->row_format, job->a->d);
    for (size_t t = first; t < n; t++)
        for (size_t at = 0; w->list[t] && at < bytes; at += CACHE_LINE)
            __builtin_prefetch(w->list[t] + at);
}

/* Decodes what query i sees. Missing entries vanish, or stay as rows of zeros where the blocks
 * of the online form count them. */
static void decode_keys(const struct attention_job *job, struct work *w, size_t i)
{
    const struct k_attention *a = job->a;
    size_t n_window, n = k_attention_list(a, i, w->list, &n_window), beside = 0;
    if (!w->query)
        ask_ahead(job, w, n_window, n);
    w->query = i + 1;
    w->n = 0;
    for (size_t t = 0; t < n; t++) {
        const float *key = w->cache + (n_cache(job) + job->n_beside) * a->d;
        if (w->list[t])
            key = decoded(job, w, w->list[t], t < n_window, &beside);
        else if (a->prob != K_BF16)
            continue;
        w->list[w->n] = w->list[t];
        w->key[w->n++] = key;
    }
}

static void scale_row(float *x, size_t n, float factor)
{
    for (size_t j = 0; j < n; j++)
        x[j] *= factor;
}

static void head_scores(const struct attention_job *job, const struct work *w, const float *q,
                        size_t m)
{
    const struct k_isa *isa = job->isa;
    const void *heads[HEADS];
    for (size_t h = 0; h < m; h++)
        heads[h] = q + h * job->a->d;
    for (size_t t = 0; t < w->n; t += K_TILE_N)
        for (size_t h = 0; h < m; h += isa->tile_m)
            isa->dot_f32(heads + h, m - h < isa->tile_m ? m - h : isa->tile_m, w->key + t,
                         w->n - t < K_TILE_N ? w->n - t : K_TILE_N, job->a->d,
                         w->score + h * job->n_max + t, job->n_max);
}

static void heads_exact(const struct attention_job *job, const struct work *w, size_t h0,
                        size_t m, float *out)
{
    const struct k_attention *a = job->a;
    float weight[HEADS];
    for (size_t h = 0; h < m; h++)
        weight[h] =
            job->isa->softmax(w->score + h * job->n_max, w->n, a->scale, a->sink[h0 + h]);
    job->isa->weighted(w->score, job->n_max, w->key, w->n, m, a->d, out);
    for (size_t h = 0; h < m && w->n; h++)
        scale_row(out + h * a->d, a->d, 1 / weight[h]);
}

/* One block of the reference's online form for one head: updates max and weight, leaves rounded
 * probabilities in s and scales what was summed so far. */
static void online_block(const struct attention_job *job, const struct work *w, size_t at,
                         size_t n, float *s, float *max, float *weight, float *out)
{
    const struct k_attention *a = job->a;
    float before = *max, shrink;
    for (size_t t = 0; t < n; t++) {
        s[t] = w->list[at + t] ? s[t] * a->scale : -INFINITY;
        *max = s[t] > *max ? s[t] : *max;
    }
    shrink = before;
    job->isa->exp_minus(&shrink, 1, *max);
    job->isa->exp_minus(s, n, *max);
    *weight *= shrink;
    for (size_t t = 0; t < n; t++)
        *weight += s[t];
    job->isa->round_bf16(s, n, s);
    scale_row(out, a->d, shrink);
}

static void heads_online(const struct attention_job *job, const struct work *w, size_t h0,
                         size_t m, float *out)
{
    const struct k_attention *a = job->a;
    float max[HEADS], weight[HEADS] = {0};
    for (size_t h = 0; h < m; h++)
        max[h] = -1e30f;
    for (size_t t = 0; t < w->n; t += BLOCK) {
        size_t n = w->n - t < BLOCK ? w->n - t : BLOCK;
        for (size_t h = 0; h < m; h++)
            online_block(job, w, t, n, w->score + h * job->n_max + t, &max[h], &weight[h],
                         out + h * a->d);
        job->isa->weighted(w->score + t, job->n_max, w->key + t, n, m, a->d, out);
    }
    for (size_t h = 0; h < m; h++) {
        float sink = a->sink[h0 + h];
        job->isa->exp_minus(&sink, 1, max[h]);
        scale_row(out + h * a->d, a->d, 1 / (weight[h] + sink));
    }
}

static void attention_items(void *arg, size_t first, size_t last, uint32_t thread)
{
    const struct attention_job *job = arg;
    const struct k_attention *a = job->a;
    struct work w = work_of(job, thread);
    for (size_t item = first; item < last; item++) {
        size_t i = a->from + item / job->head_blocks, h0 = item % job->head_blocks * job->heads;
        size_t m = a->n_head - h0 < job->heads ? a->n_head - h0 : job->heads;
        float *out = a->out + (i * a->n_head + h0) * a->d;
        if (w.query != i + 1)
            decode_keys(job, &w, i);
        memset(out, 0, m * a->d * sizeof *out);
        head_scores(job, &w, a->q + (i * a->n_head + h0) * a->d, m);
        if (a->prob == K_BF16)
            heads_online(job, &w, h0, m, out);
        else
            heads_exact(job, &w, h0, m, out);
        if (a->round == K_BF16)
            job->isa->round_bf16(out, m * a->d, out);
    }
}

/* Items for all threads where there are few queries. */
static void split_heads(struct attention_job *job, size_t n, uint32_t n_threads)
{
    job->heads = HEADS;
    while (job->heads > LEAST_HEADS &&
           n * ((job->a->n_head + job->heads - 1) / job->heads) < n_threads)
        job->heads /= 2;
    job->head_blocks = (job->a->n_head + job->heads - 1) / job->heads;
}

/* Places for what n queries share; one shares nothing. */
static void lay_out_keys(struct attention_job *job, size_t n)
{
    const struct k_attention *a = job->a;
    job->n_beside = n > 1 ? a->n_sel : job->n_max;
    if (n == 1)
        return;
    job->n_window = a->window + (a->block ? a->n : 0);
    for (job->n_table = 1; job->n_table < a->n_sel;)
        job->n_table *= 2;
}

void k_attention_cpu(struct kernels *k, const struct k_attention *a)
{
    size_t n = k_attention_queries(a);
    if (a->runs) {
        k_attention_runs(k, a, k_attention_cpu);
        return;
    }
    if (k_failed(k) || !n)
        return;
    struct attention_job job = {.isa = k->ctx->isa, .a = a};
    job.n_max = (k_attention_list_max(a) + 15) / 16 * 16;
    split_heads(&job, n, k_threads(k));
    lay_out_keys(&job, n);
    job.scratch = k_scratch_threads(k, K_SLOT_OP, work_bytes(&job), &job.stride);
    if (job.scratch)
        k_run(k, attention_items, &job, n * job.head_blocks,
              n * a->n_head * job.n_max * a->d / 8);
}
