/* COMPACT: results that do not fit into the context are put behind a summary, and the turn goes
 * on.
 *
 *     measure    store    how long the results are, if that could matter
 *     ask        commit   in their place notes that they are held back, and a request for a
 *                         summary; FEED and RUN write it
 *     step       commit   the summary is in the turn's row (turn_compact_step)
 *     cut        store    the tape begins anew with it; what was is kept (cut.h)
 *     results    commit   one input segment: opening and summary, the run that made the calls
 *                         as it was sampled, its results (turn_tools.c)
 *
 * The row has the compaction from the first commit to the last, and the calls have no result on
 * the tape before that, so a restart finds the place again from the row and the tape's length.
 * Before a step it is tried once: a summary that is none, or too long, and results that are too
 * long even so lead to results that are cut (turn_input.c), and where these do not fit the turn
 * ends with `length`. A turn whose last summary gained little asks for none any more. */
#include <stdlib.h>
#include <string.h>

#include "agentd/store_thread.h"
#include "agentd/turn_internal.h"
#include "base/fault.h"
#include "base/json.h"
#include "base/log.h"

/* Bytes, and so more than the tokens, of what stands around a result and a segment. */
#define AROUND_RESULT 64
#define AROUND_SEGMENT 512

static const char ask[] =
    "Before the results of your last calls can be shown, this conversation has to become "
    "shorter. Write a summary of it for yourself: it will replace everything above but these "
    "calls, and their results will follow. Keep what is needed to go on: what was asked for, "
    "what was decided and why, what was done and with which results, names and places of "
    "files, what is left to do. Answer with the summary alone, and call no tools.";

/* ---- the row ---------------------------------------------------------------------- */

void compaction_free(struct compaction *k)
{
    if (!k)
        return;
    ids_fini(&k->run);
    free(k->summary);
    free(k);
}

json_t *compaction_json(const struct compaction *k)
{
    json_t *run = json_array();

    for (size_t i = 0; run && i < k->run.n; i++)
        if (json_array_append_new(run, json_integer(k->run.v[i]))) {
            json_decref(run);
            return NULL;
        }
    return json_pack("{s:I, s:o, s:s*, s:I, s:I}", "step", (json_int_t)k->step, "run", run,
                     "summary", k->summary, "was", (json_int_t)k->was, "decoded",
                     (json_int_t)k->decoded);
}

static enum err read_run(struct ids *out, const json_t *list, struct error *e)
{
    const json_t *v;
    size_t i;
    enum err rc = OK;

    json_array_foreach(list, i, v) {
        json_int_t id = json_is_integer(v) ? json_integer_value(v) : -1;
        if (id < 0 || id >= UINT32_MAX)
            return err_set(e, ERR_CORRUPT, "compaction: run[%zu] is no token id", i);
        if ((rc = ids_add(out, (uint32_t)id, e)))
            return rc;
    }
    return rc;
}

enum err compaction_read(const json_t *j, struct compaction **out, struct error *e)
{
    struct compaction *k = calloc(1, sizeof(*k));
    const char *summary = NULL;
    int64_t step = 0, was = 0, decoded = 0;
    json_t *run = NULL;
    enum err rc;

    if (!k)
        return err_set(e, ERR_NOMEM, "compaction");
    k->run.max = TAPE_TOKENS_MAX;
    if (!(rc = json_need_int(j, "step", 0, UINT32_MAX, &step, e)) &&
        !(rc = json_need_arr(j, "run", &run, e)) &&
        !(rc = json_opt_str(j, "summary", &summary, NULL, e)) &&
        !(rc = json_need_int(j, "was", 0, INT64_MAX, &was, e)) &&
        !(rc = json_need_int(j, "decoded", 0, INT64_MAX, &decoded, e)))
        rc = read_run(&k->run, run, e);
    if (!rc && summary && !(k->summary = strdup(summary)))
        rc = err_set(e, ERR_NOMEM, "compaction");
    if (rc) {
        compaction_free(k);
        return rc;
    }
    k->step = (uint32_t)step;
    k->was = (uint64_t)was;
    k->decoded = (uint64_t)decoded;
    *out = k;
    return OK;
}

/* ---- room ------------------------------------------------------------------------- */

static uint64_t budget_left(const struct turn *t)
{
    uint64_t all = t->session->config->max_tokens;

    return all > t->decoded ? all - t->decoded : 0;
}

uint64_t turn_compact_most(const struct turn *t)
{
    const struct daemon *d = t->session->daemon;

    return d->context - cut_summary_room(d) - cut_answer_room(d, budget_left(t));
}

uint64_t turn_run_most(const struct turn *t)
{
    const struct daemon *d = t->session->daemon;
    uint64_t start = t->run->start, room = cut_summary_room(d), end = d->context;

    if (start >= end) /* a daemon with a smaller context than the one before */
        return start;
    if (t->compaction || t->compacts)
        return start + room < end ? start + room : end;
    if (start < end - room) /* else it is too late to keep room for a summary */
        end -= room;
    return budget_left(t) < end - start ? start + budget_left(t) : end;
}

/* Tokens of the results at most: of one byte each. */
static uint64_t results_bound(const struct turn *t)
{
    const struct tool_step *ts = t->tools;
    uint64_t n = AROUND_SEGMENT + (ts->note ? strlen(ts->note) : 0);

    for (size_t i = 0; i < ts->n_calls; i++)
        n += ts->calls[i].n_result + AROUND_RESULT;
    for (const struct steer *x = t->steers; x; x = x->next)
        n += x->text.len + AROUND_RESULT;
    return n;
}

/* Whether a summary would help, and can be asked for. Of a session that takes less than a
 * quarter of the context not enough is to be had. */
static bool can_compact(const struct turn *t)
{
    const struct daemon *d = t->session->daemon;
    uint64_t to_ask = sizeof(ask) / 3 + t->tools->n_calls * AROUND_RESULT;

    return !t->compacts_no_more && t->compacted_at != t->tools->step + 1 &&
           t->session->length >= d->context / 4 && t->last_run.n > 0 &&
           t->session->length + to_ask + cut_summary_room(d) / 4 <= d->context;
}

/* ---- asking ----------------------------------------------------------------------- */

static void results_without(struct turn *t)
{
    compaction_free(t->compaction);
    t->compaction = NULL;
    turn_results(t);
}

static void asked(struct live *s, const struct commit *c)
{
    struct turn *t = s->turn;
    struct error e;
    enum err rc = c->job.rc;

    if (rc == ERR_LIMIT && t->build->is_full && !t->cancelled && !s->daemon->stopping) {
        results_without(t); /* not even that fits */
        return;
    }
    if (!rc) {
        t->open_run = c->c.position + t->build->n_input;
        rc = feed_from_commit(t, c, &e);
    } else {
        e = c->job.error;
    }
    if (rc)
        turn_fail(t, rc, &e);
    turn_go(t);
}

static struct compaction *compaction_new(struct turn *t)
{
    struct compaction *k = calloc(1, sizeof(*k));

    if (!k)
        return NULL;
    k->run = t->last_run;
    t->last_run = (struct ids){.max = TAPE_TOKENS_MAX};
    k->step = t->tools->step;
    k->was = t->session->length;
    k->decoded = t->decoded;
    return k;
}

static void ask_for_summary(struct turn *t)
{
    struct live *s = t->session;
    struct commit *c = commit_new(s);
    char id[TAPE_ID_CAP];
    struct error e;

    turn_move(t, TURN_COMPACT);
    t->ledger.ns[STAGE_TOOL] += daemon_now_ns(s->daemon) - t->tools->t0_ns;
    t->tools->t0_ns = 0;
    free(t->build);
    t->build = calloc(1, sizeof(*t->build));
    t->compaction = compaction_new(t);
    if (!c || !t->build || !t->compaction) {
        if (c)
            commit_free(c);
        turn_fail(t, err_set(&e, ERR_NOMEM, "compaction"), &e);
        (void)turn_stops(t);
        return;
    }
    t->compacted_at = t->tools->step + 1;
    *t->build = (struct input_build){.daemon = s->daemon,
                                     .config = s->config,
                                     .user = ask,
                                     .n_user = sizeof(ask) - 1,
                                     .results = t->tools,
                                     .held_back = true,
                                     .end = t->end,
                                     .length = s->length};
    turn_item_id(t, t->step, "u", id);
    commit_event(c, t->id, "item", id, "note",
                 json_pack("{s:o}", "item", events_item(id, "note", ask, sizeof(ask) - 1)));
    commit_state(c, t->id, SESSION_PREFILL, "");
    turn_commit_row(t, c, true);
    if (fault_point("turn.compact"))
        c->failed = err_set(&c->error, ERR_IO, "compaction: fault");
    c->prepare = turn_prepare_input;
    c->user = t->build;
    log_info("session=%s is compacted within turn=%s: tokens=%llu context=%llu", s->id, t->id,
             (unsigned long long)s->length, (unsigned long long)s->daemon->context);
    commit_submit(c, asked);
}

/* ---- measuring -------------------------------------------------------------------- */

struct measure {
    struct job job;
    struct live *session; /* pinned; its turn waits */
    struct input_build build;
    uint64_t n_steered; /* bytes of texts that will follow */
};

static void measure_run(struct job *j, void *ctx)
{
    struct measure *m = (struct measure *)j;

    (void)ctx;
    j->rc = turn_measure_input(&m->build, &j->error);
}

static void measured(struct job *j)
{
    struct measure *m = (struct measure *)j;
    struct live *s = m->session;
    struct turn *t = s->turn;
    uint64_t n = m->build.n_input + m->n_steered;
    enum err rc = j->rc;

    t->measuring = false;
    if (rc)
        turn_fail(t, rc, &j->error);
    if (!turn_stops(t)) {
        if (s->length + n > turn_compact_most(t) && can_compact(t))
            ask_for_summary(t);
        else
            turn_results(t);
    }
    free(m);
    live_unpin(s);
}

static void measure(struct turn *t)
{
    struct live *s = t->session;
    struct measure *m = calloc(1, sizeof(*m));
    struct error e;

    if (!m) {
        turn_fail(t, err_set(&e, ERR_NOMEM, "results"), &e);
        (void)turn_stops(t);
        return;
    }
    m->job = (struct job){.run = measure_run, .done = measured};
    m->session = s;
    m->build = (struct input_build){.daemon = s->daemon,
                                    .config = s->config,
                                    .results = t->tools,
                                    .end = {.is_known = true},
                                    .length = s->length};
    for (const struct steer *x = t->steers; x; x = x->next)
        m->n_steered += x->text.len;
    t->measuring = true;
    live_pin(s);
    store_thread_submit(s->daemon->store, &m->job);
}

void turn_compact_or_results(struct turn *t)
{
    if (t->session->length + results_bound(t) <= turn_compact_most(t) || !can_compact(t))
        turn_results(t);
    else
        measure(t);
}

/* ---- the summary ------------------------------------------------------------------ */

/* NULL, or why what the run wrote is no summary. */
static const char *take_summary(struct turn *t)
{
    const struct run *r = t->run;
    const struct buf *text = chat_parser_text(r->parser);
    struct compaction *k = t->compaction;

    if (!chat_parser_saw_eos(r->parser))
        return "the summary was cut by the limit: results are cut instead";
    if (chat_parser_n_calls(r->parser) > 0 || chat_parser_lost_calls(r->parser))
        return "the model called a tool instead of summarising: results are cut instead";
    if (!text->len)
        return "the summary is empty: results are cut instead";
    if (r->n_known + k->run.n >= k->was)
        return "the summary is longer than what it stands for: results are cut instead";
    if (!(k->summary = strndup(buf_str(text), text->len)))
        return "no memory for the summary: results are cut instead";
    return NULL;
}

static void compacted(struct live *s, enum err rc, const struct cut_kept *kept,
                      const struct error *e)
{
    struct turn *t = s->turn;

    if (s->daemon->stopping)
        return; /* the row says where it was */
    if (rc) {   /* everything is as it was, and so are the results */
        t->left_behind -= s->model.position;
        turn_say_error(s, e);
        results_without(t);
        return;
    }
    t->compaction->kept = *kept;
    turn_results(t); /* also of a turn that has to stop: they belong behind their calls */
}

static void cut_now(struct turn *t)
{
    struct live *s = t->session;

    turn_move(t, TURN_COMPACT);
    t->left_behind += s->model.position;
    cut_restart(s, t->compaction->summary, compacted);
}

static void summarised(struct live *s, const struct commit *c)
{
    struct turn *t = s->turn;

    if (c->job.rc) {
        turn_fail(t, c->job.rc, &c->job.error);
        (void)turn_stops(t);
        return;
    }
    t->end = (struct tape_end){.is_known = true,
                               .run_cut = !chat_parser_saw_eos(t->run->parser),
                               .thinking_open = chat_parser_thinking_open(t->run->parser)};
    run_free(t->run);
    t->run = NULL;
    t->open_run = NO_RUN;
    t->n_digests = 0;
    if (turn_stops(t))
        return;
    if (t->compaction->summary) {
        cut_now(t);
    } else {
        turn_move(t, TURN_COMPACT);
        results_without(t);
    }
}

void turn_compact_step(struct turn *t)
{
    const struct buf *text = chat_parser_text(t->run->parser);
    struct commit *c = commit_new(t->session);
    struct compaction *k = t->compaction;
    char id[TAPE_ID_CAP];
    struct error e;

    turn_move(t, TURN_STEP);
    if (!c) {
        turn_fail(t, err_set(&e, ERR_NOMEM, "end of a run"), &e);
        (void)turn_stops(t);
        return;
    }
    const char *problem = take_summary(t);
    step_commit_run(t, c);
    turn_item_id(t, t->step, "a", id);
    if (text->len)
        commit_event(
            c, t->id, "item", id, "note",
            json_pack("{s:o}", "item", events_item(id, "note", text->data, text->len)));
    if (problem)
        commit_event(c, t->id, "error", NULL, NULL,
                     json_pack("{s:{s:s, s:s}}", "error", "kind", "limit", "message", problem));
    t->step++;
    t->n_summaries++;
    if (t->run->is_forced)
        t->forced_next++;
    commit_state(c, t->id, SESSION_TOOL, "");
    t->compaction = problem ? NULL : k; /* for the row */
    turn_commit_row(t, c, true);
    t->compaction = k;
    if (fault_point("turn.summary"))
        c->failed = err_set(&c->error, ERR_IO, "summary: fault");
    commit_submit(c, summarised);
}

/* ---- and on ----------------------------------------------------------------------- */

void turn_compact_commit(struct turn *t, struct commit *c)
{
    struct compaction *k = t->compaction;

    if (!k) {
        bool was_tried = t->compacted_at == t->tools->step + 1; /* and is not under way now */
        turn_commit_row(t, c, t->build->n_steers > 0 || was_tried);
        return;
    }
    char id[TAPE_ID_CAP];
    turn_item_id(t, k->step, "k", id);
    commit_event(c, t->id, "item", id, "note",
                 json_pack("{s:o}", "item", cut_item(id, k->was, &k->kept)));
    t->compaction = NULL; /* with these results it is over */
    t->decoded_before = k->decoded;
    t->tape_start = 0;
    turn_commit_row(t, c, true);
    t->compaction = k;
}

void turn_compact_done(struct turn *t)
{
    const struct compaction *k = t->compaction;

    if (!k)
        return;
    t->compacts_no_more = t->build->n_opening > k->was / 4 * 3;
    compaction_free(t->compaction);
    t->compaction = NULL;
}

void turn_compact_resume(struct turn *t, bool tape_is_new, const struct cut_kept *kept)
{
    if (turn_stops(t))
        return;
    if (tape_is_new) {
        t->compaction->kept = *kept;
        turn_move(t, TURN_COMPACT);
        turn_results(t);
    } else {
        cut_now(t);
    }
}
