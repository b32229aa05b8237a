/* A bump arena: many small objects with one life, freed together, never past a cap.
 *
 * Memory comes in chunks that double up to 1 MiB; an object never moves. Zeroed, aligned to 16
 * bytes. Owned by one thread at a time.
 *
 *     AUTO(arena) struct arena a = ARENA_INIT(8 << 20);
 *     struct node *n = arena_alloc(&a, sizeof *n, e);
 *     if (!n)
 *         return e->code;
 */
#ifndef BASE_ARENA_H
#define BASE_ARENA_H

#include <stdint.h>

#include "base/auto.h"
#include "base/err.h"

struct arena_chunk;

struct arena {
    struct arena_chunk *chunk; /* the newest; older ones hang behind it */
    size_t used_bytes;         /* handed out, with alignment; <= max_bytes */
    size_t max_bytes;
};

#define ARENA_INIT(max_bytes)                                                                  \
    {                                                                                          \
        NULL, 0, (max_bytes)                                                                   \
    }

void arena_init(struct arena *a, size_t max_bytes);
/* Frees every object; the arena is empty and usable again with the same maximum. */
void arena_fini(struct arena *a);

/* n_bytes of zeroed memory (n_bytes 0 gives a unique pointer). NULL on failure, with e filled:
 * ERR_LIMIT past the maximum, ERR_NOMEM. */
NODISCARD void *arena_alloc(struct arena *a, size_t n_bytes, struct error *e);
/* As arena_alloc for an array of n objects; the product may not overflow (ERR_LIMIT). */
NODISCARD void *arena_array(struct arena *a, size_t n, size_t object_bytes, struct error *e);
/* A copy of n bytes with a 0 behind. */
NODISCARD char *arena_text(struct arena *a, const void *bytes, size_t n, struct error *e);

#endif
