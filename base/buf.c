#include "base/buf.h"

#include <assert.h>
#include <stdarg.h>
#include <string.h>

void buf_init(struct buf *b, size_t max_bytes)
{
    *b = (struct buf)BUF_INIT(max_bytes);
}

void buf_fini(struct buf *b)
{
    free(b->data);
    b->data = NULL;
    b->len = b->cap = 0;
}

void buf_clear(struct buf *b)
{
    b->len = 0;
    if (b->data)
        b->data[0] = 0;
}

enum err buf_reserve(struct buf *b, size_t n, struct error *e)
{
    if (n > b->max - b->len)
        return err_set(e, ERR_LIMIT, "buffer: %zu bytes and %zu more, at most %zu", b->len, n,
                       b->max);
    size_t need = b->len + n;
    if (b->data && need <= b->cap)
        return OK;
    size_t cap = b->cap < 64 ? 64 : b->cap;
    while (cap < need)
        cap = cap > b->max / 2 ? b->max : cap * 2;
    if (cap > b->max)
        cap = b->max;
    uint8_t *data = realloc(b->data, cap + 1);
    if (!data)
        return err_set(e, ERR_NOMEM, "buffer: no memory for %zu bytes", cap);
    b->data = data;
    b->cap = cap;
    b->data[b->len] = 0;
    return OK;
}

enum err buf_add(struct buf *b, const void *src, size_t n, struct error *e)
{
    enum err rc = buf_reserve(b, n, e);
    if (rc)
        return rc;
    if (n)
        memcpy(b->data + b->len, src, n);
    b->len += n;
    b->data[b->len] = 0;
    return OK;
}

enum err buf_add_str(struct buf *b, const char *s, struct error *e)
{
    return buf_add(b, s, strlen(s), e);
}

enum err buf_add_byte(struct buf *b, uint8_t byte, struct error *e)
{
    return buf_add(b, &byte, 1, e);
}

enum err buf_add_u32le(struct buf *b, uint32_t v, struct error *e)
{
    uint8_t le[4];
    for (unsigned i = 0; i < sizeof le; i++)
        le[i] = (uint8_t)(v >> (8 * i));
    return buf_add(b, le, sizeof le, e);
}

enum err buf_add_u64le(struct buf *b, uint64_t v, struct error *e)
{
    uint8_t le[8];
    for (unsigned i = 0; i < sizeof le; i++)
        le[i] = (uint8_t)(v >> (8 * i));
    return buf_add(b, le, sizeof le, e);
}

enum err buf_printf(struct buf *b, struct error *e, const char *fmt, ...)
{
    va_list ap, again;
    va_start(ap, fmt);
    va_copy(again, ap);
    int n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    enum err rc =
        n < 0 ? err_set(e, ERR_INVAL, "buffer: bad format") : buf_reserve(b, (size_t)n, e);
    if (!rc) {
        vsnprintf((char *)b->data + b->len, (size_t)n + 1, fmt, again);
        b->len += (size_t)n;
    }
    va_end(again);
    return rc;
}

void buf_drop(struct buf *b, size_t n)
{
    assert(n <= b->len);
    if (!n)
        return;
    memmove(b->data, b->data + n, b->len - n + 1);
    b->len -= n;
}

const char *buf_str(const struct buf *b)
{
    return b->data ? (const char *)b->data : "";
}

void *buf_take(struct buf *b, size_t *len_out)
{
    if (len_out)
        *len_out = b->len;
    void *data = b->data;
    b->data = NULL;
    b->len = b->cap = 0;
    return data;
}
