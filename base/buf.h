/* A growing byte buffer that cannot be made without a maximum.
 *
 * Invariants: len <= cap <= max; data[len] is always readable and is 0 once anything was
 * appended, so that text can be passed on as a C string. A failed call leaves the contents as
 * they were. Memory is the buffer's; buf_take() moves it out. Owned by one thread at a time.
 *
 *     AUTO(buf) struct buf b = BUF_INIT(1 << 20);
 *     if ((rc = buf_printf(&b, e, "%s\n", line)))
 *         return rc;
 */
#ifndef BASE_BUF_H
#define BASE_BUF_H

#include <stdint.h>

#include "base/auto.h"
#include "base/err.h"

#ifdef __cplusplus
extern "C" {
#endif

struct buf {
    uint8_t *data; /* NULL until the first append */
    size_t len;    /* bytes in use */
    size_t cap;    /* bytes allocated, without the 0 behind */
    size_t max;    /* most bytes this buffer may ever hold */
};

#define BUF_INIT(max_bytes)                                                                    \
    {                                                                                          \
        NULL, 0, 0, (max_bytes)                                                                \
    }

void buf_init(struct buf *b, size_t max_bytes);
/* Frees the memory; the buffer is empty and usable again with the same maximum. */
void buf_fini(struct buf *b);
/* Forgets the contents, keeps the memory. */
void buf_clear(struct buf *b);

/* Makes room for n more bytes. ERR_LIMIT past max, ERR_NOMEM. */
NODISCARD enum err buf_reserve(struct buf *b, size_t n, struct error *e);
/* Appends n bytes. Errors of buf_reserve. src may not point into b. */
NODISCARD enum err buf_add(struct buf *b, const void *src, size_t n, struct error *e);
NODISCARD enum err buf_add_str(struct buf *b, const char *s, struct error *e);
NODISCARD enum err buf_add_byte(struct buf *b, uint8_t byte, struct error *e);
NODISCARD enum err buf_add_u32le(struct buf *b, uint32_t v, struct error *e);
NODISCARD enum err buf_add_u64le(struct buf *b, uint64_t v, struct error *e);
NODISCARD enum err buf_printf(struct buf *b, struct error *e, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* Drops the first n bytes (n <= len). */
void buf_drop(struct buf *b, size_t n);
/* The contents as a C string; "" when empty. Valid until the next change. */
const char *buf_str(const struct buf *b);
/* Moves the memory out to the caller, who frees it; len_out may be NULL. NULL when empty. */
void *buf_take(struct buf *b, size_t *len_out);

#ifdef __cplusplus
}
#endif
#endif
