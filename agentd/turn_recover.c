/* After a restart: every turn that was cut goes on by itself.
 *
 * What it was doing is read from the tape alone. The last segment says where it was: an input
 * segment or an open run mean the model's work goes on there; a closed run with calls means
 * that results are due. Calls that were started and have no outcome are interrupted: their
 * outcome is unknown and they are never run again by themselves. */
#include <stdlib.h>
#include <string.h>

#include "agentd/store_thread.h"
#include "agentd/turn_internal.h"
#include "base/json.h"
#include "base/log.h"

/* One unfinished turn as it was found. */
struct found {
    struct found *next;
    struct session_info info;
    char turn[TAPE_ID_CAP];
    char *params, *client_message;
    uint64_t forced_next, first_seq;
    uint32_t step;
    bool queued; /* it has not begun */
    bool damaged;
    bool run_open; /* the tape ends in an open generated segment */
    uint64_t run_start;
    struct segment *segments; /* all of the tape: for what was decoded in this turn */
    size_t n_segments;
    uint64_t n_ids;
    struct ids last_run;     /* the run that the tape ends with, if it is closed */
    struct tool_step *tools; /* of the last step, results not on the tape; NULL: none */
    struct loop_guard guard;
    struct cut_kept kept; /* of the newest compaction, if the tape is empty */
};

struct recovery {
    struct job job;
    struct daemon *daemon;
    struct found *found, **end; /* of a session in the order of its turns */
};

static void found_free(struct found *f)
{
    session_info_fini(&f->info);
    tool_step_free(f->tools);
    free(f->params);
    free(f->client_message);
    free(f->segments);
    ids_fini(&f->last_run);
    free(f);
}

/* ---- store's thread --------------------------------------------------------------- */

static char *copy(const char *s)
{
    return s ? strdup(s) : NULL;
}

static bool take_turn(void *user, const char *session, const struct tape_turn *t)
{
    struct recovery *r = user;
    struct found *f = calloc(1, sizeof(*f));

    if (!f)
        return false;
    snprintf(f->info.id, sizeof(f->info.id), "%s", session);
    snprintf(f->turn, sizeof(f->turn), "%s", t->id);
    f->params = copy(t->params);
    f->client_message = copy(t->client_message);
    f->forced_next = t->forced_next;
    f->first_seq = t->first_seq;
    f->step = t->step;
    f->queued = strcmp(t->state, QUEUED_STATE) == 0;
    *r->end = f;
    r->end = &f->next;
    return true;
}

static bool add_call(struct found *f, const struct tape_call *call)
{
    struct tool_step *ts = f->tools ? f->tools : calloc(1, sizeof(*ts));

    if (!ts)
        return false;
    f->tools = ts;
    ts->step = call->step;
    struct step_call *calls = realloc(ts->calls, (ts->n_calls + 1) * sizeof(*calls));
    if (!calls)
        return false;
    ts->calls = calls;
    struct step_call *c = &calls[ts->n_calls++];
    *c = (struct step_call){.index = call->index,
                            .status = call->status,
                            .is_error = call->is_error,
                            .spill_bytes = call->spill_bytes,
                            .output = BUF_INIT(STEP_OUTPUT_MAX)};
    snprintf(c->id, sizeof(c->id), "%s", call->id);
    c->name = copy(call->name);
    c->arguments = copy(call->arguments);
    c->spill = copy(call->spill);
    if (!call_is_open(call->status)) {
        step_call_set(c, call->status, call->is_error, call->result ? call->result : "",
                      call->n_result);
        c->committed = true;
    } else if (call->status == CALL_STARTED) {
        step_call_set(c, CALL_INTERRUPTED, true, INTERRUPTED_TEXT,
                      sizeof(INTERRUPTED_TEXT) - 1);
    }
    return c->name && c->arguments;
}

static bool take_call(void *user, const struct tape_call *call)
{
    struct found *f = user;

    loop_guard_count(&f->guard, call->name, call->arguments);
    (void)loop_guard_wrong(&f->guard, call->name, call->status == CALL_INVALID);
    return call->ingested || add_call(f, call);
}

/* Ids are ULIDs: the newest one has the highest. */
static bool take_kept(void *user, const struct session_info *s)
{
    struct found *f = user;

    if (strcmp(s->parent, f->info.id) != 0 || strcmp(s->origin, "compact") != 0 ||
        strcmp(s->id, f->kept.id) < 0)
        return true;
    memcpy(f->kept.id, s->id, sizeof(f->kept.id));
    memcpy(f->kept.name, s->name, sizeof(f->kept.name));
    return true;
}

static enum err look(struct found *f, struct store *st, struct error *e)
{
    AUTO(tape) struct tape t = {0};
    char id[SESSION_ID_CAP];
    enum err rc;

    memcpy(id, f->info.id, sizeof(id));
    if ((rc = session_find(st, id, &f->info, e)) || f->queued)
        return rc;
    if ((rc = tape_load(st, id, &t, e)) ||
        (rc = tape_calls(st, id, f->turn, false, take_call, f, e)))
        return rc;
    f->damaged = t.damaged;
    f->n_ids = t.view.n_ids;
    f->n_segments = t.view.n_segments;
    if (f->n_segments == 0)
        return session_list(st, take_kept, f, e);
    const struct tape_segment *last = &t.tape_segments[f->n_segments - 1];
    f->run_open = last->open && last->seg.kind == SEGMENT_GENERATED;
    f->run_start = last->seg.start;
    f->segments = malloc(f->n_segments * sizeof(*f->segments));
    if (!f->segments)
        return err_set(e, ERR_NOMEM, "segments");
    memcpy(f->segments, t.segments, f->n_segments * sizeof(*f->segments));
    if (last->open || last->seg.kind != SEGMENT_GENERATED)
        return OK;
    f->last_run.max = TAPE_TOKENS_MAX;
    return ids_add_all(&f->last_run, t.ids + last->seg.start, t.view.n_ids - last->seg.start,
                       e);
}

static void recovery_run(struct job *j, void *ctx)
{
    struct recovery *r = (struct recovery *)j;

    j->rc = tape_unfinished(ctx, NULL, take_turn, r, &j->error);
    for (struct found *f = r->found, **link = &r->found; f; f = *link) {
        struct error e;
        if (look(f, ctx, &e) == OK) {
            link = &f->next;
            continue;
        }
        log_error("turn=%s of session=%s cannot go on: %s", f->turn, f->info.id, e.msg);
        *link = f->next;
        found_free(f);
    }
}

/* ---- loop ------------------------------------------------------------------------- */

static enum err read_row(struct turn *t, struct found *f, struct error *e)
{
    const struct json_limits limits = {.max_bytes = TAPE_JSON_MAX, .max_depth = 64};
    json_auto_t *row = NULL;
    json_t *forced = NULL, *steers = NULL, *compaction = NULL;
    int64_t start = 0, n_steered = 0, before = 0, summaries = 0, compacted_at = 0;
    enum err rc;

    if (!f->params)
        return err_set(e, ERR_CORRUPT, "turn %s has no parameters", f->turn);
    if ((rc = json_parse(f->params, strlen(f->params), &limits, &row, e)) ||
        (rc = json_opt_arr(row, "forced", &forced, e)) ||
        (rc = json_opt_int(row, "tapeStart", 0, INT64_MAX, &start, e)) ||
        (rc = json_opt_bool(row, "compact", &t->compacts, e)) ||
        (rc = json_opt_arr(row, "steer", &steers, e)) ||
        (rc = json_opt_int(row, "steered", 0, UINT32_MAX, &n_steered, e)) ||
        (rc = json_opt_int(row, "decodedBefore", 0, INT64_MAX, &before, e)) ||
        (rc = json_opt_int(row, "summaries", 0, UINT32_MAX, &summaries, e)) ||
        (rc = json_opt_int(row, "compactedAt", 0, UINT32_MAX, &compacted_at, e)) ||
        (rc = json_opt_bool(row, "compactsNoMore", &t->compacts_no_more, e)) ||
        (rc = json_opt_obj(row, "compaction", &compaction, e)) ||
        (compaction && (rc = compaction_read(compaction, &t->compaction, e))) ||
        (rc = forced_runs_read(t->session->daemon, forced, &t->forced, e)) ||
        (rc = steers_read(t, steers, e)))
        return rc;
    t->tape_start = (uint64_t)start;
    t->n_steered = (uint32_t)n_steered;
    t->decoded = t->decoded_before = (uint64_t)before;
    t->n_summaries = (uint32_t)summaries;
    t->compacted_at = (uint32_t)compacted_at;
    return OK;
}

static void fill(struct turn *t, struct found *f)
{
    t->recovered = true;
    t->step = f->step;
    t->forced_next = f->forced_next;
    t->receipt_seq = f->first_seq;
    t->client_message = TAKE(f->client_message);
    t->guard = f->guard;
    t->end.is_known = false;
    t->last_run = f->last_run;
    f->last_run = (struct ids){0};
    for (size_t i = 0; i < f->n_segments; i++) {
        const struct segment *s = &f->segments[i];
        bool is_open = f->run_open && i + 1 == f->n_segments;
        if (s->kind == SEGMENT_GENERATED && s->start >= t->tape_start && !is_open)
            t->decoded += s->len;
    }
    if (f->run_open)
        t->open_run = f->run_start;
    if (f->run_open && !t->compaction)
        return;
    t->tools = TAKE(f->tools);
    if (!t->tools && (t->compaction || (t->steers && t->step > 0)))
        t->tools = tool_step_empty(t->compaction ? t->compaction->step : t->step - 1);
    if (t->compaction)
        t->decoded = t->compaction->decoded;
    for (size_t i = 0; t->tools && i < t->tools->n_calls; i++) {
        struct step_call *c = &t->tools->calls[i];
        c->turn = t;
        if (c->status == CALL_WAITING) {
            c->is_client = session_config_client_tool(t->session->config, c->name) != NULL;
            c->wants_approval = !c->is_client;
        }
    }
}

/* A prompt that waits: it begins when what is before it is over. */
static void requeue(struct live *s, const struct found *f)
{
    struct error e;

    if (turn_requeue(s, f->turn, f->first_seq, f->client_message, f->params, &e))
        log_error("turn=%s of session=%s stays queued: %s", f->turn, s->id, e.msg);
    else
        log_info("turn=%s of session=%s is queued", f->turn, s->id);
}

static void go_on(struct daemon *d, struct found *f)
{
    struct live *s = live_find(d, f->info.id);
    struct error e;
    enum err rc = s ? OK : live_add(d, &f->info, &s, &e);
    if (!rc && f->queued) {
        requeue(s, f);
        return;
    }
    struct turn *t = rc ? NULL : turn_new(s, f->turn);

    if (!t) {
        log_error("turn=%s of session=%s does not go on: %s", f->turn, f->info.id,
                  rc ? e.msg : "no memory");
        return;
    }
    rc = f->damaged ? err_set(&e, ERR_CORRUPT, "the session is damaged") : read_row(t, f, &e);
    fill(t, f);
    log_info("turn=%s of session=%s goes on: step=%u tape=%llu", t->id, s->id, t->step,
             (unsigned long long)s->length);
    live_set_state(s, SESSION_QUEUED, "");
    if (!rc && t->compaction && !t->tools)
        rc = err_set(&e, ERR_NOMEM, "results");
    if (rc)
        turn_fail(t, rc, &e);
    if (!rc && t->compaction && t->compaction->summary)
        turn_compact_resume(t, f->n_ids == 0, &f->kept);
    else
        turn_go(t);
}

static void recovery_done(struct job *j)
{
    struct recovery *r = (struct recovery *)j;
    struct found *next;

    if (j->rc)
        log_error("looking for unfinished turns: %s", j->error.msg);
    for (struct found *f = r->found; f; f = next) {
        next = f->next;
        if (!r->daemon->stopping)
            go_on(r->daemon, f);
        found_free(f);
    }
    for (struct live *s = r->daemon->sessions, *after; s; s = after) {
        after = s->next;
        live_pin(s);
        turn_queue_next(s);
        live_unpin(s);
    }
    free(r);
}

void turns_recover(struct daemon *d)
{
    struct recovery *r = calloc(1, sizeof(*r));

    if (!r) {
        log_error("no memory to look for unfinished turns");
        return;
    }
    r->job = (struct job){.run = recovery_run, .done = recovery_done};
    r->daemon = d;
    r->end = &r->found;
    store_thread_submit(d->store, &r->job);
}
