#include "engine/engine.h"

#include <assert.h>
#include <inttypes.h>

#include "engine/engine_impl.h"

void engine_free(struct engine *m)
{
    if (m)
        m->ops->free(m);
}

size_t engine_tiers(const struct engine *m, struct engine_tier out[ENGINE_MAX_TIERS])
{
    return m->ops->tiers ? m->ops->tiers(m, out) : 0;
}

void engine_graphs(const struct engine *m, struct engine_graphs *out)
{
    *out = (struct engine_graphs){.why = "nothing is computed here"};
    if (m->ops->graphs)
        m->ops->graphs(m, out);
}

const struct engine_info *engine_describe(const struct engine *m)
{
    return &m->info;
}

enum err seq_new(struct engine *m, void *user, struct seq **out, struct error *e)
{
    struct seq *s;
    enum err rc = m->ops->seq_new(m, &s, e);
    if (rc)
        return rc;
    s->m = m;
    s->user = user;
    *out = s;
    return OK;
}

void seq_free(struct seq *s)
{
    if (s)
        s->m->ops->seq_free(s);
}

uint64_t seq_position(const struct seq *s)
{
    return s->m->ops->seq_position(s);
}

static enum err check_ids(const struct seq *s, const char *what, const uint32_t *ids,
                          uint64_t n, struct error *e)
{
    for (uint64_t i = 0; i < n; i++)
        if (ids[i] >= s->m->info.vocab_size)
            return err_set(e, ERR_INVAL,
                           "%s: id %u at %" PRIu64 " of %" PRIu64 ", the vocabulary has %u",
                           what, ids[i], i, n, s->m->info.vocab_size);
    return OK;
}

enum err seq_input(struct seq *s, const uint32_t *ids, uint64_t n, enum prefill_mode mode,
                   struct error *e)
{
    if (!n)
        return err_set(e, ERR_INVAL, "input segment: no ids");
    enum err rc = check_ids(s, "input segment", ids, n, e);
    return rc ? rc : s->m->ops->seq_input(s, ids, n, mode, e);
}

enum err seq_generate(struct seq *s, const struct generate_options *g, struct error *e)
{
    if (!g->max_tokens)
        return err_set(e, ERR_INVAL, "generate: max_tokens is 0");
    if (g->end_with_given && !g->n_given)
        return err_set(e, ERR_INVAL, "generate: a forced run without ids");
    enum err rc = check_ids(s, "given ids", g->given, g->n_given, e);
    return rc ? rc : s->m->ops->seq_generate(s, g, e);
}

enum err seq_ahead(struct seq *s, const uint32_t *ids, uint64_t n, enum prefill_mode mode,
                   struct error *e)
{
    if (!s->m->ops->seq_ahead)
        return err_set(e, ERR_UNSUPPORTED, "ahead: not with engine %s", s->m->info.name);
    if (!n)
        return err_set(e, ERR_INVAL, "ahead: no ids");
    enum err rc = check_ids(s, "ahead", ids, n, e);
    return rc ? rc : s->m->ops->seq_ahead(s, ids, n, mode, e);
}

void seq_ahead_drop(struct seq *s)
{
    if (s->m->ops->seq_ahead_drop)
        s->m->ops->seq_ahead_drop(s);
}

uint64_t seq_ahead_tokens(const struct seq *s)
{
    return s->m->ops->seq_ahead_tokens ? s->m->ops->seq_ahead_tokens(s) : 0;
}

void seq_cancel(struct seq *s)
{
    s->m->ops->seq_cancel(s);
}

struct seq_digest seq_digest(const struct seq *s)
{
    return s->m->ops->seq_digest(s);
}

bool seq_segment_open(const struct seq *s, uint64_t *start, enum prefill_mode *mode)
{
    return s->m->ops->seq_segment_open(s, start, mode);
}

bool engine_has_work(const struct engine *m)
{
    return m->ops->has_work(m);
}

enum err engine_step(struct engine *m, struct engine_event *events, size_t cap,
                     size_t *n_events, struct error *e)
{
    assert(cap >= ENGINE_MIN_EVENTS);
    return m->ops->step(m, events, cap, n_events, e);
}

void engine_interrupt(struct engine *m)
{
    m->ops->interrupt(m);
}

enum err seq_export_rows(const struct seq *s, uint32_t plane, uint64_t row0, uint64_t n_rows,
                         void *dst, struct error *e)
{
    const struct state_layout *l = s->m->info.layout;
    if (plane >= l->n_planes)
        return err_set(e, ERR_INVAL, "export: plane %u of %u", plane, l->n_planes);
    uint64_t have = state_rows(&l->planes[plane], seq_position(s));
    if (row0 > have || n_rows > have - row0)
        return err_set(e, ERR_INVAL,
                       "export: rows %" PRIu64 "+%" PRIu64 " of plane %s, which has %" PRIu64,
                       row0, n_rows, l->planes[plane].name, have);
    return s->m->ops->seq_export_rows(s, plane, row0, n_rows, dst, e);
}

enum err seq_export_tip(const struct seq *s, void *dst, struct error *e)
{
    return s->m->ops->seq_export_tip(s, dst, e);
}

enum err seq_import_begin(struct seq *s, uint64_t n_tokens, struct state_regions *out,
                          struct error *e)
{
    if (seq_position(s))
        return err_set(e, ERR_CONFLICT, "import: the sequence has %" PRIu64 " tokens already",
                       seq_position(s));
    if (!n_tokens)
        return err_set(e, ERR_INVAL, "import: no tokens");
    if (n_tokens > s->m->info.max_tokens)
        return err_set(e, ERR_LIMIT, "import: %" PRIu64 " tokens, the context holds %" PRIu64,
                       n_tokens, s->m->info.max_tokens);
    return s->m->ops->seq_import_begin(s, n_tokens, out, e);
}

enum err seq_import_fetch(struct seq *s, const struct state_fetch *fetch, struct error *e)
{
    if (s->m->ops->seq_import_fetch)
        return s->m->ops->seq_import_fetch(s, fetch, e);
    fetch->close(fetch->ctx);
    return err_set(e, ERR_UNSUPPORTED, "rows that stay behind: not with this engine");
}

enum err seq_import_tip(struct seq *s, const void *tip, size_t n_bytes,
                        const struct seq_digest *digest, struct error *e)
{
    if (n_bytes != s->m->info.layout->tip_bytes)
        return err_set(e, ERR_FORMAT, "tip: %zu bytes, want %" PRIu64, n_bytes,
                       s->m->info.layout->tip_bytes);
    return s->m->ops->seq_import_tip(s, tip, n_bytes, digest, e);
}

static enum err check_tape(const struct seq *s, const struct tape_view *t, struct error *e)
{
    uint64_t at = 0;
    for (size_t i = 0; i < t->n_segments; i++) {
        if (t->segments[i].start != at)
            return err_set(e, ERR_INVAL,
                           "tape: segment %zu starts at %" PRIu64 ", want %" PRIu64, i,
                           t->segments[i].start, at);
        if (__builtin_add_overflow(at, t->segments[i].len, &at))
            return err_set(e, ERR_INVAL, "tape: segment %zu of %" PRIu64 " tokens", i,
                           t->segments[i].len);
    }
    if (at < t->n_ids)
        return err_set(e, ERR_INVAL, "tape: %" PRIu64 " ids, its segments end at %" PRIu64,
                       t->n_ids, at);
    return check_ids(s, "tape", t->ids, t->n_ids, e);
}

enum err seq_rebuild(struct seq *s, const struct tape_view *tape, enum resume_mode mode,
                     const struct seq_digest *digest, uint64_t *n_replayed, struct error *e)
{
    if (mode != RESUME_DEEP && mode != RESUME_REPLAY)
        return err_set(e, ERR_INVAL, "rebuild: mode %s, want deep or replay",
                       resume_mode_name(mode));
    enum err rc = check_tape(s, tape, e);
    return rc ? rc : s->m->ops->seq_rebuild(s, tape, mode, digest, n_replayed, e);
}
