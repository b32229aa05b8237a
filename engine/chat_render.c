/* Whole conversations: OpenAI-style messages become one prompt. */
#include <string.h>

#include "engine/chat_internal.h"
#include "engine/pyjson.h"

enum role { ROLE_SYSTEM, ROLE_USER, ROLE_ASSISTANT, ROLE_TOOL, ROLE_REMINDER };

#define NO_TASK CHAT_N_TASKS

/* One user text or tool result of a turn. */
struct block {
    const json_t *message;
    bool is_result;
    size_t
        order; /* results: the place of its call, then its own place, as the order to render */
    size_t index;
};

/* A message as it is rendered: consecutive user and tool messages are one turn. */
struct turn {
    enum role role;
    size_t index;          /* of the first message, for errors */
    const json_t *message; /* NULL for user turns, which are made of blocks */
    size_t first_block, n_blocks;
    enum chat_task task;
};

struct conversation {
    const struct chat_ids *ids;
    const struct chat_options *options;
    struct turn *turns;
    size_t n_turns;
    struct block *blocks;
    size_t n_blocks;
    size_t last_user; /* turn index; SIZE_MAX: none */
    bool keeps_thinking;
};

static void conversation_fini(struct conversation *c)
{
    free(c->turns);
    free(c->blocks);
}

/* ---- reading messages ---------------------------------------------------------------------
 */

static enum err read_role(const json_t *m, enum role *out, struct error *e)
{
    static const char *const names[] = {"system", "user", "assistant", "tool",
                                        "latest_reminder"};
    const char *role = json_string_value(json_object_get(m, "role"));
    for (size_t i = 0; role && i < sizeof names / sizeof names[0]; i++)
        if (!strcmp(role, names[i])) {
            *out = (enum role)i;
            return OK;
        }
    return err_set(e, ERR_INVAL,
                   "role: \"%.40s\" is none of system, user, assistant, tool, latest_reminder",
                   role ? role : "");
}

static enum err read_task(const json_t *m, enum role role, enum chat_task *out, struct error *e)
{
    static const char *const names[] = {"action", "query", "authority",
                                        "domain", "title", "read_url"};
    const json_t *v = json_object_get(m, "task");
    *out = NO_TASK;
    if (!v || json_is_null(v))
        return OK;
    if (role != ROLE_USER && role != ROLE_SYSTEM)
        return err_set(e, ERR_INVAL, "task: only user and system messages carry one");
    for (size_t i = 0; json_is_string(v) && i < CHAT_N_TASKS; i++)
        if (!strcmp(json_string_value(v), names[i])) {
            *out = (enum chat_task)i;
            return OK;
        }
    return err_set(e, ERR_INVAL,
                   "task: want action, query, authority, domain, title or read_url");
}

static bool is_given(const json_t *v)
{
    return v && !json_is_null(v) && !json_is_false(v) &&
           !(json_is_array(v) && !json_array_size(v)) &&
           !(json_is_object(v) && !json_object_size(v));
}

/* The place of a result's call among those of the assistant turn before; unknown: 0. */
static size_t call_order(const json_t *calls, const json_t *result)
{
    const char *id = json_string_value(json_object_get(result, "tool_call_id"));
    for (size_t i = json_array_size(calls); id && *id && i-- > 0;) {
        const json_t *call = json_array_get(calls, i);
        const char *own = json_string_value(json_object_get(call, "id"));
        if (!own || !*own)
            own = json_string_value(json_object_get(json_object_get(call, "function"), "id"));
        if (own && !strcmp(own, id))
            return i;
    }
    return 0;
}

static enum err add_message(struct conversation *c, const json_t *m, size_t index,
                            const json_t **calls, struct error *e)
{
    enum role role = ROLE_SYSTEM;
    enum chat_task task = NO_TASK;
    if (!json_is_object(m))
        return err_set(e, ERR_INVAL, "want an object");
    enum err rc = read_role(m, &role, e);
    if (!rc)
        rc = read_task(m, role, &task, e);
    if (rc)
        return rc;
    if (is_given(json_object_get(m, "tools"))) {
        if (role != ROLE_SYSTEM)
            return err_set(e, ERR_INVAL, "tools: only system messages carry them");
        c->keeps_thinking = true;
    }
    if (role == ROLE_ASSISTANT && is_given(json_object_get(m, "tool_calls")))
        *calls = json_object_get(m, "tool_calls");
    struct turn *last = c->n_turns ? &c->turns[c->n_turns - 1] : NULL;
    bool is_user = role == ROLE_USER || role == ROLE_TOOL;
    if (!is_user || !last || last->role != ROLE_USER || last->task != NO_TASK) {
        last = &c->turns[c->n_turns++];
        *last = (struct turn){
            is_user ? ROLE_USER : role, index, is_user ? NULL : m, c->n_blocks, 0, NO_TASK};
    }
    last->task = task;
    if (is_user) {
        size_t order = role == ROLE_TOOL ? call_order(*calls, m) : 0;
        c->blocks[c->n_blocks] = (struct block){m, role == ROLE_TOOL, order, c->n_blocks};
        c->n_blocks++;
        last->n_blocks++;
    }
    return OK;
}

static int compare_blocks(const void *a, const void *b)
{
    const struct block *x = a, *y = b;
    if (x->order != y->order)
        return x->order < y->order ? -1 : 1;
    return x->index < y->index ? -1 : 1;
}

/* Puts the results of a turn into call order; user text keeps its places. */
static enum err sort_results(struct conversation *c, const struct turn *t, struct error *e)
{
    struct block *blocks = c->blocks + t->first_block;
    AUTO_FREE struct block *results = calloc(t->n_blocks + 1, sizeof *results);
    if (!results)
        return err_set(e, ERR_NOMEM, "no memory for %zu results", t->n_blocks);
    size_t n = 0;
    for (size_t i = 0; i < t->n_blocks; i++)
        if (blocks[i].is_result)
            results[n++] = blocks[i];
    qsort(results, n, sizeof *results, compare_blocks);
    for (size_t i = t->n_blocks; i-- > 0;)
        if (blocks[i].is_result)
            blocks[i] = results[--n];
    return OK;
}

static enum err read_conversation(struct conversation *c, const json_t *messages,
                                  struct error *e)
{
    size_t n = json_array_size(messages);
    if (!n)
        return err_set(e, ERR_INVAL, "messages: want an array with at least one message");
    c->turns = calloc(n, sizeof *c->turns);
    c->blocks = calloc(n, sizeof *c->blocks);
    if (!c->turns || !c->blocks)
        return err_set(e, ERR_NOMEM, "no memory for %zu messages", n);
    c->keeps_thinking = !c->options->drop_thinking;
    c->last_user = SIZE_MAX;
    const json_t *calls = NULL;
    enum err rc;
    for (size_t i = 0; i < n; i++)
        if ((rc = add_message(c, json_array_get(messages, i), i, &calls, e)))
            return err_wrap(e, rc, "messages[%zu]", i);
    for (size_t i = 0; i < c->n_turns; i++) {
        const struct turn *t = &c->turns[i];
        if (t->role == ROLE_USER || (t->role == ROLE_SYSTEM && i))
            c->last_user = i;
        if (t->role == ROLE_USER && (rc = sort_results(c, t, e)))
            return rc;
    }
    return OK;
}

/* ---- writing messages ---------------------------------------------------------------------
 */

static enum err add_json_str(struct prompt *p, const json_t *v, struct error *e)
{
    return prompt_add(p, json_string_value(v), json_string_length(v), e);
}

/* One part of a list content. */
static enum err add_part(struct prompt *p, const json_t *part, bool is_result, struct error *e)
{
    const char *type = json_string_value(json_object_get(part, "type"));
    const json_t *text = json_object_get(part, "text");
    if (!type)
        return err_set(e, ERR_INVAL, "content: a part without a type");
    if (!strcmp(type, "text"))
        return json_is_string(text)
                   ? add_json_str(p, text, e)
                   : err_set(e, ERR_INVAL, "content: a text part without text");
    if (!is_result && !strncmp(type, "image", 5))
        return err_set(e, ERR_UNSUPPORTED, "content: images are not supported");
    enum err rc = prompt_add_str(p, "[Unsupported ", e);
    if (!rc)
        rc = prompt_add_str(p, type, e);
    return rc ? rc : prompt_add_str(p, "]", e);
}

/* A string, a list of parts joined by blank lines, or nothing. */
static enum err add_content(struct prompt *p, const json_t *m, bool is_result, struct error *e)
{
    const json_t *v = json_object_get(m, "content");
    if (!v || json_is_null(v))
        return OK;
    if (json_is_string(v))
        return add_json_str(p, v, e);
    if (!json_is_array(v))
        return err_set(e, ERR_INVAL, "content: want a string, a list of parts or null");
    enum err rc = OK;
    for (size_t i = 0; i < json_array_size(v) && !rc; i++) {
        if (i)
            rc = prompt_add_str(p, "\n\n", e);
        if (!rc)
            rc = add_part(p, json_array_get(v, i), is_result, e);
    }
    return rc;
}

static enum err add_system(const struct conversation *c, const struct turn *t, struct prompt *p,
                           struct error *e)
{
    const json_t *tools = json_object_get(t->message, "tools");
    const json_t *format = json_object_get(t->message, "response_format");
    enum err rc = add_content(p, t->message, false, e);
    if (!rc && is_given(tools)) {
        rc = prompt_add_str(p, "\n\n", e);
        if (!rc)
            rc = chat_render_tools(c->ids, tools, p, e);
    }
    if (!rc && is_given(format)) {
        rc = prompt_add_str(p,
                            "\n\n## Response Format:\n\nYou MUST strictly adhere to the "
                            "following schema to reply:\n",
                            e);
        if (!rc)
            rc = pyjson_dump(format, &p->text, e);
    }
    return rc;
}

static enum err add_user(const struct conversation *c, const struct turn *t, struct prompt *p,
                         struct error *e)
{
    enum err rc = prompt_add_id(p, c->ids->user, e);
    for (size_t i = 0; i < t->n_blocks && !rc; i++) {
        const struct block *b = &c->blocks[t->first_block + i];
        if (i)
            rc = prompt_add_str(p, "\n\n", e);
        if (!rc && b->is_result)
            rc = prompt_add_str(p, "<tool_result>", e);
        if (!rc)
            rc = add_content(p, b->message, b->is_result, e);
        if (!rc && b->is_result)
            rc = prompt_add_str(p, "</tool_result>", e);
    }
    return rc;
}

static enum err add_parameter(const struct chat_ids *ids, struct prompt *p, const char *name,
                              size_t name_len, const json_t *value, struct error *e)
{
    bool is_string = json_is_string(value);
    enum err rc = chat_add_template(ids, p, "<" CHAT_DSML " parameter name=\"", e);
    if (!rc)
        rc = prompt_add(p, name, name_len, e);
    if (!rc)
        rc = prompt_add_str(p, is_string ? "\" string=\"true\">" : "\" string=\"false\">", e);
    if (!rc)
        rc = is_string ? add_json_str(p, value, e) : pyjson_dump(value, &p->text, e);
    return rc ? rc : chat_add_template(ids, p, "</" CHAT_DSML " parameter>", e);
}

/* JSON text in a string. A number that does not fit is an error, not a reason to go on with the
 * text: the prompt would silently be another one. *out stays NULL for text that is no JSON. */
static enum err decode(const json_t *text, json_t **out, struct error *e)
{
    json_error_t why = {0};
    *out = json_loadb(json_string_value(text), json_string_length(text),
                      JSON_DECODE_ANY | JSON_ALLOW_NUL, &why);
    if (*out || !pyjson_valid(json_string_value(text), json_string_length(text)))
        return OK;
    /* It is JSON that jansson did not take; without memory its own code says anything. */
    enum json_error_code code = json_error_code(&why);
    if (code == json_error_numeric_overflow || code == json_error_null_byte_in_key)
        return err_set(e, ERR_UNSUPPORTED, "arguments: %s", why.text);
    return err_set(e, ERR_NOMEM, "arguments: no memory");
}

/* Arguments as an object: given as one, or as JSON text, decoded up to twice. *out stays NULL
 * when they are no object. */
static enum err read_arguments(const json_t *v, json_t **out, struct error *e)
{
    json_auto_t *now = json_incref((json_t *)(uintptr_t)v);
    for (int i = 0; i < 2 && json_is_string(now); i++) {
        json_t *next;
        enum err rc = decode(now, &next, e);
        if (rc)
            return rc;
        json_decref(now);
        now = next;
    }
    *out = json_is_object(now) ? TAKE(now) : NULL;
    return OK;
}

static enum err add_arguments(const struct chat_ids *ids, struct prompt *p, const json_t *v,
                              struct error *e)
{
    json_auto_t *object = NULL;
    enum err rc = read_arguments(v, &object, e);
    if (!rc && !object)
        rc = add_parameter(ids, p, "arguments", strlen("arguments"), v, e);
    bool first = true;
    const char *name;
    json_t *value;
    json_object_foreach(object, name, value) {
        if (!rc && !first)
            rc = prompt_add_str(p, "\n", e);
        if (!rc)
            rc = add_parameter(ids, p, name, strlen(name), value, e);
        first = false;
    }
    return rc;
}

static enum err add_call(const struct chat_ids *ids, struct prompt *p, const json_t *call,
                         struct error *e)
{
    const json_t *function = json_object_get(call, "function");
    const json_t *name = json_object_get(function, "name");
    const json_t *arguments = json_object_get(function, "arguments");
    if (!json_is_string(name) || !arguments)
        return err_set(e, ERR_INVAL, "want function: {name, arguments}");
    enum err rc = chat_add_template(ids, p, "<" CHAT_DSML " invoke name=\"", e);
    if (!rc)
        rc = add_json_str(p, name, e);
    if (!rc)
        rc = prompt_add_str(p, "\">\n", e);
    if (!rc)
        rc = add_arguments(ids, p, arguments, e);
    return rc ? rc : chat_add_template(ids, p, "\n</" CHAT_DSML " invoke>", e);
}

static enum err add_calls(const struct chat_ids *ids, struct prompt *p, const json_t *calls,
                          struct error *e)
{
    if (!json_is_array(calls))
        return err_set(e, ERR_INVAL, "tool_calls: want an array");
    enum err rc = chat_add_template(ids, p, "\n\n<" CHAT_DSML " calls>\n", e);
    for (size_t i = 0; i < json_array_size(calls) && !rc; i++) {
        if (i)
            rc = prompt_add_str(p, "\n", e);
        if (!rc && (rc = add_call(ids, p, json_array_get(calls, i), e)))
            return err_wrap(e, rc, "tool_calls[%zu]", i);
    }
    return rc ? rc : chat_add_template(ids, p, "\n</" CHAT_DSML " calls>", e);
}

static enum err add_assistant(const struct conversation *c, size_t i, struct prompt *p,
                              struct error *e)
{
    const json_t *m = c->turns[i].message;
    const json_t *reasoning = json_object_get(m, "reasoning_content");
    const json_t *calls = json_object_get(m, "tool_calls");
    bool answers_task = i && c->turns[i - 1].task != NO_TASK;
    bool after_user = c->last_user == SIZE_MAX || i > c->last_user;
    enum err rc = OK;
    if (is_given(reasoning) && !json_is_string(reasoning))
        return err_set(e, ERR_INVAL, "reasoning_content: want a string or null");
    if (c->options->thinking && !answers_task && (c->keeps_thinking || after_user)) {
        if (json_is_string(reasoning))
            rc = add_json_str(p, reasoning, e);
        if (!rc)
            rc = prompt_add_id(p, c->ids->think_end, e);
    }
    if (!rc)
        rc = add_content(p, m, false, e);
    if (!rc && is_given(calls))
        rc = add_calls(c->ids, p, calls, e);
    if (!rc && !json_is_true(json_object_get(m, "wo_eos")))
        rc = prompt_add_id(p, c->ids->eos, e);
    return rc;
}

/* What makes the model go on after a turn that nobody but it can answer. */
static enum err add_transition(const struct conversation *c, size_t i, struct prompt *p,
                               struct error *e)
{
    const struct turn *t = &c->turns[i], *next = i + 1 < c->n_turns ? t + 1 : NULL;
    bool thinking = c->options->thinking;
    if (next && next->role != ROLE_ASSISTANT && next->role != ROLE_REMINDER)
        return OK;
    if (t->task != NO_TASK) {
        enum err rc =
            t->task == CHAT_TASK_ACTION ? chat_add_generation(c->ids, p, thinking, e) : OK;
        return rc ? rc : prompt_add_id(p, c->ids->task[t->task], e);
    }
    if (t->role != ROLE_USER && (t->role != ROLE_SYSTEM || !i))
        return OK;
    return chat_add_generation(c->ids, p, thinking && (c->keeps_thinking || i >= c->last_user),
                               e);
}

static enum err add_turn(const struct conversation *c, size_t i, struct prompt *p,
                         struct error *e)
{
    const struct turn *t = &c->turns[i];
    bool has_effort = !i && c->options->thinking;
    enum err rc = OK;
    if (has_effort || t->role == ROLE_SYSTEM)
        rc = prompt_add_id(p, c->ids->system, e);
    if (!rc && has_effort)
        rc = chat_add_effort(p, c->options->effort, e);
    if (rc)
        return rc;
    switch (t->role) {
    case ROLE_SYSTEM:
        rc = add_system(c, t, p, e);
        break;
    case ROLE_USER:
    case ROLE_TOOL:
        rc = add_user(c, t, p, e);
        break;
    case ROLE_REMINDER:
        rc = prompt_add_id(p, c->ids->latest_reminder, e);
        if (!rc)
            rc = add_content(p, t->message, false, e);
        break;
    case ROLE_ASSISTANT:
        rc = add_assistant(c, i, p, e);
        break;
    }
    return rc ? rc : add_transition(c, i, p, e);
}

enum err chat_render(const struct chat_ids *ids, const json_t *messages,
                     const struct chat_options *o, struct prompt *out, struct error *e)
{
    AUTO(conversation) struct conversation c = {.ids = ids, .options = o};
    enum err rc = read_conversation(&c, messages, e);
    if (!rc && !o->continues)
        rc = prompt_add_id(out, ids->bos, e);
    for (size_t i = 0; i < c.n_turns && !rc; i++)
        if ((rc = add_turn(&c, i, out, e)))
            return err_wrap(e, rc, "messages[%zu]", c.turns[i].index);
    return rc;
}
