/* What a session was opened with: read from session/new, kept as JSON text in the store,
 * frozen.
 *
 * The JSON that is stored has every field of session/new with its default filled in, the tool
 * declarations themselves (`functions`: what the model was shown stays what it was shown,
 * whatever a later build offers), and the seed that was drawn. Immutable after loading: any
 * thread may read the plain fields and `text`; the json_t members belong to the loop thread. */
#ifndef AGENTD_SESSION_CONFIG_H
#define AGENTD_SESSION_CONFIG_H

#include <stdbool.h>
#include <stdint.h>

#include <jansson.h>

#include "agentd/sampling_config.h"
#include "base/state.h"

struct call_rules;
struct rules;
struct tokenizer;

enum approve { APPROVE_ASK, APPROVE_NEVER, APPROVE_AUTO };

#define SESSION_MAX_TOOLS 128
#define SESSION_MAX_SYSTEM ((size_t)1 << 20) /* bytes of the system text */

struct session_config {
    char *text;           /* the stored JSON */
    json_t *json;         /* the same, parsed */
    char *system;         /* NULL: none */
    char *summary;        /* of what was before the tape's beginning, NULL: none */
    uint64_t summary_seq; /* last event that it covers */
    bool thinking;
    uint32_t effort;
    enum approve approve;
    uint32_t max_steps;
    uint64_t max_tokens;
    struct sampling_config sampling;
    struct call_rules *call_rules; /* NULL: session_config_call_rules() was not asked yet */
    enum prefill_mode mode;
    struct rules *rules; /* approval rules of this session; never NULL */
};

/* params of session/new -> the JSON to be stored. ERR_INVAL, ERR_FORMAT, ERR_NOTFOUND or
 * ERR_DENIED name the parameter. `draw` becomes the seed if none is given; vocab_size is the
 * model's; may_fetch: the daemon has http_fetch. */
NODISCARD enum err session_config_from_params(const json_t *params, uint64_t draw,
                                              uint32_t vocab_size, bool may_fetch, char **text,
                                              struct error *e);
/* ERR_CORRUPT for text that session_config_from_params did not write. */
NODISCARD enum err session_config_load(const char *text, struct session_config **out,
                                       struct error *e);
/* The JSON with another summary, of the events up to seq; text NULL: without one. */
NODISCARD enum err session_config_with_summary(const struct session_config *c, const char *text,
                                               uint64_t seq, char **out, struct error *e);
void session_config_free(struct session_config *c);

/* What keeps calls of these tools well formed; made when it is first asked for (loop thread),
 * then constant. Errors of call_rules_new. */
NODISCARD enum err session_config_call_rules(struct session_config *c,
                                             const struct tokenizer *t,
                                             const struct call_rules **out, struct error *e);

/* The declaration of a client-side tool, or NULL: then `name` is a daemon tool or unknown. */
const json_t *session_config_client_tool(const struct session_config *c, const char *name);
/* {name, description, parameters} as the model was shown it; NULL: it was not. */
const json_t *session_config_function(const struct session_config *c, const char *name);
/* Whether the session declares this tool at all. */
bool session_config_has_tool(const struct session_config *c, const char *name);

#endif
