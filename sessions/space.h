/* How much room model state takes, and may take.
 *
 * The quota counts what the file system really holds for packs (st_blocks), so that punched
 * holes are room again; where holes cannot be punched, what the catalog names. It is a ceiling
 * of writes: a state commit that does not fit makes room for itself first (evict.h), or is
 * refused with ERR_LIMIT when what is pinned or needed leaves none; the session goes on
 * without. Above SPACE_HIGH percent a run of gc is due that evicts down to SPACE_LOW.
 * Tape and items are not counted and never evicted. Store's thread. */
#ifndef SESSIONS_SPACE_H
#define SESSIONS_SPACE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "sessions/session.h"

struct store;

#define SPACE_HIGH 90u
#define SPACE_LOW 80u

struct space {
    uint64_t quota; /* bytes; 0: none */
    uint64_t used;  /* by packs, on the device */
    uint64_t live;  /* bytes of extents that the catalog names */
};

/* Asks database and file system. ERR_IO, ERR_CORRUPT. */
NODISCARD enum err space_read(struct store *st, struct space *out, struct error *e);
/* Above the high watermark, as of the last space_read or state commit. */
bool space_is_short(const struct store *st);

/* What a session's state takes. */
struct space_session {
    char id[SESSION_ID_CAP], name[SESSION_NAME_CAP];
    bool pinned;
    double weight;       /* uses, faded to now (hold.h) */
    uint64_t n_tokens;   /* of its tape that state on disk covers */
    uint64_t held_bytes; /* of extents it needs */
    uint64_t own_bytes;  /* of those that no other session needs */
};
/* Calls fn for each session that ever had state, in no order. fn returns false to stop, and
 * must not call the store. */
typedef bool space_session_fn(void *user, const struct space_session *s);
NODISCARD enum err space_sessions(struct store *st, space_session_fn *fn, void *user,
                                  struct error *e);

#endif
