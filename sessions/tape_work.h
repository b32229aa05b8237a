/* A tape commit on its way: what tape.c, which runs it, shares with the rows it is made of, in
 * tape_segments.c, tape_turns.c and tape_calls.c. */
#ifndef SESSIONS_TAPE_WORK_H
#define SESSIONS_TAPE_WORK_H

#include "sessions/session_internal.h"
#include "sessions/strand.h"
#include "sessions/tape.h"

/* What the steps of a commit read and change. */
struct tape_work {
    struct store *st;
    const struct tape_commit *c;
    struct session_row session;
    struct strand_row strand;
    uint64_t now;
    struct tape_receipt receipt;
};

/* ERR_INVAL: no id; `what` has it. */
NODISCARD enum err tape_check_id(const char *id, const char *what, struct error *e);
/* ERR_LIMIT: more text (may be NULL), or more bytes, than a payload may have. */
NODISCARD enum err tape_check_payload(const char *what, const char *text, size_t n_bytes,
                                      struct error *e);
/* The first value of a query whose parameter is the session: the next ord of a table. */
NODISCARD enum err tape_next_ord(struct tape_work *w, const char *sql, int64_t *out,
                                 struct error *e);

/* The commit's segments, after its ids; then they have to tile the tape. ERR_INVAL. */
NODISCARD enum err tape_put_segments(struct tape_work *w, struct error *e);
NODISCARD enum err tape_put_mark(struct tape_work *w, const struct replay_mark *m,
                                 struct error *e);

/* t may be NULL. */
NODISCARD enum err tape_check_turn(const struct tape_turn *t, struct error *e);
/* Fills the receipt if the client's message was seen before, in another turn. */
NODISCARD enum err tape_find_duplicate(struct tape_work *w, struct error *e);
/* The commit's turn, if it has one. */
NODISCARD enum err tape_put_turn(struct tape_work *w, struct error *e);
/* Notes in the row of a turn that it has one more call. */
NODISCARD enum err tape_count_call(struct tape_work *w, const char *turn, struct error *e);

/* ERR_CONFLICT: it has an outcome, or its id was another call's. */
NODISCARD enum err tape_put_call(struct tape_work *w, const struct tape_call *c,
                                 struct error *e);

#endif
