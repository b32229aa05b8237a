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

/* Queues what the token before adds to the logits of guess number i, and its confidence, which
 * is of its collapsed row h. before: an id in memory of the backend. */
static void head(struct model *m, const float *h, const uint32_t *before, uint32_t i)
{
    const struct config *c = &m->config;
    const struct draft_weights *w = &m->weights.draft;
    struct work *b = m->work;
    m->k.copy(&m->k, b->draft_in, h, c->dim * sizeof(float));
    m->k.embed(&m->k, &(struct k_embed){.w = &w->markov_embed,
                                        .ids = before,
                                        .x = b->draft_in + c->dim,
                                        .n = 1,
                                        .copies = 1});
    forward_product(m, &w->markov_head, b->draft_in + c->dim, b->d_draft_bias, 1, K_EXACT);
    forward_product(m, &w->confidence, b->draft_in, b->d_confidence + i, 1, K_EXACT);
}

/* Whether guess number i is worth checking; *right is the chance of all before it. */
static bool is_likely(const struct model *m, const struct draft_ask *ask, uint32_t i,
                      double *right)
{
    struct draft *out = ask->out;
    out->confidence[i] = m->work->confidence[i];
    *right *= k_sigmoid((double)out->confidence[i]);
    if (*right >= m->draft_confidence)
        return true;
    out->n = i;
    out->n_cut = ask->n - i;
    return false;
}

/* ---- on the host: what a guess is decides what the next one is drawn from -----------------
 */

/* The logits of guess number i: its row of base logits and what the token before adds. */
static enum err add_head(struct model *m, const float *h, uint32_t before, uint32_t i,
                         float *row, struct error *e)
{
    struct work *b = m->work;
    uint32_t n = m->config.vocab_size;
    m->k.copy_in(&m->k, b->ids, &before, sizeof(before));
    head(m, h, b->ids, i);
    work_to_host(m, b->draft_bias, b->d_draft_bias, n * sizeof(*row));
    work_to_host(m, b->confidence + i, b->d_confidence + i, sizeof(*b->confidence));
    enum err rc = m->k.sync(&m->k, e);
    for (uint32_t k = 0; k < n && !rc; k++)
        row[k] += b->draft_bias[k];
    return rc;
}

/* One guess after the other, from the block's collapsed rows h and their base logits. */
static enum err guess_here(struct model *m, const struct draft_ask *ask, const float *h,
                           float *logits, struct error *e)
{
    const struct config *c = &m->config;
    struct draft *out = ask->out;
    double right = 1;
    struct constrain_state calls =
        ask->s->work.calls; /* the guesses have to fit the run, too */
    *out = (struct draft){.n = ask->n, .logits = logits};
    for (uint32_t i = 0; i < ask->n; i++) {
        float *row = logits + (size_t)i * c->vocab_size;
        enum err rc =
            add_head(m, h + (size_t)i * c->dim, i ? out->ids[i - 1] : ask->anchor, i, row, e);
        if (rc)
            return err_wrap(e, rc, "draft %u", i);
        if (!is_likely(m, ask, i, &right))
            break;
        if ((rc =
                 sample_token(ask->how, &calls, row, c->vocab_size, ask->s->kv.n_tokens + 1 + i,
                              sampler_scratch(m->sampler), &out->ids[i], e)))
            return err_wrap(e, rc, "draft %u", i);
        if (ask->how->rules)
            constrain_feed(ask->how->rules, &calls, out->ids[i]);
    }
    return OK;
}

/* ---- on a device: all are drawn before the host learns of one -----------------------------
 */

/* The guesses up to the first that is too unsure, or does not fit the run: what may come was
 * listed for the first one. */
static enum err take_guesses(struct model *m, const struct draft_ask *ask, struct error *e)
{
    const struct call_rules *rules = ask->how->rules;
    struct constrain_state calls = ask->s->work.calls;
    struct draft *out = ask->out;
    double right = 1;
    for (uint32_t i = 0; i < ask->n && is_likely(m, ask, i, &right); i++) {
        uint32_t *id = &out->ids[i];
        enum err rc = sampler_guess_take(m->sampler, i, ask->s->kv.n_tokens + 1 + i, id, e);
        if (rc)
            return err_wrap(e, rc, "draft %u", i);
        if (rules && !constrain_allows(rules, &calls, *id)) {
            out->n = i;
            break;
        }
        if (rules)
            constrain_feed(rules, &calls, *id);
    }
    return OK;
}

static enum err guess_there(struct model *m, const struct draft_ask *ask, const float *h,
                            const float *d_logits, struct error *e)
{
    const struct config *c = &m->config;
    struct work *b = m->work;
    *ask->out = (struct draft){.n = ask->n};
    m->k.copy_in(&m->k, b->ids, &ask->anchor, sizeof(ask->anchor));
    for (uint32_t i = 0; i < ask->n; i++) {
        const uint32_t *before = i ? sampler_guess_id(m->sampler, i - 1) : b->ids;
        head(m, h + (size_t)i * c->dim, before, i);
        sampler_guess(m->sampler, i, d_logits + (size_t)i * c->vocab_size, b->d_draft_bias,
                      ask->s->kv.n_tokens + 1 + i);
    }
    sampler_guess_end(m->sampler, ask->n);
    work_to_host(m, b->confidence, b->d_confidence, ask->n * sizeof(*b->confidence));
    enum err rc = m->k.sync(&m->k, e);
    return rc ? rc : take_guesses(m, ask, e);
}

/* The guesses of an ask whose base logits begin at row `first`. */
static enum err guess(struct model *m, const struct draft_ask *ask, const float *h,
                      uint32_t first, struct error *e)
{
    size_t vocab = m->config.vocab_size;
    float *logits = m->work->logits + first * vocab, *there = m->work->d_logits + first * vocab;
    if (!ask->shows && sampler_guess_begin(m->sampler, ask->how, &ask->s->work.calls))
        return guess_there(m, ask, h, there, e);
    work_to_host(m, logits, there, ask->n * vocab * sizeof(*logits));
    return guess_here(m, ask, h, logits, e);
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
    return at;
}

/* What failed in the backend beside it belongs to this pass: the next one's sync() would lay it
 * at the door of whoever runs then. */
static enum err settle(struct model *m, enum err rc, struct error *e)
{
    struct error left = {0};
    enum err also = m->k.sync(&m->k, &left);
    if (also && e)
        *e = left;
    return also ? also : rc;
}

enum err draft_propose_all(struct model *m, const struct draft_ask *asks, uint32_t n_asks,
                           struct error *e)
{
    const struct config *c = &m->config;
    assert(n_asks <= DRAFT_MAX_ASKS);
    enum err rc = run_blocks(m, asks, n_asks, e);
    for (uint32_t at = 0, end; at < n_asks && !rc; at = end) {
        uint32_t row = 0;
        end = base_logits(m, asks, at, n_asks);
        for (uint32_t k = at; k < end && !rc; row += asks[k++].n) {
            assert(asks[k].n <= c->draft_block);
            rc = guess(m, &asks[k], m->work->h + (size_t)k * c->draft_block * c->dim, row, e);
        }
    }
    return rc ? settle(m, rc, e) : OK;
}

enum err draft_propose(struct model *m, struct model_seq *s, uint32_t anchor,
                       const struct sampling *how, uint32_t n, struct draft *out,
                       struct error *e)
{
    const struct draft_ask ask = {
        .s = s, .anchor = anchor, .n = n, .how = how, .out = out, .shows = true};
    return draft_propose_all(m, &ask, 1, e);
}
