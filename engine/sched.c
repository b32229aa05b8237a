/* engine_step(): one token of every generating sequence, or with drafts several, and a chunk of
 * input of another one, all in one pass through the layers. */
#include <assert.h>

#include "engine/ahead.h"
#include "engine/chunk.h"
#include "engine/decode.h"
#include "engine/sampler.h"

/* Most sequences of one pass. */
#define MAX_PARTS DRAFT_MAX_ASKS

static_assert(LOGIT_ROWS <= K_SAMPLE_ROWS, "all rows of logits are drawn from at once");
static_assert(1 + MAX_PARTS <= BATCH_MAX_RUNS, "a list has room for all runs of a step");

/* Most tokens of a step in which somebody generates: its tokens come one a step. Those that
 * decode come first; a chunk gets the rest, but at least this part of it, so that a prompt gets
 * on however many decode. */
#define SHARED_TOKENS 256
#define CHUNK_LEAST 4 /* a fourth */

struct step {
    struct event_list events;
    /* The chunk has place 0, whether there is one or not: it is the first run of the batch. */
    struct part parts[1 + MAX_PARTS];
    struct run runs[1 + MAX_PARTS];
    uint32_t n_decode; /* from place 1 on */
};

/* ---- the pass -----------------------------------------------------------------------------
 */

/* What became of n runs that decode, as many at once as there is room for logits. */
static void end_decode(struct model *m, struct event_list *l, struct part *parts,
                       const struct batch *batch, const struct run *runs, uint32_t n)
{
    struct error e = {0};
    for (uint32_t i = 0, next; i < n; i = next) {
        uint32_t n_rows = 0, at = 0, none;
        bool crosses = false;
        sampler_begin(m->sampler);
        for (next = i; next < n && n_rows + runs[next].n <= LOGIT_ROWS; next++) {
            n_rows += runs[next].n;
            crosses |= decode_add_rows(m, &parts[next], &runs[next]);
        }
        const float *h = forward_rows(m, batch, &runs[i], &none);
        enum err rc = decode_logits(m, h, n_rows, crosses, &e);
        for (uint32_t k = i; k < next; at += runs[k++].n)
            if (rc)
                part_fail(l, &parts[k], rc, &e);
            else
                decode_end(l, &parts[k], &runs[k], at, h + (size_t)at * m->config.dim);
    }
}

/* One pass for n parts. What fails in company says not whose fault it was: each is tried alone
 * then, and only those fail that fail alone. An interrupted chunk is given up for this step. */
static void serve(struct model *m, struct event_list *l, struct part *parts, struct run *runs,
                  uint32_t n)
{
    struct error e = {0};
    struct batch batch = batch_of(runs, n);
    enum err rc = n ? forward_batch(m, &batch, &e) : OK;
    if (rc == ERR_CANCELLED) {
        part_drop(&parts[0]);
        serve(m, l, parts + 1, runs + 1, n - 1);
    } else if (rc && n == 1) {
        part_fail(l, parts, rc, &e);
    } else if (rc) {
        for (uint32_t i = 0; i < n; i++)
            serve(m, l, parts + i, runs + i, 1);
    } else if (n) {
        uint32_t first = parts[0].is_chunk ? 1 : 0;
        if (first)
            chunk_end(l, &parts[0], &batch, &runs[0]);
        end_decode(m, l, parts + first, &batch, runs + first, n - first);
    }
}

/* ---- who takes part -----------------------------------------------------------------------
 */

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

/* The sequences that want a chunk take turns, whoever else there is. NULL: none does. */
static struct model_seq *whose_chunk(struct model *m)
{
    struct model_seq *start = m->next_chunk ? m->next_chunk : m->seqs, *s = start;
    while (!chunk_is_due(s))
        if ((s = after(m, s)) == start)
            return NULL;
    m->next_chunk = after(m, s);
    return s;
}

/* Puts the chunk of s at place 0 of the step. False: it has none to run. */
static bool add_chunk(struct step *st, struct model_seq *s, uint32_t most)
{
    struct error e = {0};
    struct part *p = &st->parts[0];
    *p = (struct part){.s = s};
    enum err rc = chunk_begin(p, most, &st->runs[0], &e);
    if (rc)
        part_fail(&st->events, p, rc, &e);
    else if (!st->runs[0].n)
        chunk_end(&st->events, p, NULL, &st->runs[0]);
    return !rc && st->runs[0].n;
}

static bool somebody_generates(const struct model *m, const struct model_seq *but)
{
    for (const struct model_seq *s = m->seqs; s; s = s->next)
        if (s != but && s->work.kind == WORK_GENERATE)
            return true;
    return false;
}

static uint32_t chunk_size(const struct model *m, const struct step *st,
                           const struct model_seq *chunk)
{
    uint32_t most = m->chunk_tokens, rows = 0;
    if (most > SHARED_TOKENS && somebody_generates(m, chunk))
        most = SHARED_TOKENS;
    for (uint32_t i = 1; i <= st->n_decode; i++)
        rows += st->runs[i].n;
    uint32_t least = (most + CHUNK_LEAST - 1) / CHUNK_LEAST;
    most = most > rows + least ? most - rows : least;
    return m->chunk_limit && m->chunk_limit < most ? m->chunk_limit : most;
}

static uint32_t larger(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

/* A chunk alone; or all that decode, with their guesses, beside the least of a chunk or what
 * was held ahead, which is not cut; or the blocks that the draft layers guess in. */
uint32_t model_step_rows(const struct model *m)
{
    const struct config *c = &m->config;
    uint32_t least = (m->chunk_tokens + CHUNK_LEAST - 1) / CHUNK_LEAST;
    uint32_t beside = MAX_PARTS * (1 + m->draft_tokens) + larger(least, c->window);
    uint32_t guesses = m->draft_tokens ? MAX_PARTS * c->draft_block : 0;
    return larger(m->chunk_tokens, larger(beside, guesses));
}

/* The queued work was cancelled. An id that was reported is computed before: at rest every
 * token of the tape is. What was computed ahead of it is kept. */
static void end_cancelled(struct model *m, struct step *st, struct model_seq *s)
{
    if (!s->ahead)
        event_done(&st->events, s, END_CANCELLED);
    else if (add_chunk(st, s, m->chunk_tokens))
        serve(m, &st->events, st->parts, st->runs, 1);
}

/* The next token of a run: at once, or as a part of the step. */
static void add_decode(struct step *st, struct model_seq *s)
{
    struct error e = {0};
    struct part *p = &st->parts[1 + st->n_decode];
    *p = (struct part){.s = s};
    if (s->work.has_next) {
        st->n_decode++;
        return;
    }
    enum err rc = decode_first(&st->events, s, &e);
    if (rc)
        part_fail(&st->events, p, rc, &e);
}

/* Every generating sequence, and the end of what was cancelled. Those that there are no events
 * for are first next time. `chunk`: whose events are spoken for. */
static void add_others(struct model *m, struct step *st, const struct model_seq *chunk)
{
    struct model_seq *start = m->next_turn ? m->next_turn : m->seqs, *s = start;
    do {
        uint32_t n_parts = st->n_decode + (chunk ? 1 : 0);
        size_t n_left = st->events.cap - st->events.n - (size_t)n_parts * EVENTS_PER_PART;
        if (n_left < EVENTS_PER_PART || st->n_decode == MAX_PARTS) {
            m->next_turn = s;
            return;
        }
        if (s->work.kind == WORK_NONE || chunk_is_due(s))
            ;
        else if (s->work.cancelled && !s->work.has_next)
            end_cancelled(m, st, s);
        else
            add_decode(st, s);
        s = after(m, s);
    } while (s != start);
}

/* The draft layers failed for this part. A guess may be missing: what is wrong with a weight or
 * the disk will show in the pass itself where it matters there. A device that is gone and
 * memory that is used up end the run as they do anywhere. */
static void end_proposal(struct event_list *l, struct part *p, uint32_t n_asked, enum err rc,
                         const struct error *e)
{
    if (rc == ERR_GPU || rc == ERR_NOMEM) {
        part_fail(l, p, rc, e);
        return;
    }
    p->draft = (struct draft){.n_failed = n_asked}; /* some may stand there already */
    p->draft_error = *e;
    p->draft_error.code = rc;
}

/* Guesses of those that decode, in one pass through the draft layers; what fails in company is
 * tried alone. */
static void propose(struct model *m, struct step *st)
{
    struct draft_ask asks[MAX_PARTS];
    struct part *whose[MAX_PARTS];
    struct error e = {0};
    uint32_t n = 0;
    for (uint32_t i = 1; i <= st->n_decode; i++)
        if (decode_ask(&st->parts[i], &asks[n]))
            whose[n++] = &st->parts[i];
    if (!n || !draft_propose_all(m, asks, n, &e))
        return;
    for (uint32_t i = 0; i < n; i++) {
        enum err rc = draft_propose_all(m, &asks[i], 1, &e);
        if (rc)
            end_proposal(&st->events, whose[i], asks[i].n, rc, &e);
    }
}

/* The runs of those that decode, without those that cannot. */
static void begin_decode(struct model *m, struct step *st)
{
    struct error e = {0};
    uint32_t n = st->n_decode, k = 1;
    propose(m, st);
    for (uint32_t i = 1; i <= n; i++) {
        struct part *p = &st->parts[k];
        *p = st->parts[i];
        if (p->s->failed)
            continue;
        enum err rc = decode_begin(p, &st->runs[k], &e);
        if (rc)
            part_fail(&st->events, p, rc, &e);
        else
            k++;
    }
    st->n_decode = k - 1;
}

enum err model_step(struct engine *engine, struct engine_event *events, size_t cap,
                    size_t *n_events, struct error *e)
{
    struct model *m = model_of(engine);
    struct step st = {.events = {.events = events, .cap = cap}};
    (void)e; /* what fails belongs to one sequence and is its event */
    if (m->seqs) {
        struct model_seq *chunk = whose_chunk(m);
        add_others(m, &st, chunk);
        begin_decode(m, &st);
        bool has_chunk = chunk && add_chunk(&st, chunk, chunk_size(m, &st, chunk));
        serve(m, &st.events, st.parts + !has_chunk, st.runs + !has_chunk,
              st.n_decode + has_chunk);
    }
    *n_events = st.events.n;
    return OK;
}
