/* The tape of a session: token ids exactly as sampled or first encoded, the segments they came
 * in, the events clients see, tool calls and turns.
 *
 * tape_commit() is the only thing that gates an acknowledgement: one transaction, durable when
 * it returns OK, not begun at all when it returns anything else. It waits for no extent.
 *
 * Invariants, checked here and refused with ERR_INVAL: positions have no gaps; segments tile
 * the tape, and only the last one may be open; event seqs are 1, 2, 3, ... per session; a call
 * id is used once per session. Text fields hold no NUL byte by their type; raw bytes go in
 * `bytes`. */
#ifndef SESSIONS_TAPE_H
#define SESSIONS_TAPE_H

#include "base/state.h"
#include "sessions/session.h"

#define TAPE_ID_CAP 40            /* turn, item and call ids: 1 to 39 printable ASCII bytes */
#define TAPE_WORD_CAP 24          /* type, kind, status, ... */
#define TAPE_JSON_MAX (16u << 20) /* bytes of one JSON or raw payload */
#define TAPE_TOKENS_MAX (1ull << 31) /* tokens of one session */
#define TAPE_END UINT64_MAX          /* "the tape's length after this commit" */

/* ---- what a commit can hold -------------------------------------------------------------- */

/* A segment as the tape knows it. Written when it begins, when it ends, and when its digest is
 * known; `seg.start` says which one. While it is open, seg.len is ignored on writing and on
 * reading is what is on the tape so far. An open segment that ends with length 0 never was. A
 * digest of a segment that a fork shares with its parent is not kept. */
struct tape_segment {
    struct segment seg;
    bool open;       /* ids may still be appended to it */
    bool has_digest; /* every row that is computed at all has been, and this is the digest */
    uint8_t digest[32];
    uint64_t n_rows; /* rows in the digest */
};

/* A durable event; its seq is the next of the session. Payloads may be NULL. */
struct tape_event {
    uint64_t seq;      /* reading only */
    uint64_t t_ms;     /* reading only: when it was committed */
    uint64_t position; /* tape position a fork at this event keeps; TAPE_END: this commit's */
    const char *turn;  /* turn id, may be NULL */
    const char *type;  /* "item", "state", "usage", "error" */
    const char *item;  /* item id; a later event of the same item replaces the earlier one */
    const char *kind; /* "user", "assistant", "reasoning", "tool_call", "tool_result", "note" */
    const char *json; /* the rest of the event as JSON text */
    const void *bytes; /* exact bytes where text is not enough */
    size_t n_bytes;
};

enum call_status {
    CALL_WAITING,     /* wants an approval or a client's answer */
    CALL_STARTED,     /* durable before anything runs */
    CALL_DONE,        /* result durable */
    CALL_FAILED,      /* ran and failed: the result says how */
    CALL_REJECTED,    /* refused by permission or approval */
    CALL_CANCELLED,   /* stopped on request */
    CALL_INTERRUPTED, /* outcome unknown: never run again by itself */
    CALL_INVALID      /* unknown tool or bad arguments: never run */
};
const char *call_status_name(enum call_status s);
/* True for the two that still want an outcome. */
static inline bool call_is_open(enum call_status s)
{
    return s == CALL_WAITING || s == CALL_STARTED;
}

/* A tool call. The first write of an id needs turn, name and arguments; later writes may leave
 * them NULL, and `result` too: NULL keeps what is there. An open call may take any status; one
 * with an outcome keeps it (ERR_CONFLICT). */
struct tape_call {
    const char *id; /* unique in the session */
    const char *turn;
    const char *item;      /* item id it is shown as, may be NULL */
    const char *name;      /* tool */
    const char *arguments; /* exactly as the model wrote them */
    uint32_t step, index;  /* step of the turn, place among the calls of that step */
    enum call_status status;
    bool is_error;
    bool ingested;      /* its result is on the tape */
    const void *result; /* what the model sees, capped by the caller */
    size_t n_result;
    const char *spill;             /* file with the whole output, NULL if none */
    uint64_t spill_bytes;          /* size of the whole output */
    uint64_t created_ms, ended_ms; /* reading only; 0: no outcome yet */
};

/* A turn: from a prompt to idle. Upserted by id; NULL strings keep what is there. */
struct tape_turn {
    const char *id;
    const char *client_message; /* unique per session, NULL if the client gave none */
    const char *params;         /* JSON: the prompt and its options, the forced list included */
    uint64_t forced_next;       /* place in the forced list */
    uint32_t step;              /* model steps done */
    const char *state;          /* the caller's words */
    const char *reason;
    const char *ledger;  /* JSON: counters */
    bool finished;       /* false: to be continued after a restart */
    uint64_t first_seq;  /* reading only: seq of its receipt */
    uint64_t created_ms; /* reading only */
};

struct tape_commit {
    const char *session; /* id */
    uint64_t position;   /* tape length the caller believes in; used if n_ids > 0 */
    const uint32_t *ids; /* appended at position */
    uint64_t n_ids;
    const struct tape_segment *segments; /* in order of start */
    size_t n_segments;
    const struct replay_mark *marks;
    size_t n_marks;
    const struct tape_event *events;
    size_t n_events;
    bool any_position; /* events may stand at positions that the tape does not have: an import
                          writes the log of a compacted session, and the log before the tape */
    const struct tape_call *calls;
    size_t n_calls;
    const struct tape_turn *turn; /* NULL: none */
    const char *state, *reason;   /* of the session; NULL: as it is */
};

struct tape_receipt {
    uint64_t length;    /* tape length now */
    uint64_t first_seq; /* of this commit's events; 0: it had none */
    uint64_t last_seq;  /* of the session */
    bool duplicate;     /* the turn's client_message was seen before: nothing was written, */
    char turn[TAPE_ID_CAP]; /* and this is the turn that has it, */
    uint64_t turn_seq;      /* with the seq of its first event */
};

/* Applies all of c or nothing. r may be NULL. ERR_INVAL: an invariant above would break (the
 * message says which). ERR_CONFLICT: call id used before with an outcome, or position is not
 * the tape's length. ERR_NOTFOUND: session. ERR_CORRUPT: session is damaged. ERR_LIMIT: a
 * payload or the tape too long, disk full. ERR_IO. */
NODISCARD enum err tape_commit(struct store *st, const struct tape_commit *c,
                               struct tape_receipt *r, struct error *e);

/* ---- reading ----------------------------------------------------------------------------- */

/* A whole tape in memory, for the engine and for verify. view borrows from the rest. If the
 * session is damaged it ends before the damage and `damaged` is set. */
struct tape {
    uint32_t *ids;
    struct segment *segments; /* seg of each below, for the view */
    struct tape_segment *tape_segments;
    struct replay_mark *marks;
    struct tape_view view;
    bool damaged;
    int64_t strand; /* private: the one it was read along */
};
void tape_fini(struct tape *t);
NODISCARD enum err tape_load(struct store *st, const char *session, struct tape *out,
                             struct error *e);

/* Ids of [from, to) into out. ERR_INVAL past the end; ERR_CORRUPT where the tape is damaged. */
NODISCARD enum err tape_read_ids(struct store *st, const char *session, uint64_t from,
                                 uint64_t to, uint32_t *out, struct error *e);

/* Callbacks get borrowed data, return false to stop, and must not call the store. A damaged row
 * ends the reading with ERR_CORRUPT after everything before it was handed over. */
typedef bool tape_event_fn(void *user, const struct tape_event *ev);
typedef bool tape_call_fn(void *user, const struct tape_call *call);
typedef bool tape_turn_fn(void *user, const char *session, const struct tape_turn *turn);

/* Events with seq > after_seq, in order, at most `limit` (0: all). For paging, go on with the
 * last seq that came. */
NODISCARD enum err tape_events(struct store *st, const char *session, uint64_t after_seq,
                               uint64_t limit, tape_event_fn *fn, void *user, struct error *e);
/* The newest event of every item, in order of first appearance. */
NODISCARD enum err tape_items(struct store *st, const char *session, tape_event_fn *fn,
                              void *user, struct error *e);
/* Tool calls in order of creation: of one turn, or of all (turn NULL); open ones only, or all.
 */
NODISCARD enum err tape_calls(struct store *st, const char *session, const char *turn,
                              bool only_open, tape_call_fn *fn, void *user, struct error *e);
/* Turns that are not finished: of one session, or of all (session NULL), oldest first. */
NODISCARD enum err tape_unfinished(struct store *st, const char *session, tape_turn_fn *fn,
                                   void *user, struct error *e);
/* All turns of a session, in order of creation. */
NODISCARD enum err tape_turns(struct store *st, const char *session, tape_turn_fn *fn,
                              void *user, struct error *e);
/* One turn; or (turn NULL) the newest of the session and, as long as fn returns true, the ones
 * before it. ERR_NOTFOUND: there is none. */
NODISCARD enum err tape_turn(struct store *st, const char *session, const char *turn,
                             tape_turn_fn *fn, void *user, struct error *e);
/* Event seq -> tape position that a fork there keeps. 0 -> the tape's length. ERR_NOTFOUND. */
NODISCARD enum err tape_position_of(struct store *st, const char *session, uint64_t seq,
                                    uint64_t *out, struct error *e);

#endif
