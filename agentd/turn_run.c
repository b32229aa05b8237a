/* RUN: one generated segment. Ids come from the sampler, from the forced list, or (after a
 * restart) from the tape first; all take the same road: into the parser, out as deltas, and to
 * the tape in small groups. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "agentd/turn_internal.h"
#include "base/fault.h"
#include "base/log.h"

/* Sampled ids that a crash may lose; they are sampled again to the same. */
#define FLUSH_IDS 16

enum { SHOWN_REASONING, SHOWN_ASSISTANT };

void run_free(struct run *r)
{
    if (!r)
        return;
    chat_parser_free(r->parser);
    ids_fini(&r->ids);
    json_decref(r->logprobs[0]);
    json_decref(r->logprobs[1]);
    free(r);
}

/* ---- out to the readers ----------------------------------------------------------- */

/* Takes text at *offset; what is left of it that readers have not got from a run that had to be
 * begun again. NULL: nothing. */
static json_t *not_seen(const struct turn *t, int which, uint64_t *offset, json_t *text)
{
    uint64_t seen = t->seen.step == t->step ? t->seen.shown[which] : 0;
    size_t n = json_string_length(text);

    if (*offset >= seen)
        return text;
    uint64_t skip = seen - *offset < n ? seen - *offset : n;
    json_t *rest = skip < n ? json_stringn(json_string_value(text) + skip, n - skip) : NULL;
    *offset += skip;
    json_decref(text);
    return rest;
}

static enum err on_chat(void *user, const struct chat_event *ev, struct error *e)
{
    struct turn *t = user;
    bool thinks = ev->kind == CHAT_THINKING;
    char id[TAPE_ID_CAP];

    if ((!thinks && ev->kind != CHAT_TEXT) || t->compaction) /* a summary is shown whole */
        return OK;
    json_t *text = events_text(ev->bytes, ev->n);
    if (!text)
        return err_set(e, ERR_NOMEM, "text");
    int which = thinks ? SHOWN_REASONING : SHOWN_ASSISTANT;
    uint64_t offset = t->run->shown[which];
    t->run->shown[which] += json_string_length(text);
    if (!(text = not_seen(t, which, &offset, text)))
        return OK;
    turn_item_id(t, t->step, thinks ? "r" : "a", id);
    events_delta(t->session, id, thinks ? "reasoning" : "assistant", offset, text);
    return OK;
}

void run_repeat_deltas(const struct turn *t, struct subscription *to)
{
    const struct chat_parser *p = t->run->parser;
    const struct buf *parts[] = {chat_parser_thinking(p), chat_parser_text(p)};
    /* What was held back until more is known is not out for this reader either. */
    const size_t sent[] = {chat_parser_thinking_sent(p), chat_parser_text_sent(p)};
    static const char *const kinds[] = {"reasoning", "assistant"};
    static const char *const suffixes[] = {"r", "a"};
    char id[TAPE_ID_CAP];

    for (int i = 0; i < 2 && !t->compaction; i++) {
        if (!sent[i])
            continue;
        turn_item_id(t, t->step, suffixes[i], id);
        events_delta_to(to, id, kinds[i], events_text(parts[i]->data, sent[i]));
    }
}

/* One id into the parser; after an error of its own it is fed no more. */
static void parse(struct turn *t, uint32_t id)
{
    struct run *r = t->run;
    const struct tokenizer *tok = t->session->daemon->model->tokenizer;
    size_t len = 0;
    const uint8_t *bytes = tokenizer_bytes(tok, id, &len);
    struct error e;
    enum err rc;

    if (!bytes)
        rc = err_set(&e, ERR_FORMAT, "the model wrote id %u, which has no token", id);
    else
        rc = chat_parser_feed(r->parser, bytes, len, tokenizer_is_added(tok, id), &e);
    r->unread = rc != OK;
    if (rc)
        turn_fail(t, rc, &e);
}

/* ids[n_known..n) have happened. Also in a turn that has failed: the engine has them in its
 * state and digest, so they belong on the tape. */
static void learn(struct turn *t, size_t n)
{
    struct run *r = t->run;

    for (; r->n_known < n; r->n_known++) {
        if (r->n_known >= r->n_before && chat_parser_thinking_open(r->parser))
            t->ledger.reasoning++;
        if (!r->unread)
            parse(t, r->ids.v[r->n_known]);
    }
}

/* ---- to the tape ------------------------------------------------------------------ */

static void run_commit_ids(struct turn *t, struct commit *c)
{
    struct run *r = t->run;

    c->c.position = r->start + r->n_flushed;
    commit_ids(c, r->ids.v + r->n_flushed, r->n_known - r->n_flushed);
    r->n_flushed = r->n_known;
}

void run_commit_end(struct turn *t, struct commit *c)
{
    const struct run *r = t->run;
    struct tape_segment seg = {
        .seg = {.start = r->start, .len = r->n_known, .kind = SEGMENT_GENERATED}};

    run_commit_ids(t, c);
    if (r->has_digest) {
        seg.has_digest = true;
        seg.n_rows = r->digest.n_rows;
        memcpy(seg.digest, r->digest.d, sizeof(seg.digest));
    }
    commit_segment(c, &seg);
}

static void flushed(struct live *s, const struct commit *c)
{
    struct turn *t = s->turn;

    if (t->run)
        t->run->flushing = false;
    if (c->job.rc)
        turn_fail(t, c->job.rc, &c->job.error); /* the engine stops, then the turn */
    else
        t->n_digests = 0;
    if (t->phase == TURN_RUN && t->spoiled)
        turn_start_again(t);
    else if (t->phase == TURN_RUN && !t->engine_busy)
        (void)turn_stops(t);
}

void turn_flush(struct turn *t)
{
    struct run *r = t->run;

    if (!r || t->phase != TURN_RUN || (r->n_known == r->n_flushed && !t->n_digests))
        return;
    struct commit *c = commit_new(t->session);
    if (!c) {
        struct error e;
        turn_fail(t, err_set(&e, ERR_NOMEM, "tape commit"), &e);
        return;
    }
    turn_commit_digests(t, c);
    run_commit_ids(t, c);
    r->flushing = true;
    commit_submit(c, flushed);
}

/* ---- the engine ------------------------------------------------------------------- */

static void finish(struct turn *t)
{
    struct run *r = t->run;
    struct error e;
    enum err rc = t->failed ? OK : chat_parser_finish(r->parser, &e);

    t->ledger.ns[STAGE_DECODE] +=
        daemon_now_ns(t->session->daemon) - (r->t_first_ns ? r->t_first_ns : r->t0_ns);
    if (!t->compaction)
        t->decoded += r->n_known;
    if (rc)
        turn_fail(t, rc, &e);
    if (t->failed || t->session->daemon->stopping || (t->compaction && t->cancelled))
        (void)turn_stops(t);
    else if (t->compaction)
        turn_compact_step(t);
    else
        turn_step(t);
}

static void queued(struct live *s, struct seq_job *j)
{
    struct turn *t = s->turn;

    if (!j->job.rc)
        return;
    t->engine_busy = false;
    turn_fail(t, j->job.rc, &j->job.error);
    (void)turn_stops(t);
}

/* Queues what comes after the computed position: ids that are known, then (unless the run ends
 * with them) sampled ones. */
static void queue(struct turn *t, bool only_given)
{
    struct live *s = t->session;
    struct run *r = t->run;
    const struct session_config *cfg = s->config;
    uint64_t done = s->model.position - r->start;
    uint64_t most = turn_run_most(t);
    uint64_t budget = most > r->start ? most - r->start : 0;
    struct generate_options g = {
        .sampling = sampling_config_options(&cfg->sampling),
        .max_tokens = only_given      ? r->ids.n - done
                      : budget > done ? budget - done
                                      : 0,
        .given = r->ids.v + done,
        .n_given = r->ids.n - done,
        .end_with_given = only_given,
        .resumes = done > 0,
        .before = r->ids.v,
        .n_before = done,
    };

    r->only_given = only_given;
    g.sampling.thinking = cfg->thinking;
    g.sampling.rules = cfg->call_rules;

    if ((only_given && g.n_given == 0) || g.max_tokens == 0) {
        r->end = only_given ? END_SEGMENT : END_LENGTH; /* nothing left to do */
        finish(t);
        return;
    }
    if (g.n_given > g.max_tokens)
        g.n_given = g.max_tokens;
    t->engine_busy = true;
    seq_job_generate(s, &t->job, &g, queued);
}

void turn_run_again(struct turn *t)
{
    queue(t, t->run->only_given);
}

/* Forced ids of this run, if there are any left: they must go on from what the tape has. */
static enum err take_forced(struct turn *t, struct run *r, struct error *e)
{
    if (t->forced_next >= t->forced.n)
        return OK;
    const struct ids *entry = &t->forced.runs[t->forced_next];
    if (r->ids.n > entry->n ||
        (r->ids.n && memcmp(r->ids.v, entry->v, r->ids.n * sizeof(*entry->v))))
        return err_set(e, ERR_CORRUPT, "forced run %llu does not begin as the tape does",
                       (unsigned long long)t->forced_next);
    r->is_forced = true;
    return ids_add_all(&r->ids, entry->v + r->ids.n, entry->n - r->ids.n, e);
}

static enum err run_new(struct turn *t, uint64_t start, const uint32_t *ids, size_t n,
                        struct error *e)
{
    struct run *r = calloc(1, sizeof(*r));
    struct session_config *cfg = t->session->config;
    bool sampled = t->forced_next >= t->forced.n; /* what was recorded is taken as it is */
    const struct chat_parser_options o = {.thinking = cfg->thinking,
                                          .stop = cfg->sampling.stop,
                                          .n_stop = sampled ? cfg->sampling.n_stop : 0,
                                          .on_event = on_chat,
                                          .user = t};
    const struct call_rules *rules = NULL;
    enum err rc;

    if (!r)
        return err_set(e, ERR_NOMEM, "run");
    t->run = r;
    r->start = start;
    r->ids.max = TAPE_TOKENS_MAX;
    r->n_flushed = r->n_before = n;
    r->t0_ns = daemon_now_ns(t->session->daemon);
    if ((rc = chat_parser_new(&r->parser, &o, e)) || (rc = ids_add_all(&r->ids, ids, n, e)) ||
        (rc = session_config_call_rules(cfg, t->session->daemon->model->tokenizer, &rules, e)))
        return rc;
    return take_forced(t, r, e);
}

void turn_run(struct turn *t, uint64_t start, const uint32_t *ids, size_t n)
{
    struct error e;

    turn_move(t, TURN_RUN);
    enum err rc = run_new(t, start, ids, n, &e);
    if (rc)
        turn_fail(t, rc, &e);
    else
        learn(t, n);
    if (turn_stops(t))
        return;
    bool ended = (n > 0 && ids[n - 1] == t->session->daemon->chat.eos) ||
                 chat_parser_stopped(t->run->parser);
    queue(t, t->run->is_forced || ended);
}

static void note_drafts(struct turn *t, const struct engine_event *ev)
{
    struct residency *r = &t->session->model;

    t->ledger.drafts_proposed += ev->n_guessed;
    t->ledger.drafts_accepted += ev->n_right;
    t->ledger.drafts_cut += ev->n_cut;
    t->ledger.drafts_failed += ev->n_failed;
    if (ev->n_failed && !r->drafts_failed)
        log_warn("session=%s: the draft layers failed, the turn goes on without guesses: %s",
                 t->session->id, ev->error.msg);
    r->drafts_failed = r->drafts_failed || ev->n_failed;
}

static void take_tokens(struct turn *t, const struct engine_event *ev)
{
    struct run *r = t->run;
    struct error e;
    enum err rc = OK;

    if (ev->first_position != r->start + r->ids.n)
        rc = err_set(&e, ERR_CONFLICT, "sampled id at %llu, expected at %llu",
                     (unsigned long long)ev->first_position,
                     (unsigned long long)(r->start + r->ids.n));
    else
        rc = ids_add_all(&r->ids, ev->ids, ev->n_ids, &e);
    if (rc)
        turn_fail(t, rc, &e);
    for (uint32_t i = 0; i < ev->n_ids && !rc; i++) {
        run_note_logprobs(t, ev->logprobs ? &ev->logprobs[i] : NULL);
        learn(t, r->ids.n - ev->n_ids + i + 1);
    }
    note_drafts(t, ev);
}

/* What was computed is known: given ids become so as the position passes them. */
static void take_position(struct turn *t, uint64_t position)
{
    struct run *r = t->run;
    size_t n = (size_t)(position - r->start);

    if (n > r->ids.n)
        n = r->ids.n;
    if (n > r->n_known)
        learn(t, n);
    turn_count(t, position, SEGMENT_GENERATED);
}

static void engine_done(struct turn *t, const struct engine_note *n)
{
    struct run *r = t->run;

    if (!r->settling)
        r->end = n->event.reason;
    r->digest = n->digest;
    r->has_digest = !n->digest.is_partial;
    r->ids.n = r->n_known; /* forced ids past a stop never happened */
    if (t->session->model.position > r->start + r->n_known) {
        /* An id could not be taken (no memory): the state is of more than the tape has. */
        live_drop_seq(t->session);
        r->has_digest = false;
    } else if (t->session->model.position < r->start + r->n_known && !r->settling) {
        r->settling = true; /* at rest every token is computed */
        queue(t, true);
        return;
    }
    finish(t);
}

void turn_run_on_engine(struct turn *t, const struct engine_note *n)
{
    struct run *r = t->run;

    if (!r->t_first_ns) {
        r->t_first_ns = daemon_now_ns(t->session->daemon);
        t->ledger.ns[STAGE_FIRST_DECODE] += r->t_first_ns - r->t0_ns;
    }
    take_position(t, n->event.position);
    if (n->event.kind == ENGINE_TOKENS)
        take_tokens(t, &n->event);
    if (n->event.kind == ENGINE_DONE) {
        engine_done(t, n);
        return;
    }
    if (!r->flushing && r->n_known - r->n_flushed >= FLUSH_IDS)
        turn_flush(t);
    turn_save_midway(t, 0);
}
