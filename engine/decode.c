#include "engine/decode.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "engine/sample.h"
#include "engine/sampler.h"

static_assert(CONFIG_MAX_DRAFT_BLOCK < ENGINE_EVENT_IDS, "what a step decides is one event");

/* Takes the run's token at this position, drawn from row i of the logits, and notes it. */
static enum err draw(struct model *m, struct queued *q, uint32_t i, uint64_t position,
                     uint32_t *id, struct error *e)
{
    const float *row = m->work->logits + (size_t)i * m->config.vocab_size;
    enum err rc = sampler_take(m->sampler, i, &q->sampling, &q->calls, row, position, id, e);
    return rc ? rc : seq_note_id(q, *id, e);
}

/* Room for what the model thought of n tokens; *out stays NULL where nobody asks. */
static enum err want_logprobs(const struct queued *q, uint32_t n, struct token_logprobs **out,
                              struct error *e)
{
    if (!q->sampling.top_logprobs)
        return OK;
    *out = calloc(n, sizeof(**out));
    return *out ? OK : err_set(e, ERR_NOMEM, "logprobs");
}

static void note_logprobs(const struct model *m, const struct queued *q, const float *row,
                          uint32_t id, struct token_logprobs *out)
{
    if (out)
        sample_logprobs(row, m->config.vocab_size, id, q->sampling.top_logprobs - 1, out);
}

enum err decode_logits(struct model *m, const float *h, uint32_t n, bool crosses,
                       struct error *e)
{
    enum err rc = forward_head(m, h, n, e);
    if (rc)
        return rc;
    sampler_run(m->sampler, m->work->d_logits);
    return forward_head_end(m, n, crosses, e);
}

enum err decode_first(struct event_list *l, struct model_seq *s, struct error *e)
{
    struct model *m = model_of_seq(s);
    struct queued *q = &s->work;
    struct token_logprobs *logprobs = NULL;
    uint32_t id = 0;
    sampler_begin(m->sampler);
    bool crosses = sampler_add(m->sampler, &q->sampling, &q->calls, s->kv.n_tokens);
    enum err rc = decode_logits(m, s->last, 1, crosses || q->sampling.top_logprobs, e);
    if (rc || (rc = want_logprobs(q, 1, &logprobs, e)))
        return rc;
    if ((rc = draw(m, q, 0, s->kv.n_tokens, &id, e))) {
        free(logprobs);
        return rc;
    }
    note_logprobs(m, q, m->work->logits, id, logprobs);
    q->has_next = true;
    q->next = id;
    q->n_new++;
    struct engine_event *ev = event_add(l, s, ENGINE_TOKENS);
    ev->first_position = s->kv.n_tokens;
    ev->n_ids = 1;
    ev->ids[0] = id;
    ev->logprobs = logprobs;
    return OK;
}

/* ---- before the pass ----------------------------------------------------------------------
 */

/* Why the run ends with this token of it, the n-th new one; END_SEGMENT: it goes on. */
static enum end_reason end_after(const struct model *m, const struct queued *q, uint32_t id,
                                 uint64_t n)
{
    if (id == m->config.eos_id)
        return END_EOS;
    if (q->stops)
        return END_STOP;
    if (n == q->max_tokens)
        return END_LENGTH;
    return q->cancelled ? END_CANCELLED : END_SEGMENT;
}

/* How many guesses can be of use. What was reported is computed, nothing more, at an end. */
static uint32_t n_useful(const struct model *m, const struct queued *q)
{
    uint64_t left = q->max_tokens - q->n_new;
    if (end_after(m, q, q->next, q->n_new) != END_SEGMENT)
        return 0;
    return left < m->draft_tokens ? (uint32_t)left : m->draft_tokens;
}

bool decode_ask(struct part *p, struct draft_ask *out)
{
    struct queued *q = &p->s->work;
    *out = (struct draft_ask){.s = p->s,
                              .anchor = q->next,
                              .n = n_useful(model_of_seq(p->s), q),
                              .how = &q->sampling,
                              .out = &p->draft};
    return out->n > 0;
}

enum err decode_begin(struct part *p, struct run *r, struct error *e)
{
    struct model_seq *s = p->s;
    struct queued *q = &s->work;
    bool is_fresh = !q->resumes && q->n_new == 1;
    p->digest = is_fresh ? (struct seq_digest){0} : s->digest;
    p->ids[0] = q->next;
    memcpy(p->ids + 1, p->draft.ids, p->draft.n * sizeof(*p->ids));
    *r = part_run(s, p->ids, s->kv.n_tokens, 1 + p->draft.n);
    enum err rc = part_make_room(r, e);
    return rc ? rc : want_logprobs(q, r->n, &p->logprobs, e);
}

bool decode_add_rows(struct model *m, const struct part *p, const struct run *r)
{
    const struct queued *q = &p->s->work;
    struct constrain_state calls = q->calls;
    bool crosses = m->digests || m->observer.logits || q->sampling.top_logprobs;
    for (uint32_t at = 0; at < r->n; at++) {
        if (at && q->sampling.rules) /* a guess counts as right: else nobody asks */
            constrain_feed(q->sampling.rules, &calls, p->ids[at]);
        crosses |= sampler_add(m->sampler, &q->sampling, &calls, r->pos0 + 1 + at);
    }
    return crosses;
}

/* ---- after the pass -----------------------------------------------------------------------
 */

/* Which guesses were right, and what follows them. */
struct verdict {
    uint32_t n_right;
    enum end_reason reason; /* END_SEGMENT: the run goes on with `next` */
    uint32_t next;
};

/* Draws the token of every position as if there were no guesses, up to the first wrong one. */
static enum err judge(struct part *p, const struct run *r, uint32_t first, struct verdict *v,
                      struct error *e)
{
    struct model *m = model_of_seq(p->s);
    struct queued *q = &p->s->work;
    *v = (struct verdict){0};
    for (;; v->n_right++) {
        uint32_t at = v->n_right;
        const float *row = m->work->logits + (size_t)(first + at) * m->config.vocab_size;
        part_see_row(m, p, r->pos0 + at, row);
        v->reason = end_after(m, q, p->ids[at], q->n_new + at);
        if (v->reason != END_SEGMENT)
            return OK;
        enum err rc = draw(m, q, first + at, r->pos0 + 1 + at, &v->next, e);
        if (rc)
            return rc;
        note_logprobs(m, q, row, v->next, p->logprobs ? &p->logprobs[at] : NULL);
        if (at == p->draft.n || v->next != p->ids[1 + at])
            return OK;
    }
}

/* The right guesses and what follows them, as one event. */
static void report(struct event_list *l, struct part *p, const struct run *r,
                   const struct verdict *v)
{
    uint32_t n = v->n_right;
    struct engine_event *ev = event_add(l, p->s, ENGINE_TOKENS);
    memcpy(ev->ids, p->ids + 1, n * sizeof(*ev->ids));
    if (v->reason == END_SEGMENT)
        ev->ids[n++] = v->next;
    ev->first_position = r->pos0 + 1;
    ev->n_ids = n;
    ev->n_guessed = p->draft.n;
    ev->n_right = v->n_right;
    ev->n_cut = p->draft.n_cut;
    ev->n_failed = p->draft.n_failed;
    ev->error = p->draft_error;
    ev->logprobs = p->logprobs;
    p->logprobs = NULL;
}

void decode_end(struct event_list *l, struct part *p, const struct run *r, uint32_t first,
                const float *h)
{
    struct model_seq *s = p->s;
    struct model *m = model_of_seq(s);
    struct queued *q = &s->work;
    struct error e = {0};
    struct verdict v;
    enum err rc = judge(p, r, first, &v, &e);
    if (rc) {
        part_fail(l, p, rc, &e);
        return;
    }
    part_keep(p, r, 1 + v.n_right, h + (size_t)v.n_right * m->config.dim);
    m->n_guessed += p->draft.n;
    m->n_guesses_cut += p->draft.n_cut;
    m->n_guesses_failed += p->draft.n_failed;
    m->n_guessed_right += v.n_right;
    q->has_next = v.reason == END_SEGMENT;
    q->next = v.next;
    q->n_new += v.n_right + q->has_next;
    if (v.n_right || q->has_next)
        report(l, p, r, &v);
    part_drop(p);
    if (!q->has_next)
        event_done(l, s, v.reason);
}
