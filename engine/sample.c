#include "engine/sample.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/constrain.h"
#include "kernels/math.h"
#include "kernels/philox.h"

static enum err check_lists(const struct sampling *s, struct error *e)
{
    for (uint32_t i = 0; i < s->n_bias; i++) {
        if (!isfinite(s->bias[i].value))
            return err_set(e, ERR_INVAL, "bias of id %u: %g", s->bias[i].id,
                           (double)s->bias[i].value);
        if (i && s->bias[i].id <= s->bias[i - 1].id)
            return err_set(e, ERR_INVAL, "bias: id %u behind %u", s->bias[i].id,
                           s->bias[i - 1].id);
    }
    for (uint32_t i = 0; i < s->n_stop; i++)
        if (!s->stop[i][0])
            return err_set(e, ERR_INVAL, "stop string %u is empty", i);
    return OK;
}

enum err sampling_check(const struct sampling *s, struct error *e)
{
    if (!(s->temperature >= 0) || isinf(s->temperature))
        return err_set(e, ERR_INVAL, "temperature %g", (double)s->temperature);
    if (!(s->top_p > 0 && s->top_p <= 1))
        return err_set(e, ERR_INVAL, "top_p %g, want more than 0, at most 1", (double)s->top_p);
    if (!(s->min_p >= 0 && s->min_p <= 1))
        return err_set(e, ERR_INVAL, "min_p %g, want 0 to 1", (double)s->min_p);
    if (s->top_logprobs > SAMPLE_MAX_LOGPROBS + 1)
        return err_set(e, ERR_INVAL, "top_logprobs %u, at most %u", s->top_logprobs,
                       SAMPLE_MAX_LOGPROBS + 1);
    return check_lists(s, e);
}

/* One position: what a token is drawn from. */
struct drawing {
    const struct sampling *s;
    const float *logits;
    uint32_t n;
    bool is_held; /* else all ids are allowed */
    struct constrain_filter filter;
};

/* The logit of id with its bias; *next goes along the list of biases as id ascends. */
static double biased(const struct drawing *d, uint32_t id, uint32_t *next)
{
    const struct sampling *s = d->s;
    while (*next < s->n_bias && s->bias[*next].id < id)
        ++*next;
    double x = (double)d->logits[id];
    return *next < s->n_bias && s->bias[*next].id == id ? x + (double)s->bias[*next].value : x;
}

static bool is_allowed(const struct drawing *d, uint32_t id)
{
    return !d->is_held || constrain_filter_allows(&d->filter, id);
}

/* The largest logit of an allowed id. */
static enum err find_best(const struct drawing *d, uint64_t position, uint32_t *best,
                          double *largest, struct error *e)
{
    uint32_t next = 0;
    bool any = false;
    for (uint32_t i = 0; i < d->n; i++) {
        if (!isfinite(d->logits[i]))
            return err_set(e, ERR_FORMAT, "position %" PRIu64 ": the logit of id %u is %g",
                           position, i, (double)d->logits[i]);
        double x = biased(d, i, &next);
        if ((any && x <= *largest) || !is_allowed(d, i))
            continue;
        any = true;
        *best = i;
        *largest = x;
    }
    return any ? OK
               : err_set(e, ERR_FORMAT,
                         "position %" PRIu64
                         ": no token of the vocabulary goes on with the call",
                         position);
}

static int by_probability(const void *a, const void *b)
{
    const struct sampler_entry *x = a, *y = b;
    if (x->p != y->p)
        return x->p > y->p ? -1 : 1;
    return x->id < y->id ? -1 : x->id > y->id;
}

/* Entries whose probability is at least min_p times the largest, in order of id. Exponents
 * first: beside the branches of what is allowed they would not run one into the other. */
static uint32_t weigh(const struct drawing *d, double largest, struct sampler_entry *out)
{
    const double min_p = (double)d->s->min_p, temperature = (double)d->s->temperature;
    /* Below it a probability is too small for sure: k_exp() and k_log() are that exact. */
    const double floor = min_p > 0 ? k_log(min_p) - 1e-9 : -746;
    uint32_t n = 0, kept = 0, next = 0;
    for (uint32_t i = 0; i < d->n; i++) {
        double x = (biased(d, i, &next) - largest) / temperature;
        if (x >= floor && is_allowed(d, i))
            out[n++] = (struct sampler_entry){x, i};
    }
    for (uint32_t i = 0; i < n; i++) {
        double p = k_exp(out[i].p);
        if (p > 0 && p >= min_p)
            out[kept++] = (struct sampler_entry){p, out[i].id};
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

enum err sample_token(const struct sampling *s, const struct constrain_state *calls,
                      const float *logits, uint32_t n, uint64_t position,
                      struct sampler_entry *scratch, uint32_t *id, struct error *e)
{
    struct drawing d = {.s = s, .logits = logits, .n = n, .is_held = s->rules && calls};
    uint32_t best = 0;
    double largest = 0;
    if (d.is_held)
        constrain_filter_init(&d.filter, s->rules, calls);
    enum err rc = find_best(&d, position, &best, &largest, e);
    if (rc)
        return rc;
    if (s->temperature <= 0 || (d.is_held && constrain_is_greedy(calls))) {
        *id = best;
        return OK;
    }
    uint32_t kept = cut(s, scratch, weigh(&d, largest, scratch));
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

/* ---- what the model thought of it ---------------------------------------------------------
 */

static double log_sum(const float *logits, uint32_t n)
{
    double largest = (double)logits[0], sum = 0;
    for (uint32_t i = 1; i < n; i++)
        if ((double)logits[i] > largest)
            largest = (double)logits[i];
    for (uint32_t i = 0; i < n; i++)
        sum += k_exp((double)logits[i] - largest);
    return largest + k_log(sum);
}

void sample_logprobs(const float *logits, uint32_t n, uint32_t id, uint32_t n_top,
                     struct token_logprobs *out)
{
    double all = log_sum(logits, n);
    *out = (struct token_logprobs){.id = id, .logprob = (float)((double)logits[id] - all)};
    for (uint32_t i = 0; i < n && n_top; i++) {
        float p = (float)((double)logits[i] - all);
        uint32_t at = out->n_top;
        if (at == n_top && !(p > out->top[at - 1].logprob))
            continue;
        at -= at == n_top;
        for (; at && p > out->top[at - 1].logprob; at--)
            out->top[at] = out->top[at - 1];
        out->top[at].id = i;
        out->top[at].logprob = p;
        out->n_top += out->n_top < n_top;
    }
}
