/* Sessions: identity, name, configuration, state. Tape and model state hang below (tape.h,
 * head.h).
 *
 * An id is a ULID: 26 characters of Crockford base 32, never a path. A name is a slug, unique
 * in the store. Every call that takes a `key` accepts the id, the name, or a unique beginning
 * of a name or (at least 4 characters, any case) of an id. Calls that take an `id` want the
 * whole id.
 *
 * A fork shares its parent's tape, events and state by reference: a row each, no bytes copied.
 * Deleting a parent keeps what its forks need, and nothing more.
 *
 * A damaged session (a row whose tag does not match, a tape chunk that cannot be rebuilt) is
 * listed with `damaged` set, never hidden; it is served read-only up to the damage, and every
 * write to it is ERR_CORRUPT. */
#ifndef SESSIONS_SESSION_H
#define SESSIONS_SESSION_H

#include <stdbool.h>
#include <stdint.h>

#include "base/auto.h"
#include "base/err.h"

struct store;

#define SESSION_ID_CAP 27   /* 26 characters and the 0 */
#define SESSION_NAME_CAP 64 /* a name has 1 to 63 characters [a-z0-9._-], the first a-z0-9 */
#define SESSION_STATE_CAP 24
#define SESSION_CONFIG_MAX (8u << 20) /* bytes of a configuration */
#define SESSION_CWD_MAX 4096u

struct session_info {
    char id[SESSION_ID_CAP];
    char name[SESSION_NAME_CAP];
    char parent[SESSION_ID_CAP];    /* session it was forked from, "" if none (may be gone) */
    char origin[SESSION_STATE_CAP]; /* "new", "fork", "import"; "rewind" or "compact": it keeps
                                       what its parent had before that */
    char state[SESSION_STATE_CAP];  /* "idle" and so on: the caller's words */
    char reason[SESSION_STATE_CAP];
    bool damaged;
    uint64_t created_ms, updated_ms;
    uint64_t forked_at;      /* tape position of the fork */
    uint64_t n_tokens;       /* tape length */
    uint64_t last_seq;       /* of its events; 0: none yet */
    uint64_t state_position; /* tokens covered by the last state commit, <= n_tokens */
    char *cwd;               /* owned */
    char *config;            /* owned; JSON text, opaque to the store */
};
void session_info_fini(struct session_info *s);

struct session_new {
    const char *id; /* NULL: the store makes one */
    const char *name;
    const char *cwd;
    const char *config; /* JSON text */
    const char *state;  /* NULL: "idle" */
    const char *origin; /* NULL: "new" */
};

/* Adds a session; durable on return. id_out: SESSION_ID_CAP bytes, may be NULL. ERR_CONFLICT:
 * id or name taken. ERR_INVAL: malformed id or name. ERR_LIMIT: config or cwd too long, disk
 * full. */
NODISCARD enum err session_new(struct store *st, const struct session_new *s, char *id_out,
                               struct error *e);

/* Where a fork leaves its parent. */
struct session_fork {
    const char *parent; /* id */
    uint64_t at_seq;    /* keep events up to this one and the tokens of its `position`;
                           0: everything */
    const char *id;     /* as in session_new */
    const char *name;
    const char *config; /* NULL: the parent's */
    const char *cwd;    /* NULL: the parent's */
};
/* As session_new. A position inside a segment ends that segment there, for the fork. State is
 * shared as far as it goes; a tip only if one was saved exactly there. ERR_NOTFOUND: no such
 * parent (never an empty session) or no such seq. */
NODISCARD enum err session_fork(struct store *st, const struct session_fork *f, char *id_out,
                                struct error *e);

/* Where a session goes on, and the session that keeps what it had. */
struct session_cut {
    const char *id;
    uint64_t at_seq;       /* rewind: keep events up to this one and the tokens of its
                              `position`; 0: nothing */
    bool restart;          /* compaction: keep all events and no tokens; at_seq is not used */
    const char *keep_name; /* of the session that has everything as it is now */
    const char *config;    /* from now on; NULL: as it is */
};
/* One transaction: a new session takes over tape, events and state as they are, like a fork of
 * all of it, and the session itself goes on from the cut on a strand of its own. Nothing is
 * copied, nothing is lost. A rewind takes turns that have ended and all calls out of the
 * session, as a fork has none; a restart keeps them. keep_id: SESSION_ID_CAP bytes, may be
 * NULL. Errors as session_fork; ERR_CORRUPT: the session is damaged. */
NODISCARD enum err session_cut(struct store *st, const struct session_cut *c, char *keep_id,
                               struct error *e);

/* Finds one session. ERR_NOTFOUND: none, or several; the message then lists the candidates. */
NODISCARD enum err session_find(struct store *st, const char *key, struct session_info *out,
                                struct error *e);

/* Calls fn for each session, the one updated last first. fn returns false to stop. s is
 * borrowed. fn must not call the store. */
typedef bool session_fn(void *user, const struct session_info *s);
NODISCARD enum err session_list(struct store *st, session_fn *fn, void *user, struct error *e);

NODISCARD enum err session_rename(struct store *st, const char *id, const char *name,
                                  struct error *e);
/* Replaces the configuration (approval mode and the like). */
NODISCARD enum err session_configure(struct store *st, const char *id, const char *config,
                                     struct error *e);
/* Sets state and reason outside a tape commit; NULL leaves one as it is. */
NODISCARD enum err session_set_state(struct store *st, const char *id, const char *state,
                                     const char *reason, struct error *e);
/* Removes the session, also a damaged one. What forks of it need stays. */
NODISCARD enum err session_delete(struct store *st, const char *id, struct error *e);

#endif
