#include "agentd/tool_policy.h"

#include <string.h>

#include "agentd/daemon.h"
#include "tools/rules.h"
#include "tools/tools.h"

/* What live.approved has of a call: the tool, or for `run` the very line. */
static json_t *approval_key(const char *name, const json_t *arguments)
{
    const json_t *command = json_object_get(arguments, "command");

    if (strcmp(name, "run") != 0)
        return json_string(name);
    return json_sprintf("run %s", json_is_string(command) ? json_string_value(command) : "");
}

static bool is_approved(const struct live *s, const char *name, const json_t *arguments)
{
    json_auto_t *key = approval_key(name, arguments);

    return key && json_object_get(s->approved, json_string_value(key));
}

static enum tool_policy by_mode(const struct live *s, const struct tool *tool)
{
    if (!tool || tool->risk == TOOL_READS || tool->risk == TOOL_KEEPS)
        return POLICY_RUN;
    switch (s->config->approve) {
    case APPROVE_AUTO:
        return POLICY_RUN;
    case APPROVE_NEVER:
        return POLICY_REFUSE;
    case APPROVE_ASK:
        break;
    }
    return POLICY_ASK;
}

enum tool_policy tool_policy(const struct live *s, const char *name, const json_t *arguments,
                             char why[ERR_MSG_BYTES])
{
    const struct rules *const sets[] = {s->daemon->rules, s->config->rules};
    const struct rule_call call = {name, arguments, s->cwd, s->granted};
    const struct tool *tool = tool_find(name);
    bool is_client = session_config_client_tool(s->config, name) != NULL;
    enum rule_verdict v = rules_check(sets, 2, &call, why);

    if (v == RULE_DENY)
        return POLICY_REFUSE;
    if (is_client)
        return POLICY_RUN;
    if (is_approved(s, name, arguments))
        return POLICY_RUN;
    if (v == RULE_ASK)
        return s->config->approve == APPROVE_NEVER ? POLICY_REFUSE : POLICY_ASK;
    if (v == RULE_ALLOW)
        return POLICY_RUN;
    why[0] = '\0';
    return by_mode(s, tool);
}

void tool_policy_approve(struct live *s, const char *name, const char *arguments)
{
    json_auto_t *a = json_loads(arguments, JSON_ALLOW_NUL, NULL);
    const json_t *command = json_object_get(a, "command");
    json_auto_t *key = NULL;

    if (!s->granted)
        s->granted = rules_new();
    if (s->granted && strcmp(name, "run") == 0 && json_is_string(command) &&
        strlen(json_string_value(command)) == json_string_length(command) &&
        rules_allow_line(s->granted, json_string_value(command)))
        return;
    if ((key = approval_key(name, a)))
        json_object_set_new(s->approved, json_string_value(key), json_true());
}
