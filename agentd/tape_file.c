#include "agentd/tape_file.h"

#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/fs.h"

#define MAGIC "AGTAPE01"
#define SEGMENT_BYTES (7 * 8 + 32)
#define MARK_BYTES (2 * 8)
#define MAX_BYTES ((size_t)12 << 30)

/* ---- writing ---------------------------------------------------------------------- */

static enum err put(struct buf *b, const uint64_t *v, size_t n, struct error *e)
{
    enum err rc = OK;

    for (size_t i = 0; i < n && !rc; i++)
        rc = buf_add_u64le(b, v[i], e);
    return rc;
}

static enum err put_segment(struct buf *b, const struct tape_segment *s, struct error *e)
{
    const uint64_t v[] = {s->seg.start, s->seg.len,    s->seg.kind, s->seg.mode,
                          s->open,      s->has_digest, s->n_rows};
    enum err rc = put(b, v, sizeof(v) / sizeof(v[0]), e);

    return rc ? rc : buf_add(b, s->digest, sizeof(s->digest), e);
}

enum err tape_file_write(int fd, const struct tape *t, struct error *e)
{
    AUTO(buf) struct buf b = BUF_INIT(MAX_BYTES);
    const struct tape_view *v = &t->view;
    const uint64_t counts[] = {v->n_ids, v->n_segments, v->n_marks};
    enum err rc;

    if ((rc = buf_add(&b, MAGIC, sizeof(MAGIC) - 1, e)) || (rc = put(&b, counts, 3, e)))
        return rc;
    for (size_t i = 0; i < v->n_segments; i++)
        if ((rc = put_segment(&b, &t->tape_segments[i], e)))
            return rc;
    for (size_t i = 0; i < v->n_marks; i++) {
        const uint64_t mark[] = {v->marks[i].at, v->marks[i].from};
        if ((rc = put(&b, mark, 2, e)))
            return rc;
    }
    if ((rc = fs_write(fd, "tape", b.data, b.len, e)))
        return rc;
    return v->n_ids ? fs_write(fd, "tape", v->ids, v->n_ids * sizeof(*v->ids), e) : OK;
}

/* ---- reading ---------------------------------------------------------------------- */

struct cursor {
    const uint8_t *p;
    size_t left;
};

static uint64_t take(struct cursor *c)
{
    uint64_t v = 0;

    for (int i = 7; i >= 0; i--)
        v = v << 8 | c->p[i];
    c->p += 8;
    c->left -= 8;
    return v;
}

static void take_segment(struct cursor *c, struct tape_segment *s)
{
    s->seg.start = take(c);
    s->seg.len = take(c);
    s->seg.kind = take(c) ? SEGMENT_GENERATED : SEGMENT_INPUT;
    s->seg.mode = (enum prefill_mode)take(c);
    s->open = take(c);
    s->has_digest = take(c);
    s->n_rows = take(c);
    memcpy(s->digest, c->p, sizeof(s->digest));
    c->p += sizeof(s->digest);
    c->left -= sizeof(s->digest);
}

static enum err fill(struct tape *t, struct cursor *c, const uint64_t n[3], struct error *e)
{
    t->ids = calloc(n[0] + 1, sizeof(*t->ids));
    t->segments = calloc(n[1] + 1, sizeof(*t->segments));
    t->tape_segments = calloc(n[1] + 1, sizeof(*t->tape_segments));
    t->marks = calloc(n[2] + 1, sizeof(*t->marks));
    if (!t->ids || !t->segments || !t->tape_segments || !t->marks)
        return err_set(e, ERR_NOMEM, "tape");
    for (size_t i = 0; i < n[1]; i++) {
        take_segment(c, &t->tape_segments[i]);
        t->segments[i] = t->tape_segments[i].seg;
    }
    for (size_t i = 0; i < n[2]; i++) {
        t->marks[i].at = take(c);
        t->marks[i].from = take(c);
    }
    memcpy(t->ids, c->p, n[0] * sizeof(*t->ids));
    t->view = (struct tape_view){.ids = t->ids,
                                 .n_ids = n[0],
                                 .segments = t->segments,
                                 .n_segments = n[1],
                                 .marks = t->marks,
                                 .n_marks = n[2]};
    return OK;
}

enum err tape_file_read(int fd, struct tape *out, struct error *e)
{
    AUTO(buf) struct buf b = BUF_INIT(MAX_BYTES);
    uint64_t n[3];
    enum err rc = fs_read_fd(fd, "tape", &b, e);

    if (rc)
        return rc;
    struct cursor c = {b.data, b.len};
    if (c.left < 32 || memcmp(c.p, MAGIC, 8) != 0)
        return err_set(e, ERR_FORMAT, "not a tape: %zu bytes", b.len);
    c.p += 8;
    c.left -= 8;
    for (int i = 0; i < 3; i++)
        n[i] = take(&c);
    if (n[0] > c.left / 4 || n[1] > c.left / SEGMENT_BYTES || n[2] > c.left / MARK_BYTES ||
        n[0] * 4 + n[1] * SEGMENT_BYTES + n[2] * MARK_BYTES != c.left)
        return err_set(e, ERR_FORMAT, "tape of %zu bytes does not hold %llu ids", b.len,
                       (unsigned long long)n[0]);
    return fill(out, &c, n, e);
}
