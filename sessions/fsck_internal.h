/* What fsck.c, fsck_rows.c and fsck_state.c share: one run, its cursor, and how it says what it
 * has found. */
#ifndef SESSIONS_FSCK_INTERNAL_H
#define SESSIONS_FSCK_INTERNAL_H

#include "sessions/forest.h"
#include "sessions/fsck.h"

struct fsck {
    struct store *st;
    bool repair;
    fsck_fn *fn;
    void *user;
    size_t part; /* phase, then table or kind in it */
    size_t table;
    int64_t at; /* behind this key */
    struct forest forest;
    struct fsck_report report;
};

/* Says one thing. `repaired` counts only if this run repairs. */
void fsck_say(struct fsck *f, const char *kind, const char *action, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

/* Each does some of its phase; *done: that was all of it. */
typedef enum err fsck_phase(struct fsck *f, bool *done, struct error *e);
fsck_phase fsck_database, fsck_rows, fsck_sessions, fsck_orphans, fsck_search; /* fsck_rows.c */
fsck_phase fsck_graph, fsck_heads, fsck_extents, fsck_packs; /* fsck_state.c */

#endif
