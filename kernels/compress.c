#include "kernels/compress.h"

#include <assert.h>

#include "kernels/host.h"
#include "kernels/math.h"

/* The tokens of one group. */
struct group {
    const float *u[K_MAX_RATIO], *g[K_MAX_RATIO];
};

static double pool_channel(const struct group *x, uint32_t ratio, size_t j)
{
    double max = (double)x->g[0][j], weight = 0, sum = 0;
    for (uint32_t t = 1; t < ratio; t++)
        max = (double)x->g[t][j] > max ? (double)x->g[t][j] : max;
    for (uint32_t t = 0; t < ratio; t++) {
        double p = k_exp((double)x->g[t][j] - max);
        weight += p;
        sum += p * (double)x->u[t][j];
    }
    return sum / weight;
}

static void pool_group(const struct k_compress *a, const struct group *x, float *out)
{
    for (size_t j = 0; j < a->d; j++) {
        float c = a->ratio == 1 ? x->u[0][j] : (float)pool_channel(x, a->ratio, j);
        out[j] = k_round_to(c, a->round);
    }
}

static void compress_rows(void *arg, size_t first, size_t last, uint32_t thread)
{
    const struct k_compress *a = arg;
    size_t d = a->d;
    (void)thread;
    for (size_t i = first; i < last; i++) {
        struct group x = {0};
        for (uint32_t t = 0; t < a->ratio; t++) {
            x.u[t] = a->u + (i * a->ratio + t) * d;
            x.g[t] = a->ratio > 1 ? a->g + (i * a->ratio + t) * d : NULL;
        }
        pool_group(a, &x, a->out + i * d);
    }
}

/* Group i of a run; its first token may have come before. */
static struct group group_of(const struct k_compress *a, const struct k_run *r, size_t i)
{
    struct group x = {0};
    const float *waiting = r->pending + (size_t)a->source * 2 * a->d;
    for (uint32_t t = 0; t < a->ratio; t++) {
        uint64_t p = (r->source[a->source].row + i) * a->ratio + t;
        size_t at = (r->row - a->row0 + (size_t)(p - r->pos0)) * a->d;
        x.u[t] = p < r->pos0 ? waiting : a->u + at;
        x.g[t] = p < r->pos0 ? waiting + a->d : a->g + at;
    }
    return x;
}

static void compress_runs(const struct k_compress *a)
{
    for (uint32_t i = 0; i < a->n_runs; i++) {
        const struct k_run_source *s = &a->runs[i].source[a->source];
        for (size_t g = 0; g < s->n; g++) {
            struct group x = group_of(a, &a->runs[i], g);
            pool_group(a, &x, a->out + (s->first - a->first + g) * a->d);
        }
    }
}

void k_compress_ref(struct kernels *k, const struct k_compress *a)
{
    if (k_failed(k))
        return;
    struct k_compress args = *a;
    assert(a->ratio >= 1 && a->ratio <= K_MAX_RATIO);
    if (a->runs)
        compress_runs(a); /* few: those of sequences that decode */
    else
        k_run(k, compress_rows, &args, a->n, a->n * a->ratio * a->d * 40);
}
