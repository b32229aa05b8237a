#include "engine/prompt.h"

#include <string.h>

void prompt_fini(struct prompt *p)
{
    buf_fini(&p->text);
    free(p->marks);
    p->marks = NULL;
    p->n_marks = p->cap_marks = 0;
}

enum err prompt_add(struct prompt *p, const void *bytes, size_t n, struct error *e)
{
    return buf_add(&p->text, bytes, n, e);
}

enum err prompt_add_str(struct prompt *p, const char *s, struct error *e)
{
    return buf_add(&p->text, s, strlen(s), e);
}

enum err prompt_add_id(struct prompt *p, uint32_t id, struct error *e)
{
    if (id == TOKEN_NONE)
        return err_set(e, ERR_INVAL,
                       "the tokenizer lacks a special token that the prompt needs");
    if (p->n_marks == p->text.max)
        return err_set(e, ERR_LIMIT, "prompt: at most %zu special tokens", p->text.max);
    if (p->n_marks == p->cap_marks) {
        size_t cap = p->cap_marks ? 2 * p->cap_marks : 32;
        struct prompt_mark *marks = reallocarray(p->marks, cap, sizeof *marks);
        if (!marks)
            return err_set(e, ERR_NOMEM, "prompt: no memory for %zu special tokens", cap);
        p->marks = marks;
        p->cap_marks = cap;
    }
    p->marks[p->n_marks++] = (struct prompt_mark){p->text.len, id};
    return OK;
}

/* The plain bytes in front of mark i; behind the last one for i == n_marks. */
static const uint8_t *piece_at(const struct prompt *p, size_t i, size_t *n)
{
    size_t from = i ? p->marks[i - 1].at : 0;
    size_t to = i < p->n_marks ? p->marks[i].at : p->text.len;
    *n = to - from;
    return (const uint8_t *)buf_str(&p->text) + from;
}

enum err prompt_ids(const struct prompt *p, const struct tokenizer *t, struct ids *out,
                    struct error *e)
{
    size_t before = out->n;
    enum err rc = OK;
    for (size_t i = 0; i <= p->n_marks && !rc; i++) {
        size_t n;
        const uint8_t *plain = piece_at(p, i, &n);
        rc = tokenizer_encode(t, plain, n, out, e);
        if (!rc && i < p->n_marks)
            rc = ids_add(out, p->marks[i].id, e);
    }
    if (rc)
        out->n = before;
    return rc;
}

enum err prompt_ids_open(const struct prompt *p, const struct tokenizer *t,
                         struct prompt_place *place, struct ids *out, struct error *e)
{
    struct prompt_place now = *place;
    size_t before = out->n;
    enum err rc = OK;
    const uint8_t *text = (const uint8_t *)buf_str(&p->text);
    for (; now.mark < p->n_marks && !rc; now.mark++) {
        const struct prompt_mark *m = &p->marks[now.mark];
        rc = tokenizer_encode(t, text + now.at, m->at - now.at, out, e);
        if (!rc)
            rc = ids_add(out, m->id, e);
        now.at = m->at;
    }
    size_t used = 0;
    if (!rc)
        rc = tokenizer_encode_open(t, text + now.at, p->text.len - now.at, out, &used, e);
    if (rc) {
        out->n = before;
        return rc;
    }
    now.at += used;
    *place = now;
    return OK;
}

enum err prompt_text(const struct prompt *p, const struct tokenizer *t, struct buf *out,
                     struct error *e)
{
    size_t before = out->len;
    enum err rc = OK;
    for (size_t i = 0; i <= p->n_marks && !rc; i++) {
        size_t n;
        const uint8_t *plain = piece_at(p, i, &n);
        rc = buf_add(out, plain, n, e);
        if (!rc && i < p->n_marks)
            rc = tokenizer_decode(t, &p->marks[i].id, 1, out, e);
    }
    if (rc)
        out->len = before;
    return rc;
}
