/* What a state commit asks about room. */
#ifndef SESSIONS_SPACE_INTERNAL_H
#define SESSIONS_SPACE_INTERNAL_H

#include "sessions/evict.h"
#include "sessions/space.h"

/* Room for `bytes` of an extent that is going to be written, out of `all` that the same commit
 * is still going to write at most: if the quota is reached, room for all of it is made at once,
 * or the commit refused before anything is evicted. ERR_LIMIT. */
NODISCARD enum err space_admit(struct store *st, uint64_t bytes, uint64_t all,
                               const struct evict_keep *keep, struct error *e);

#endif
