/* STEP: a run is done. One tape commit holds its last ids, its end, what it said, the calls it
 * made and what becomes of each; so there is no moment in which a crash could show one without
 * the other. A run without calls ends the turn in the same commit. */
#include <string.h>

#include "agentd/turn_internal.h"
#include "base/fault.h"

static const char *cut_reason(enum end_reason end)
{
    return end == END_LENGTH ? "length" : end == END_CANCELLED ? "cancelled" : "failed";
}

/* Why the turn ends with this run; NULL: its calls come next. */
static const char *verdict(const struct turn *t)
{
    const struct run *r = t->run;
    const struct session_config *cfg = t->session->config;

    if (chat_parser_stopped(r->parser))
        return "end";
    if (!chat_parser_saw_eos(r->parser))
        return cut_reason(r->end);
    if (t->tools && t->tools->n_calls > 0 && t->compacts)
        return "failed";
    if (t->tools && t->tools->n_calls > 0) {
        if (t->tools->stop_loop)
            return "loop";
        return t->step - t->n_summaries + 1 >= cfg->max_steps ? "length" : NULL;
    }
    /* The model meant to call and nothing came of it: no ordinary end. */
    if (chat_parser_lost_calls(r->parser))
        return "failed";
    /* Somebody has said more: that comes behind the run, instead of its results. */
    return t->steers && t->step - t->n_summaries + 1 < cfg->max_steps ? NULL : "end";
}

static void commit_reasoning(struct turn *t, struct commit *c)
{
    const struct buf *text = chat_parser_thinking(t->run->parser);
    char id[TAPE_ID_CAP];

    if (!text->len)
        return;
    turn_item_id(t, t->step, "r", id);
    json_t *item = events_item(id, "reasoning", text->data, text->len);
    run_add_logprobs(t->run, 0, item);
    commit_event(c, t->id, "item", id, "reasoning", json_pack("{s:o}", "item", item));
}

static void commit_answer(struct turn *t, struct commit *c)
{
    const struct buf *text = chat_parser_text(t->run->parser);
    const char *stop = chat_parser_stopped(t->run->parser);
    char id[TAPE_ID_CAP];

    if (!text->len && !stop)
        return;
    turn_item_id(t, t->step, "a", id);
    json_t *item = events_item(id, "assistant", text->data, text->len);
    if (item && stop)
        json_object_set_new(item, "stop", json_string(stop));
    run_add_logprobs(t->run, 1, item);
    commit_event(c, t->id, "item", id, "assistant", json_pack("{s:o}", "item", item));
}

/* Calls of a cut run are shown and have no record: they can never run, and no result of them
 * ever comes. */
static void commit_cut_calls(struct turn *t, struct commit *c)
{
    const struct chat_parser *p = t->run->parser;
    char what[24], id[TAPE_ID_CAP];

    for (uint32_t i = 0; i < chat_parser_n_calls(p); i++) {
        const struct chat_call *call = chat_parser_call(p, i);
        snprintf(what, sizeof(what), "c%u", i);
        turn_item_id(t, t->step, what, id);
        commit_event(c, t->id, "item", id, "tool_call",
                     json_pack("{s:{s:s, s:s, s:s, s:o, s:s}}", "item", "id", id, "kind",
                               "tool_call", "name", call->name, "arguments",
                               events_text(call->arguments, call->arguments_len), "status",
                               "not_run"));
    }
}

static void commit_calls(struct turn *t, struct commit *c, const char *reason)
{
    static const char loop[] = "[not run: the same call was made "
                               "5 times in a row, the turn was "
                               "stopped]";
    static const char summary[] = "[not run: only a summary was asked for]";
    static const char limit[] = "[not run: the step limit of the turn was reached]";
    struct tape_call record;

    for (size_t i = 0; i < t->tools->n_calls; i++) {
        struct step_call *call = &t->tools->calls[i];
        if (reason && call_is_open(call->status)) {
            const char *why = t->compacts ? summary : t->tools->stop_loop ? loop : limit;
            step_call_set(call, CALL_REJECTED, true, why, strlen(why));
        }
        step_call_event(t, c, call);
        step_call_record(t, call, &record);
        commit_call(c, &record);
        call->committed = !call_is_open(call->status);
        if (call->committed)
            step_result_event(t, c, call);
    }
}

void step_commit_run(struct turn *t, struct commit *c)
{
    turn_commit_digests(t, c);
    run_commit_end(t, c);
    commit_reasoning(t, c);
}

static void then(struct live *s, const struct commit *c)
{
    struct turn *t = s->turn;
    const char *reason = c->user;

    if (c->job.rc) {
        turn_fail(t, c->job.rc, &c->job.error);
        (void)turn_stops(t);
        return;
    }
    ids_fini(&t->last_run);
    t->last_run = t->run->ids;
    t->run->ids = (struct ids){0};
    run_free(t->run);
    t->run = NULL;
    t->open_run = NO_RUN;
    t->n_digests = 0;
    if (reason) {
        turn_over(t, reason);
        return;
    }
    if (!turn_stops(t))
        turn_tools(t);
}

/* Several constant strings travel through void *. */
static void *constant(const char *s)
{
    union {
        const char *in;
        void *out;
    } u = {.in = s};
    return u.out;
}

/* What the run wrote becomes the summary, if that is less than what it stands for. */
static void take_summary(struct turn *t, struct commit *c)
{
    const struct buf *text = chat_parser_text(t->run->parser);
    const char *problem = NULL;

    if (!text->len)
        problem = "the summary is empty: the session is as it was";
    else if (t->run->n_known >= t->tape_start)
        problem = "the summary is longer than what it stands for: the session is as it was";
    else if (!(t->summary = strndup(buf_str(text), text->len)))
        problem = "no memory for the summary: the session is as it was";
    if (problem)
        commit_event(c, t->id, "error", NULL, NULL,
                     json_pack("{s:{s:s, s:s}}", "error", "kind", "limit", "message", problem));
}

void turn_step(struct turn *t)
{
    struct run *r = t->run;
    struct commit *c = commit_new(t->session);
    bool has_calls = chat_parser_saw_eos(r->parser) && chat_parser_n_calls(r->parser) > 0;
    struct error e;

    turn_move(t, TURN_STEP);
    if (has_calls)
        t->tools = tool_step_new(t);
    if (!c || (has_calls && !t->tools)) {
        if (c)
            commit_free(c);
        turn_fail(t, err_set(&e, ERR_NOMEM, "end of a run"), &e);
        (void)turn_stops(t);
        return;
    }
    const char *reason = verdict(t);
    if (!reason && !t->tools && !(t->tools = tool_step_empty(t->step))) {
        commit_free(c);
        turn_fail(t, err_set(&e, ERR_NOMEM, "end of a run"), &e);
        (void)turn_stops(t);
        return;
    }
    if (reason && t->compacts && strcmp(reason, "end") == 0)
        take_summary(t, c);
    step_commit_run(t, c);
    commit_answer(t, c);
    if (t->tools)
        commit_calls(t, c, reason);
    else
        commit_cut_calls(t, c);
    t->step++;
    if (r->is_forced)
        t->forced_next++;
    if (reason) {
        if (strcmp(reason, "failed") == 0)
            commit_event(c, t->id, "error", NULL, NULL,
                         json_pack("{s:{s:s, s:s}}", "error", "kind", "format", "message",
                                   t->compacts
                                       ? "the model called a tool instead of summarising"
                                       : "the model's output holds calls that cannot be read"));
        turn_commit_end(t, c, reason);
    } else {
        commit_state(c, t->id, SESSION_TOOL, "");
        turn_commit_row(t, c, false);
    }
    if (fault_point("turn.step"))
        c->failed = err_set(&c->error, ERR_IO, "end of a run: fault");
    c->user = constant(reason);
    commit_submit(c, then);
}
