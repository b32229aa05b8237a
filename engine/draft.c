#include "engine/draft.h"

#include <assert.h>
#include <string.h>

#include "engine/forward.h"
#include "engine/sample.h"
#include "kernels/math.h"

static_assert(CONFIG_MAX_DRAFT_BLOCK < LOGIT_ROWS,
              "a block and its anchor are checked at once, and their logits lie side by side");

/* The block [anchor, noise, noise, ...] through the draft layers; every token sees all others.
 */
static enum err run_block(struct model *m, struct model_seq *s, uint32_t anchor,
                          struct error *e)
{
    const struct config *c = &m->config;
    uint32_t ids[CONFIG_MAX_DRAFT_BLOCK];
    struct run r = {
        .kv = &s->kv, .ids = ids, .pos0 = s->kv.n_tokens, .n = c->draft_block, .block = true};
    for (uint32_t i = 0; i < c->draft_block; i++)
        ids[i] = i ? c->draft_noise_id : anchor;
    memcpy(r.lo, s->kv.lo, sizeof(r.lo));
    struct batch batch = batch_of(&r, 1);
    enum err rc = forward_begin(m, &batch, e);
    if (rc)
        return rc;
    for (uint32_t i = 0; i < c->n_drafts; i++)
        forward_layer(m, &batch, c->n_layers + i);
    forward_end(m, &batch);
    return m->broken.code ? err_set(e, m->broken.code, "%s", m->broken.msg) : OK;
}

/* Row i's logits and confidence, given the token before it. */
static enum err head(struct model *m, uint32_t i, uint32_t before, float *confidence,
                     struct error *e)
{
    const struct config *c = &m->config;
    const struct draft_weights *w = &m->weights.draft;
    struct work *b = m->work;
    float *logits = b->logits + (size_t)i * c->vocab_size;
    size_t n_bytes = c->vocab_size * sizeof(*logits);
    m->k.copy_in(&m->k, b->ids, &before, sizeof(before));
    m->k.copy(&m->k, b->draft_in, b->h + (size_t)i * c->dim, c->dim * sizeof(float));
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

enum err draft_propose(struct model *m, struct model_seq *s, uint32_t anchor,
                       const struct sampling *how, uint32_t n, struct draft *out,
                       struct error *e)
{
    const struct config *c = &m->config;
    assert(n <= c->draft_block);
    enum err rc = run_block(m, s, anchor, e);
    if (rc)
        return rc;
    struct work *b = m->work;
    m->k.rmsnorm(&m->k, &(struct k_rmsnorm){.x = b->h,
                                            .w = m->weights.draft.norm,
                                            .y = b->y,
                                            .n = n,
                                            .d = c->dim,
                                            .eps = c->norm_eps,
                                            .round = m->rounding.value});
    forward_product(m, &m->weights.head, b->y, b->d_logits, n, K_EXACT);
    work_to_host(m, b->logits, b->d_logits, (size_t)n * c->vocab_size * sizeof(float));
    *out = (struct draft){.n = n, .logits = b->logits};
    double right = 1;                             /* the chance of all so far */
    struct constrain_state calls = s->work.calls; /* the guesses have to fit the run, too */
    for (uint32_t i = 0; i < n; i++) {
        const float *row = b->logits + (size_t)i * c->vocab_size;
        if ((rc = head(m, i, i ? out->ids[i - 1] : anchor, &out->confidence[i], e)))
            return err_wrap(e, rc, "draft %u", i);
        right *= k_sigmoid((double)out->confidence[i]);
        if (right < m->draft_confidence) {
            out->n = i;
            out->n_cut = n - i;
            break;
        }
        if ((rc = sample_token(how, &calls, row, c->vocab_size, s->kv.n_tokens + 1 + i,
                               m->sampler, &out->ids[i], e)))
            return err_wrap(e, rc, "draft %u", i);
        if (how->rules)
            constrain_feed(how->rules, &calls, out->ids[i]);
    }
    return OK;
}
