#include "agentd/session_config.h"

#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "engine/chat.h"
#include "engine/constrain.h"
#include "tools/rules.h"
#include "tools/schema.h"
#include "tools/tools.h"

#define DEFAULT_MAX_STEPS 256
#define DEFAULT_MAX_TOKENS 65536
#define MAX_CONFIG_BYTES ((size_t)8 << 20)

static const char *const approve_names[] = {"ask", "never", "auto", NULL};
static const char *const thinking_names[] = {"chat", "thinking", NULL};

/* ---- tools ------------------------------------------------------------------------ */

/* The daemon's tools that params.tools names; all of them when it names none. */
static enum err daemon_functions(const json_t *params, bool may_fetch, json_t **out,
                                 struct error *e)
{
    const char *names[SESSION_MAX_TOOLS];
    json_t *list = NULL;
    enum err rc = json_opt_arr(params, "tools", &list, e);

    if (rc)
        return rc;
    if (!list)
        return tool_functions(NULL, 0, may_fetch, out, e);
    size_t n = json_array_size(list);
    if (n > SESSION_MAX_TOOLS)
        return err_set(e, ERR_INVAL, "\"tools\": %zu names, at most %d", n, SESSION_MAX_TOOLS);
    for (size_t i = 0; i < n; i++) {
        names[i] = json_string_value(json_array_get(list, i));
        if (!names[i])
            return err_set(e, ERR_INVAL, "\"tools\"[%zu]: want the name of a tool", i);
    }
    if (n == 0) {
        *out = json_array();
        return *out ? OK : err_set(e, ERR_NOMEM, "tools");
    }
    return tool_functions(names, n, may_fetch, out, e);
}

static int by_name(const void *a, const void *b)
{
    const json_t *x = *(json_t *const *)a, *y = *(json_t *const *)b;

    return strcmp(json_string_value(json_object_get(x, "name")),
                  json_string_value(json_object_get(y, "name")));
}

/* One client tool, as {name, description, parameters} and nothing else. */
static enum err client_function(const json_t *given, size_t i, json_t **out, struct error *e)
{
    const char *name = NULL, *description = "";
    json_t *parameters = NULL;
    enum err rc;

    if ((rc = json_need_str(given, "name", &name, NULL, e)) ||
        (rc = json_opt_str(given, "description", &description, NULL, e)) ||
        (rc = json_need_obj(given, "parameters", &parameters, e)) ||
        (rc = schema_valid(parameters, e)))
        return err_wrap(e, rc, "\"clientTools\"[%zu]", i);
    size_t len = strlen(name);
    if (len == 0 || len > 64 ||
        strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.") !=
            len)
        return err_set(e, ERR_INVAL,
                       "\"clientTools\"[%zu].name: want 1 to 64 of [A-Za-z0-9_.-]", i);
    *out = json_pack("{s:s, s:s, s:O}", "name", name, "description", description, "parameters",
                     parameters);
    return *out ? OK : err_set(e, ERR_NOMEM, "tools");
}

/* Appends the client's tools to functions and sorts: the list is frozen for the session. */
static enum err add_client_functions(const json_t *params, json_t *functions,
                                     json_t *client_names, struct error *e)
{
    json_t *list = NULL, *all[2 * SESSION_MAX_TOOLS];
    enum err rc = json_opt_arr(params, "clientTools", &list, e);

    if (rc)
        return rc;
    if (json_array_size(list) > SESSION_MAX_TOOLS)
        return err_set(e, ERR_INVAL, "\"clientTools\": %zu tools, at most %d",
                       json_array_size(list), SESSION_MAX_TOOLS);
    for (size_t i = 0; i < json_array_size(list); i++) {
        json_t *f = NULL;
        if ((rc = client_function(json_array_get(list, i), i, &f, e)))
            return rc;
        json_array_append(client_names, json_object_get(f, "name"));
        json_array_append_new(functions, f);
    }
    size_t n = json_array_size(functions);
    for (size_t i = 0; i < n; i++)
        all[i] = json_incref(json_array_get(functions, i));
    qsort(all, n, sizeof(all[0]), by_name);
    json_array_clear(functions);
    for (size_t i = 0; i < n; i++) {
        if (i > 0 && by_name(&all[i - 1], &all[i]) == 0)
            rc = err_set(e, ERR_INVAL, "two tools are called \"%s\"",
                         json_string_value(json_object_get(all[i], "name")));
        json_array_append(functions, all[i]);
    }
    for (size_t i = 0; i < n; i++)
        json_decref(all[i]);
    return rc;
}

/* ---- rules ------------------------------------------------------------------------ */

static enum err make_rules(const json_t *list, struct rules **out, struct error *e)
{
    struct rules *r = rules_new();
    enum err rc = r ? OK : err_set(e, ERR_NOMEM, "rules");

    for (size_t i = 0; !rc && i < json_array_size(list); i++) {
        const char *text = json_string_value(json_array_get(list, i));
        rc = text ? rules_add(r, text, e) : err_set(e, ERR_INVAL, "want a text");
        if (rc)
            err_wrap(e, rc, "\"rules\"[%zu]", i);
    }
    if (rc)
        rules_free(r);
    else
        *out = r;
    return rc;
}

/* ---- the rest --------------------------------------------------------------------- */

static enum err read_limits(const json_t *params, json_t *c, struct error *e)
{
    int64_t steps = DEFAULT_MAX_STEPS, tokens = DEFAULT_MAX_TOKENS;
    enum err rc;

    if ((rc = json_opt_int(params, "maxSteps", 1, 100000, &steps, e)) ||
        (rc = json_opt_int(params, "maxTokens", 1, INT64_C(1) << 31, &tokens, e)))
        return rc;
    json_object_set_new(c, "maxSteps", json_integer(steps));
    json_object_set_new(c, "maxTokens", json_integer(tokens));
    return OK;
}

static enum err read_modes(const json_t *params, json_t *c, struct error *e)
{
    const char *mode = "ced", *system = NULL;
    size_t system_len = 0;
    int approve = APPROVE_ASK, thinking = 1;
    uint32_t effort = 0;
    enum prefill_mode prefill;
    enum err rc;

    if ((rc = json_opt_enum(params, "approve", approve_names, &approve, e)) ||
        (rc = json_opt_enum(params, "thinkingMode", thinking_names, &thinking, e)) ||
        (rc = chat_effort(json_object_get(params, "effort"), &effort, e)) ||
        (rc = json_opt_str(params, "mode", &mode, NULL, e)) ||
        (rc = prefill_mode_parse(mode, &prefill, e)) ||
        (rc = json_opt_str(params, "system", &system, &system_len, e)))
        return rc;
    if (system_len > SESSION_MAX_SYSTEM)
        return err_set(e, ERR_INVAL, "\"system\": %zu bytes, at most %zu", system_len,
                       SESSION_MAX_SYSTEM);
    json_object_set_new(c, "approve", json_string(approve_names[approve]));
    json_object_set_new(c, "thinkingMode", json_string(thinking_names[thinking]));
    json_object_set_new(c, "effort", json_integer(effort));
    json_object_set_new(c, "mode", json_string(prefill_mode_name(prefill)));
    if (system)
        json_object_set_new(c, "system", json_string(system));
    return OK;
}

/* params.rules, if there are any: checked, and kept as they are. */
static enum err read_rules(const json_t *params, json_t *c, struct error *e)
{
    json_t *list = NULL;
    struct rules *r = NULL;
    enum err rc = json_opt_arr(params, "rules", &list, e);

    if (rc || json_array_size(list) == 0)
        return rc;
    if (!(rc = make_rules(list, &r, e)))
        json_object_set(c, "rules", list);
    rules_free(r);
    return rc;
}

enum err session_config_from_params(const json_t *params, uint64_t draw, uint32_t vocab_size,
                                    bool may_fetch, char **text, struct error *e)
{
    json_auto_t *c = json_object(), *functions = NULL, *client_names = json_array();
    enum err rc;

    if ((rc = read_modes(params, c, e)) || (rc = read_limits(params, c, e)) ||
        (rc = sampling_config_read(params, draw, vocab_size, c, e)) ||
        (rc = read_rules(params, c, e)) ||
        (rc = daemon_functions(params, may_fetch, &functions, e)) ||
        (rc = add_client_functions(params, functions, client_names, e)))
        return rc;
    json_object_set(c, "functions", functions);
    json_object_set(c, "clientTools", client_names);
    char *s = json_dumps(c, JSON_COMPACT | JSON_PRESERVE_ORDER);
    if (!s)
        return err_set(e, ERR_NOMEM, "session configuration");
    *text = s;
    return OK;
}

/* ---- loading ---------------------------------------------------------------------- */

static enum err read_summary(struct session_config *c, struct error *e)
{
    static const char head[] = "What happened so far, in summary:\n\n";
    json_t *summary = NULL;
    const char *text = NULL;
    int64_t seq = 0;
    enum err rc;

    if ((rc = json_opt_obj(c->json, "summary", &summary, e)) || !summary)
        return rc;
    if ((rc = json_need_str(summary, "text", &text, NULL, e)) ||
        (rc = json_need_int(summary, "seq", 1, INT64_MAX, &seq, e)))
        return rc;
    size_t n = strlen(head) + strlen(text) + 1;
    c->summary_seq = (uint64_t)seq;
    if (!(c->summary = malloc(n)))
        return err_set(e, ERR_NOMEM, "session configuration");
    snprintf(c->summary, n, "%s%s", head, text);
    return OK;
}

enum err session_config_with_summary(const struct session_config *c, const char *text,
                                     uint64_t seq, char **out, struct error *e)
{
    json_auto_t *copy = json_copy(c->json);
    json_t *summary = NULL;

    if (text && !(summary = json_pack("{s:s, s:I}", "text", text, "seq", (json_int_t)seq)))
        return err_set(e, ERR_NOMEM, "summary");
    if (text)
        json_object_set_new(copy, "summary", summary);
    else
        json_object_del(copy, "summary");
    *out = copy ? json_dumps(copy, JSON_COMPACT | JSON_PRESERVE_ORDER) : NULL;
    return *out ? OK : err_set(e, ERR_NOMEM, "summary");
}

static enum err read_stored(struct session_config *c, struct error *e)
{
    const char *mode = NULL, *system = NULL;
    int approve = 0, thinking = 0;
    int64_t effort = 0, steps = 0, tokens = 0;
    json_t *functions = NULL, *client = NULL, *rules = NULL;
    enum err rc;

    if ((rc = json_opt_arr(c->json, "rules", &rules, e)) ||
        (rc = make_rules(rules, &c->rules, e)) ||
        (rc = json_need_enum(c->json, "approve", approve_names, &approve, e)) ||
        (rc = json_need_enum(c->json, "thinkingMode", thinking_names, &thinking, e)) ||
        (rc = json_need_int(c->json, "effort", 1, 100, &effort, e)) ||
        (rc = json_need_str(c->json, "mode", &mode, NULL, e)) ||
        (rc = prefill_mode_parse(mode, &c->mode, e)) ||
        (rc = json_opt_str(c->json, "system", &system, NULL, e)) ||
        (rc = json_need_int(c->json, "maxSteps", 1, UINT32_MAX, &steps, e)) ||
        (rc = json_need_int(c->json, "maxTokens", 1, INT64_MAX, &tokens, e)) ||
        (rc = sampling_config_load(&c->sampling, c->json, e)) ||
        (rc = json_need_arr(c->json, "functions", &functions, e)) ||
        (rc = json_need_arr(c->json, "clientTools", &client, e)))
        return rc;
    c->approve = (enum approve)approve;
    c->thinking = thinking == 1;
    c->effort = (uint32_t)effort;
    c->max_steps = (uint32_t)steps;
    c->max_tokens = (uint64_t)tokens;
    if (system && !(c->system = strdup(system)))
        return err_set(e, ERR_NOMEM, "session configuration");
    return read_summary(c, e);
}

enum err session_config_load(const char *text, struct session_config **out, struct error *e)
{
    const struct json_limits limits = {.max_bytes = MAX_CONFIG_BYTES, .max_depth = 128};
    struct session_config *c = calloc(1, sizeof(*c));
    enum err rc;

    if (!c || !(c->text = strdup(text))) {
        session_config_free(c);
        return err_set(e, ERR_NOMEM, "session configuration");
    }
    if ((rc = json_parse(text, strlen(text), &limits, &c->json, e)) ||
        (rc = read_stored(c, e))) {
        session_config_free(c);
        return err_wrap(e, rc == ERR_NOMEM ? rc : ERR_CORRUPT, "session configuration");
    }
    *out = c;
    return OK;
}

void session_config_free(struct session_config *c)
{
    if (!c)
        return;
    call_rules_free(c->call_rules);
    sampling_config_fini(&c->sampling);
    json_decref(c->json);
    free(c->text);
    free(c->system);
    free(c->summary);
    rules_free(c->rules);
    free(c);
}

enum err session_config_call_rules(struct session_config *c, const struct tokenizer *t,
                                   const struct call_rules **out, struct error *e)
{
    enum err rc = c->call_rules ? OK
                                : call_rules_new(&c->call_rules,
                                                 json_object_get(c->json, "functions"), t, e);

    if (!rc)
        *out = c->call_rules;
    return rc;
}

const json_t *session_config_function(const struct session_config *c, const char *name)
{
    const json_t *list = json_object_get(c->json, "functions"), *f;
    size_t i;

    json_array_foreach(list, i, f) {
        const char *s = json_string_value(json_object_get(f, "name"));
        if (s && strcmp(s, name) == 0)
            return f;
    }
    return NULL;
}

bool session_config_has_tool(const struct session_config *c, const char *name)
{
    return session_config_function(c, name) != NULL;
}

const json_t *session_config_client_tool(const struct session_config *c, const char *name)
{
    const json_t *list = json_object_get(c->json, "clientTools"), *v;
    size_t i;

    json_array_foreach(list, i, v)
        if (strcmp(json_string_value(v), name) == 0)
            return session_config_function(c, name);
    return NULL;
}
