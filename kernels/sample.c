#include "kernels/sample.h"

#include <assert.h>
#include <math.h>

#include "kernels/host.h"
#include "kernels/philox.h"
#include "kernels/sample_rules.h"

static float logit(const struct k_sample_row *r, uint32_t id)
{
    return r->add ? r->logits[id] + r->add[id] : r->logits[id];
}

/* The logit of id with its bias; *next goes along the list of biases as id ascends. */
static double biased(const struct k_sample_row *r, uint32_t id, uint32_t *next)
{
    uint32_t n_bias = r->draw->n_bias;
    while (*next < n_bias && r->bias[*next].id < id)
        ++*next;
    double x = (double)logit(r, id);
    return *next < n_bias && r->bias[*next].id == id ? x + (double)r->bias[*next].value : x;
}

static bool is_allowed(const struct k_sample_row *r, uint32_t id)
{
    return !r->allows || r->allows(r->arg, id);
}

/* The largest logit of an allowed id. */
static struct k_drawn find_best(const struct k_sample_row *r, double *largest)
{
    struct k_drawn best = {.state = K_DRAWN_NOTHING};
    uint32_t next = 0;
    for (uint32_t i = 0; i < r->n_vocab; i++) {
        float x32 = logit(r, i);
        if (!isfinite(x32))
            return (struct k_drawn){K_DRAWN_BROKEN, i, x32, 0};
        double x = biased(r, i, &next);
        if ((best.state == K_DRAWN && x <= *largest) || !is_allowed(r, i))
            continue;
        best = (struct k_drawn){K_DRAWN, i, x32, 0};
        *largest = x;
    }
    return best;
}

/* Entries whose probability is at least min_p times the largest, in order of id. Exponents
 * first: beside the branches of what is allowed they would not run one into the other. */
static uint32_t weigh(const struct k_sample_row *r, double largest, struct k_sample_entry *out)
{
    const double min_p = (double)r->draw->min_p, temperature = (double)r->draw->temperature;
    const double least = k_sample_least(min_p);
    uint32_t n = 0, kept = 0, next = 0;
    for (uint32_t i = 0; i < r->n_vocab; i++) {
        double x = (biased(r, i, &next) - largest) / temperature;
        if (x >= least && is_allowed(r, i))
            out[n++] = (struct k_sample_entry){x, i};
    }
    for (uint32_t i = 0; i < n; i++) {
        double p = k_exp(out[i].p);
        if (p > 0 && p >= min_p)
            out[kept++] = (struct k_sample_entry){p, out[i].id};
    }
    return kept;
}

#define DIGIT_BITS 11
#define N_DIGITS 6 /* of 64 bits */

static uint32_t digit(const struct k_sample_entry *x, unsigned d)
{
    return (uint32_t)(~k_f64_bits(x->p) >> d * DIGIT_BITS) % (1u << DIGIT_BITS);
}

/* Sorts by p, the largest first; equal ones keep their order, which is that of ids. Positive
 * numbers are ordered as their bits are. The list is in `list` or, then returned, in `other`.
 */
static struct k_sample_entry *sort(struct k_sample_entry *list, struct k_sample_entry *other,
                                   uint32_t n)
{
    uint32_t first[N_DIGITS][1u << DIGIT_BITS] = {0};
    for (uint32_t i = 0; i < n; i++)
        for (unsigned d = 0; d < N_DIGITS; d++)
            first[d][digit(&list[i], d)]++;
    for (unsigned d = 0; d < N_DIGITS; d++) {
        uint32_t sum = 0;
        if (n && first[d][digit(&list[0], d)] == n)
            continue; /* all have the same one */
        for (uint32_t v = 0; v < 1u << DIGIT_BITS; v++) {
            uint32_t count = first[d][v];
            first[d][v] = sum;
            sum += count;
        }
        for (uint32_t i = 0; i < n; i++)
            other[first[d][digit(&list[i], d)]++] = list[i];
        struct k_sample_entry *sorted = other;
        other = list;
        list = sorted;
    }
    return list;
}

/* Cuts the tail: at most top_k, and no more than it takes to reach top_p. */
static uint32_t cut(const struct k_draw *d, const struct k_sample_entry *list, uint32_t n)
{
    if (d->top_k && d->top_k < n)
        n = d->top_k;
    double total = 0, sum = 0;
    for (uint32_t i = 0; i < n; i++)
        total += list[i].p;
    for (uint32_t i = 0; i < n; i++) {
        sum += list[i].p;
        if (sum >= (double)d->top_p * total)
            return i + 1;
    }
    return n;
}

struct k_drawn k_sample_one(const struct k_sample_row *r, struct k_sample_entry *scratch)
{
    const struct k_draw *d = r->draw;
    double largest = 0, total = 0, sum = 0;
    struct k_drawn best = find_best(r, &largest);
    if (best.state != K_DRAWN || d->temperature <= 0)
        return best;
    struct k_sample_entry *list = scratch;
    uint32_t kept = weigh(r, largest, list), i = 0;
    if (k_sample_is_cut(d)) {
        list = sort(list, scratch + r->n_vocab, kept);
        kept = cut(d, list, kept);
    }
    for (uint32_t k = 0; k < kept; k++)
        total += list[k].p;
    double at = k_philox_uniform(d->seed, d->position, 0) * total;
    while (i + 1 < kept && (sum += list[i].p) <= at)
        i++;
    return (struct k_drawn){K_DRAWN, list[i].id, logit(r, list[i].id), total};
}

/* ---- the op -------------------------------------------------------------------------------
 */

static bool mask_allows(const void *arg, uint32_t id)
{
    const uint32_t *words = arg;
    return words[id / 32] >> (id % 32) & 1;
}

struct sampling_call {
    const struct k_sample *a;
    uint8_t *scratch;
    size_t stride;
};

static void sample_rows(void *arg, size_t first, size_t last, uint32_t thread)
{
    const struct sampling_call *c = arg;
    const struct k_sample *a = c->a;
    for (size_t i = first; i < last; i++) {
        const struct k_draw *d = &a->draw[i];
        const struct k_sample_row row = {
            .logits = a->logits + i * a->n_vocab,
            .add = a->add ? a->add + i * a->n_vocab : NULL,
            .n_vocab = a->n_vocab,
            .draw = d,
            .bias = d->n_bias ? a->bias + d->bias_at : NULL,
            .allows = d->is_masked ? mask_allows : NULL,
            .arg = d->is_masked ? a->allowed + i * K_MASK_WORDS(a->n_vocab) : NULL};
        a->drawn[i] = k_sample_one(
            &row, (struct k_sample_entry *)(void *)(c->scratch + thread * c->stride));
    }
}

void k_sample_ref(struct kernels *k, const struct k_sample *a)
{
    struct sampling_call c = {.a = a};
    assert(a->n <= K_SAMPLE_ROWS);
    if (k_failed(k) || !a->n)
        return;
    c.scratch = k_scratch_threads(
        k, K_SLOT_OP, 2 * (size_t)a->n_vocab * sizeof(struct k_sample_entry), &c.stride);
    if (c.scratch)
        k_run(k, sample_rows, &c, a->n, (size_t)a->n * a->n_vocab * 20);
}
