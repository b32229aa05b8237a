/* The calls of one model step as data: what the model asked for, what becomes of each call
 * before anything runs, and how calls and results look on the tape and to readers. */
#include <stdlib.h>
#include <string.h>

#include "agentd/tool_policy.h"
#include "agentd/turn_internal.h"
#include "base/hash.h"
#include "base/json.h"
#include "tools/schema.h"
#include "tools/tools.h"

#define MAX_SHOWN_SCHEMA 4096 /* bytes of a declaration that is repeated in an error */

/* ---- records ---------------------------------------------------------------------- */

void tool_step_free(struct tool_step *ts)
{
    if (!ts)
        return;
    turn_tools_drop(ts);
    for (size_t i = 0; i < ts->n_calls; i++) {
        struct step_call *c = &ts->calls[i];
        free(c->name);
        free(c->arguments);
        free(c->why);
        json_decref(c->extra);
        free(c->result);
        free(c->spill);
        buf_fini(&c->output);
    }
    step_ahead_free(ts->ahead);
    free(ts->calls);
    free(ts->note);
    free(ts);
}

void step_call_set(struct step_call *c, enum call_status status, bool is_error,
                   const void *bytes, size_t n)
{
    char *copy = malloc(n + 1);

    if (copy) {
        if (n)
            memcpy(copy, bytes, n);
        copy[n] = '\0';
        free(c->result);
        c->result = copy;
        c->n_result = n;
    } /* else: an empty result with the right status */
    c->status = status;
    c->is_error = is_error;
}

void step_call_record(const struct turn *t, const struct step_call *c, struct tape_call *out)
{
    bool is_open = call_is_open(c->status);

    *out = (struct tape_call){.id = c->id,
                              .turn = t->id,
                              .item = c->id,
                              .name = c->name,
                              .arguments = c->arguments,
                              .step = t->tools->step,
                              .index = c->index,
                              .status = c->status,
                              .is_error = c->is_error,
                              .result = is_open     ? NULL
                                        : c->result ? c->result
                                                    : "",
                              .n_result = is_open ? 0 : c->n_result,
                              .spill = c->spill,
                              .spill_bytes = c->spill_bytes};
}

void step_call_event(struct turn *t, struct commit *c, const struct step_call *call)
{
    json_t *item = json_pack("{s:s, s:s, s:s, s:s, s:o, s:s}", "id", call->id, "kind",
                             "tool_call", "callId", call->id, "name", call->name, "arguments",
                             events_text(call->arguments, strlen(call->arguments)), "status",
                             call_status_name(call->status));

    if (item && call->is_client)
        json_object_set_new(item, "client", json_true());
    commit_event(c, t->id, "item", call->id, "tool_call", json_pack("{s:o}", "item", item));
}

void step_result_event(struct turn *t, struct commit *c, const struct step_call *call)
{
    char id[TAPE_ID_CAP];
    json_t *item;

    snprintf(id, sizeof(id), "%.36s.r", call->id);
    item = events_item(id, "tool_result", call->result ? call->result : "", call->n_result);
    if (item) {
        json_object_set_new(item, "callId", json_string(call->id));
        json_object_set_new(item, "name", json_string(call->name));
        json_object_set_new(item, "status", json_string(call_status_name(call->status)));
        json_object_set_new(item, "isError", json_boolean(call->is_error));
        if (call->extra)
            json_object_update(item, call->extra);
        if (call->spill)
            json_object_set_new(item, "spill", json_string(call->spill));
    }
    commit_event(c, t->id, "item", id, "tool_result", json_pack("{s:o}", "item", item));
}

/* ---- what becomes of each call ---------------------------------------------------- */

uint32_t loop_guard_count(struct loop_guard *g, const char *name, const char *arguments)
{
    struct hash h;
    uint8_t digest[HASH_BYTES];

    hash_init(&h, NULL, HASH_BYTES);
    hash_field(&h, name, strlen(name));
    hash_field(&h, arguments, strlen(arguments));
    hash_final(&h, digest);
    g->n = g->n && memcmp(g->last, digest, sizeof(digest)) == 0 ? g->n + 1 : 1;
    memcpy(g->last, digest, sizeof(digest));
    return g->n;
}

uint32_t loop_guard_wrong(struct loop_guard *g, const char *name, bool is_wrong)
{
    struct hash h;
    uint8_t digest[HASH_BYTES];

    hash_init(&h, NULL, HASH_BYTES);
    hash_field(&h, name, strlen(name));
    hash_final(&h, digest);
    bool same = g->n_wrong && memcmp(g->wrong, digest, sizeof(digest)) == 0;
    if (is_wrong) {
        g->n_wrong = same ? g->n_wrong + 1 : 1;
        memcpy(g->wrong, digest, sizeof(digest));
    } else if (same) {
        g->n_wrong = 0;
    }
    return is_wrong ? g->n_wrong : 0;
}

static enum err check_call(const struct live *s, struct step_call *c, json_t **arguments,
                           struct error *e)
{
    const struct json_limits limits = {
        .max_bytes = TAPE_JSON_MAX, .max_depth = SCHEMA_MAX_DEPTH, .allow_nul = true};
    const json_t *client = session_config_client_tool(s->config, c->name);
    enum err rc;

    if (!session_config_has_tool(s->config, c->name))
        return err_set(e, ERR_NOTFOUND, "there is no tool called \"%.64s\" in this session",
                       c->name);
    if ((rc = json_parse(c->arguments, strlen(c->arguments), &limits, arguments, e)))
        return rc;
    c->is_client = client != NULL;
    if (client)
        return schema_check(json_object_get(client, "parameters"), *arguments, e);
    return tool_check(c->name, *arguments, e);
}

/* What the model reads of a call that does not fit its declaration: the first time in a row
 * with the declaration, to correct it; after that not to try again. */
static void reject_call(struct turn *t, struct step_call *c, const struct error *why)
{
    static const char again[] =
        "[not run: %s. The call was wrong again after it was corrected: do without it, or ask]";
    static const char first[] = "[not run: %s. Correct it and make the call once more%s%s]";
    const json_t *declared = session_config_function(t->session->config, c->name);
    char *parameters = json_dumps(json_object_get(declared, "parameters"), JSON_COMPACT);
    bool once_more = loop_guard_wrong(&t->guard, c->name, true) == 1;
    bool shown = parameters && strlen(parameters) <= MAX_SHOWN_SCHEMA;
    char text[ERR_MSG_BYTES + MAX_SHOWN_SCHEMA + 160];
    int n = once_more ? snprintf(text, sizeof(text), first, why->msg,
                                 shown ? "; its parameters are " : "", shown ? parameters : "")
                      : snprintf(text, sizeof(text), again, why->msg);

    free(parameters);
    step_call_set(c, CALL_INVALID, true, text, (size_t)n);
}

/* Unknown tool, bad arguments, refused permission: results for the model. */
static void decide(struct turn *t, struct step_call *c, bool is_complete)
{
    static const char cut[] = "[not run: the call is not complete]";
    const struct live *s = t->session;
    json_auto_t *arguments = NULL;
    char text[ERR_MSG_BYTES + 64], why[ERR_MSG_BYTES];
    struct error e;

    if (!is_complete) {
        step_call_set(c, CALL_INVALID, true, cut, sizeof(cut) - 1);
        return;
    }
    if (check_call(s, c, &arguments, &e)) {
        reject_call(t, c, &e);
        return;
    }
    (void)loop_guard_wrong(&t->guard, c->name, false);
    enum tool_policy policy = tool_policy(s, c->name, arguments, why);
    if (policy == POLICY_REFUSE) {
        int n = snprintf(text, sizeof(text), "[not run: this session does not permit it (%s)]",
                         why[0] ? why : "approve=never");
        step_call_set(c, CALL_REJECTED, true, text, (size_t)n);
        return;
    }
    c->wants_approval = policy == POLICY_ASK;
    if (c->wants_approval && why[0])
        c->why = strdup(why); /* without memory: no reason is shown */
    c->status = c->is_client || c->wants_approval ? CALL_WAITING : CALL_STARTED;
}

static bool note_loop(struct tool_step *ts, const char *name, uint32_t n)
{
    static const char form[] = "The call of %s was just made %u times in a row with the same "
                               "arguments and will give the same result again. Do something "
                               "else, or answer with what you have.";
    int len = snprintf(NULL, 0, form, name, n);
    char *note = malloc((size_t)len + 1);

    if (!note)
        return false;
    snprintf(note, (size_t)len + 1, form, name, n);
    free(ts->note);
    ts->note = note;
    return true;
}

static bool step_call_init(struct turn *t, struct tool_step *ts, uint32_t i, const char *name,
                           const char *arguments)
{
    struct step_call *c = &ts->calls[i];
    char what[24];

    snprintf(what, sizeof(what), "c%u", i);
    turn_item_id(t, ts->step, what, c->id);
    c->turn = t;
    c->index = i;
    buf_init(&c->output, STEP_OUTPUT_MAX);
    c->name = strdup(name);
    c->arguments = strdup(arguments);
    return c->name && c->arguments;
}

struct tool_step *tool_step_empty(uint32_t step)
{
    struct tool_step *ts = calloc(1, sizeof(*ts));

    if (ts)
        ts->step = step;
    return ts;
}

struct tool_step *tool_step_new(struct turn *t)
{
    const struct chat_parser *p = t->run->parser;
    uint32_t n = chat_parser_n_calls(p);
    struct tool_step *ts = calloc(1, sizeof(*ts));

    if (!ts || !(ts->calls = calloc(n, sizeof(*ts->calls)))) {
        free(ts);
        return NULL;
    }
    ts->n_calls = n;
    ts->step = t->step;
    for (uint32_t i = 0; i < n; i++) {
        const struct chat_call *call = chat_parser_call(p, i);
        if (!step_call_init(t, ts, i, call->name, call->arguments)) {
            tool_step_free(ts);
            return NULL;
        }
        decide(t, &ts->calls[i], call->is_complete);
        uint32_t same = loop_guard_count(&t->guard, call->name, call->arguments);
        if (same >= LOOP_STOP)
            ts->stop_loop = true;
        else if (same >= LOOP_NOTE && !note_loop(ts, call->name, same)) {
            tool_step_free(ts);
            return NULL;
        }
    }
    return ts;
}
