/* What saving, finding and restoring state share. */
#ifndef SESSIONS_HEAD_INTERNAL_H
#define SESSIONS_HEAD_INTERNAL_H

#include "sessions/catalog.h"
#include "sessions/head.h"
#include "sessions/session_internal.h"

/* An extent on disk: its header, read and verified against what the catalog says. */
struct head_extent {
    struct extent x;
    uint8_t *header; /* owned; the chunk tags are in it */
};
void head_extent_fini(struct head_extent *h);

/* Where an extent of the catalog must be, and what it must be. */
struct head_want_extent {
    struct pack_place place;
    enum extent_kind kind;
    uint64_t first, last;
    const uint8_t *digest; /* NULL: not compared */
};

/* Checks a header against the catalog. ERR_CORRUPT: it is another extent's. */
NODISCARD enum err head_extent_check(const struct extent *x, const struct head_want_extent *w,
                                     struct error *e);
/* Reads and checks a header. ERR_CORRUPT, ERR_FORMAT, ERR_NOTFOUND or ERR_IO: unusable. */
NODISCARD enum err head_extent_open(struct store *st, const struct head_want_extent *w,
                                    struct head_extent *out, struct error *e);
/* Reads a region whole, with its padding, into st->scratch, and verifies it. */
NODISCARD enum err head_extent_read(struct store *st, const struct head_want_extent *w,
                                    const struct head_extent *h, const struct extent_region *r,
                                    struct error *e);

static inline struct head_want_extent head_want_of(const struct chain_piece *p)
{
    return (struct head_want_extent){p->x.place,
                                     p->kind == PIECE_BLOCK ? EXTENT_BLOCK : EXTENT_TAIL,
                                     p->first, p->last, p->x.digest};
}

/* True for what makes an extent unusable without being the store's own failure. */
static inline bool head_is_damage(enum err rc)
{
    return rc == ERR_CORRUPT || rc == ERR_FORMAT || rc == ERR_NOTFOUND || rc == ERR_IO;
}

/* Sets the extent of a piece aside. */
NODISCARD enum err head_set_aside(struct store *st, const struct chain_piece *p,
                                  struct error *e);

/* The region of a plane in a block or tail; NULL if the extent has none. */
const struct extent_region *head_region(const struct extent *x, const struct plane_spec *p);

/* Gives session `to` the heads of session `from`, cut to the first `position` tokens. By
 * reference: rows only. In a transaction. */
NODISCARD enum err head_fork(struct store *st, int64_t from, int64_t to, uint64_t position,
                             struct error *e);

/* Layouts the store can keep: ERR_UNSUPPORTED without a fingerprint, ERR_INVAL when blocks
 * would cut a row. */
NODISCARD enum err head_check_layout(const struct store *st, const struct state_layout *l,
                                     struct error *e);

#endif
