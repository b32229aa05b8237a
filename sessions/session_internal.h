/* The row of a session (session_row.c), as the other files of this folder use it. */
#ifndef SESSIONS_SESSION_INTERNAL_H
#define SESSIONS_SESSION_INTERNAL_H

#include "sessions/db.h"
#include "sessions/schema.h"
#include "sessions/session.h"
#include "sessions/store_internal.h"

struct session_row {
    int64_t num;
    char id[SESSION_ID_CAP];
    char name[SESSION_NAME_CAP];
    int64_t space, strand;
    char parent[SESSION_ID_CAP];
    uint64_t forked_at;
    char origin[SESSION_STATE_CAP];
    char state[SESSION_STATE_CAP], reason[SESSION_STATE_CAP];
    bool damaged; /* marked so, or the row's own tag does not match */
    bool bad_row; /* the latter: nothing in it can be trusted */
    uint64_t created, updated;
    /* Rows there, and those of them that are not at an end: one that is gone must show. */
    uint64_t n_turns, n_unfinished, n_calls, n_open;
};

static inline void session_copy_text(char *dst, size_t cap, const char *src)
{
    snprintf(dst, cap, "%s", src ? src : "");
}

/* What session_row_take() wants the columns of: goes on with WHERE or ORDER BY. */
#define SESSION_SELECT "SELECT " SESSION_COLS ", tag FROM sessions "
/* The row that the query stands at. What is damaged shows in bad_row, its texts are printable.
 */
void session_row_take(struct query *q, struct session_row *r);

/* By id. A damaged row is returned, too. ERR_NOTFOUND. */
NODISCARD enum err session_row_read(struct store *st, const char *id, struct session_row *out,
                                    struct error *e);
/* For reading below it: as session_row_read, but ERR_CORRUPT if the row cannot be trusted. */
NODISCARD enum err session_row_need(struct store *st, const char *id, struct session_row *out,
                                    struct error *e);
/* For writing: ERR_CORRUPT if the session is damaged in any way. */
NODISCARD enum err session_row_sound(struct store *st, const char *id, struct session_row *out,
                                     struct error *e);
/* Inserts or updates by num. ERR_CONFLICT: id or name taken. */
NODISCARD enum err session_row_write(struct store *st, const struct session_row *r,
                                     struct error *e);
/* Folder and configuration of session number num, in a row of their own. Writing: ERR_LIMIT.
 * Reading: *cwd and *config are the caller's to free; ERR_CORRUPT. */
NODISCARD enum err session_row_write_config(struct store *st, int64_t num, const char *cwd,
                                            const char *config, struct error *e);
NODISCARD enum err session_row_read_config(struct store *st, int64_t num, char **cwd,
                                           char **config, struct error *e);
/* session_new without its transaction: for a caller that has begun one. */
NODISCARD enum err session_add(struct store *st, const struct session_new *s,
                               struct session_row *out, struct error *e);
/* Replaces state and reason where they are not NULL. ERR_LIMIT: too long. */
NODISCARD enum err session_row_set_state(struct session_row *r, const char *state,
                                         const char *reason, struct error *e);

/* Marks the session damaged if rc is ERR_CORRUPT (outside a transaction); returns rc. */
enum err session_note(struct store *st, const char *id, enum err rc);

#endif
