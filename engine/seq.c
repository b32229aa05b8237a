#include "engine/seq.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "engine/ahead.h"
#include "engine/forward_engram.h"
#include "engine/sample.h"

/* ---- life ---------------------------------------------------------------------------------
 */

enum err model_seq_new(struct engine *engine, struct seq **out, struct error *e)
{
    struct model *m = model_of(engine);
    enum err rc = forward_check_weights(m, e);
    if (rc)
        return rc;
    struct model_seq *s = calloc(1, sizeof(*s));
    if (!s || !(s->last = m->k.alloc(&m->k, m->config.dim * sizeof(*s->last)))) {
        free(s);
        return err_set(e, ERR_NOMEM, "sequence");
    }
    rc = kv_init(&s->kv, &m->shape, &m->memory, m->kv_pages, e);
    if (rc) {
        m->k.free(&m->k, s->last);
        free(s);
        return rc;
    }
    for (size_t i = 0; i < CONFIG_MAX_NGRAM - 1; i++)
        s->history[i] = ENGRAM_DEAD;
    s->seq.m = engine;
    s->next = m->seqs;
    m->seqs = s;
    *out = &s->seq;
    return OK;
}

void seq_drop_work(struct model_seq *s)
{
    free(s->work.ids);
    stop_watch_free(s->work.stop);
    s->work = (struct queued){0};
}

void model_seq_free(struct seq *seq)
{
    struct model_seq *s = seq_of(seq);
    struct model *m = model_of_seq(s);
    struct model_seq **at = &m->seqs;
    while (*at != s)
        at = &(*at)->next;
    *at = s->next;
    if (m->next_turn == s)
        m->next_turn = s->next;
    if (m->next_chunk == s)
        m->next_chunk = s->next;
    seq_drop_work(s);
    model_seq_ahead_drop(seq);
    kv_fini(&s->kv);
    m->k.free(&m->k, s->last);
    free(s);
}

uint64_t model_seq_position(const struct seq *s)
{
    const struct model_seq *m = seq_of_const(s);
    return m->ahead ? m->ahead->base.kv.n_tokens : m->kv.n_tokens;
}

struct seq_digest model_seq_digest(const struct seq *s)
{
    const struct model_seq *m = seq_of_const(s);
    return m->ahead ? m->ahead->base.digest : m->digest;
}

bool model_seq_segment_open(const struct seq *seq, uint64_t *start, enum prefill_mode *mode)
{
    const struct model_seq *s = seq_of_const(seq);
    if (!s->open.is_open)
        return false;
    *start = s->open.start;
    *mode = s->open.mode;
    return true;
}

/* ---- queueing -----------------------------------------------------------------------------
 */

static enum err check_ready(const struct model_seq *s, const char *what, struct error *e)
{
    if (s->failed)
        return err_set(e, ERR_CONFLICT, "%s: the sequence has failed", what);
    if (s->work.kind != WORK_NONE)
        return err_set(e, ERR_CONFLICT, "%s: work is queued already", what);
    return OK;
}

static enum err copy_ids(struct queued *q, const uint32_t *ids, uint64_t n, struct error *e)
{
    if (n > SIZE_MAX / sizeof(*ids) || !(q->ids = malloc(n ? n * sizeof(*ids) : 1)))
        return err_set(e, ERR_NOMEM, "%" PRIu64 " ids", n);
    if (n)
        memcpy(q->ids, ids, n * sizeof(*ids));
    q->n_ids = n;
    return OK;
}

enum err model_seq_input(struct seq *seq, const uint32_t *ids, uint64_t n,
                         enum prefill_mode mode, struct error *e)
{
    struct model_seq *s = seq_of(seq);
    struct model *m = model_of_seq(s);
    uint64_t at = model_seq_position(seq);
    struct queued q = {.kind = WORK_INPUT, .segment = {true, at, n, mode}};
    enum err rc = check_ready(s, "input segment", e);
    if (rc)
        return rc;
    if (s->ahead && !ahead_fits(s->ahead, ids, n, mode))
        model_seq_ahead_drop(seq);
    if (s->importing)
        return err_set(e, ERR_CONFLICT, "input segment: an import is open");
    if (s->open.is_open) {
        uint64_t left = s->open.start + s->open.len - at;
        if (n != left || mode != s->open.mode)
            return err_set(e, ERR_INVAL,
                           "input segment: %" PRIu64
                           " ids in mode %s, what is open has %" PRIu64 " left in mode %s",
                           n, prefill_mode_name(mode), left, prefill_mode_name(s->open.mode));
        q.segment = s->open;
    }
    if (n > m->config.max_tokens - at)
        return err_set(e, ERR_LIMIT,
                       "%" PRIu64 " + %" PRIu64 " tokens, the context holds %" PRIu64, at, n,
                       m->config.max_tokens);
    if ((rc = kv_reserve(&s->kv, at + n, e)) || (rc = copy_ids(&q, ids, n, e)))
        return rc;
    /* What a clipped segment skips is known from its start. A class that is not clipped here
     * runs on every token, and its window reaches back to wherever it was clipped before. */
    memcpy(q.lo, s->kv.lo, sizeof(q.lo));
    resume_clip(&m->config, q.segment.start, q.segment.len, mode, q.lo);
    memcpy(q.from, q.lo, sizeof(q.from));
    s->work = q;
    if (!s->ahead)
        forward_engram_prefetch(m, forward_engram_history(m, s->history), q.ids, 0,
                                n < m->chunk_tokens ? n : m->chunk_tokens);
    return OK;
}

enum err seq_note_id(struct queued *q, uint32_t id, struct error *e)
{
    if (q->sampling.rules)
        constrain_feed(q->sampling.rules, &q->calls, id);
    return stop_watch_feed(q->stop, id, &q->stops, e);
}

/* What watches over the text of a run, up to the ids that are known. */
static enum err start_watching(struct queued *q, const struct generate_options *g,
                               const struct tokenizer *t, struct error *e)
{
    enum err rc = g->end_with_given ? OK : stop_watch_new(&q->stop, &q->sampling, t, e);
    for (uint64_t i = 0; i < g->n_before && !rc && !g->end_with_given; i++)
        rc = seq_note_id(q, g->before[i], e);
    for (uint64_t i = 0; i < g->n_given && !rc && !g->end_with_given; i++)
        rc = seq_note_id(q, g->given[i], e);
    return rc;
}

enum err model_seq_generate(struct seq *seq, const struct generate_options *g, struct error *e)
{
    struct model_seq *s = seq_of(seq);
    struct model *m = model_of_seq(s);
    enum err rc = check_ready(s, "generate", e);
    if (rc || (!g->end_with_given && (rc = sampling_check(&g->sampling, e))))
        return rc;
    model_seq_ahead_drop(seq); /* a run comes first */
    if (s->importing || s->open.is_open)
        return err_set(e, ERR_CONFLICT, "generate: %s",
                       s->importing ? "an import is open" : "an input segment is not complete");
    if (!g->n_given && !s->has_last)
        return err_set(e, ERR_CONFLICT, "generate: nothing was computed to sample from");
    if (g->n_given > g->max_tokens)
        return err_set(e, ERR_INVAL, "generate: %" PRIu64 " given ids, max_tokens %" PRIu64,
                       g->n_given, g->max_tokens);
    uint64_t room = m->config.max_tokens - s->kv.n_tokens;
    uint64_t want = g->max_tokens < room ? g->max_tokens : room;
    if (g->n_given > room || !room)
        return err_set(e, ERR_LIMIT,
                       "%" PRIu64 " + %" PRIu64 " tokens, the context holds %" PRIu64,
                       s->kv.n_tokens, g->n_given, m->config.max_tokens);
    struct queued q = {.kind = WORK_GENERATE,
                       .sampling = g->sampling,
                       .max_tokens = want,
                       .end_with_given = g->end_with_given,
                       .resumes = g->resumes};
    if ((rc = kv_reserve(&s->kv, s->kv.n_tokens + want, e)) ||
        (rc = copy_ids(&q, g->given, g->n_given, e)) ||
        (rc = start_watching(&q, g, m->tokenizer, e))) {
        free(q.ids);
        stop_watch_free(q.stop);
        return rc;
    }
    memcpy(q.lo, s->kv.lo, sizeof(q.lo));
    memcpy(q.from, q.lo, sizeof(q.from));
    s->work = q;
    return OK;
}

void model_seq_cancel(struct seq *seq)
{
    struct model_seq *s = seq_of(seq);
    if (s->work.kind != WORK_NONE)
        s->work.cancelled = true;
}

/* ---- planes in and out --------------------------------------------------------------------
 */

enum err model_seq_export_rows(const struct seq *seq, uint32_t plane, uint64_t row0,
                               uint64_t n_rows, void *dst, struct error *e)
{
    const struct model_seq *s = seq_of_const(seq);
    return kv_copy_rows(&s->kv, plane, row0, n_rows, dst, e);
}

enum err model_seq_import_begin(struct seq *seq, uint64_t n_tokens, struct state_regions *out,
                                struct error *e)
{
    struct model_seq *s = seq_of(seq);
    enum err rc = check_ready(s, "import", e);
    if (!rc && s->ahead)
        return err_set(e, ERR_CONFLICT, "import: something is computed ahead");
    if (rc || (rc = forward_check_weights(model_of_seq(s), e)) ||
        (rc = kv_reserve(&s->kv, n_tokens, e)))
        return rc;
    if (!(rc = kv_import_begin(&s->kv, n_tokens, out, e)))
        s->importing = n_tokens;
    return rc;
}

enum err model_seq_import_fetch(struct seq *seq, const struct state_fetch *fetch,
                                struct error *e)
{
    struct model_seq *s = seq_of(seq);
    enum err rc = OK;
    if (!s->kv.pages)
        rc = err_set(e, ERR_UNSUPPORTED, "rows that stay behind: no budget for KV rows");
    else if (!s->importing || s->work.kind != WORK_NONE || s->kv.fetch.rows)
        rc = err_set(e, ERR_CONFLICT, "rows that stay behind: %s",
                     !s->importing ? "no import is open" : "it is too late");
    else if (fetch->n_tokens > s->importing)
        rc = err_set(e, ERR_INVAL, "rows of %" PRIu64 " tokens, the import has %" PRIu64,
                     fetch->n_tokens, s->importing);
    if (rc) {
        fetch->close(fetch->ctx);
        return rc;
    }
    if ((rc = kv_leave_behind(&s->kv, fetch, e)))
        s->failed = true; /* and closes it with the sequence */
    return rc;
}

enum err model_seq_rebuild(struct seq *seq, const struct tape_view *tape, enum resume_mode mode,
                           const struct seq_digest *digest, uint64_t *n_replayed,
                           struct error *e)
{
    struct model_seq *s = seq_of(seq);
    struct model *m = model_of_seq(s);
    struct queued q = {.kind = WORK_REBUILD};
    enum err rc = check_ready(s, "rebuild", e);
    if (rc)
        return rc;
    if (!s->importing)
        return err_set(e, ERR_CONFLICT, "rebuild: no import is open");
    if ((rc = kv_make_room(&s->kv, s->importing, 0, e)) ||
        (rc = kv_land(&s->kv, s->importing, e)) ||
        (rc = resume_plan(&m->config, tape, s->importing, mode, &q.plan, e)) ||
        (rc = copy_ids(&q, tape->ids + q.plan.start, q.plan.n_tokens - q.plan.start, e)))
        return rc;
    uint32_t n_back = CONFIG_MAX_NGRAM - 1;
    for (uint32_t i = 0; i < n_back; i++) { /* the true ids before the start */
        uint64_t back = n_back - i;
        q.history[i] = back <= q.plan.start ? tape->ids[q.plan.start - back] : ENGRAM_DEAD;
    }
    memcpy(q.lo, q.plan.lo, sizeof(q.lo));
    memcpy(q.from, q.lo, sizeof(q.from));
    *n_replayed = q.n_ids;
    /* Replayed rows do not add to it. The rows of a clipped segment are those of its tail. */
    bool has_rows = !q.plan.open.is_open || q.plan.lo[LAYERS_ABOVE] < q.plan.n_tokens;
    s->digest = digest ? *digest : (struct seq_digest){.is_partial = has_rows};
    s->work = q;
    return OK;
}
