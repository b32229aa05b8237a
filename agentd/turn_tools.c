/* TOOLS and RESULTS: the calls of a step run side by side, each outcome is durable before it is
 * shown, and when the last one is, all results become one input segment in call order. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "agentd/tool_watch.h"
#include "agentd/turn_internal.h"
#include "base/fault.h"
#include "base/fs.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/log.h"
#include "tools/schema.h"

#define ANSWER_MS (10 * 60 * 1000) /* an approval or a client's answer */

/* ---- records ------------------------------------------------------------------------------
 */

static void free_handle(uv_handle_t *h)
{
    free(h);
}

static void close_deadline(struct step_call *c)
{
    if (c->deadline)
        uv_close((uv_handle_t *)c->deadline, free_handle);
    c->deadline = NULL;
}

void tool_step_free(struct tool_step *ts)
{
    if (!ts)
        return;
    for (size_t i = 0; i < ts->n_calls; i++) {
        struct step_call *c = &ts->calls[i];
        if (c->watch)
            tool_watch_drop(c->watch);
        close_deadline(c);
        free(c->name);
        free(c->arguments);
        free(c->result);
        free(c->spill);
    }
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
        if (call->spill)
            json_object_set_new(item, "spill", json_string(call->spill));
    }
    commit_event(c, t->id, "item", id, "tool_result", json_pack("{s:o}", "item", item));
}

/* ---- what becomes of each call ------------------------------------------------------------
 */

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

static enum err check_call(const struct live *s, struct step_call *c, struct error *e)
{
    const struct json_limits limits = {
        .max_bytes = TAPE_JSON_MAX, .max_depth = SCHEMA_MAX_DEPTH, .allow_nul = true};
    json_auto_t *arguments = NULL;
    const json_t *client = session_config_client_tool(s->config, c->name);
    enum err rc;

    if (!session_config_has_tool(s->config, c->name))
        return err_set(e, ERR_NOTFOUND, "there is no tool called \"%.64s\" in this session",
                       c->name);
    if ((rc = json_parse(c->arguments, strlen(c->arguments), &limits, &arguments, e)))
        return rc;
    c->is_client = client != NULL;
    if (client)
        return schema_check(json_object_get(client, "parameters"), arguments, e);
    return tool_check(c->name, arguments, e);
}

/* Unknown tool, bad arguments, refused permission: results for the model. */
static void decide(struct turn *t, struct step_call *c, bool is_complete)
{
    static const char cut[] = "[not run: the call is not complete]";
    static const char denied[] = "[not run: this session does not permit it (approve=never)]";
    const struct live *s = t->session;
    const struct tool *tool = tool_find(c->name);
    char text[ERR_MSG_BYTES + 32];
    struct error e;

    if (!is_complete) {
        step_call_set(c, CALL_INVALID, true, cut, sizeof(cut) - 1);
        return;
    }
    if (check_call(s, c, &e)) {
        int n = snprintf(text, sizeof(text), "[not run: %s]", e.msg);
        step_call_set(c, CALL_INVALID, true, text, (size_t)n);
        return;
    }
    bool free_to_run = c->is_client || tool->risk == TOOL_READS ||
                       s->config->approve == APPROVE_AUTO ||
                       json_object_get(s->approved, c->name);
    if (!free_to_run && s->config->approve == APPROVE_NEVER) {
        step_call_set(c, CALL_REJECTED, true, denied, sizeof(denied) - 1);
        return;
    }
    c->wants_approval = !free_to_run;
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
    c->name = strdup(name);
    c->arguments = strdup(arguments);
    return c->name && c->arguments;
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

/* ---- outcomes -----------------------------------------------------------------------------
 */

static void settle(struct turn *t);

static bool is_busy(const struct step_call *c)
{
    return c->watch || c->committing;
}

static void outcome_then(struct live *s, const struct commit *c)
{
    struct step_call *call = c->user;

    call->committing = false;
    if (c->job.rc)
        turn_fail(s->turn, c->job.rc, &c->job.error);
    else
        call->committed = true;
    settle(s->turn);
}

/* The outcome of one call goes to the tape, then to the readers. */
static void commit_outcome(struct turn *t, struct step_call *call)
{
    struct commit *c = commit_new(t->session);
    struct tape_call record;
    struct error e;

    if (!c || fault_point("tool.result")) {
        if (c)
            commit_free(c);
        turn_fail(t, err_set(&e, ERR_NOMEM, "result of %s", call->name), &e);
        settle(t);
        return;
    }
    step_call_record(t, call, &record);
    commit_call(c, &record);
    step_result_event(t, c, call);
    call->committing = true;
    c->user = call;
    commit_submit(c, outcome_then);
}

static void on_tool_done(void *user, struct tool_result *r)
{
    static const enum call_status by_end[] = {
        [TOOL_EXITED] = CALL_DONE,         [TOOL_SIGNALLED] = CALL_FAILED,
        [TOOL_TIMED_OUT] = CALL_FAILED,    [TOOL_CANCELLED] = CALL_CANCELLED,
        [TOOL_OUTPUT_LIMIT] = CALL_FAILED, [TOOL_REFUSED] = CALL_REJECTED,
        [TOOL_LOST] = CALL_INTERRUPTED,
    };
    struct step_call *c = user;
    enum call_status status = by_end[r->end];

    c->watch = NULL;
    if (status == CALL_DONE && r->is_error)
        status = CALL_FAILED;
    if (status == CALL_INTERRUPTED)
        step_call_set(c, status, true, INTERRUPTED_TEXT, sizeof(INTERRUPTED_TEXT) - 1);
    else
        step_call_set(c, status, r->is_error, buf_str(&r->text), r->text.len);
    if (r->spill_path) {
        c->spill = strdup(r->spill_path);
        c->spill_bytes = r->output_bytes;
    }
    commit_outcome(c->turn, c);
}

static enum err spill_path(const struct turn *t, const struct step_call *c, char *out,
                           size_t cap, struct error *e)
{
    enum err rc = fs_path(out, cap, e, "%s/%s", t->session->daemon->spill_dir, t->session->id);

    if (rc || (rc = fs_mkdir_p(out, e)))
        return rc;
    return fs_path(out, cap, e, "%s/%s/%s", t->session->daemon->spill_dir, t->session->id,
                   c->id);
}

/* Its started record is durable. */
static void start(struct turn *t, struct step_call *c)
{
    struct daemon *d = t->session->daemon;
    json_auto_t *arguments = json_loads(c->arguments, JSON_ALLOW_NUL, NULL);
    char spill[FS_PATH_BYTES], text[ERR_MSG_BYTES + 32];
    struct tool_call call = {.name = c->name,
                             .arguments = arguments,
                             .workspace = t->session->cwd,
                             .mode = TOOL_MODE_WORKSPACE_WRITE};
    struct error e;

    if (fault_point("tool.start"))
        log_warn("tool.start: fault");
    if (spill_path(t, c, spill, sizeof(spill), &e) == OK)
        call.spill_path = spill;
    else
        log_warn("no spill file for call=%s: %s", c->id, e.msg);
    if (tool_watch_start(d->loop, d->clock, d->tools, &call, on_tool_done, c, &c->watch, &e)) {
        int n = snprintf(text, sizeof(text), "[not run: %s]", e.msg);
        step_call_set(c, CALL_FAILED, true, text, (size_t)n);
        commit_outcome(t, c);
        return;
    }
    if (fault_point("tool.started"))
        log_warn("tool.started: fault");
}

/* ---- approvals and clients' answers -------------------------------------------------------
 */

static void tell_resolved(struct turn *t, const struct step_call *c, const char *outcome)
{
    if (c->wants_approval)
        events_ephemeral(t->session, "approval/resolved",
                         json_pack("{s:s, s:s}", "approvalId", c->id, "outcome", outcome));
}

static void on_deadline(uv_timer_t *timer)
{
    static const char text[] = "[not run: nobody answered in time]";
    struct step_call *c = timer->data;

    close_deadline(c);
    tell_resolved(c->turn, c, "reject");
    step_call_set(c, CALL_REJECTED, true, text, sizeof(text) - 1);
    commit_outcome(c->turn, c);
}

static void ask(struct turn *t, struct step_call *c)
{
    struct live *s = t->session;

    c->deadline = calloc(1, sizeof(*c->deadline));
    if (!c->deadline) {
        step_call_set(c, CALL_REJECTED, true, "[not run]", 9);
        commit_outcome(t, c);
        return;
    }
    uv_timer_init(s->daemon->loop, c->deadline);
    c->deadline->data = c;
    uv_timer_start(c->deadline, on_deadline, ANSWER_MS, 0);
    if (c->wants_approval)
        events_ephemeral(s, "approval/requested",
                         json_pack("{s:s, s:s, s:s, s:o, s:i}", "approvalId", c->id, "callId",
                                   c->id, "name", c->name, "arguments",
                                   events_text(c->arguments, strlen(c->arguments)),
                                   "deadlineMs", ANSWER_MS));
    live_set_state(s, SESSION_REQUIRES_ACTION, "");
}

static bool is_waiting(const struct step_call *c)
{
    return c->status == CALL_WAITING && !c->committing;
}

/* Back to state `tool` when nobody has to act any more. */
static void answered(struct turn *t)
{
    for (size_t i = 0; i < t->tools->n_calls; i++)
        if (is_waiting(&t->tools->calls[i]))
            return;
    live_set_state(t->session, SESSION_TOOL, "");
}

static void started_then(struct live *s, const struct commit *c)
{
    struct step_call *call = c->user;
    struct turn *t = s->turn;

    call->committing = false;
    if (c->job.rc)
        turn_fail(t, c->job.rc, &c->job.error);
    else if (!t->cancelled && !t->failed)
        start(t, call);
    settle(t);
}

static void approve(struct turn *t, struct step_call *call)
{
    struct commit *c = commit_new(t->session);
    struct tape_call record;
    struct error e;

    if (!c) {
        turn_fail(t, err_set(&e, ERR_NOMEM, "approval"), &e);
        settle(t);
        return;
    }
    call->status = CALL_STARTED;
    call->committing = true;
    step_call_record(t, call, &record);
    commit_call(c, &record);
    step_call_event(t, c, call);
    c->user = call;
    commit_submit(c, started_then);
}

static struct step_call *find_call(const struct turn *t, const char *id)
{
    for (size_t i = 0; t && t->tools && i < t->tools->n_calls; i++)
        if (strcmp(t->tools->calls[i].id, id) == 0)
            return &t->tools->calls[i];
    return NULL;
}

enum err turn_resolve_approval(struct daemon *d, const char *approval_id,
                               enum turn_outcome outcome, struct error *e)
{
    static const char text[] = "[not run: the user rejected this call]";
    struct step_call *c = NULL;

    for (struct live *s = d->sessions; s && !c; s = s->next)
        c = find_call(s->turn, approval_id);
    if (!c || !c->wants_approval)
        return err_set(e, ERR_NOTFOUND, "no approval is called %.64s", approval_id);
    if (c->turn->phase != TURN_TOOLS || !is_waiting(c))
        return err_set(e, ERR_CONFLICT, "already_resolved");
    struct turn *t = c->turn;
    close_deadline(c);
    tell_resolved(t, c,
                  outcome == OUTCOME_REJECT ? "reject"
                  : outcome == OUTCOME_ONCE ? "once"
                                            : "session");
    if (outcome == OUTCOME_SESSION)
        json_object_set_new(t->session->approved, c->name, json_true());
    if (outcome == OUTCOME_REJECT) {
        step_call_set(c, CALL_REJECTED, true, text, sizeof(text) - 1);
        commit_outcome(t, c);
    } else {
        approve(t, c);
    }
    answered(t);
    return OK;
}

enum err turn_tool_result(struct live *s, const char *call_id, const void *bytes, size_t n,
                          bool is_error, struct error *e)
{
    struct step_call *c = find_call(s->turn, call_id);

    if (!c || !c->is_client)
        return err_set(e, ERR_NOTFOUND, "no call of a client tool is called %.64s", call_id);
    if (s->turn->phase != TURN_TOOLS || !is_waiting(c))
        return err_set(e, ERR_CONFLICT, "already_resolved");
    close_deadline(c);
    step_call_set(c, is_error ? CALL_FAILED : CALL_DONE, is_error, bytes, n);
    commit_outcome(s->turn, c);
    answered(s->turn);
    return OK;
}

json_t *turn_approvals(const struct daemon *d)
{
    json_t *list = json_array();

    for (const struct live *s = d->sessions; s; s = s->next)
        for (size_t i = 0; s->turn && s->turn->tools && i < s->turn->tools->n_calls; i++) {
            const struct step_call *c = &s->turn->tools->calls[i];
            if (!c->wants_approval || !is_waiting(c))
                continue;
            json_array_append_new(
                list, json_pack("{s:s, s:s, s:s, s:s, s:o}", "approvalId", c->id, "sessionId",
                                s->id, "callId", c->id, "name", c->name, "arguments",
                                events_text(c->arguments, strlen(c->arguments))));
        }
    return list;
}

/* ---- the phase ----------------------------------------------------------------------------
 */

static void results_then(struct live *s, const struct commit *c)
{
    struct turn *t = s->turn;
    struct error e;
    enum err rc = c->job.rc;

    if (rc) {
        turn_fail(t, rc, &c->job.error);
        (void)turn_stops(t);
        return;
    }
    t->open_run = c->c.position + t->build->n_input;
    tool_step_free(t->tools);
    t->tools = NULL;
    if ((rc = feed_from_commit(t, c, &e)))
        turn_fail(t, rc, &e);
    if (!turn_stops(t))
        turn_feed(t);
}

/* All results of the step: one input segment, in call order. */
static void commit_results(struct turn *t)
{
    struct live *s = t->session;
    struct commit *c = commit_new(s);
    struct tape_call record;
    struct error e;

    turn_move(t, TURN_RESULTS);
    free(t->build);
    t->build = calloc(1, sizeof(*t->build));
    if (!c || !t->build) {
        if (c)
            commit_free(c);
        turn_fail(t, err_set(&e, ERR_NOMEM, "results"), &e);
        (void)turn_stops(t);
        return;
    }
    *t->build = (struct input_build){.daemon = s->daemon,
                                     .config = s->config,
                                     .results = t->tools,
                                     .end = {.is_known = true},
                                     .length = s->length};
    for (size_t i = 0; i < t->tools->n_calls; i++) {
        step_call_record(t, &t->tools->calls[i], &record);
        record.result = NULL; /* it is there already */
        record.ingested = true;
        commit_call(c, &record);
    }
    if (t->tools->note) {
        char id[TAPE_ID_CAP];
        turn_item_id(t, t->tools->step, "n", id);
        commit_event(
            c, t->id, "item", id, "note",
            json_pack("{s:o}", "item",
                      events_item(id, "note", t->tools->note, strlen(t->tools->note))));
    }
    commit_state(c, t->id, SESSION_PREFILL, "");
    turn_commit_row(t, c);
    t->ledger.ns[STAGE_TOOL] += daemon_now_ns(s->daemon) - t->tools->t0_ns;
    if (fault_point("turn.results"))
        c->failed = err_set(&c->error, ERR_IO, "results: fault");
    c->prepare = turn_prepare_input;
    c->user = t->build;
    commit_submit(c, results_then);
}

/* Goes on when every call has its outcome on the tape; or, when the turn has to stop, as soon
 * as nothing runs or is on its way any more. Outcomes that are missing then are written with
 * its end. */
static void settle(struct turn *t)
{
    bool stopping = t->cancelled || t->failed, all = true, busy = false;

    if (t->phase != TURN_TOOLS || t->tools->opening)
        return;
    for (size_t i = 0; i < t->tools->n_calls; i++) {
        struct step_call *c = &t->tools->calls[i];
        if (stopping && c->watch)
            tool_watch_cancel(c->watch);
        if (stopping)
            close_deadline(c);
        busy = busy || is_busy(c);
        all = all && c->committed;
    }
    if (busy || turn_stops(t) || !all)
        return;
    commit_results(t);
}

void turn_tools(struct turn *t)
{
    struct tool_step *ts = t->tools;

    turn_move(t, TURN_TOOLS);
    ts->t0_ns = daemon_now_ns(t->session->daemon);
    ts->opening = true; /* no call's end may look at the others before all have begun */
    for (size_t i = 0; i < ts->n_calls; i++) {
        struct step_call *c = &ts->calls[i];
        if (c->committed)
            continue;
        if (c->status == CALL_STARTED)
            start(t, c);
        else if (c->status == CALL_WAITING)
            ask(t, c);
        else
            commit_outcome(t, c); /* interrupted: found so after a restart */
    }
    ts->opening = false;
    settle(t);
}

void turn_tools_cancel(struct turn *t)
{
    settle(t);
}

void turn_tools_abandon(struct turn *t)
{
    for (size_t i = 0; t->tools && i < t->tools->n_calls; i++) {
        struct step_call *c = &t->tools->calls[i];
        if (c->watch)
            tool_watch_drop(c->watch);
        c->watch = NULL;
        close_deadline(c);
    }
}
