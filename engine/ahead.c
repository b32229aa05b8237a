#include "engine/ahead.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "engine/forward_engram.h"

/* ---- putting aside ------------------------------------------------------------------------
 */

static void swap_base(struct model_seq *s, struct seq_base *b)
{
    struct seq_base mine = {.last = s->last, .has_last = s->has_last, .digest = s->digest};
    memcpy(mine.history, s->history, sizeof(mine.history));
    memcpy(s->history, b->history, sizeof(s->history));
    s->last = b->last;
    s->has_last = b->has_last;
    s->digest = b->digest;
    b->last = mine.last;
    b->has_last = mine.has_last;
    b->digest = mine.digest;
    memcpy(b->history, mine.history, sizeof(b->history));
    kv_swap(&s->kv, &b->kv);
}

static enum err put_aside(struct model_seq *s, struct seq_base *b, struct error *e)
{
    struct model *m = model_of_seq(s);
    size_t n_bytes = m->config.dim * sizeof(*s->last);
    float *last = m->k.alloc(&m->k, n_bytes);
    if (!last)
        return err_set(e, ERR_NOMEM, "a second last row");
    enum err rc = kv_put_aside(&s->kv, &b->kv, e);
    if (rc) {
        m->k.free(&m->k, last);
        return rc;
    }
    m->k.copy(&m->k, last, s->last, n_bytes);
    memcpy(b->history, s->history, sizeof(b->history));
    b->last = s->last;
    b->has_last = s->has_last;
    b->digest = s->digest;
    s->last = last;
    return OK;
}

/* Forgets what is put aside: what was ahead is the sequence now. */
static void forget_base(struct model_seq *s)
{
    struct model *m = model_of_seq(s);
    struct ahead *a = s->ahead;
    s->ahead = NULL;
    s->kv.n_firm = UINT64_MAX;
    kv_rest_fini(&m->k, &a->base.kv);
    m->k.free(&m->k, a->base.last);
    held_fini(m, &a->held);
    free(a->ids);
    free(a);
}

void ahead_view(const struct model_seq *s, struct model_seq *view)
{
    *view = *s;
    if (!s->ahead)
        return;
    struct seq_base b = s->ahead->base;
    view->ahead = NULL;
    swap_base(view, &b);
}

/* ---- the calls of engine.h ----------------------------------------------------------------
 */

static enum err open_ahead(struct model_seq *s, enum prefill_mode mode, struct error *e)
{
    struct model *m = model_of_seq(s);
    struct ahead *a = calloc(1, sizeof(*a));
    enum err rc = OK;
    if (!a)
        return err_set(e, ERR_NOMEM, "what is ahead");
    a->mode = mode;
    if ((mode == PREFILL_CED && (rc = held_init(m, &a->held, e))) ||
        (rc = put_aside(s, &a->base, e))) {
        held_fini(m, &a->held);
        free(a);
        return rc;
    }
    s->ahead = a;
    return OK;
}

static enum err check_state(const struct model_seq *s, enum prefill_mode mode, struct error *e)
{
    const struct config *c = &model_of_seq(s)->config;
    if (mode == PREFILL_CED_REPORT ||
        (mode == PREFILL_CED && c->last_source + 1 >= c->n_layers))
        return err_set(e, ERR_UNSUPPORTED, "ahead: not in mode %s with this model",
                       prefill_mode_name(mode));
    if (s->failed || s->importing || s->open.is_open || s->work.kind != WORK_NONE)
        return err_set(e, ERR_CONFLICT, "ahead: %s",
                       s->failed         ? "the sequence has failed"
                       : s->importing    ? "an import is open"
                       : s->open.is_open ? "an input segment is not complete"
                                         : "work is queued");
    if (s->ahead && (s->ahead->stopped || s->ahead->mode != mode))
        return err_set(e, ERR_CONFLICT, "ahead: %s",
                       s->ahead->stopped ? "it has failed" : "another mode than before");
    return OK;
}

static enum err append(struct ahead *a, const uint32_t *ids, uint64_t n, struct error *e)
{
    if (a->n_ids + n > a->cap) {
        uint64_t cap = 2 * (a->n_ids + n);
        uint32_t *more = reallocarray(a->ids, cap, sizeof(*ids));
        if (!more)
            return err_set(e, ERR_NOMEM, "%" PRIu64 " ids ahead", cap);
        a->ids = more;
        a->cap = cap;
    }
    memcpy(a->ids + a->n_ids, ids, n * sizeof(*ids));
    a->n_ids += n;
    return OK;
}

enum err model_seq_ahead(struct seq *seq, const uint32_t *ids, uint64_t n,
                         enum prefill_mode mode, struct error *e)
{
    struct model_seq *s = seq_of(seq);
    uint64_t max = model_of_seq(s)->config.max_tokens;
    enum err rc = check_state(s, mode, e);
    if (rc)
        return rc;
    uint64_t end = model_seq_position(seq) + (s->ahead ? s->ahead->n_ids : 0);
    if (n > max - end)
        return err_set(e, ERR_LIMIT,
                       "%" PRIu64 " + %" PRIu64 " tokens, the context holds %" PRIu64, end, n,
                       max);
    if ((rc = kv_reserve(&s->kv, end + n, e)) || (!s->ahead && (rc = open_ahead(s, mode, e))))
        return rc;
    return append(s->ahead, ids, n, e);
}

void model_seq_ahead_drop(struct seq *seq)
{
    struct model_seq *s = seq_of(seq);
    if (!s->ahead)
        return;
    swap_base(s, &s->ahead->base);
    forget_base(s);
}

uint64_t model_seq_ahead_tokens(const struct seq *s)
{
    const struct ahead *a = seq_of_const(s)->ahead;
    return a ? a->done : 0;
}

bool ahead_fits(const struct ahead *a, const uint32_t *ids, uint64_t n, enum prefill_mode mode)
{
    return a->mode == mode && a->done <= n &&
           (!a->done || memcmp(a->ids, ids, a->done * sizeof(*ids)) == 0);
}

/* ---- computing ----------------------------------------------------------------------------
 */

bool ahead_is_due(const struct model_seq *s)
{
    const struct ahead *a = s->ahead;
    uint32_t chunk = model_of_seq(s)->chunk_tokens;
    uint32_t least = chunk < AHEAD_MIN_TOKENS ? chunk : AHEAD_MIN_TOKENS;
    return a && !a->stopped && s->work.kind == WORK_NONE && a->n_ids - a->done >= least;
}

struct run ahead_run(struct model_seq *s, uint32_t most)
{
    struct ahead *a = s->ahead;
    uint64_t left = a->n_ids - a->done;
    struct run r = {.seq = &s->seq,
                    .kv = &s->kv,
                    .ids = a->ids + a->done,
                    .history = forward_engram_history(model_of_seq(s), s->history),
                    .pos0 = s->kv.n_tokens,
                    .n = left < most ? (uint32_t)left : most,
                    .is_chunk = true};
    memcpy(r.lo, s->kv.lo, sizeof(r.lo));
    memcpy(r.from, r.lo, sizeof(r.from));
    if (a->mode == PREFILL_CED)
        r.from[LAYERS_ABOVE] = UINT64_MAX;
    return r;
}

void ahead_ran(struct model_seq *s, const struct run *r)
{
    if (s->ahead->mode == PREFILL_CED)
        held_keep(model_of_seq(s), r, &s->ahead->held);
    s->ahead->done += r->n;
}

/* The ids in front of the segment's token `at`, oldest first. */
static void history_before(const struct ahead *a, uint64_t at, uint32_t *out)
{
    const uint32_t n = CONFIG_MAX_NGRAM - 1;
    for (uint32_t i = 0; i < n; i++) {
        uint64_t back = n - i;
        out[i] = back <= at ? a->ids[at - back] : a->base.history[i + at];
    }
}

struct run ahead_run_above(struct model_seq *s, uint32_t history[CONFIG_MAX_NGRAM - 1])
{
    const struct model *m = model_of_seq(s);
    const struct ahead *a = s->ahead;
    const struct queued *q = &s->work;
    uint64_t start = q->segment.start, end = start + a->done;
    uint64_t first = q->from[LAYERS_ABOVE] > start ? q->from[LAYERS_ABOVE] : start;
    if (!a->done || a->mode != PREFILL_CED)
        return (struct run){0};
    if (first >= end) { /* the tail is still to come */
        memcpy(s->kv.lo, q->lo, sizeof(q->lo));
        s->digest = (struct seq_digest){0};
        return (struct run){0};
    }
    assert(end - first <= m->config.window);
    history_before(a, first - start, history);
    struct run r = {.seq = &s->seq,
                    .kv = &s->kv,
                    .ids = a->ids + (first - start),
                    .history = forward_engram_history(m, history),
                    .pos0 = first,
                    .n = (uint32_t)(end - first),
                    .from = {UINT64_MAX, UINT64_MAX, first},
                    .held = &a->held};
    memcpy(r.lo, q->lo, sizeof(r.lo));
    return r;
}

void ahead_close(struct model_seq *s)
{
    s->work.done = s->ahead->done;
    forget_base(s);
}
