#include "agentd/turn.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "agentd/cut.h"
#include "agentd/engine_thread.h"
#include "agentd/turn_internal.h"
#include "base/fault.h"
#include "base/log.h"
#include "sessions/late.h"

#define PROGRESS_NS UINT64_C(100000000)
#define SILENCE_NS UINT64_C(5000000000)

/* ---- the table -------------------------------------------------------------------- */

#define TO(phase) (1u << (phase))

static const unsigned moves[TURN_PHASES] = {
    [TURN_ACCEPT] =
        TO(TURN_RESTORE) | TO(TURN_FEED) | TO(TURN_COMPACT) | TO(TURN_END) | TO(TURN_OVER),
    [TURN_RESTORE] = TO(TURN_FEED) | TO(TURN_END),
    /* Back to RESTORE: turn_late.c, turn_memory.c. */
    [TURN_FEED] = TO(TURN_RUN) | TO(TURN_TOOLS) | TO(TURN_RESTORE) | TO(TURN_END),
    [TURN_RUN] = TO(TURN_STEP) | TO(TURN_RESTORE) | TO(TURN_END),
    [TURN_STEP] = TO(TURN_TOOLS) | TO(TURN_COMPACT) | TO(TURN_END) | TO(TURN_OVER),
    [TURN_TOOLS] = TO(TURN_COMPACT) | TO(TURN_RESULTS) | TO(TURN_END),
    [TURN_COMPACT] = TO(TURN_RESTORE) | TO(TURN_FEED) | TO(TURN_RESULTS) | TO(TURN_END),
    [TURN_RESULTS] = TO(TURN_RESTORE) | TO(TURN_FEED) | TO(TURN_END),
    [TURN_END] = TO(TURN_OVER),
};

static const enum live_state states[TURN_PHASES] = {
    [TURN_ACCEPT] = SESSION_QUEUED,   [TURN_RESTORE] = SESSION_QUEUED,
    [TURN_FEED] = SESSION_PREFILL,    [TURN_RUN] = SESSION_GENERATING,
    [TURN_STEP] = SESSION_GENERATING, [TURN_TOOLS] = SESSION_TOOL,
    [TURN_COMPACT] = SESSION_TOOL,    [TURN_RESULTS] = SESSION_TOOL,
    [TURN_END] = SESSION_IDLE, /* not yet shown */
    [TURN_OVER] = SESSION_IDLE,
};

bool turn_may_move(enum turn_phase from, enum turn_phase to)
{
    return moves[from] & TO(to);
}

void turn_move(struct turn *t, enum turn_phase to)
{
    assert(turn_may_move(t->phase, to));
    t->phase = to;
    if (to == TURN_END && t->session->state == SESSION_REQUIRES_ACTION)
        live_set_state(t->session, SESSION_TOOL, ""); /* nobody has to act any more */
    else if (to != TURN_END && to != TURN_OVER)
        live_set_state(t->session, states[to], "");
}

/* ---- life ------------------------------------------------------------------------- */

struct turn *turn_new(struct live *s, const char *id)
{
    struct turn *t = calloc(1, sizeof(*t));

    if (!t)
        return NULL;
    snprintf(t->id, sizeof(t->id), "%s", id);
    t->session = s;
    t->phase = TURN_ACCEPT;
    t->open_run = NO_RUN;
    t->end.is_known = true; /* a step's results follow a run that has its EOS */
    t->last_run.max = TAPE_TOKENS_MAX;
    t->was = s->reason;
    t->created_ns = daemon_now_ns(s->daemon);
    live_pin(s);
    s->turn = t;
    return t;
}

void turn_free(struct turn *t)
{
    struct live *s = t->session;

    s->turn = NULL;
    restore_free(t->restore);
    late_unref(t->spoiled);
    feed_fini(&t->feed);
    run_free(t->run);
    tool_step_free(t->tools);
    forced_runs_fini(&t->forced);
    steers_free(t);
    free(t->client_message);
    free(t->summary);
    compaction_free(t->compaction);
    ids_fini(&t->last_run);
    free(t->build);
    free(t->digests);
    free(t);
    live_unpin(s);
}

void turn_item_id(const struct turn *t, uint32_t step, const char *what, char *out)
{
    snprintf(out, TAPE_ID_CAP, "%s.%u.%s", t->id, step, what);
}

void turn_go(struct turn *t)
{
    if (turn_stops(t))
        return;
    if (!t->session->model.seq) {
        turn_move(t, TURN_RESTORE);
        turn_restore(t);
    } else {
        turn_feed(t);
    }
}

/* ---- what a commit of a turn holds ------------------------------------------------ */

void turn_keep_digest(struct turn *t, const struct tape_segment *seg,
                      const struct seq_digest *digest)
{
    /* Segments that are computed again after a restore are known again. */
    while (t->n_digests > 0 && t->digests[t->n_digests - 1].seg.start >= seg->seg.start)
        t->n_digests--;
    struct tape_segment *d = realloc(t->digests, (t->n_digests + 1) * sizeof(*d));
    struct error e;

    if (!d) {
        turn_fail(t, err_set(&e, ERR_NOMEM, "segment digest"), &e);
        return;
    }
    t->digests = d;
    d[t->n_digests] = *seg;
    d[t->n_digests].open = false;
    d[t->n_digests].has_digest = true;
    d[t->n_digests].n_rows = digest->n_rows;
    memcpy(d[t->n_digests].digest, digest->d, sizeof(digest->d));
    t->n_digests++;
}

void turn_commit_digests(struct turn *t, struct commit *c)
{
    for (size_t i = 0; i < t->n_digests; i++)
        commit_segment(c, &t->digests[i]);
}

/* What the turn was asked: all that a restart needs and the tape does not say. */
static char *row_params(const struct turn *t)
{
    json_auto_t *row = json_pack(
        "{s:b, s:o, s:I, s:o, s:I, s:I, s:I, s:I, s:b}", "compact", t->compacts, "forced",
        forced_runs_json(&t->forced), "tapeStart", (json_int_t)t->tape_start, "steer",
        steers_json(t), "steered", (json_int_t)t->n_steered, "decodedBefore",
        (json_int_t)t->decoded_before, "summaries", (json_int_t)t->n_summaries, "compactedAt",
        (json_int_t)t->compacted_at, "compactsNoMore", t->compacts_no_more);

    if (row && t->compaction &&
        json_object_set_new(row, "compaction", compaction_json(t->compaction)))
        return NULL;
    return row ? json_dumps(row, JSON_COMPACT) : NULL;
}

/* params: NULL leaves those of the row. */
static void commit_row(struct turn *t, struct commit *c, bool finished, const char *reason,
                       const char *params)
{
    json_t *ledger = ledger_json(&t->ledger);
    char *text = json_dumps(ledger, JSON_COMPACT);

    commit_turn(c, &(struct tape_turn){.id = t->id,
                                       .params = params,
                                       .forced_next = t->forced_next,
                                       .step = t->step,
                                       .state = finished ? "idle" : "running",
                                       .reason = reason,
                                       .ledger = text,
                                       .finished = finished});
    json_decref(ledger);
    free(text);
}

void turn_commit_row(struct turn *t, struct commit *c, bool with_params)
{
    AUTO_FREE char *params = with_params ? row_params(t) : NULL;

    if (with_params && !params && !c->failed)
        c->failed = err_set(&c->error, ERR_NOMEM, "turn");
    commit_row(t, c, false, "", params);
}

void turn_commit_end(struct turn *t, struct commit *c, const char *reason)
{
    struct ledger *l = &t->ledger;
    uint64_t sum = l->resident + l->restored + l->recomputed + l->relost + l->prefilled;

    l->steps = t->step;
    /* Counted on its own: what the sequence holds and was not written by this turn's runs. A
     * sequence that failed cannot be asked any more. */
    l->prompt_tokens =
        t->session->model.seq ? t->left_behind + t->session->model.position - l->decoded : sum;
    if (!ledger_is_balanced(l))
        log_error("ledger of turn=%s does not balance: prompt=%llu resident=%llu restored=%llu "
                  "recomputed=%llu relost=%llu prefilled=%llu",
                  t->id, (unsigned long long)l->prompt_tokens, (unsigned long long)l->resident,
                  (unsigned long long)l->restored, (unsigned long long)l->recomputed,
                  (unsigned long long)l->relost, (unsigned long long)l->prefilled);
    t->ending = true;
    steers_commit_end(t, c);
    commit_event(c, t->id, "usage", NULL, NULL, json_pack("{s:o}", "ledger", ledger_json(l)));
    commit_state(c, t->id, SESSION_IDLE, reason);
    commit_row(t, c, true, reason, NULL);
}

/* ---- ends ------------------------------------------------------------------------- */

void turn_over(struct turn *t, const char *reason)
{
    struct live *s = t->session;

    turn_move(t, TURN_OVER);
    turn_ahead_end(t);
    live_pin(s);
    s->end.is_known = false;
    s->used_ns = daemon_now_ns(s->daemon);
    s->last =
        (struct last_turn){.step = t->step, .forced_next = t->forced_next, .ledger = t->ledger};
    snprintf(s->last.id, sizeof(s->last.id), "%s", t->id);
    log_info("turn end session=%s turn=%s reason=%s steps=%u tokens=%llu decoded=%llu", s->id,
             t->id, reason, t->step, (unsigned long long)s->length,
             (unsigned long long)t->ledger.decoded);
    AUTO_FREE char *summary = strcmp(reason, "end") == 0 ? TAKE(t->summary) : NULL;
    s->compacted = t->compacts;
    turn_free(t);
    if (s->model.position > s->length)
        live_drop_seq(s); /* it holds tokens that could not be put on the tape */
    saver_start(s, 0);
    if (summary)
        cut_restart(s, summary, NULL);
    live_set_state(s, SESSION_IDLE, reason);
    turn_queue_next(s);
    live_evict(s->daemon);
    live_unpin(s);
}

static const char *stop_reason(const struct turn *t)
{
    if (!t->failed)
        return "cancelled";
    if (t->is_full ||
        (t->error.code == ERR_LIMIT && t->session->length >= t->session->daemon->context))
        return "length";
    return "failed";
}

static void end_then(struct live *s, const struct commit *c)
{
    if (c->job.rc) /* the row stays unfinished: the next prompt, or a restart, sees to it */
        log_error("end of turn=%s is not on the tape: %s", s->turn->id, c->job.error.msg);
    turn_over(s->turn, stop_reason(s->turn));
}

/* Calls that have no outcome yet get one: they did not run, or were stopped. */
static void commit_open_calls(struct turn *t, struct commit *c)
{
    static const char text[] =
        "[cancelled: the turn was stopped before this call had a result]";
    struct tape_call record;

    for (size_t i = 0; t->tools && i < t->tools->n_calls; i++) {
        struct step_call *call = &t->tools->calls[i];
        if (call->committed)
            continue;
        if (call_is_open(call->status))
            step_call_set(call, CALL_CANCELLED, true, text, sizeof(text) - 1);
        step_call_record(t, call, &record);
        commit_call(c, &record);
        step_result_event(t, c, call);
        call->committed = true;
    }
}

bool turn_stops(struct turn *t)
{
    if (t->session->daemon->stopping)
        return true; /* it stays as the tape has it, and goes on at the next start */
    if (!t->cancelled && !t->failed)
        return false;
    if (turn_gets_memory(t))
        return true;
    if (t->run && t->run->flushing)
        return true; /* asked again when that commit is back */
    t->starved = false;
    turn_move(t, TURN_END);
    struct commit *c = commit_new(t->session);
    if (!c) {
        turn_over(t, stop_reason(t));
        return true;
    }
    turn_commit_digests(t, c);
    if (t->run) { /* from what is durable: a commit of the run may have failed */
        t->run->n_flushed = (size_t)(t->session->length - t->run->start);
        run_commit_end(t, c);
    } else if (t->open_run != NO_RUN) {
        commit_segment(c,
                       &(struct tape_segment){.seg = {.start = t->open_run,
                                                      .len = t->session->length - t->open_run,
                                                      .kind = SEGMENT_GENERATED}});
    }
    commit_open_calls(t, c);
    if (t->failed) {
        log_error("turn=%s of session=%s: %s", t->id, t->session->id, t->error.msg);
        commit_event(c, t->id, "error", NULL, NULL,
                     json_pack("{s:{s:s, s:s}}", "error", "kind", err_name(t->error.code),
                               "message", t->error.msg));
    }
    turn_commit_end(t, c, stop_reason(t));
    commit_submit(c, end_then);
    return true;
}

void turn_fail(struct turn *t, enum err rc, const struct error *e)
{
    if (t->failed)
        return;
    t->failed = true;
    t->error = *e;
    t->error.code = rc;
    if (t->engine_busy)
        seq_job_cancel(t->session);
}

bool turn_cancel(struct live *s, const char *turn)
{
    struct turn *t = s->turn;
    bool any = turn_queue_cancel(s, turn); /* first, so that none of it begins */

    if (!t || (turn && strcmp(turn, t->id) != 0))
        return any;
    if (t->cancelled)
        return true;
    t->cancelled = true;
    turn_restore_cancel(t);
    if (t->engine_busy)
        seq_job_cancel(s);
    else if (t->phase == TURN_TOOLS)
        turn_tools_cancel(t);
    else if (t->starved || (t->phase == TURN_FEED && t->input_waits))
        (void)turn_stops(t);
    return true; /* elsewhere a job is in flight, and its completion asks turn_stops */
}

void turn_abandon(struct turn *t)
{
    if (t->tools)
        turn_tools_drop(t->tools);
}

/* ---- engine, saver ---------------------------------------------------------------- */

static void on_fatal(struct daemon *d, const struct engine_note *n)
{
    struct live *next;

    log_error("engine: %s", n->event.error.msg);
    for (struct live *s = d->sessions; s; s = next) {
        next = s->next;
        if (!s->turn || !s->turn->engine_busy)
            continue;
        live_drop_seq(s);
        s->turn->engine_busy = false;
        turn_fail(s->turn, n->event.error.code, &n->event.error);
        (void)turn_stops(s->turn);
    }
}

static void dispatch(struct turn *t, const struct engine_note *n)
{
    if (t->phase == TURN_RESTORE)
        turn_restore_on_engine(t, n);
    else if (t->phase == TURN_FEED)
        turn_feed_on_engine(t, n);
    else if (t->phase == TURN_RUN)
        turn_run_on_engine(t, n);
}

void turn_on_engine(const struct engine_note *n, void *arg)
{
    const struct engine_event *ev = &n->event;
    struct live *s = ev->user;

    if (n->is_fatal) {
        on_fatal(arg, n);
        return;
    }
    if (!s->turn || s->model.seq != ev->seq)
        return; /* of a sequence that was given up */
    if (ev->kind == ENGINE_DONE)
        s->turn->engine_busy = false;
    if (ev->kind == ENGINE_DONE && ev->reason == END_FAILED) {
        if (turn_start_over(s->turn, &ev->error))
            return;
        live_drop_seq(s);
        turn_fail(s->turn, ev->error.code ? ev->error.code : ERR_GPU, &ev->error);
        (void)turn_stops(s->turn);
        return;
    }
    s->turn->was_alone &= s->turn->phase == TURN_RESTORE;
    s->model.position = ev->position;
    if (s->reached < ev->position)
        s->reached = ev->position;
    dispatch(s->turn, n);
}

void turn_on_saver(struct turn *t)
{
    struct daemon *d = t->session->daemon;

    if (t->phase == TURN_FEED && t->input_waits)
        turn_feed_on_saver(t);
    turns_on_memory(d); /* what is saved can leave it */
}

void turn_repeat_news(const struct turn *t, struct subscription *to)
{
    if (t->phase == TURN_RUN)
        run_repeat_deltas(t, to);
    if (t->phase == TURN_TOOLS)
        turn_repeat_approvals(t, to);
}

/* ---- small news ------------------------------------------------------------------- */

static void send_progress(struct turn *t, double rate)
{
    const char *phase = t->progress.phase;
    uint64_t left = t->progress.total - t->progress.done;

    t->progress_ns = daemon_now_ns(t->session->daemon);
    events_ephemeral(t->session, "session/progress",
                     json_pack("{s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:f, s:I}", "phase",
                               phase ? phase : live_state_name(t->session->state), "done",
                               (json_int_t)t->progress.done, "total",
                               (json_int_t)t->progress.total, "resident",
                               (json_int_t)t->ledger.resident, "restored",
                               (json_int_t)t->ledger.restored, "recomputed",
                               (json_int_t)t->ledger.recomputed, "replayed",
                               (json_int_t)t->ledger.replayed, "tokPerSec", rate, "etaMs",
                               (json_int_t)(rate > 0 ? (double)left * 1e3 / rate : 0)));
}

void turn_progress(struct turn *t, const char *phase, uint64_t done, uint64_t total,
                   uint64_t t0_ns)
{
    uint64_t now = daemon_now_ns(t->session->daemon);

    t->progress = (struct turn_progress_seen){.phase = phase, .done = done, .total = total};
    if (now - t->progress_ns < PROGRESS_NS && done < total)
        return;
    double s = (double)(now - t0_ns) / 1e9;
    send_progress(t, s > 0 ? (double)done / s : 0);
    if (done == total)
        t->progress = (struct turn_progress_seen){0}; /* what comes next is another phase */
}

void turn_tick(struct turn *t)
{
    uint64_t heard = t->progress_ns > t->created_ns ? t->progress_ns : t->created_ns;

    if (daemon_now_ns(t->session->daemon) - heard >= SILENCE_NS)
        send_progress(t, 0);
}

void turn_say_error(struct live *s, const struct error *e)
{
    struct commit *c = commit_new(s);

    if (!c)
        return;
    commit_event(
        c, s->turn ? s->turn->id : NULL, "error", NULL, NULL,
        json_pack("{s:{s:s, s:s}}", "error", "kind", err_name(e->code), "message", e->msg));
    commit_submit(c, NULL);
}

void turn_count_written(struct live *s, uint64_t bytes)
{
    if (s->turn) {
        s->turn->ledger.bytes_written += bytes;
        return;
    }
    struct commit *c = s->last.id[0] ? commit_new(s) : NULL;
    if (!c)
        return;
    s->last.ledger.bytes_written += bytes;
    json_t *ledger = ledger_json(&s->last.ledger);
    char *text = json_dumps(ledger, JSON_COMPACT);
    commit_turn(c, &(struct tape_turn){.id = s->last.id,
                                       .step = s->last.step,
                                       .forced_next = s->last.forced_next,
                                       .ledger = text,
                                       .finished = true});
    commit_submit(c, NULL);
    json_decref(ledger);
    free(text);
}
