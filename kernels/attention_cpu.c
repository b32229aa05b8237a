/* Attention: keys of a query are decoded once, then heads in blocks: scores as a product of
 * heads by keys, softmax, and the weighted sum of the same keys. */
#include <assert.h>
#include <math.h>

#include "kernels/isa.h"

#define HEADS 16 /* heads of one item, so that one query can use several threads */
#define BLOCK 64 /* list entries of one step of the reference's online softmax */

/* Scratch of one thread. */
struct work {
    const uint8_t **list; /* [n_max] what the query sees */
    const void **key;     /* [n_max] rows of `keys` */
    float *keys;          /* [n_max][d] */
    float *score;         /* [HEADS][n_max] */
    size_t query;         /* whose keys these are */
    size_t n;
};

struct attention_job {
    const struct k_isa *isa;
    const struct k_attention *a;
    uint8_t *scratch;
    size_t stride, n_max, head_blocks;
};

static struct work work_of(const struct attention_job *job, uint32_t thread)
{
    uint8_t *p = job->scratch + thread * job->stride;
    struct work w = {.query = SIZE_MAX};
    w.keys = (float *)(void *)p;
    w.score = w.keys + job->n_max * job->a->d;
    w.list = (const uint8_t **)(void *)(w.score + HEADS * job->n_max);
    w.key = (const void **)(w.list + job->n_max);
    return w;
}

/* Decodes what query i sees. Missing entries vanish, or stay as rows of zeros where the blocks
 * of the online form count them. */
static void decode_keys(const struct attention_job *job, struct work *w, size_t i)
{
    const struct k_attention *a = job->a;
    size_t n_window, n = k_attention_list(a, i, w->list, &n_window), kept = 0;
    for (size_t t = 0; t < n; t++) {
        float *key = w->keys + kept * a->d;
        if (w->list[t])
            job->isa->decode(t < n_window ? a->window_format : a->row_format, w->list[t], a->d,
                             key);
        else if (a->prob == K_BF16)
            memset(key, 0, a->d * sizeof *key);
        else
            continue;
        w->list[kept] = w->list[t];
        w->key[kept++] = key;
    }
    w->n = kept;
    w->query = i;
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
    job->isa->weighted(w->score, job->n_max, w->keys, w->n, m, a->d, out);
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
        job->isa->weighted(w->score + t, job->n_max, w->keys + t * a->d, n, m, a->d, out);
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
        size_t i = item / job->head_blocks, h0 = item % job->head_blocks * HEADS;
        size_t m = a->n_head - h0 < HEADS ? a->n_head - h0 : HEADS;
        float *out = a->out + (i * a->n_head + h0) * a->d;
        if (w.query != i)
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

void k_attention_cpu(struct kernels *k, const struct k_attention *a)
{
    if (k_failed(k) || !a->n)
        return;
    struct attention_job job = {.isa = k->ctx->isa, .a = a};
    job.n_max = (k_attention_list_max(a) + 15) / 16 * 16;
    job.head_blocks = (a->n_head + HEADS - 1) / HEADS;
    size_t bytes = job.n_max * (2 * sizeof(void *) + (a->d + HEADS) * sizeof(float));
    job.scratch = k_scratch_threads(k, K_SLOT_OP, bytes, &job.stride);
    if (job.scratch)
        k_run(k, attention_items, &job, a->n * job.head_blocks,
              a->n * a->n_head * job.n_max * a->d / 8);
}
