#include "engine/sampler.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "engine/sample.h"

struct sampler {
    struct kernels *k;
    struct k_sample_entry *scratch; /* [2][n_vocab] */
    size_t n_words;                 /* of a row's mask */
    /* On a device, its memory and what goes there and comes back. */
    uint32_t *allowed, *d_allowed;    /* [K_SAMPLE_ROWS][n_words] */
    struct logit_bias *bias, *d_bias; /* [SAMPLER_MAX_BIAS] */
    struct k_drawn drawn[K_SAMPLE_ROWS], *d_drawn;
    struct k_sample call;
    uint32_t n_bias;
    bool is_drawn[K_SAMPLE_ROWS]; /* there; else here, when it is asked for */
};

static enum err make_device(struct sampler *s, struct error *e)
{
    size_t mask = K_SAMPLE_ROWS * s->n_words * sizeof(*s->allowed);
    size_t bias = SAMPLER_MAX_BIAS * sizeof(*s->bias);
    s->allowed = malloc(mask);
    s->bias = malloc(bias);
    s->d_allowed = s->k->alloc(s->k, mask);
    s->d_bias = s->k->alloc(s->k, bias);
    s->d_drawn = s->k->alloc(s->k, sizeof(s->drawn));
    bool all = s->allowed && s->bias && s->d_allowed && s->d_bias && s->d_drawn;
    return all ? OK : err_set(e, ERR_NOMEM, "sampler: memory of the device");
}

enum err sampler_new(struct sampler **out, struct kernels *k, uint32_t n_vocab, struct error *e)
{
    struct sampler *s = calloc(1, sizeof(*s));
    if (!s)
        return err_set(e, ERR_NOMEM, "sampler");
    s->k = k;
    s->call.n_vocab = n_vocab;
    s->n_words = K_MASK_WORDS(n_vocab);
    s->scratch = malloc(2 * (size_t)n_vocab * sizeof(*s->scratch));
    enum err rc = !s->scratch      ? err_set(e, ERR_NOMEM, "sampler of %u ids", n_vocab)
                  : k->host_memory ? OK
                                   : make_device(s, e);
    if (rc) {
        sampler_free(s);
        return rc;
    }
    *out = s;
    return OK;
}

void sampler_free(struct sampler *s)
{
    if (!s)
        return;
    free(s->scratch);
    free(s->allowed);
    free(s->bias);
    s->k->free(s->k, s->d_allowed);
    s->k->free(s->k, s->d_bias);
    s->k->free(s->k, s->d_drawn);
    free(s);
}

struct k_sample_entry *sampler_scratch(struct sampler *s)
{
    return s->scratch;
}

void sampler_begin(struct sampler *s)
{
    s->call.n = 0;
    s->n_bias = 0;
}

/* Whether the device can draw from row i: it has room for the biases, and what may come is
 * known as a list. */
static bool can_draw(struct sampler *s, uint32_t i, const struct sampling *how,
                     const struct constrain_state *calls)
{
    if (s->k->host_memory || how->n_bias > SAMPLER_MAX_BIAS - s->n_bias)
        return false;
    return !how->rules ||
           constrain_text_mask(how->rules, calls, s->call.n_vocab, s->allowed + i * s->n_words);
}

bool sampler_add(struct sampler *s, const struct sampling *how,
                 const struct constrain_state *calls, uint64_t position)
{
    uint32_t i = s->call.n++;
    struct k_draw *d = &s->call.draw[i];
    assert(i < K_SAMPLE_ROWS);
    *d = (struct k_draw){.top_p = 1}; /* greedy, and nobody asks what it gave */
    s->is_drawn[i] = can_draw(s, i, how, calls);
    if (!s->is_drawn[i])
        return true;
    *d = sample_draw(how, calls, position);
    d->is_masked = how->rules != NULL;
    d->bias_at = s->n_bias;
    if (how->n_bias)
        memcpy(s->bias + s->n_bias, how->bias, how->n_bias * sizeof(*s->bias));
    s->n_bias += how->n_bias;
    return false;
}

/* Masks and biases go to the device. False: no row does. */
static bool send_lists(struct sampler *s)
{
    struct kernels *k = s->k;
    size_t mask = s->n_words * sizeof(*s->allowed);
    bool any = false;
    for (uint32_t i = 0; i < s->call.n; i++) {
        any = any || s->is_drawn[i];
        if (s->call.draw[i].is_masked)
            k->copy_in(k, s->d_allowed + i * s->n_words, s->allowed + i * s->n_words, mask);
    }
    if (any && s->n_bias)
        k->copy_in(k, s->d_bias, s->bias, s->n_bias * sizeof(*s->bias));
    s->call.bias = s->d_bias;
    s->call.allowed = s->d_allowed;
    s->call.drawn = s->d_drawn;
    return any;
}

void sampler_run(struct sampler *s, const float *logits)
{
    struct kernels *k = s->k;
    if (!send_lists(s))
        return;
    s->call.logits = logits;
    k->sample(k, &s->call);
    k->copy_out(k, s->drawn, s->d_drawn, s->call.n * sizeof(*s->drawn));
}

enum err sampler_take(struct sampler *s, uint32_t i, const struct sampling *how,
                      const struct constrain_state *calls, const float *row, uint64_t position,
                      uint32_t *id, struct error *e)
{
    if (s->is_drawn[i])
        return sample_result(&s->drawn[i], position, id, e);
    return sample_token(how, calls, row, s->call.n_vocab, position, s->scratch, id, e);
}

bool sampler_guess_begin(struct sampler *s, const struct sampling *how,
                         const struct constrain_state *calls)
{
    sampler_begin(s);
    return !sampler_add(s, how, calls, 0) && send_lists(s);
}

void sampler_guess(struct sampler *s, uint32_t i, const float *logits, const float *add,
                   uint64_t position)
{
    struct k_sample one = s->call;
    assert(i < K_SAMPLE_ROWS);
    one.logits = logits;
    one.add = add;
    one.drawn = s->d_drawn + i;
    one.draw[0].position = position;
    s->k->sample(s->k, &one);
}

const uint32_t *sampler_guess_id(const struct sampler *s, uint32_t i)
{
    return &s->d_drawn[i].id;
}

void sampler_guess_end(struct sampler *s, uint32_t n)
{
    s->k->copy_out(s->k, s->drawn, s->d_drawn, n * sizeof(*s->drawn));
}

enum err sampler_guess_take(struct sampler *s, uint32_t i, uint64_t position, uint32_t *id,
                            struct error *e)
{
    return sample_result(&s->drawn[i], position, id, e);
}
