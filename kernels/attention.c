#include "kernels/attention.h"

#include <assert.h>
#include <math.h>

#include "kernels/host.h"
#include "kernels/math.h"

#define BLOCK 64 /* list entries of one step of the reference's online softmax */

size_t k_attention_list_max(const struct k_attention *a)
{
    return (size_t)a->window + (a->block ? a->n : 0) + a->n_sel;
}

size_t k_attention_list(const struct k_attention *a, size_t i, const uint8_t **list,
                        size_t *n_window)
{
    size_t n = 0;
    if (a->window) {
        size_t bytes = k_row_bytes(a->window_format, a->d);
        uint64_t end = a->block ? a->pos0 : a->pos0 + i + 1;
        uint64_t from = end > a->window ? end - a->window : 0;
        from = from < a->lo ? a->lo : from;
        end = a->block ? a->pos0 + a->n : end;
        for (uint64_t p = from; p < end; p++)
            list[n++] = p < a->pos0 ? (const uint8_t *)a->ring + p % a->window * bytes
                                    : (const uint8_t *)a->keys + (p - a->pos0) * bytes;
    }
    while (a->prob == K_BF16 && !a->block && n < a->window)
        list[n++] = NULL;
    *n_window = n;
    size_t bytes = k_row_bytes(a->row_format, a->d);
    for (uint32_t j = 0; j < a->n_sel; j++) {
        int32_t row = a->sel[i * a->n_sel + j];
        list[n++] = row < 0 ? NULL : (const uint8_t *)a->rows + (size_t)row * bytes;
    }
    return n;
}

/* Scratch of one thread. Keys meet all heads while they are in cache, and are widened once. */
struct work {
    const uint8_t **list;
    double *keys;   /* [n][d] decoded */
    double *score;  /* [n_head][n_max] */
    double *sum;    /* [n_head][d] */
    double *query;  /* [n_head][d] */
    double *weight; /* [n_head] */
    float *row;     /* [d] */
};

struct attention_job {
    const struct k_attention *a;
    uint8_t *scratch;
    size_t stride, n_max;
};

static struct work work_of(const struct attention_job *job, uint32_t thread)
{
    size_t d = job->a->d, n_head = job->a->n_head;
    struct work w;
    w.keys = (double *)(void *)(job->scratch + thread * job->stride);
    w.score = w.keys + job->n_max * d;
    w.sum = w.score + n_head * job->n_max;
    w.query = w.sum + n_head * d;
    w.weight = w.query + n_head * d;
    w.list = (const uint8_t **)(void *)(w.weight + n_head);
    w.row = (float *)(void *)(w.list + job->n_max);
    return w;
}

static size_t work_bytes(const struct attention_job *job)
{
    size_t d = job->a->d, n_head = job->a->n_head;
    return job->n_max * ((d + n_head) * sizeof(double) + sizeof(void *)) +
           n_head * (2 * d + 1) * sizeof(double) + d * sizeof(float);
}

static void widen(const float *x, size_t n, double *out)
{
    for (size_t j = 0; j < n; j++)
        out[j] = (double)x[j];
}

/* sum += p[0] key[0] + p[1] key[1] + ..., added one after another; four keys go over the sum
 * at once. */
static void add_values(double *restrict sum, const double *restrict p,
                       const double *restrict key, size_t n, size_t d)
{
    size_t t = 0;
    for (; t + 4 <= n; t += 4, key += 4 * d) {
        double p0 = p[t], p1 = p[t + 1], p2 = p[t + 2], p3 = p[t + 3];
        const double *k0 = key, *k1 = key + d, *k2 = key + 2 * d, *k3 = key + 3 * d;
        for (size_t j = 0; j < d; j++)
            sum[j] = (((sum[j] + p0 * k0[j]) + p1 * k1[j]) + p2 * k2[j]) + p3 * k3[j];
    }
    for (; t < n; t++, key += d)
        for (size_t j = 0; j < d; j++)
            sum[j] += p[t] * key[j];
}

/* e^(s - M) for the n scores of a head, in place; returns their sum and the sink's. */
static double weights(double *score, size_t n, double sink)
{
    double max = sink, sum = 0;
    for (size_t t = 0; t < n; t++)
        max = score[t] > max ? score[t] : max;
    for (size_t t = 0; t < n; t++)
        sum += score[t] = k_exp(score[t] - max);
    return sum + k_exp(sink - max);
}

/* n keys, none missing; all heads of query i. */
static void heads_exact(const struct k_attention *a, const struct work *w, size_t n, size_t i)
{
    size_t d = a->d, heads = a->n_head;
    for (size_t t = 0; t < n; t++)
        for (size_t h = 0; h < heads; h++)
            w->score[h * n + t] =
                k_dot_f64(w->query + h * d, w->keys + t * d, d) * (double)a->scale;
    memset(w->sum, 0, heads * d * sizeof *w->sum);
    float *out = a->out + i * heads * d;
    for (size_t h = 0; h < heads; h++)
        w->weight[h] = weights(w->score + h * n, n, (double)a->sink[h]);
    for (size_t t = 0; t < n; t += 4)
        for (size_t h = 0; h < heads; h++)
            add_values(w->sum + h * d, w->score + h * n + t, w->keys + t * d,
                       n - t < 4 ? n - t : 4, d);
    for (size_t h = 0; h < heads; h++)
        for (size_t j = 0; j < d; j++)
            out[h * d + j] =
                k_round_to(n ? (float)(w->sum[h * d + j] / w->weight[h]) : 0, a->round);
}

/* The released reference's form; a missing key is a NULL in the list. */
static void head_online(const struct k_attention *a, const struct work *w, size_t n, size_t h,
                        float *out)
{
    double max = -1e30, weight = 0;
    const double *query = w->query + (size_t)h * a->d;
    memset(w->sum, 0, a->d * sizeof *w->sum);
    for (size_t b = 0; b < n; b += BLOCK) {
        size_t end = b + BLOCK < n ? b + BLOCK : n;
        double before = max;
        for (size_t t = b; t < end; t++) {
            if (!w->list[t])
                continue;
            w->score[t] = k_dot_f64(query, w->keys + t * a->d, a->d) * (double)a->scale;
            max = w->score[t] > max ? w->score[t] : max;
        }
        double shrink = k_exp(before - max);
        weight *= shrink;
        for (uint32_t j = 0; j < a->d; j++)
            w->sum[j] *= shrink;
        for (size_t t = b; t < end; t++) {
            if (!w->list[t])
                continue;
            double p = k_exp(w->score[t] - max);
            weight += p;
            p = (double)k_bf16((float)p);
            add_values(w->sum, &p, w->keys + t * a->d, 1, a->d);
        }
    }
    weight += k_exp((double)a->sink[h] - max);
    for (uint32_t j = 0; j < a->d; j++)
        out[j] = k_round_to((float)(w->sum[j] / weight), a->round);
}

/* Decodes the listed keys of query i; without `gaps` the missing ones are left out. Returns
 * the number of list entries. */
static size_t decode_keys(const struct k_attention *a, const struct work *w, size_t i,
                          bool gaps)
{
    size_t n_window, n = k_attention_list(a, i, w->list, &n_window), kept = 0;
    for (size_t t = 0; t < n; t++) {
        if (w->list[t]) {
            k_decode_row(t < n_window ? a->window_format : a->row_format, w->list[t], a->d,
                         w->row);
            widen(w->row, a->d, w->keys + kept * a->d);
        }
        kept += w->list[t] || gaps;
    }
    return kept;
}

static void attention_queries(void *arg, size_t first, size_t last, uint32_t thread)
{
    const struct attention_job *job = arg;
    const struct k_attention *a = job->a;
    size_t width = (size_t)a->n_head * a->d;
    struct work w = work_of(job, thread);
    for (size_t i = a->from + first; i < a->from + last; i++) {
        size_t n = decode_keys(a, &w, i, a->prob == K_BF16);
        widen(a->q + i * width, width, w.query);
        if (a->prob != K_BF16)
            heads_exact(a, &w, n, i);
        else
            for (size_t h = 0; h < a->n_head; h++)
                head_online(a, &w, n, h, a->out + i * width + h * a->d);
    }
}

void k_attention_ref(struct kernels *k, const struct k_attention *a)
{
    size_t n = k_attention_queries(a);
    if (a->runs) {
        k_attention_runs(k, a, k_attention_ref);
        return;
    }
    if (k_failed(k) || !n)
        return;
    struct attention_job job = {.a = a, .n_max = k_attention_list_max(a)};
    job.scratch = k_scratch_threads(k, K_SLOT_OP, work_bytes(&job), &job.stride);
    if (job.scratch)
        k_run(k, attention_queries, &job, n, n * a->n_head * job.n_max * a->d * 2);
}
