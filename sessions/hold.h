/* What a session's state is worth when space is short: how much it is used, and whether a user
 * has pinned it.
 *
 * A use is a state commit, or a restore that changed the session's head; each counts 1 and
 * fades with a half-life of a day. The row is written in the transaction that is under way
 * anyway: counting costs no commit of its own. A row that is missing or damaged means unused
 * and not pinned. Store's thread. */
#ifndef SESSIONS_HOLD_H
#define SESSIONS_HOLD_H

#include "sessions/store_internal.h"

#define HOLD_HALF_LIFE_MS (24ull * 60 * 60 * 1000)

struct hold {
    bool pinned;      /* eviction leaves all of it alone */
    double uses;      /* as of used_ms */
    uint64_t used_ms; /* Unix time of the last use; 0: never */
};

/* session is the row id. ERR_IO, ERR_CORRUPT: the database. */
NODISCARD enum err hold_read(struct store *st, int64_t session, struct hold *out,
                             struct error *e);
/* One use more, now. In a transaction. */
NODISCARD enum err hold_touch(struct store *st, int64_t session, struct error *e);
/* What the uses are worth at `now_ms`; a clock that went back changes nothing. */
double hold_weight(const struct hold *h, uint64_t now_ms);

/* Pins the state of a session (id), or lets it go. Durable on return. ERR_NOTFOUND,
 * ERR_CORRUPT. */
NODISCARD enum err hold_pin(struct store *st, const char *session, bool pinned,
                            struct error *e);

#endif
