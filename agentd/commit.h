/* One tape commit on its way to the store: everything it holds is copied in, so that the loop
 * can go on; when it is durable (and not before) its events reach the readers and `then` runs.
 *
 * Appending cannot fail: a commit that ran out of memory or over a cap says so to `then`, and
 * nothing of it was written. Commits of a session become durable in the order of submission. */
#ifndef AGENTD_COMMIT_H
#define AGENTD_COMMIT_H

#include <jansson.h>

#include "agentd/job.h"
#include "agentd/live.h"
#include "base/arena.h"

#define COMMIT_MAX_BYTES ((size_t)128 << 20) /* one prompt of 16 MiB as text, JSON and ids */

struct commit {
    struct job job;
    struct live *session; /* pinned */
    struct arena arena;
    enum err failed; /* an append failed */
    struct error error;

    struct tape_commit c; /* counts and plain fields; the arrays are: */
    struct tape_segment *segments;
    struct tape_event *events;
    struct tape_call *calls;
    struct tape_turn turn;
    uint32_t *ids;
    size_t cap_segments, cap_events, cap_calls;
    struct tape_receipt receipt;

    /* Runs on the store's thread before the commit, and may append; NULL: nothing to do. Its
     * error is the commit's. */
    enum err (*prepare)(struct commit *c, struct store *st, struct error *e);
    /* Loop thread, after the events went out; c lives until it returns. */
    void (*then)(struct live *s, const struct commit *c);
    void *user;
};

/* NULL when out of memory. */
struct commit *commit_new(struct live *s);
/* Ids that follow what was appended before; at the tape's length when the commit runs. */
void commit_ids(struct commit *c, const uint32_t *ids, size_t n);
void commit_segment(struct commit *c, const struct tape_segment *seg);
/* fields is taken. item and kind: NULL unless type is "item". */
void commit_event(struct commit *c, const char *turn, const char *type, const char *item,
                  const char *kind, json_t *fields);
/* {"type":"state"} for the readers, and state and reason of the session's row. */
void commit_state(struct commit *c, const char *turn, enum live_state state,
                  const char *reason);
void commit_call(struct commit *c, const struct tape_call *call);
void commit_turn(struct commit *c, const struct tape_turn *turn);
/* Gives c away. */
void commit_submit(struct commit *c, void (*then)(struct live *s, const struct commit *c));
/* Of one that is not going to be submitted. */
void commit_free(struct commit *c);

#endif
