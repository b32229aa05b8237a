/* What tools leave behind in a session: the folder that its commands are in, and its todo list.
 *
 * Both live in durable events only (item.cwd and item.todo of a tool_result; the newest one
 * counts), so that they survive restarts and compaction, and a fork or a rewind has them as
 * they were there. They are looked up when first needed and kept with the live session. Loop
 * thread. */
#ifndef AGENTD_SESSION_NOTES_H
#define AGENTD_SESSION_NOTES_H

#include <jansson.h>
#include <stdbool.h>

#include "base/err.h"

struct live;

struct session_notes {
    bool known;
    char *cwd;    /* NULL: the workspace */
    json_t *todo; /* array of {text, status}; NULL: none yet */
};
/* Also: what is known is not true any more (the session was cut). */
void session_notes_fini(struct session_notes *n);

/* Makes s->notes known, then calls `then` (from here if they are). It may fail as the tape's
 * events do. */
void session_notes_load(struct live *s,
                        void (*then)(void *user, enum err rc, const struct error *e),
                        void *user);
/* A result with these fields ({cwd?, todo?}) is durable. */
void session_notes_take(struct session_notes *n, const json_t *fields);

#endif
