/* engine_step(): at most one chunk of input and one token of every generating sequence,
 * or with drafts several. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "engine/ahead.h"
#include "engine/draft.h"
#include "engine/forward.h"
#include "engine/sample.h"
#include "engine/seq.h"

static_assert(CONFIG_MAX_DRAFT_BLOCK < ENGINE_EVENT_IDS, "what a step decides is one event");

/* Most events of one sequence in one step. */
#define EVENTS_PER_SEQ 2

struct event_list {
    struct engine_event *events;
    size_t cap, n;
};

static struct engine_event *add_event(struct event_list *l, struct model_seq *s,
                                      enum engine_event_kind kind)
{
    struct engine_event *ev = &l->events[l->n++];
    *ev = (struct engine_event){.seq = &s->seq,
                                .user = s->seq.user,
                                .kind = kind,
                                .position = model_seq_position(&s->seq)};
    return ev;
}

static void finish(struct event_list *l, struct model_seq *s, enum end_reason reason)
{
    seq_drop_work(s);
    add_event(l, s, ENGINE_DONE)->reason = reason;
}

static void fail(struct event_list *l, struct model_seq *s, enum err rc, const struct error *e)
{
    seq_drop_work(s);
    s->failed = true;
    struct engine_event *ev = add_event(l, s, ENGINE_DONE);
    ev->reason = END_FAILED;
    ev->error = *e;
    ev->error.code = rc;
}

static void progress(struct event_list *l, struct model_seq *s)
{
    struct engine_event *ev = add_event(l, s, ENGINE_PROGRESS);
    ev->done = s->work.done;
    ev->total = s->work.n_ids;
}

/* ---- one run ------------------------------------------------------------------------------
 */

static void digest_row(struct seq_digest *d, uint64_t position, const float *logits, uint32_t n)
{
    static_assert(sizeof(float) == 4 && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
                  "logits are hashed as they lie in memory");
    struct hash h;
    hash_init(&h, NULL, HASH_BYTES);
    hash_add(&h, d->d, sizeof(d->d));
    hash_u64le(&h, position);
    hash_add(&h, logits, n * sizeof(*logits));
    hash_final(&h, d->d);
    d->n_rows++;
}

/* One computed row's logits: for the digest and the observer, and the next draw. */
static void see_row(struct model *m, struct model_seq *s, uint64_t position, const float *row,
                    struct seq_digest *digest)
{
    if (m->digests)
        digest_row(digest, position, row, m->config.vocab_size);
    if (m->observer.logits)
        m->observer.logits(m->observer.user, &s->seq, position, row);
    m->logits_row = row;
    m->logits_of = s;
}

/* Logits of the run's n_out last rows, where somebody looks at them. */
static enum err look_at_rows(struct model *m, struct model_seq *s, uint64_t end, uint32_t n_out,
                             struct seq_digest *digest, struct error *e)
{
    bool wanted = m->digests || m->observer.logits;
    for (uint32_t i = 0; wanted && i < n_out;) {
        uint32_t n = n_out - i < LOGIT_ROWS ? n_out - i : LOGIT_ROWS;
        enum err rc = forward_logits(m, m->work->h + (size_t)i * m->config.dim, n, e);
        if (rc)
            return rc;
        for (uint32_t k = 0; k < n; k++)
            see_row(m, s, end - n_out + i + k,
                    m->work->logits + (size_t)k * m->config.vocab_size, digest);
        i += n;
    }
    return OK;
}

static void push_history(uint32_t *history, const uint32_t *ids, uint32_t n)
{
    uint32_t cap = CONFIG_MAX_NGRAM - 1;
    for (uint32_t i = n > cap ? n - cap : 0; i < n; i++) {
        memmove(history, history + 1, (cap - 1) * sizeof(*history));
        history[cap - 1] = ids[i];
    }
}

static uint32_t *history_of(struct model_seq *s)
{
    return s->work.kind == WORK_REBUILD ? s->work.history : s->history;
}

static struct run make_run(struct model_seq *s, const uint32_t *ids, uint64_t pos0, uint32_t n)
{
    struct run r = {.seq = &s->seq,
                    .kv = &s->kv,
                    .ids = ids,
                    .history =
                        history_of(s) + CONFIG_MAX_NGRAM - model_of_seq(s)->config.engram_ngram,
                    .pos0 = pos0,
                    .n = n,
                    .replay = s->work.kind == WORK_REBUILD,
                    .rows = s->importing};
    memcpy(r.from, s->work.from, sizeof(r.from));
    memcpy(r.lo, s->work.lo, sizeof(r.lo));
    return r;
}

/* The run's first n tokens become part of the sequence. last: the collapsed row of the last
 * one; NULL: not all layers computed it. */
static void keep(struct model_seq *s, const struct run *r, uint32_t n, const float *last,
                 const struct seq_digest *digest)
{
    struct model *m = model_of_seq(s);
    forward_commit(m, r, n);
    if (!r->held) /* those were ids of an earlier run */
        push_history(history_of(s), r->ids, n);
    s->has_last = last != NULL;
    if (last)
        m->k.copy(&m->k, s->last, last, m->config.dim * sizeof(*s->last));
    s->digest = *digest;
}

static enum err run_alone(struct model *m, struct run *r, struct error *e)
{
    bool adds_rows = !r->replay && !r->held;
    enum err rc = adds_rows ? kv_make_room(r->kv, r->kv->n_tokens, r->n, e) : OK;
    struct batch batch = batch_of(r, 1);
    m->logits_of = NULL;
    return rc ? rc : forward_batch(m, &batch, e);
}

enum err seq_run(struct model_seq *s, struct run *r, bool fresh, struct error *e)
{
    struct model *m = model_of_seq(s);
    struct seq_digest digest = fresh ? (struct seq_digest){0} : s->digest;
    enum err rc = run_alone(m, r, e);
    if (rc)
        return rc;
    struct batch batch = batch_of(r, 1);
    uint32_t n_out;
    const float *h = forward_rows(m, &batch, r, &n_out);
    if (!r->replay && (rc = look_at_rows(m, s, r->pos0 + r->n, n_out, &digest, e)))
        return rc;
    keep(s, r, r->n, n_out ? h + (size_t)(n_out - 1) * m->config.dim : NULL, &digest);
    return OK;
}

/* Runs n ids of the queued work from pos0 on, of which n_next more are known. */
static enum err run_ids(struct model_seq *s, const uint32_t *ids, uint64_t pos0, uint32_t n,
                        uint32_t n_next, bool fresh, struct error *e)
{
    struct run r = make_run(s, ids, pos0, n);
    r.n_next = n_next;
    return seq_run(s, &r, fresh, e);
}

/* Most tokens of a chunk while another sequence generates: its tokens come one a step. */
#define SHARED_CHUNK 256

static uint32_t chunk_of_step(const struct model *m, const struct model_seq *s)
{
    uint32_t most = m->chunk_tokens;
    if (m->chunk_limit && m->chunk_limit < most)
        most = m->chunk_limit;
    for (const struct model_seq *o = m->seqs; o && most > SHARED_CHUNK; o = o->next)
        if (o != s && o->work.kind == WORK_GENERATE)
            most = SHARED_CHUNK;
    return most;
}

/* As many of the work's given ids as one step takes. OK with *n = 0 when the step was
 * interrupted: nothing has happened then. */
static enum err run_chunk(struct model_seq *s, uint64_t pos0, bool fresh, uint32_t *n,
                          struct error *e)
{
    struct model *m = model_of_seq(s);
    struct queued *q = &s->work;
    uint64_t left = q->n_ids - q->done;
    uint32_t most = chunk_of_step(m, s);
    uint32_t take = left < most ? (uint32_t)left : most;
    uint32_t next = left - take < most ? (uint32_t)(left - take) : most;
    enum err rc = run_ids(s, q->ids + q->done, pos0, take, next, fresh, e);
    *n = rc ? 0 : take;
    q->done += *n;
    return rc == ERR_CANCELLED ? OK : rc;
}

/* ---- the three kinds of work --------------------------------------------------------------
 */

static enum err step_input(struct event_list *l, struct model_seq *s, struct error *e)
{
    struct queued *q = &s->work;
    bool fresh = s->kv.n_tokens == q->segment.start;
    uint64_t before = q->done;
    uint32_t n = 0;
    enum err rc = s->ahead ? ahead_take(s, e) : run_chunk(s, s->kv.n_tokens, fresh, &n, e);
    if (rc || q->done == before)
        return rc;
    s->open = q->segment;
    progress(l, s);
    if (q->done == q->n_ids) {
        s->open = (struct open_segment){0};
        finish(l, s, END_SEGMENT);
    }
    return OK;
}

static enum err step_rebuild(struct event_list *l, struct model_seq *s, struct error *e)
{
    struct queued *q = &s->work;
    uint32_t n = 0;
    enum err rc = run_chunk(s, q->plan.start + q->done, false, &n, e);
    if (rc || !n)
        return rc;
    if (q->done < q->n_ids) {
        progress(l, s);
        return OK;
    }
    s->kv.n_tokens = q->plan.n_tokens;
    s->importing = 0;
    s->open = q->plan.open;
    memcpy(s->history, q->history, sizeof(s->history));
    progress(l, s);
    finish(l, s, END_SEGMENT);
    return OK;
}

static enum err step_given(struct event_list *l, struct model_seq *s, struct error *e)
{
    struct queued *q = &s->work;
    uint32_t n = 0;
    enum err rc = run_chunk(s, s->kv.n_tokens, !q->resumes && !q->done, &n, e);
    if (rc || !n)
        return rc;
    q->n_new += n;
    progress(l, s);
    if (q->done < q->n_ids)
        return OK;
    if (q->end_with_given)
        finish(l, s, END_SEGMENT);
    else if (q->ids[q->n_ids - 1] == model_of_seq(s)->config.eos_id)
        finish(l, s, END_EOS);
    else if (q->stops)
        finish(l, s, END_STOP);
    else if (q->n_new == q->max_tokens)
        finish(l, s, END_LENGTH);
    return OK;
}

/* Leaves the logits of the sequence's last row in m->logits_row. */
static enum err last_logits(struct model *m, struct model_seq *s, struct error *e)
{
    if (m->logits_of == s)
        return OK;
    enum err rc = forward_logits(m, s->last, 1, e);
    if (rc)
        return rc;
    m->logits_row = m->work->logits;
    m->logits_of = s;
    return OK;
}

/* Draws the run's next token at this position from a row of logits, and notes it. */
static enum err draw(struct model *m, struct queued *q, const float *row, uint64_t position,
                     uint32_t *id, struct error *e)
{
    enum err rc = sample_token(&q->sampling, &q->calls, row, m->config.vocab_size, position,
                               m->sampler, id, e);
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

static enum err sample_next(struct event_list *l, struct model_seq *s, struct error *e)
{
    struct model *m = model_of_seq(s);
    struct queued *q = &s->work;
    struct token_logprobs *logprobs = NULL;
    uint32_t id = 0;
    enum err rc = last_logits(m, s, e);
    if (rc || (rc = want_logprobs(q, 1, &logprobs, e)))
        return rc;
    if ((rc = draw(m, q, m->logits_row, s->kv.n_tokens, &id, e))) {
        free(logprobs);
        return rc;
    }
    if (logprobs)
        sample_logprobs(m->logits_row, m->config.vocab_size, id, q->sampling.top_logprobs - 1,
                        logprobs);
    q->has_next = true;
    q->next = id;
    q->n_new++;
    struct engine_event *ev = add_event(l, s, ENGINE_TOKENS);
    ev->first_position = s->kv.n_tokens;
    ev->n_ids = 1;
    ev->ids[0] = id;
    ev->logprobs = logprobs;
    return OK;
}

/* ---- with drafts ---------------------------------------------------------------------------
 */

/* How many guesses can be of use in this step. */
static uint32_t n_guesses(const struct model *m, const struct queued *q)
{
    uint64_t left = q->max_tokens - q->n_new;
    if (q->cancelled || q->stops) /* what was reported is computed, nothing more */
        return 0;
    return left < m->draft_tokens ? (uint32_t)left : m->draft_tokens;
}

/* Which guesses were right, and what follows them. */
struct verdict {
    uint32_t n_right;
    bool has_next; /* false: the last right one ends the run */
    uint32_t next;
};

/* Draws the token of every position as if there were no guesses, up to the first wrong one. */
static enum err judge(struct model *m, struct model_seq *s, const struct draft *d,
                      struct verdict *v, struct token_logprobs *logprobs, struct error *e)
{
    struct queued *q = &s->work;
    uint32_t vocab = m->config.vocab_size;
    *v = (struct verdict){0};
    for (;;) {
        bool at_end = v->n_right && (q->stops || d->ids[v->n_right - 1] == m->config.eos_id);
        if (at_end || q->n_new + v->n_right == q->max_tokens)
            return OK;
        const float *row = m->work->logits + (size_t)v->n_right * vocab;
        enum err rc = draw(m, q, row, s->kv.n_tokens + 1 + v->n_right, &v->next, e);
        if (rc)
            return rc;
        if (logprobs)
            sample_logprobs(row, vocab, v->next, q->sampling.top_logprobs - 1,
                            &logprobs[v->n_right]);
        if (v->n_right == d->n || v->next != d->ids[v->n_right]) {
            v->has_next = true;
            return OK;
        }
        v->n_right++;
    }
}

/* The reported token and the guesses behind it in one run, of which the right ones are kept.
 * Nothing has happened where this fails, but for a run that fails with it. */
static enum err check_drafts(struct model_seq *s, const struct draft *d, struct verdict *v,
                             struct token_logprobs *logprobs, struct error *e)
{
    struct model *m = model_of_seq(s);
    const struct queued *q = &s->work;
    uint32_t ids[1 + CONFIG_MAX_DRAFT_BLOCK] = {q->next}, n_out = 0;
    memcpy(ids + 1, d->ids, d->n * sizeof(*ids));
    struct run r = make_run(s, ids, s->kv.n_tokens, 1 + d->n);
    struct seq_digest digest =
        !q->resumes && q->n_new == 1 ? (struct seq_digest){0} : s->digest;
    enum err rc = run_alone(m, &r, e);
    if (rc)
        return rc;
    n_out = r.n;
    assert(n_out == r.n); /* every layer runs on generated tokens */
    if ((rc = forward_logits(m, m->work->h, n_out, e)) || (rc = judge(m, s, d, v, logprobs, e)))
        return rc;
    for (uint32_t i = 0; i <= v->n_right; i++)
        see_row(m, s, r.pos0 + i, m->work->logits + (size_t)i * m->config.vocab_size, &digest);
    keep(s, &r, 1 + v->n_right, m->work->h + (size_t)v->n_right * m->config.dim, &digest);
    return OK;
}

/* The step's guesses and what became of them, as one event. */
static void report_drafted(struct event_list *l, struct model_seq *s, const struct draft *d,
                           const struct verdict *v, uint64_t first,
                           struct token_logprobs *logprobs)
{
    struct engine_event *ev = add_event(l, s, ENGINE_TOKENS);
    ev->first_position = first;
    ev->n_ids = v->n_right + v->has_next;
    ev->n_guessed = d->n;
    ev->n_right = v->n_right;
    ev->logprobs = logprobs;
    memcpy(ev->ids, d->ids, v->n_right * sizeof(*ev->ids));
    if (v->has_next)
        ev->ids[v->n_right] = v->next;
}

static enum err step_drafted(struct event_list *l, struct model_seq *s, uint32_t n,
                             struct error *e)
{
    struct model *m = model_of_seq(s);
    struct queued *q = &s->work;
    uint64_t first = s->kv.n_tokens + 1;
    struct token_logprobs *logprobs = NULL;
    struct draft d;
    struct verdict v;
    enum err rc = want_logprobs(q, n + 1, &logprobs, e);
    if (!rc)
        rc = draft_propose(m, s, q->next, &q->sampling, n, &d, e);
    if (!rc)
        rc = check_drafts(s, &d, &v, logprobs, e);
    if (rc) {
        free(logprobs);
        return rc == ERR_CANCELLED ? OK : rc;
    }
    m->n_guessed += d.n;
    m->n_guessed_right += v.n_right;
    q->n_new += v.n_right + v.has_next;
    q->has_next = v.has_next;
    q->next = v.next;
    bool stops = q->stops;
    report_drafted(l, s, &d, &v, first, logprobs);
    if (v.has_next)
        return OK;
    if (d.ids[v.n_right - 1] == m->config.eos_id)
        finish(l, s, END_EOS);
    else
        finish(l, s, stops ? END_STOP : END_LENGTH);
    return OK;
}

static enum err step_generate(struct event_list *l, struct model_seq *s, struct error *e)
{
    struct queued *q = &s->work;
    if (!q->has_next)
        return sample_next(l, s, e);
    uint32_t id = q->next, eos = model_of_seq(s)->config.eos_id;
    uint32_t guesses = id == eos ? 0 : n_guesses(model_of_seq(s), q);
    bool stops = q->stops;
    if (guesses)
        return step_drafted(l, s, guesses, e);
    bool fresh = !q->resumes && q->n_new == 1;
    enum err rc = run_ids(s, &id, s->kv.n_tokens, 1, 0, fresh, e);
    if (rc)
        return rc;
    q->has_next = false;
    if (id == eos)
        finish(l, s, END_EOS);
    else if (stops)
        finish(l, s, END_STOP);
    else if (q->n_new == q->max_tokens)
        finish(l, s, END_LENGTH);
    else if (q->cancelled)
        finish(l, s, END_CANCELLED);
    else
        return sample_next(l, s, e);
    return OK;
}

/* ---- the step -----------------------------------------------------------------------------
 */

/* A chunk's worth of work, of which a step does only one. */
static bool is_chunked(const struct model_seq *s)
{
    return s->work.kind != WORK_GENERATE || s->work.done < s->work.n_ids;
}

static void step_seq(struct event_list *l, struct model_seq *s)
{
    struct error e = {0};
    enum err rc = OK;
    /* An id that was reported is computed before a cancelled run ends: at rest every token of
     * the tape is computed. */
    if (s->work.cancelled && !s->work.has_next) {
        if (s->ahead && (rc = step_input(l, s, &e))) /* what was computed is kept */
            fail(l, s, rc, &e);
        else if (s->work.kind != WORK_NONE)
            finish(l, s, END_CANCELLED);
        return;
    }
    switch (s->work.kind) {
    case WORK_INPUT:
        rc = step_input(l, s, &e);
        break;
    case WORK_REBUILD:
        rc = step_rebuild(l, s, &e);
        break;
    case WORK_GENERATE:
        rc = is_chunked(s) ? step_given(l, s, &e) : step_generate(l, s, &e);
        break;
    case WORK_NONE:
        break;
    }
    if (rc)
        fail(l, s, rc, &e);
}

bool model_has_work(const struct engine *engine)
{
    const struct model *m = (const struct model *)(const void *)engine;
    for (const struct model_seq *s = m->seqs; s; s = s->next)
        if (s->work.kind != WORK_NONE || ahead_is_due(s))
            return true;
    return false;
}

static struct model_seq *after(const struct model *m, const struct model_seq *s)
{
    return s->next ? s->next : m->seqs;
}

/* Whether a chunk is what this sequence waits for. */
static bool wants_chunk(const struct model_seq *s)
{
    bool queued = s->work.kind != WORK_NONE && is_chunked(s) && !s->work.cancelled;
    return queued || ahead_is_due(s);
}

/* The chunk of this step: the sequences that want one take turns, whoever else there is. */
static void step_chunk(struct model *m, struct event_list *l)
{
    struct model_seq *start = m->next_chunk ? m->next_chunk : m->seqs, *s = start;
    while (!wants_chunk(s))
        if ((s = after(m, s)) == start)
            return;
    m->next_chunk = after(m, s);
    if (ahead_is_due(s))
        ahead_step(s);
    else
        step_seq(l, s);
}

/* One token of every generating sequence, and the end of what was cancelled. Those that there
 * are no events for are first next time. */
static void step_tokens(struct model *m, struct event_list *l)
{
    struct model_seq *start = m->next_turn ? m->next_turn : m->seqs, *s = start;
    do {
        if (l->cap - l->n < EVENTS_PER_SEQ) {
            m->next_turn = s;
            return;
        }
        if (s->work.kind != WORK_NONE && !wants_chunk(s))
            step_seq(l, s);
        s = after(m, s);
    } while (s != start);
}

enum err model_step(struct engine *engine, struct engine_event *events, size_t cap,
                    size_t *n_events, struct error *e)
{
    struct model *m = model_of(engine);
    struct event_list l = {.events = events, .cap = cap};
    (void)e; /* what fails belongs to one sequence and is its event */
    if (m->seqs) {
        step_chunk(m, &l);
        step_tokens(m, &l);
    }
    *n_events = l.n;
    return OK;
}
