#include "engine/chat.h"

#include <string.h>

#include "engine/chat_internal.h"
#include "engine/pyjson.h"

const char *const chat_special_texts[] = {
    "<｜begin▁of▁sentence｜>",
    "<｜end▁of▁sentence｜>",
    "<｜System｜>",
    "<｜User｜>",
    "<｜Assistant｜>",
    "<think>",
    "</think>",
    "｜DSML｜",
    "<｜latest_reminder｜>",
    "<｜action｜>",
    "<｜query｜>",
    "<｜authority｜>",
    "<｜domain｜>",
    "<｜title｜>",
    "<｜read_url｜>",
    "<｜deepseek_image｜>",
    NULL,
};

/* BOS to the DSML mark: no conversation can do without them. */
#define N_REQUIRED 8

enum err chat_ids_find(struct chat_ids *out, const struct tokenizer *t, struct error *e)
{
    struct chat_ids ids;
    uint32_t *const fields[] = {&ids.bos,
                                &ids.eos,
                                &ids.system,
                                &ids.user,
                                &ids.assistant,
                                &ids.think,
                                &ids.think_end,
                                &ids.dsml,
                                &ids.latest_reminder,
                                &ids.task[CHAT_TASK_ACTION],
                                &ids.task[CHAT_TASK_QUERY],
                                &ids.task[CHAT_TASK_AUTHORITY],
                                &ids.task[CHAT_TASK_DOMAIN],
                                &ids.task[CHAT_TASK_TITLE],
                                &ids.task[CHAT_TASK_READ_URL],
                                &ids.image};
    for (size_t i = 0; chat_special_texts[i]; i++) {
        *fields[i] = tokenizer_added(t, chat_special_texts[i]);
        if (*fields[i] == TOKEN_NONE && i < N_REQUIRED)
            return err_set(e, ERR_FORMAT, "the tokenizer lacks the added token %s",
                           chat_special_texts[i]);
    }
    *out = ids;
    return OK;
}

enum err chat_effort(const json_t *v, uint32_t *out, struct error *e)
{
    static const struct {
        const char *name;
        uint32_t effort;
    } names[] = {{"low", 50}, {"high", 75}, {"max", 100}};
    if (!v || json_is_null(v)) {
        *out = CHAT_EFFORT_DEFAULT;
        return OK;
    }
    json_int_t n = json_integer_value(v);
    if (json_is_integer(v) && n >= 1 && n <= 100) {
        *out = (uint32_t)n;
        return OK;
    }
    for (size_t i = 0; json_is_string(v) && i < sizeof names / sizeof names[0]; i++)
        if (!strcmp(json_string_value(v), names[i].name)) {
            *out = names[i].effort;
            return OK;
        }
    return err_set(e, ERR_INVAL, "reasoning effort: want an integer 1..100, low, high or max");
}

/* ---- pieces -------------------------------------------------------------------------------
 */

enum err chat_add_template(const struct chat_ids *ids, struct prompt *p, const char *text,
                           struct error *e)
{
    const uint32_t marks[] = {ids->dsml, ids->think, ids->think_end};
    enum err rc = OK;
    while (*text && !rc) {
        size_t n = strcspn(text, CHAT_DSML CHAT_THINK CHAT_THINK_END);
        rc = prompt_add(p, text, n, e);
        text += n;
        if (!rc && *text)
            rc = prompt_add_id(p, marks[*text++ - 1], e);
    }
    return rc;
}

enum err chat_add_effort(struct prompt *p, uint32_t effort, struct error *e)
{
    return buf_printf(&p->text, e,
                      "Reasoning Effort: %u (range 1-100, the higher the value, the more "
                      "thorough the reasoning)\n\n",
                      effort);
}

enum err chat_add_generation(const struct chat_ids *ids, struct prompt *p, bool thinking,
                             struct error *e)
{
    enum err rc = prompt_add_id(p, ids->assistant, e);
    return rc ? rc : prompt_add_id(p, thinking ? ids->think : ids->think_end, e);
}

/* ---- tools --------------------------------------------------------------------------------
 */

static const char tools_head[] =
    "## Tools\n"
    "\n"
    "You have access to a set of tools to help answer the user's question. You can invoke "
    "tools "
    "by writing a \"<" CHAT_DSML " calls>\" block like the following:\n"
    "\n"
    "<" CHAT_DSML " calls>\n"
    "<" CHAT_DSML " invoke name=\"$TOOL_NAME\">\n"
    "<" CHAT_DSML " parameter name=\"$PARAMETER_NAME\" string=\"true|false\">$PARAMETER_VALUE"
    "</" CHAT_DSML " parameter>\n"
    "...\n"
    "</" CHAT_DSML " invoke>\n"
    "<" CHAT_DSML " invoke name=\"$TOOL_NAME2\">\n"
    "...\n"
    "</" CHAT_DSML " invoke>\n"
    "</" CHAT_DSML " calls>\n"
    "\n"
    "String parameters should be specified as is and set `string=\"true\"`. For all other "
    "types "
    "(numbers, booleans, arrays, objects), pass the value in JSON format and set "
    "`string=\"false\"`.\n"
    "\n"
    "If thinking_mode is enabled (triggered by " CHAT_THINK "), you MUST output your complete "
    "reasoning inside " CHAT_THINK "..." CHAT_THINK_END " BEFORE any tool calls or final "
    "response.\n"
    "\n"
    "Otherwise, output directly after " CHAT_THINK_END " with tool calls or final response.\n"
    "\n"
    "### Available Tool Schemas\n"
    "\n";

static const char tools_tail[] = "\n"
                                 "You MUST strictly follow the above defined tool name and "
                                 "parameter schemas to invoke tool calls.\n";

/* A copy of the function whose name and description carry those of the namespace. */
static enum err qualify(const json_t *function, const json_t *namespace, json_t **out,
                        struct error *e)
{
    const char *name = json_string_value(json_object_get(function, "name"));
    const char *space = json_string_value(json_object_get(namespace, "name"));
    const char *about = json_string_value(json_object_get(namespace, "description"));
    const char *own = json_string_value(json_object_get(function, "description"));
    if (!name || !space)
        return err_set(e, ERR_INVAL,
                       "namespace: want {name, description} and a function with a name");
    json_auto_t *copy = json_copy((json_t *)(uintptr_t)function);
    /* json_copy() leaves members out when it has no memory for them. */
    bool good = json_object_size(copy) == json_object_size(function) &&
                !json_object_set_new(copy, "name", json_sprintf("%s::%s", space, name));
    if (good && about)
        good = !json_object_set_new(
            copy, "description", own ? json_sprintf("%s\n%s", about, own) : json_string(about));
    if (!good)
        return err_set(e, ERR_NOMEM, "no memory for tool %s", name);
    *out = TAKE(copy);
    return OK;
}

static enum err add_tool(struct prompt *p, const json_t *tool, struct error *e)
{
    const json_t *function = json_object_get(tool, "function");
    const json_t *namespace = json_object_get(tool, "namespace");
    if (!function)
        function = tool;
    if (!json_is_object(function))
        return err_set(e, ERR_INVAL, "want an object with a function");
    json_auto_t *qualified = NULL;
    enum err rc = OK;
    if (namespace && !json_is_null(namespace)) {
        rc = qualify(function, namespace, &qualified, e);
        function = qualified;
    }
    if (!rc)
        rc = pyjson_dump(function, &p->text, e);
    return rc ? rc : prompt_add_str(p, "\n", e);
}

enum err chat_render_tools(const struct chat_ids *ids, const json_t *tools, struct prompt *out,
                           struct error *e)
{
    if (!json_is_array(tools))
        return err_set(e, ERR_INVAL, "tools: want an array");
    enum err rc = chat_add_template(ids, out, tools_head, e);
    for (size_t i = 0; i < json_array_size(tools) && !rc; i++)
        if ((rc = add_tool(out, json_array_get(tools, i), e)))
            return err_wrap(e, rc, "tools[%zu]", i);
    return rc ? rc : prompt_add_str(out, tools_tail, e);
}
