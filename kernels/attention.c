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

/* Scratch of one thread. */
struct work {
    const uint8_t **list;
    float *keys;   /* [n][d] decoded; a missing entry is left alone */
    double *score; /* [n] */
    double *sum;   /* [d] */
};

struct attention_job {
    const struct k_attention *a;
    uint8_t *scratch;
    size_t stride, n_max;
};

static struct work work_of(const struct attention_job *job, uint32_t thread)
{
    uint8_t *p = job->scratch + thread * job->stride;
    struct work w;
    w.score = (double *)(void *)p;
    w.sum = w.score + job->n_max;
    w.list = (const uint8_t **)(void *)(w.sum + job->a->d);
    w.keys = (float *)(void *)(w.list + job->n_max);
    return w;
}

static void head_exact(const struct k_attention *a, const struct work *w, size_t n, size_t h,
                       const float *q, float *out)
{
    double max = (double)a->sink[h], weight = 0;
    size_t seen = 0;
    for (size_t t = 0; t < n; t++) {
        if (!w->list[t])
            continue;
        w->score[t] = k_dot_ref(q, w->keys + t * a->d, a->d) * (double)a->scale;
        max = w->score[t] > max ? w->score[t] : max;
        seen++;
    }
    memset(w->sum, 0, a->d * sizeof *w->sum);
    for (size_t t = 0; t < n; t++) {
        if (!w->list[t])
            continue;
        double p = k_exp(w->score[t] - max);
        weight += p;
        for (uint32_t j = 0; j < a->d; j++)
            w->sum[j] += p * (double)w->keys[t * a->d + j];
    }
    weight += k_exp((double)a->sink[h] - max);
    for (uint32_t j = 0; j < a->d; j++)
        out[j] = k_round_to(seen ? (float)(w->sum[j] / weight) : 0, a->round);
}

static void head_online(const struct k_attention *a, const struct work *w, size_t n, size_t h,
                        const float *q, float *out)
{
    double max = -1e30, weight = 0;
    memset(w->sum, 0, a->d * sizeof *w->sum);
    for (size_t b = 0; b < n; b += BLOCK) {
        size_t end = b + BLOCK < n ? b + BLOCK : n;
        double before = max;
        for (size_t t = b; t < end; t++) {
            if (!w->list[t])
                continue;
            w->score[t] = k_dot_ref(q, w->keys + t * a->d, a->d) * (double)a->scale;
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
            for (uint32_t j = 0; j < a->d; j++)
                w->sum[j] += p * (double)w->keys[t * a->d + j];
        }
    }
    weight += k_exp((double)a->sink[h] - max);
    for (uint32_t j = 0; j < a->d; j++)
        out[j] = k_round_to((float)(w->sum[j] / weight), a->round);
}

static void attention_queries(void *arg, size_t first, size_t last, uint32_t thread)
{
    const struct attention_job *job = arg;
    const struct k_attention *a = job->a;
    struct work w = work_of(job, thread);
    for (size_t i = first; i < last; i++) {
        size_t n_window, n = k_attention_list(a, i, w.list, &n_window);
        for (size_t t = 0; t < n; t++)
            if (w.list[t])
                k_decode_row(t < n_window ? a->window_format : a->row_format, w.list[t], a->d,
                             w.keys + t * a->d);
        for (size_t h = 0; h < a->n_head; h++) {
            const float *q = a->q + (i * a->n_head + h) * a->d;
            float *out = a->out + (i * a->n_head + h) * a->d;
            if (a->prob == K_BF16)
                head_online(a, &w, n, h, q, out);
            else
                head_exact(a, &w, n, h, q, out);
        }
    }
}

void k_attention_ref(struct kernels *k, const struct k_attention *a)
{
    if (k_failed(k) || !a->n)
        return;
    struct attention_job job = {.a = a, .n_max = k_attention_list_max(a)};
    size_t bytes = job.n_max * (sizeof(double) + sizeof(void *) + a->d * sizeof(float)) +
                   a->d * sizeof(double);
    job.scratch = k_scratch_threads(k, K_SLOT_OP, bytes, &job.stride);
    if (job.scratch)
        k_run(k, attention_queries, &job, a->n, a->n * a->n_head * job.n_max * a->d * 2);
}
