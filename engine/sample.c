#include "engine/sample.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

#include "kernels/math.h"
#include "kernels/philox.h"

enum err sampling_check(const struct sampling *s, struct error *e)
{
    if (!(s->temperature >= 0) || isinf(s->temperature))
        return err_set(e, ERR_INVAL, "temperature %g", (double)s->temperature);
    if (!(s->top_p > 0 && s->top_p <= 1))
        return err_set(e, ERR_INVAL, "top_p %g, want more than 0, at most 1", (double)s->top_p);
    if (!(s->min_p >= 0 && s->min_p <= 1))
        return err_set(e, ERR_INVAL, "min_p %g, want 0 to 1", (double)s->min_p);
    return OK;
}

static int by_probability(const void *a, const void *b)
{
    const struct sampler_entry *x = a, *y = b;
    if (x->p != y->p)
        return x->p > y->p ? -1 : 1;
    return x->id < y->id ? -1 : x->id > y->id;
}

/* Entries whose probability is at least min_p times the largest, in order of id. */
static uint32_t weigh(const struct sampling *s, const float *logits, uint32_t n, float largest,
                      struct sampler_entry *out)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < n; i++) {
        double p = k_exp(((double)logits[i] - (double)largest) / (double)s->temperature);
        if (p >= (double)s->min_p)
            out[kept++] = (struct sampler_entry){p, i};
    }
    return kept;
}

/* Cuts the tail: at most top_k, and no more than it takes to reach top_p. */
static uint32_t cut(const struct sampling *s, struct sampler_entry *list, uint32_t n)
{
    if (!s->top_k && s->top_p >= 1)
        return n;
    qsort(list, n, sizeof(*list), by_probability);
    if (s->top_k && s->top_k < n)
        n = s->top_k;
    double total = 0, sum = 0;
    for (uint32_t i = 0; i < n; i++)
        total += list[i].p;
    for (uint32_t i = 0; i < n; i++) {
        sum += list[i].p;
        if (sum >= (double)s->top_p * total)
            return i + 1;
    }
    return n;
}

enum err sample_token(const struct sampling *s, const float *logits, uint32_t n,
                      uint64_t position, struct sampler_entry *scratch, uint32_t *id,
                      struct error *e)
{
    uint32_t best = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (!isfinite(logits[i]))
            return err_set(e, ERR_FORMAT, "position %" PRIu64 ": the logit of id %u is %g",
                           position, i, (double)logits[i]);
        if (logits[i] > logits[best])
            best = i;
    }
    if (s->temperature <= 0) {
        *id = best;
        return OK;
    }
    uint32_t kept = cut(s, scratch, weigh(s, logits, n, logits[best], scratch));
    double total = 0, sum = 0;
    for (uint32_t i = 0; i < kept; i++)
        total += scratch[i].p;
    double at = k_philox_uniform(s->seed, position, 0) * total;
    uint32_t i = 0;
    while (i + 1 < kept && (sum += scratch[i].p) <= at)
        i++;
    *id = scratch[i].id;
    return OK;
}
