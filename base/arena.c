#include "base/arena.h"

#include <stdbool.h>
#include <string.h>

#define ALIGN_BYTES 16u
#define FIRST_CHUNK_BYTES 4096u
#define LAST_CHUNK_BYTES (1u << 20)

struct arena_chunk {
    struct arena_chunk *older;
    size_t used, cap; /* bytes of data */
    _Alignas(ALIGN_BYTES) uint8_t data[];
};

void arena_init(struct arena *a, size_t max_bytes)
{
    *a = (struct arena)ARENA_INIT(max_bytes);
}

void arena_fini(struct arena *a)
{
    for (struct arena_chunk *c = a->chunk, *older; c; c = older) {
        older = c->older;
        free(c);
    }
    a->chunk = NULL;
    a->used_bytes = 0;
}

/* Puts a zeroed chunk for at least n bytes in front; no larger than what may still be used. */
static bool add_chunk(struct arena *a, size_t n)
{
    size_t left = a->max_bytes - a->used_bytes;
    size_t cap = FIRST_CHUNK_BYTES;
    if (a->chunk && a->chunk->cap >= cap)
        cap = a->chunk->cap >= LAST_CHUNK_BYTES / 2 ? LAST_CHUNK_BYTES : a->chunk->cap * 2;
    if (cap > left)
        cap = left;
    if (cap < n)
        cap = n;
    struct arena_chunk *c = calloc(1, sizeof *c + cap);
    if (!c)
        return false;
    c->cap = cap;
    c->older = a->chunk;
    a->chunk = c;
    return true;
}

void *arena_alloc(struct arena *a, size_t n_bytes, struct error *e)
{
    size_t left = a->max_bytes - a->used_bytes;
    size_t n = n_bytes ? n_bytes : 1;
    if (n > left || (n = (n + ALIGN_BYTES - 1) & ~(size_t)(ALIGN_BYTES - 1)) > left) {
        err_set(e, ERR_LIMIT, "arena: %zu bytes and %zu more, at most %zu", a->used_bytes,
                n_bytes, a->max_bytes);
        return NULL;
    }
    if ((!a->chunk || n > a->chunk->cap - a->chunk->used) && !add_chunk(a, n)) {
        err_set(e, ERR_NOMEM, "arena: no memory for %zu bytes", n_bytes);
        return NULL;
    }
    void *p = a->chunk->data + a->chunk->used;
    a->chunk->used += n;
    a->used_bytes += n;
    return p;
}

void *arena_array(struct arena *a, size_t n, size_t object_bytes, struct error *e)
{
    size_t bytes;
    if (__builtin_mul_overflow(n, object_bytes, &bytes)) {
        err_set(e, ERR_LIMIT, "arena: %zu objects of %zu bytes, at most %zu bytes", n,
                object_bytes, a->max_bytes);
        return NULL;
    }
    return arena_alloc(a, bytes, e);
}

char *arena_text(struct arena *a, const void *bytes, size_t n, struct error *e)
{
    if (n == SIZE_MAX) {
        err_set(e, ERR_LIMIT, "arena: %zu bytes, at most %zu", n, a->max_bytes);
        return NULL;
    }
    char *s = arena_alloc(a, n + 1, e);
    if (s && n)
        memcpy(s, bytes, n);
    return s;
}
