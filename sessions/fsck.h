/* Looks at everything in the store: every row against its tag, every session through the same
 * doors as its readers, what hangs on what, every byte of every extent.
 *
 * Without `repair` nothing is changed but what reading always does (a damaged tape chunk is
 * made again from the ids beside saved state, and a session that cannot be read is marked).
 * With it: damaged extents are set aside, so that their tokens are computed again; rows that
 * cannot be trusted and hold no content go; heads mean what is there; counters are counted
 * again; rows of sessions that are gone go, too. Text and tokens that are lost stay lost: the
 * session is served up to there.
 *
 * In steps, as gc is; between two of them anything may happen to the store. Store's thread. */
#ifndef SESSIONS_FSCK_H
#define SESSIONS_FSCK_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

struct store;

#define FSCK_TEXT_BYTES 200

struct fsck_finding {
    const char *kind;           /* "database", "row", "session", "orphan", "head", "extent",
                                   "pack", "index" */
    char what[FSCK_TEXT_BYTES]; /* which, and what is wrong */
    const char *action;         /* what was done, or would be with repair; "none" */
    bool repaired;
};
/* s is borrowed; must not call the store. */
typedef void fsck_fn(void *user, const struct fsck_finding *f);

struct fsck_report {
    uint64_t rows, sessions, tokens, extents, bytes, packs; /* looked at */
    uint64_t unreferenced; /* extents that no session needs: no damage, gc takes them */
    uint64_t found, repaired;
};

struct fsck;
/* fn is called for each finding. ERR_NOMEM. */
NODISCARD enum err fsck_begin(struct store *st, bool repair, fsck_fn *fn, void *user,
                              struct fsck **out, struct error *e);
/* One step. *done: that was the last. Damage is a finding, no error. ERR_IO, ERR_NOMEM: the run
 * is over. */
NODISCARD enum err fsck_step(struct fsck *f, bool *done, struct error *e);
/* Counts up to here; borrowed from the run. */
const struct fsck_report *fsck_so_far(const struct fsck *f);
void fsck_end(struct fsck *f); /* NULL is fine */

/* All of it. */
NODISCARD enum err fsck_run(struct store *st, bool repair, fsck_fn *fn, void *user,
                            struct fsck_report *out, struct error *e);

#endif
