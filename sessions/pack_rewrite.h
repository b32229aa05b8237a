/* Packs of which less than half is live: what lives moves to the pack that is being filled, and
 * the file goes. The bytes of an extent are the same there, tags and nonce included; only its
 * header's tag, which binds it to its place, is made anew. An extent that does not verify is
 * set aside and stays, and its pack with it. Store's thread. */
#ifndef SESSIONS_PACK_REWRITE_H
#define SESSIONS_PACK_REWRITE_H

#include "sessions/gc.h"
#include "sessions/pack.h"

#define PACK_REWRITE_BYTES ((uint64_t)8 << 20) /* a step moves less */

/* The first pack above `after` that is worth it: not open, some but less than half of it live.
 */
NODISCARD enum err pack_rewrite_next(struct store *st, int64_t after, int64_t *pack,
                                     bool *found, struct error *e);

/* Moves some MB of extents that begin at or behind *at; one state commit without a head.
 * *done: no more are there. */
NODISCARD enum err pack_rewrite_step(struct store *st, int64_t pack, uint64_t *at,
                                     struct gc_report *r, bool *done, struct error *e);

/* Goes on with the removal of a pack whose row says PACK_LEAVING: its file, then its row. */
NODISCARD enum err pack_remove(struct store *st, int64_t pack, struct error *e);
/* Removes the first pack above *after that is not open and has no row in the catalog; *after is
 * it then. *done: there is none. Only after a checkpoint. */
NODISCARD enum err pack_remove_empty(struct store *st, int64_t *after, struct gc_report *r,
                                     bool *done, struct error *e);

#endif
