/* What session/prompt and session/steer give: a text, and for a prompt the client's message id
 * and the forced runs of recorded mode. Plain data, read from a request or from a turn's row,
 * owned by whoever holds it. (engine/prompt.h is what becomes of it before the tokenizer.) */
#ifndef AGENTD_USER_PROMPT_H
#define AGENTD_USER_PROMPT_H

#include <stdbool.h>
#include <stddef.h>

#include <jansson.h>

#include "base/buf.h"
#include "base/err.h"
#include "engine/ids.h"

struct daemon;

struct forced_runs {
    struct ids *runs; /* ids of each, EOS at the end */
    size_t n;
};
void forced_runs_fini(struct forced_runs *f);
/* A list as sent or as stored: {ids} or {text} each. ERR_INVAL names the entry. *out is empty
 * before; after a failure it holds what was read and is to be finished as well. */
NODISCARD enum err forced_runs_read(const struct daemon *d, const json_t *list,
                                    struct forced_runs *out, struct error *e);
/* [{ids}...], as it is stored. NULL when out of memory. */
json_t *forced_runs_json(const struct forced_runs *f);

struct user_prompt {
    struct buf text;
    char *client_message; /* NULL: none */
    struct forced_runs forced;
    bool compacts; /* the daemon's own: the answer becomes the summary (cut.h) */
};
void user_prompt_fini(struct user_prompt *p);

/* content of params -> one text, its parts joined by a blank line. ERR_INVAL, ERR_FORMAT. */
NODISCARD enum err user_prompt_read_text(const json_t *params, struct buf *out,
                                         struct error *e);
#define USER_PROMPT_MAX_MESSAGE 128
/* clientMessageId of params; *out stays as it is when there is none. ERR_INVAL: too long. */
NODISCARD enum err user_prompt_read_message(const json_t *params, const char **out,
                                            struct error *e);
/* All of session/prompt's params but the id. *out is zero before and to be finished after, also
 * when it failed. */
NODISCARD enum err user_prompt_read(const struct daemon *d, const json_t *params,
                                    struct user_prompt *out, struct error *e);

#endif
