/* A tape as a whole: ids, segments and replay marks, as far as they are sound. */
#include <stdlib.h>
#include <string.h>

#include "sessions/schema.h"
#include "sessions/session_internal.h"
#include "sessions/strand.h"
#include "sessions/tape.h"
#include "sessions/tape_internal.h"

enum err tape_read_ids(struct store *st, const char *session, uint64_t from, uint64_t to,
                       uint32_t *out, struct error *e)
{
    AUTO(strand_path) struct strand_path p = {0};
    enum err rc = tape_path_of(st, session, &p, e);
    if (!rc && (from > to || to > p.length))
        return err_set(e, ERR_INVAL, "tape positions %llu to %llu: the tape has %llu",
                       (unsigned long long)from, (unsigned long long)to,
                       (unsigned long long)p.length);
    if (!rc)
        rc = strand_read_ids(st, &p, from, to, out, NULL, e);
    return session_note(st, session, rc);
}

void tape_fini(struct tape *t)
{
    free(t->ids);
    free(t->segments);
    free(t->tape_segments);
    free(t->marks);
    memset(t, 0, sizeof *t);
}

/* Grows an array that holds n elements by one. */
static enum err grow(void **array, size_t n, size_t size, struct error *e)
{
    if (n % 64)
        return OK;
    void *grown = realloc(*array, (n + 64) * size);
    if (!grown)
        return err_set(e, ERR_NOMEM, "tape: out of memory");
    *array = grown;
    return OK;
}

static enum err add_segment(struct tape *t, size_t *n, const struct strand_part *part,
                            struct query *q, bool last_part, struct error *e)
{
    struct tape_segment s;
    enum err rc = tape_take_segment(q, &s, e);
    if (rc || (rc = grow((void **)&t->tape_segments, *n, sizeof s, e)))
        return rc;
    uint64_t want =
        *n ? t->tape_segments[*n - 1].seg.start + t->tape_segments[*n - 1].seg.len : 0;
    if (s.seg.start != want)
        return err_set(e, ERR_CORRUPT, "database: segment at %llu is missing",
                       (unsigned long long)want);
    uint64_t room = part->to - s.seg.start;
    if (s.open || s.seg.len > room) {
        /* Still being written, or cut where a fork left. */
        s.open = s.open && last_part;
        s.has_digest = false;
        s.seg.len = room;
    }
    if (s.seg.len || s.open)
        t->tape_segments[(*n)++] = s;
    return OK;
}

static enum err load_segments(struct store *st, const struct strand_path *p, struct tape *t,
                              size_t *n, struct error *e)
{
    for (size_t i = 0; i < p->n_parts; i++) {
        const struct strand_part *part = &p->parts[i];
        AUTO(query) struct query q = {0};
        /* <=: an open segment may begin at the tape's end. */
        bool last = i + 1 == p->n_parts;
        enum err rc = query_init(&q, &st->db,
                                 "SELECT " SEGMENT_COLS ", tag FROM segments"
                                 " WHERE strand = ? AND start < ? ORDER BY start",
                                 e);
        if (rc)
            return rc;
        query_int(&q, part->id);
        query_uint(&q, last ? part->to + 1 : part->to);
        for (bool row = true; row;) {
            if ((rc = query_step(&q, &row, e)))
                return rc;
            if (row && (rc = add_segment(t, n, part, &q, last, e)))
                return rc;
        }
    }
    return OK;
}

/* Marks of one part. All of the strand's are read: one whose place was damaged must show. */
static enum err part_marks(struct store *st, const struct strand_part *part, bool last,
                           struct tape *t, size_t *n, struct error *e)
{
    AUTO(query) struct query q = {0};
    enum err rc = query_init(
        &q, &st->db, "SELECT " MARK_COLS ", tag FROM marks WHERE strand = ? ORDER BY at", e);
    if (rc)
        return rc;
    query_int(&q, part->id);
    uint64_t seen = 0;
    for (bool row = true; row; seen += row) {
        if ((rc = query_step(&q, &row, e)) || !row)
            break;
        struct replay_mark m = {row_uint(&q, 1), row_uint(&q, 2)};
        if ((rc = row_check(&q, "marks", e)) ||
            (rc = grow((void **)&t->marks, *n, sizeof *t->marks, e)))
            return rc;
        /* One where a fork leaves belongs to what comes behind. */
        if (m.at < part->to || (last && m.at == part->to))
            t->marks[(*n)++] = m;
    }
    if (!rc && seen != part->n_marks)
        rc = err_set(
            e, ERR_CORRUPT, "database: strand %lld has %llu replay marks instead of %llu",
            (long long)part->id, (unsigned long long)seen, (unsigned long long)part->n_marks);
    return rc;
}

static enum err load_marks(struct store *st, const struct strand_path *p, struct tape *t,
                           size_t *n, struct error *e)
{
    enum err rc = OK;
    for (size_t i = 0; i < p->n_parts && !rc; i++)
        rc = part_marks(st, &p->parts[i], i + 1 == p->n_parts, t, n, e);
    return rc;
}

/* After damage: segments end where the ids end. */
static void cut_segments(struct tape *t, size_t *n, uint64_t length)
{
    while (*n && t->tape_segments[*n - 1].seg.start >= length)
        (*n)--;
    if (!*n)
        return;
    struct tape_segment *last = &t->tape_segments[*n - 1];
    if (last->seg.start + last->seg.len > length) {
        last->seg.len = length - last->seg.start;
        last->open = last->has_digest = false;
    }
}

/* Fills the view: as far as ids and segments both go. */
static enum err make_view(struct tape *t, uint64_t n_ids, size_t n_segments, size_t n_marks,
                          struct error *e)
{
    uint64_t end = 0;
    if (n_segments) {
        const struct segment *last = &t->tape_segments[n_segments - 1].seg;
        end = last->start + last->len;
    }
    if (end < n_ids) {
        /* A commit leaves no token outside a segment: one is missing. */
        t->damaged = true;
        n_ids = end;
    }
    if (t->damaged)
        cut_segments(t, &n_segments, n_ids);
    while (n_marks && t->marks[n_marks - 1].at > n_ids)
        n_marks--;
    t->segments = malloc((n_segments + 1) * sizeof *t->segments);
    if (!t->segments)
        return err_set(e, ERR_NOMEM, "tape: out of memory");
    for (size_t i = 0; i < n_segments; i++)
        t->segments[i] = t->tape_segments[i].seg;
    t->view = (struct tape_view){t->ids, n_ids, t->segments, n_segments, t->marks, n_marks};
    return OK;
}

enum err tape_load_path(struct store *st, const struct strand_path *p, bool with_ids,
                        struct tape *out, struct error *e)
{
    AUTO(tape) struct tape t = {.strand = p->parts[p->n_parts - 1].id};
    uint64_t n_ids = p->length;
    enum err rc = OK;
    if (with_ids) {
        t.ids = malloc((size_t)(p->length + 1) * sizeof *t.ids);
        if (!t.ids)
            return err_set(e, ERR_NOMEM, "tape of %llu tokens: out of memory",
                           (unsigned long long)p->length);
        rc = strand_read_ids(st, p, 0, p->length, t.ids, &n_ids, e);
    }
    size_t n_segments = 0, n_marks = 0;
    t.damaged = rc == ERR_CORRUPT;
    if (rc && !t.damaged)
        return rc;
    rc = load_segments(st, p, &t, &n_segments, e);
    t.damaged |= rc == ERR_CORRUPT;
    if (rc && rc != ERR_CORRUPT)
        return rc;
    rc = load_marks(st, p, &t, &n_marks, e);
    /* A mark changes what the rows behind it are: without it nothing behind can be told. */
    if (rc == ERR_CORRUPT) {
        t.damaged = true;
        n_segments = 0;
    } else if (rc) {
        return rc;
    }
    if ((rc = make_view(&t, n_ids, n_segments, n_marks, e)))
        return rc;
    *out = t;
    memset(&t, 0, sizeof t);
    return OK;
}

enum err tape_load(struct store *st, const char *session, struct tape *out, struct error *e)
{
    AUTO(strand_path) struct strand_path p = {0};
    struct tape t;
    enum err rc = tape_path_of(st, session, &p, e);
    if (!rc)
        rc = tape_load_path(st, &p, true, &t, e);
    if (rc)
        return session_note(st, session, rc);
    if (t.damaged)
        (void)session_note(st, session, ERR_CORRUPT);
    *out = t;
    return OK;
}
