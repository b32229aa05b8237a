/* Rows of the tape as structs; what they point to is borrowed from the row. All check the tag.
 */
#ifndef SESSIONS_TAPE_INTERNAL_H
#define SESSIONS_TAPE_INTERNAL_H

#include "sessions/db.h"
#include "sessions/tape.h"

NODISCARD enum err tape_take_segment(struct query *q, struct tape_segment *out,
                                     struct error *e);
NODISCARD enum err tape_take_event(struct query *q, struct tape_event *out, struct error *e);
NODISCARD enum err tape_take_call(struct query *q, struct tape_call *out, int64_t *ord,
                                  struct error *e);
/* Without its params. */
struct turn_extra {
    int64_t ord;
    uint64_t n_calls; /* of this turn: one that is gone must show */
};
NODISCARD enum err tape_take_turn(struct query *q, struct tape_turn *out, struct turn_extra *x,
                                  struct error *e);
/* The turn of a session (by its num) with this id; *found says whether there is one. What *out
 * points to lives as long as q, which this begins and the caller's AUTO(query) ends. */
NODISCARD enum err tape_find_turn(struct query *q, struct store *st, int64_t session,
                                  const char *id, bool *found, struct tape_turn *out,
                                  struct turn_extra *x, struct error *e);
/* tape_commit without its transaction, at the time that is given: for a caller that has begun
 * one and ends it. After an error it has to be rolled back. */
NODISCARD enum err tape_apply(struct store *st, const struct tape_commit *c, uint64_t now_ms,
                              struct tape_receipt *r, struct error *e);
struct strand_path;
/* The path of a session's strand. ERR_CORRUPT: its row, or one on the way, is damaged. */
NODISCARD enum err tape_path_of(struct store *st, const char *session, struct strand_path *out,
                                struct error *e);
/* tape_events along a path: what was on it when it was loaded, whatever became of the session.
 */
NODISCARD enum err tape_path_events(struct store *st, const struct strand_path *p,
                                    uint64_t after_seq, uint64_t limit, tape_event_fn *fn,
                                    void *user, struct error *e);
/* tape_load, once the path is known; without the ids if they are not wanted (then view.n_ids is
 * right all the same). */
NODISCARD enum err tape_load_path(struct store *st, const struct strand_path *p, bool with_ids,
                                  struct tape *out, struct error *e);
NODISCARD enum err call_status_parse(const char *name, enum call_status *out, struct error *e);

#endif
