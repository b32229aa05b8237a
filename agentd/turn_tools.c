/* TOOLS and RESULTS: the calls of a step run side by side, each outcome is durable before it is
 * shown, and when the last one is, all results become one input segment in call order. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "agentd/tool_policy.h"
#include "agentd/tool_watch.h"
#include "agentd/turn_internal.h"
#include "base/fault.h"
#include "base/fs.h"
#include "base/log.h"

#define ANSWER_MS (10 * 60 * 1000) /* an approval or a client's answer */

/* ---- stopping --------------------------------------------------------------------- */

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

void turn_tools_drop(struct tool_step *ts)
{
    for (size_t i = 0; i < ts->n_calls; i++) {
        struct step_call *c = &ts->calls[i];
        if (c->watch)
            tool_watch_drop(c->watch);
        c->watch = NULL;
        turn_stop_waiting(c);
        close_deadline(c);
    }
}

/* ---- outcomes --------------------------------------------------------------------- */

static void settle(struct turn *t);

static bool is_busy(const struct step_call *c)
{
    return c->watch || c->committing || c->waits_for_job;
}

static void outcome_then(struct live *s, const struct commit *c)
{
    struct step_call *call = c->user;

    call->committing = false;
    if (c->job.rc) {
        turn_fail(s->turn, c->job.rc, &c->job.error);
    } else {
        call->committed = true;
        session_notes_take(&s->notes, call->extra);
    }
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
    turn_ahead_advance(t);
}

static void on_tool_output(void *user, const void *bytes, size_t n)
{
    turn_ahead_output(user, bytes, n);
}

void turn_call_done(struct step_call *c, enum call_status status, bool is_error,
                    const void *bytes, size_t n)
{
    step_call_set(c, status, is_error, bytes, n);
    commit_outcome(c->turn, c);
}

static void on_tool_done(void *user, struct tool_result *r)
{
    static const enum call_status by_end[] = {
        [TOOL_EXITED] = CALL_DONE,         [TOOL_SIGNALLED] = CALL_FAILED,
        [TOOL_TIMED_OUT] = CALL_FAILED,    [TOOL_CANCELLED] = CALL_CANCELLED,
        [TOOL_OUTPUT_LIMIT] = CALL_FAILED, [TOOL_REFUSED] = CALL_REJECTED,
        [TOOL_LOST] = CALL_INTERRUPTED,
    };
    static const char lost[] = "[interrupted: the process that ran this call was killed from "
                               "outside. Its outcome is unknown; it was not run again.]";
    struct step_call *c = user;
    enum call_status status = by_end[r->end];

    c->watch = NULL;
    if (status == CALL_DONE && r->is_error)
        status = CALL_FAILED;
    if (status == CALL_INTERRUPTED)
        step_call_set(c, status, true, lost, sizeof(lost) - 1);
    else
        step_call_set(c, status, r->is_error, buf_str(&r->text), r->text.len);
    if (r->spill_path) {
        c->spill = strdup(r->spill_path);
        c->spill_bytes = r->output_bytes;
    }
    if (r->cwd)
        c->extra = json_pack("{s:s}", "cwd", r->cwd);
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

static void noted_then(void *user, enum err rc, const struct error *e);

/* Its started record is durable. */
static void start(struct turn *t, struct step_call *c)
{
    struct daemon *d = t->session->daemon;
    json_auto_t *arguments = json_loads(c->arguments, JSON_ALLOW_NUL, NULL);
    char spill[FS_PATH_BYTES], text[ERR_MSG_BYTES + 32];
    struct tool_call call = {.name = c->name,
                             .arguments = arguments,
                             .workspace = t->session->cwd,
                             .cwd = t->session->notes.cwd,
                             .mode = TOOL_MODE_WORKSPACE_WRITE};
    struct error e;

    if (turn_call_needs_notes(c) && !t->session->notes.known) {
        c->committing = true;
        session_notes_load(t->session, noted_then, c); /* and comes back here */
        return;
    }
    if (fault_point("tool.start"))
        log_warn("tool.start: fault");
    if (turn_start_own(c, arguments))
        return;
    if (spill_path(t, c, spill, sizeof(spill), &e) == OK)
        call.spill_path = spill;
    else
        log_warn("no spill file for call=%s: %s", c->id, e.msg);
    if (json_is_true(json_object_get(arguments, "background"))) {
        turn_start_job(c, &call);
        return;
    }
    const struct tool_watcher watcher = {
        .done = on_tool_done, .output = on_tool_output, .user = c};
    if (tool_watch_start(d->loop, d->clock, d->tools, &call, &watcher, &c->watch, &e)) {
        int n = snprintf(text, sizeof(text), "[not run: %s]", e.msg);
        step_call_set(c, CALL_FAILED, true, text, (size_t)n);
        commit_outcome(t, c);
        return;
    }
    if (fault_point("tool.started"))
        log_warn("tool.started: fault");
}

/* What it has to know is known. */
static void noted_then(void *user, enum err rc, const struct error *e)
{
    struct step_call *c = user;
    struct turn *t = c->turn;

    c->committing = false;
    if (rc)
        turn_fail(t, rc, e);
    else if (!t->cancelled && !t->failed)
        start(t, c);
    settle(t);
}

/* ---- approvals and clients' answers ----------------------------------------------- */

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

static json_t *approval_json(const struct step_call *c)
{
    json_t *j = json_pack(
        "{s:s, s:s, s:s, s:o, s:i}", "approvalId", c->id, "callId", c->id, "name", c->name,
        "arguments", events_text(c->arguments, strlen(c->arguments)), "deadlineMs", ANSWER_MS);

    if (c->why)
        json_object_set_new(j, "reason", json_string(c->why));
    return j;
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
        events_ephemeral(s, "approval/requested", approval_json(c));
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
        return err_set(e, ERR_CONFLICT, "%s has its answer already", c->id);
    struct turn *t = c->turn;
    close_deadline(c);
    tell_resolved(t, c,
                  outcome == OUTCOME_REJECT ? "reject"
                  : outcome == OUTCOME_ONCE ? "once"
                                            : "session");
    if (outcome == OUTCOME_SESSION)
        tool_policy_approve(t->session, c->name, c->arguments);
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
        return err_set(e, ERR_CONFLICT, "%s has its answer already", c->id);
    close_deadline(c);
    step_call_set(c, is_error ? CALL_FAILED : CALL_DONE, is_error, bytes, n);
    commit_outcome(s->turn, c);
    answered(s->turn);
    return OK;
}

void turn_repeat_approvals(const struct turn *t, struct subscription *to)
{
    for (size_t i = 0; i < t->tools->n_calls; i++) {
        const struct step_call *c = &t->tools->calls[i];
        if (c->wants_approval && is_waiting(c))
            events_ephemeral_to(to, "approval/requested", approval_json(c));
    }
}

json_t *turn_approvals(const struct daemon *d)
{
    json_t *list = json_array();

    for (const struct live *s = d->sessions; s; s = s->next)
        for (size_t i = 0; s->turn && s->turn->tools && i < s->turn->tools->n_calls; i++) {
            const struct step_call *c = &s->turn->tools->calls[i];
            if (!c->wants_approval || !is_waiting(c))
                continue;
            json_t *one = approval_json(c);
            json_object_set_new(one, "sessionId", json_string(s->id));
            json_array_append_new(list, one);
        }
    return list;
}

/* ---- the phase -------------------------------------------------------------------- */

static void results_then(struct live *s, const struct commit *c)
{
    struct turn *t = s->turn;
    struct error e;
    enum err rc = c->job.rc;

    if (rc) {
        t->is_full = t->build->is_full;
        turn_fail(t, rc, &c->job.error);
        (void)turn_stops(t);
        return;
    }
    t->open_run = c->c.position + t->build->n_input;
    tool_step_free(t->tools);
    t->tools = NULL;
    t->end = (struct tape_end){.is_known = true};
    turn_compact_done(t);
    steers_drop_taken(t);
    if ((rc = feed_from_commit(t, c, &e)))
        turn_fail(t, rc, &e);
    turn_go(t); /* behind a summary there is no sequence yet */
}

/* All results of the step: one input segment, in call order. */
void turn_results(struct turn *t)
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
    turn_item_id(t, t->tools->step, "t", t->cut_note);
    *t->build = (struct input_build){.daemon = s->daemon,
                                     .config = s->config,
                                     .turn = t->id,
                                     .note = t->cut_note,
                                     .results = t->tools,
                                     .compaction = t->compaction,
                                     .most = turn_compact_most(t),
                                     .end = t->end,
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
    steers_take(t, c, t->build);
    commit_state(c, t->id, SESSION_PREFILL, "");
    turn_compact_commit(t, c);
    if (t->tools->t0_ns) /* not behind a summary: nothing ran then */
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

    if (t->phase != TURN_TOOLS || t->tools->opening || t->measuring)
        return;
    for (size_t i = 0; i < t->tools->n_calls; i++) {
        struct step_call *c = &t->tools->calls[i];
        if (stopping && c->watch)
            tool_watch_cancel(c->watch);
        if (stopping)
            turn_stop_waiting(c);
        if (stopping)
            close_deadline(c);
        busy = busy || is_busy(c);
        all = all && c->committed;
    }
    if (busy || turn_stops(t) || !all)
        return;
    turn_compact_or_results(t);
}

void turn_tools(struct turn *t)
{
    struct tool_step *ts = t->tools;
    struct live *s = t->session;

    turn_move(t, TURN_TOOLS);
    saver_start(s, 0); /* while they run */
    if (!s->saver)
        turns_on_memory(s->daemon); /* it can do without: else its end says so */
    ts->t0_ns = daemon_now_ns(s->daemon);
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
    turn_ahead_begin(t);
    settle(t);
}

void turn_tools_cancel(struct turn *t)
{
    settle(t);
}
