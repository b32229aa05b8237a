/* Segments and replay marks of a tape commit: segments tile the tape, and only the last one is
 * open. */
#include "sessions/tape_work.h"

#include "sessions/schema.h"
#include "sessions/tape_internal.h"

static enum err segment_write(struct tape_work *w, const struct tape_segment *s,
                              struct error *e)
{
    AUTO(query) struct query q = {0};
    enum err rc = query_init(&q, &w->st->db,
                             "INSERT OR REPLACE INTO segments(" SEGMENT_COLS ", tag)"
                             " VALUES(?,?,?,?,?,?,?,?,?)",
                             e);
    if (rc)
        return rc;
    query_tagged(&q, "segments");
    query_int(&q, w->strand.id);
    query_uint(&q, s->seg.start);
    query_uint(&q, s->open ? 0 : s->seg.len);
    query_int(&q, s->seg.kind);
    query_int(&q, s->seg.mode);
    query_int(&q, s->open);
    query_blob(&q, s->has_digest ? s->digest : NULL, sizeof s->digest);
    query_uint(&q, s->n_rows);
    return query_put(&q, e);
}

static enum err segment_drop(struct tape_work *w, uint64_t start, struct error *e)
{
    AUTO(query) struct query q = {0};
    enum err rc =
        query_init(&q, &w->st->db, "DELETE FROM segments WHERE strand = ? AND start = ?", e);
    if (rc)
        return rc;
    query_int(&q, w->strand.id);
    query_uint(&q, start);
    return query_run(&q, e);
}

/* The segment of this strand that begins at start; start UINT64_MAX: its last one. */
static enum err segment_find(struct tape_work *w, uint64_t start, bool *found,
                             struct tape_segment *out, struct error *e)
{
    AUTO(query) struct query q = {0};
    enum err rc = query_init(&q, &w->st->db,
                             "SELECT " SEGMENT_COLS ", tag FROM segments WHERE strand = ?1"
                             " AND (start = ?2 OR ?2 < 0) ORDER BY start DESC LIMIT 1",
                             e);
    if (rc)
        return rc;
    query_int(&q, w->strand.id);
    query_int(&q, start > INT64_MAX ? -1 : (int64_t)start);
    if ((rc = query_step(&q, found, e)) || !*found)
        return rc;
    return tape_take_segment(&q, out, e);
}

/* Changes a segment that is there: an open one may end, and a digest may be added. */
static enum err segment_update(struct tape_work *w, const struct tape_segment *old,
                               const struct tape_segment *s, struct error *e)
{
    unsigned long long start = s->seg.start;
    if (old->seg.kind != s->seg.kind || old->seg.mode != s->seg.mode)
        return err_set(e, ERR_INVAL, "segment at %llu: kind and mode cannot change", start);
    if (!old->open && (s->open || s->seg.len != old->seg.len))
        return err_set(e, ERR_INVAL, "segment at %llu has ended with %llu tokens", start,
                       (unsigned long long)old->seg.len);
    if (!s->open && s->seg.len == 0)
        return segment_drop(w, s->seg.start, e);
    return segment_write(w, s, e);
}

static enum err segment_upsert(struct tape_work *w, const struct tape_segment *s,
                               struct error *e)
{
    struct tape_segment old;
    bool found, has_last;
    unsigned long long start = s->seg.start;
    if (s->seg.start > w->strand.length ||
        (!s->open && s->seg.len > w->strand.length - s->seg.start))
        return err_set(e, ERR_INVAL, "segment at %llu: goes past the tape's end", start);
    enum err rc = segment_find(w, s->seg.start, &found, &old, e);
    if (rc)
        return rc;
    if (found)
        return segment_update(w, &old, s, e);
    /* A fork computes again what it shares; the digest is its parent's to keep. */
    if (!s->open && s->has_digest && s->seg.len &&
        s->seg.start + s->seg.len <= w->strand.parent_pos)
        return OK;
    if ((rc = segment_find(w, UINT64_MAX, &has_last, &old, e)))
        return rc;
    if (has_last && old.open)
        return err_set(e, ERR_INVAL, "segment at %llu: the one at %llu is still open", start,
                       (unsigned long long)old.seg.start);
    uint64_t end = has_last ? old.seg.start + old.seg.len : w->strand.parent_pos;
    if (s->seg.start != end)
        return err_set(e, ERR_INVAL, "segment at %llu: the next one begins at %llu", start,
                       (unsigned long long)end);
    if (!s->open && s->seg.len == 0)
        return OK;
    return segment_write(w, s, e);
}

enum err tape_put_segments(struct tape_work *w, struct error *e)
{
    const struct tape_commit *c = w->c;
    enum err rc = OK;
    for (size_t i = 0; i < c->n_segments && !rc; i++)
        rc = segment_upsert(w, &c->segments[i], e);
    if (rc || (!c->n_ids && !c->n_segments))
        return rc;
    struct tape_segment last;
    bool found;
    if ((rc = segment_find(w, UINT64_MAX, &found, &last, e)))
        return rc;
    uint64_t end = found ? last.seg.start + last.seg.len : w->strand.parent_pos;
    if (!(found && last.open) && end != w->strand.length)
        return err_set(e, ERR_INVAL, "tape has %llu tokens, its segments end at %llu",
                       (unsigned long long)w->strand.length, (unsigned long long)end);
    return OK;
}

enum err tape_put_mark(struct tape_work *w, const struct replay_mark *m, struct error *e)
{
    if (m->at > w->strand.length || m->at < w->strand.parent_pos || m->from >= m->at)
        return err_set(e, ERR_INVAL, "replay mark at %llu from %llu: tape is %llu to %llu",
                       (unsigned long long)m->at, (unsigned long long)m->from,
                       (unsigned long long)w->strand.parent_pos,
                       (unsigned long long)w->strand.length);
    AUTO(query) struct query q = {0};
    enum err rc = query_init(
        &q, &w->st->db, "INSERT OR REPLACE INTO marks(" MARK_COLS ", tag) VALUES(?,?,?,?)", e);
    if (rc)
        return rc;
    query_tagged(&q, "marks");
    query_int(&q, w->strand.id);
    query_uint(&q, m->at);
    query_uint(&q, m->from);
    rc = query_put(&q, e);
    return rc ? rc : strand_count_marks(w->st, w->strand.id, &w->strand.n_marks, e);
}
