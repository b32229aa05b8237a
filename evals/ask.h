/* Questions to a daemon that may be asked twice and count once: sessions are named, prompts
 * have client ids, and what an earlier process began is found again. */
#ifndef EVALS_ASK_H
#define EVALS_ASK_H

#include <jansson.h>

#include "agentd/client.h"
#include "base/err.h"

#define ASK_NAME_BYTES 64

struct ask_session {
    const char *name, *effort; /* effort NULL: the daemon's */
    bool thinking;
    uint32_t max_tokens;
};

/* A session without tools, greedy, in folder "/". One that has the name already is taken. id
 * [27]. */
NODISCARD enum err ask_open(struct client *c, const struct ask_session *s, char id[27],
                            struct error *e);
/* A fork of the session's newest state under a name; ditto. */
NODISCARD enum err ask_fork(struct client *c, const char *parent, const char *name, char id[27],
                            struct error *e);
/* One prompt and the session/wait object of its turn, to be decref'd. forced: text that stands
 * for the answer, or NULL. A turn that is not over after timeout_ms (0 or less: no limit) is
 * cancelled and ERR_TIMEOUT. ERR_CANCELLED: the client's wake_fd. */
NODISCARD enum err ask_prompt(struct client *c, const char *id, const char *message,
                              const char *text, size_t n, const char *forced, int timeout_ms,
                              json_t **out, struct error *e);
/* Calls a method of {"id"} until it is not ERR_BUSY: the state commit at a turn's end may still
 * be under way when its answer is here. Gives up after half a minute. */
NODISCARD enum err ask_patiently(struct client *c, const char *method, const char *id,
                                 struct error *e);
/* Deletes a session by name or id; none there is fine. */
NODISCARD enum err ask_delete(struct client *c, const char *id, struct error *e);

#endif
