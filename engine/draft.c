#include "engine/draft.h"

#include <assert.h>
#include <string.h>

#include "engine/forward.h"
#include "engine/sample.h"
#include "engine/sampler.h"
#include "kernels/math.h"

static_assert(CONFIG_MAX_DRAFT_BLOCK < LOGIT_ROWS,
              "a block and its anchor are checked at once, and their logits lie side by side");

/* The blocks [anchor, noise, noise, ...] through the draft layers; every token sees all others
 * of its block. */
static enum err run_blocks(struct model *m, const struct draft_ask *asks, uint32_t n_asks,
                           struct error *e)
{
    const struct config *c = &m->config;
    uint32_t ids[DRAFT_MAX_ASKS][CONFIG_MAX_DRAFT_BLOCK];
    struct run runs[DRAFT_MAX_ASKS];
    for (uint32_t k = 0; k < n_asks; k++) {
        struct kv *kv = &asks[k].s->kv;
        runs[k] = (struct run){
            .kv = kv, .ids = ids[k], .pos0 = kv->n_tokens, .n = c->draft_block, .block = true};
        memcpy(runs[k].lo, kv->lo, sizeof(kv->lo));
        for (uint32_t i = 0; i < c->draft_block; i++)
            ids[k][i] = i ? c->draft_noise_id : asks[k].anchor;
    }
    struct batch batch = batch_of(runs, n_asks);
    enum err rc = forward_begin(m, &batch, e);
    if (rc)
        return rc;
    for (uint32_t i = 0; i < c->n_drafts; i++)
        forward_layer(m, &batch, c->n_layers + i);
    forward_end(m, &batch);
    return m->broken.code ? err_set(e, m->broken.code, "%s", m->broken.msg) : OK;
}

/* Logits and confidence of a collapsed row h, given the token before it. */
static enum err head(struct model *m, const float *h, uint32_t before, float *logits,
                     float *confidence, struct error *e)
{
    const struct config *c = &m->config;
    const struct draft_weights *w = &m->weights.draft;
    struct work *b = m->work;
    size_t n_bytes = c->vocab_size * sizeof(*logits);
    m->k.copy_in(&m->k, b->ids, &before, sizeof(before));
    m->k.copy(&m->k, b->draft_in, h, c->dim * sizeof(float));
    m->k.embed(&m->k, &(struct k_embed){.w = &w->markov_embed,
                                        .ids = b->ids,
                                        .x = b->draft_in + c->dim,
                                        .n = 1,
                                        .copies = 1});
    forward_product(m, &w->markov_head, b->draft_in + c->dim, b->d_draft_bias, 1, K_EXACT);
    forward_product(m, &w->confidence, b->draft_in, b->d_confidence, 1, K_EXACT);
    work_to_host(m, b->draft_bias, b->d_draft_bias, n_bytes);
    work_to_host(m, b->confidence, b->d_confidence, sizeof(*confidence));
    enum err rc = m->k.sync(&m->k, e);
    *confidence = *b->confidence;
    for (uint32_t k = 0; k < c->vocab_size && !rc; k++)
        logits[k] += b->draft_bias[k];
    return rc;
}

/* One guess after the other, from the block's collapsed rows h and their base logits. */
static enum err guess(struct model *m, const struct draft_ask *ask, const float *h,
                      float *logits, struct error *e)
{
    const struct config *c = &m->config;
    struct draft *out = ask->out;
    double right = 1; /* the chance of all so far */
    struct constrain_state calls =
        ask->s->work.calls; /* the guesses have to fit the run, too */
    *out = (struct draft){.n = ask->n, .logits = logits};
    for (uint32_t i = 0; i < ask->n; i++) {
        float *row = logits + (size_t)i * c->vocab_size;
        enum err rc = head(m, h + (size_t)i * c->dim, i ? out->ids[i - 1] : ask->anchor, row,
                           &out->confidence[i], e);
        if (rc)
            return err_wrap(e, rc, "draft %u", i);
        right *= k_sigmoid((double)out->confidence[i]);
        if (right < m->draft_confidence) {
            out->n = i;
            out->n_cut = ask->n - i;
            break;
        }
        if ((rc =
                 sample_token(ask->how, &calls, row, c->vocab_size, ask->s->kv.n_tokens + 1 + i,
                              sampler_scratch(m->sampler), &out->ids[i], e)))
            return err_wrap(e, rc, "draft %u", i);
        if (ask->how->rules)
            constrain_feed(ask->how->rules, &calls, out->ids[i]);
    }
    return OK;
}

/* Base logits for the asks from `at` on, as many as there is room for; returns where it ends.
 */
static uint32_t base_logits(struct model *m, const struct draft_ask *asks, uint32_t at,
                            uint32_t n_asks)
{
    const struct config *c = &m->config;
    struct work *b = m->work;
    uint32_t n = 0;
    for (; at < n_asks && n + asks[at].n <= LOGIT_ROWS; n += asks[at++].n)
        m->k.rmsnorm(&m->k,
                     &(struct k_rmsnorm){.x = b->h + (size_t)at * c->draft_block * c->dim,
                                         .w = m->weights.draft.norm,
                                         .y = b->y + (size_t)n * c->dim,
                                         .n = asks[at].n,
                                         .d = c->dim,
                                         .eps = c->norm_eps,
                                         .round = m->rounding.value});
    forward_product(m, &m->weights.head, b->y, b->d_logits, n, K_EXACT);
    work_to_host(m, b->logits, b->d_logits, (size_t)n * c->vocab_size * sizeof(float));
    return at;
}

enum err draft_propose_all(struct model *m, const struct draft_ask *asks, uint32_t n_asks,
                           struct error *e)
{
    const struct config *c = &m->config;
    assert(n_asks <= DRAFT_MAX_ASKS);
    enum err rc = run_blocks(m, asks, n_asks, e);
    for (uint32_t at = 0, end; at < n_asks && !rc; at = end) {
        float *logits = m->work->logits;
        end = base_logits(m, asks, at, n_asks);
        for (uint32_t k = at; k < end && !rc; k++) {
            assert(asks[k].n <= c->draft_block);
            rc =
                guess(m, &asks[k], m->work->h + (size_t)k * c->draft_block * c->dim, logits, e);
            logits += (size_t)asks[k].n * c->vocab_size;
        }
    }
    return rc;
}

enum err draft_propose(struct model *m, struct model_seq *s, uint32_t anchor,
                       const struct sampling *how, uint32_t n, struct draft *out,
                       struct error *e)
{
    const struct draft_ask ask = {.s = s, .anchor = anchor, .n = n, .how = how, .out = out};
    return draft_propose_all(m, &ask, 1, e);
}
