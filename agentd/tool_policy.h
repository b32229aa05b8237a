/* Whether a call may run: what the rules of agentd.conf and of the session say, what was
 * approved for the session, and its approval mode; in this order:
 *
 *     a deny rule                      refused
 *     an ask rule                      asked for; refused where the mode is never
 *     an allow rule, or approved       runs
 *     tools that change nothing        run
 *     mode auto | ask | never          runs | asked for | refused
 *
 * Of rules only deny is applied to client-side tools: the client runs them and may ask itself.
 * Loop thread. */
#ifndef AGENTD_TOOL_POLICY_H
#define AGENTD_TOOL_POLICY_H

#include <jansson.h>

#include "agentd/live.h"
#include "base/err.h"

enum tool_policy { POLICY_RUN, POLICY_ASK, POLICY_REFUSE };

/* `why` gets what decided it, "" if that was the mode alone. The arguments fit the schema. */
enum tool_policy tool_policy(const struct live *s, const char *name, const json_t *arguments,
                             char why[ERR_MSG_BYTES]);

/* Somebody approved this call for the rest of the session. Of `run` that covers the same simple
 * commands with the same words, in any line; if rules cannot tell what the line runs, only this
 * line. Of other tools, every call. Kept as long as the session is live. */
void tool_policy_approve(struct live *s, const char *name, const char *arguments);

#endif
