#include "engine/script_seq.h"

#include <signal.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#define CHUNK_TOKENS 64

static struct script_seq *seq_of(struct seq *s)
{
    return (struct script_seq *)s;
}

uint64_t script_now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* ---- the script ----------------------------------------------------------------- */

/* The line of the n-th run, n from 0; NULL behind the last. */
static const struct script_step *step_of(const struct script_seq *s, uint64_t run)
{
    const struct script *script = &s->engine->script;
    return run < script->n ? &script->steps[run] : NULL;
}

/* The line of the generated segment that is worked on, also before its first token. */
static const struct script_step *step_now(const struct script_seq *s)
{
    return step_of(s, s->begins ? s->state.n_runs : s->state.n_runs - 1);
}

/* Where in it the next token is. */
static uint64_t offset_now(const struct script_seq *s)
{
    return s->begins ? 0 : s->state.position - s->state.seg.start;
}

/* A crash is SIGKILL, as the tests of everything above mean it: nothing is flushed or said. */
static void crash_at(const struct script_seq *s, enum script_crash when)
{
    const struct script_step *step = step_now(s);
    if (step && step->crash == when)
        kill(getpid(), SIGKILL);
}

/* ---- queueing ------------------------------------------------------------------- */

enum err script_check_free(const struct script_seq *s, struct error *e)
{
    if (s->work != WORK_NONE)
        return err_set(e, ERR_CONFLICT, "the sequence has work queued");
    if (s->import_tokens)
        return err_set(e, ERR_CONFLICT, "the sequence waits for the rest of an import");
    return OK;
}

static enum err take_ids(struct script_seq *s, const uint32_t *ids, uint64_t n, struct error *e)
{
    struct ids copy = IDS_INIT(SCRIPT_MAX_TOKENS);
    enum err rc = ids_add_all(&copy, ids, n, e);
    if (rc) {
        ids_fini(&copy);
        return rc;
    }
    ids_fini(&s->ids);
    s->ids = copy;
    s->done = 0;
    return OK;
}

void script_queue(struct script_seq *s, enum script_work work, bool begins, uint64_t delay_ms)
{
    s->work = work;
    s->begins = begins;
    s->cancelled = false;
    s->due_ns = script_now_ns() + delay_ms * NS_PER_MS;
}

static uint64_t chunk_left(const struct script_seq *s)
{
    uint64_t left = s->ids.n - s->done;
    return left < CHUNK_TOKENS ? left : CHUNK_TOKENS;
}

/* What the next chunk takes: its share of the time of the whole segment. */
static uint64_t chunk_ms(const struct script_seq *s)
{
    const struct script_step *step = step_of(s, s->state.n_runs);
    return step ? step->prefill_ms * chunk_left(s) / s->ids.n : 0;
}

enum err script_input(struct seq *base, const uint32_t *ids, uint64_t n, enum prefill_mode mode,
                      struct error *e)
{
    struct script_seq *s = seq_of(base);
    struct script_state *t = &s->state;
    enum err rc = script_check_free(s, e);
    if (!rc && t->seg.open && t->seg.mode != mode)
        rc = err_set(e, ERR_INVAL, "input: mode %s, the open segment at %llu has %s",
                     prefill_mode_name(mode), (unsigned long long)t->seg.start,
                     prefill_mode_name(t->seg.mode));
    if (!rc && n > SCRIPT_MAX_TOKENS - t->position)
        rc = err_set(e, ERR_LIMIT, "input: %llu ids at %llu, the context holds %u",
                     (unsigned long long)n, (unsigned long long)t->position, SCRIPT_MAX_TOKENS);
    if (!rc)
        rc = script_reserve(t, t->position + n, e);
    if (!rc)
        rc = take_ids(s, ids, n, e);
    if (rc)
        return rc;
    s->begin_mode = mode;
    script_queue(s, WORK_INPUT, !t->seg.open, chunk_ms(s));
    return OK;
}

/* The first id of a run waits for the stall, too. */
static void start_sampling(struct script_seq *s)
{
    const struct script_step *step = step_now(s);
    uint64_t ms = step ? step->token_ms + (offset_now(s) ? 0 : step->stall_ms) : 0;
    s->work = WORK_SAMPLE;
    s->due_ns = script_now_ns() + ms * NS_PER_MS;
}

static enum err check_generate(const struct script_seq *s, const struct generate_options *g,
                               struct error *e)
{
    const struct script_state *t = &s->state;
    enum err rc = script_check_free(s, e);
    if (rc)
        return rc;
    if (t->seg.open)
        return err_set(e, ERR_CONFLICT, "generate: the input segment at %llu is not complete",
                       (unsigned long long)t->seg.start);
    if (!t->position)
        return err_set(e, ERR_CONFLICT, "generate: nothing was computed yet");
    if (g->resumes && t->seg.kind != SEGMENT_GENERATED)
        return err_set(e, ERR_CONFLICT, "generate: no run ends at %llu",
                       (unsigned long long)t->position);
    if (g->n_given > SCRIPT_MAX_TOKENS - t->position)
        return err_set(e, ERR_LIMIT, "generate: %llu given ids at %llu, the context holds %u",
                       (unsigned long long)g->n_given, (unsigned long long)t->position,
                       SCRIPT_MAX_TOKENS);
    return OK;
}

/* Stop strings are the only part of sampling that a script knows. */
static enum err watch_for_stop(struct script_seq *s, const struct generate_options *g,
                               struct error *e)
{
    stop_watch_free(s->stop);
    s->stop = NULL;
    s->stops = false;
    enum err rc = g->end_with_given
                      ? OK
                      : stop_watch_new(&s->stop, &g->sampling, s->engine->tokenizer, e);
    for (uint64_t i = 0; i < g->n_before && !rc; i++)
        rc = stop_watch_feed(s->stop, g->before[i], &s->stops, e);
    for (uint64_t i = 0; i < g->n_given && !rc; i++)
        rc = stop_watch_feed(s->stop, g->given[i], &s->stops, e);
    return rc;
}

enum err script_generate(struct seq *base, const struct generate_options *g, struct error *e)
{
    struct script_seq *s = seq_of(base);
    struct script_state *t = &s->state;
    enum err rc = check_generate(s, g, e);
    if (!rc)
        rc = script_reserve(t, t->position + g->n_given, e);
    if (!rc)
        rc = take_ids(s, g->given, g->n_given, e);
    if (!rc)
        rc = watch_for_stop(s, g, e);
    if (rc)
        return rc;
    s->n_new = 0;
    s->max_new = g->max_tokens;
    s->end_with_given = g->end_with_given;
    s->begin_mode = PREFILL_CED;
    script_queue(s, WORK_GIVEN, !g->resumes, 0);
    if (!g->n_given)
        start_sampling(s);
    return OK;
}

void script_cancel(struct seq *base)
{
    struct script_seq *s = seq_of(base);
    s->cancelled = s->work != WORK_NONE;
}

/* ---- steps ---------------------------------------------------------------------- */

static struct engine_event event_of(struct script_seq *s, enum engine_event_kind kind)
{
    return (struct engine_event){
        .seq = &s->base, .user = s->base.user, .kind = kind, .position = s->state.position};
}

static struct engine_event end_work(struct script_seq *s, enum end_reason reason)
{
    s->work = WORK_NONE;
    s->has_pending = false;
    struct engine_event ev = event_of(s, ENGINE_DONE);
    ev.reason = reason;
    return ev;
}

static struct engine_event fail_work(struct script_seq *s, const struct error *e)
{
    struct engine_event ev = end_work(s, END_FAILED);
    ev.error = *e;
    return ev;
}

/* Room is reserved. */
static void compute(struct script_seq *s, uint32_t id)
{
    if (s->begins)
        script_begin(&s->state, s->work == WORK_INPUT ? SEGMENT_INPUT : SEGMENT_GENERATED,
                     s->begin_mode);
    s->begins = false;
    script_append(&s->state, id);
}

static void compute_chunk(struct script_seq *s, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++)
        compute(s, s->ids.v[s->done + i]);
    s->done += n;
}

static struct engine_event progress(struct script_seq *s)
{
    struct engine_event ev = event_of(s, ENGINE_PROGRESS);
    ev.done = s->done;
    ev.total = s->ids.n;
    return ev;
}

static struct engine_event step_input(struct script_seq *s)
{
    compute_chunk(s, chunk_left(s));
    if (s->done == s->ids.n) {
        s->state.seg.open = false;
        return end_work(s, END_SEGMENT);
    }
    s->due_ns = script_now_ns() + chunk_ms(s) * NS_PER_MS;
    return progress(s);
}

static struct engine_event step_given(struct script_seq *s)
{
    uint64_t n = chunk_left(s), room = s->max_new - s->n_new;
    compute_chunk(s, n < room ? n : room);
    s->n_new = s->done;
    if (s->done == s->ids.n && s->end_with_given)
        return end_work(s, END_SEGMENT);
    if (s->done == s->ids.n && s->ids.v[s->done - 1] == s->engine->eos)
        return end_work(s, END_EOS);
    if (s->done == s->ids.n && s->stops)
        return end_work(s, END_STOP);
    if (s->n_new == s->max_new)
        return end_work(s, END_LENGTH);
    if (s->done == s->ids.n)
        start_sampling(s);
    return progress(s);
}

/* Computes the id that was handed out last; true if it was the last of the run. */
static bool compute_pending(struct script_seq *s, struct engine_event *ev)
{
    compute(s, s->pending);
    s->has_pending = false;
    bool eos = s->pending == s->engine->eos;
    if (!eos && !s->stops && s->n_new < s->max_new)
        return false;
    crash_at(s, SCRIPT_CRASH_AFTER);
    *ev = end_work(s, eos ? END_EOS : s->stops ? END_STOP : END_LENGTH);
    return true;
}

static struct engine_event sample(struct script_seq *s)
{
    struct error e;
    uint64_t position = s->state.position, offset = offset_now(s);
    if (position == SCRIPT_MAX_TOKENS)
        return end_work(s, END_LENGTH);
    if (script_reserve(&s->state, position + 1, &e))
        return fail_work(s, &e);
    if (!offset)
        crash_at(s, SCRIPT_CRASH_BEFORE);
    const struct script_step *step = step_now(s);
    s->pending = step && offset < step->n ? step->ids[offset] : s->engine->eos;
    if (stop_watch_feed(s->stop, s->pending, &s->stops, &e))
        return fail_work(s, &e);
    s->has_pending = true;
    s->n_new++;
    s->due_ns = script_now_ns() + (step ? step->token_ms : 0) * NS_PER_MS;
    struct engine_event ev = event_of(s, ENGINE_TOKENS);
    ev.n_ids = 1;
    ev.ids[0] = s->pending;
    ev.first_position = position;
    return ev;
}

static struct engine_event step_rebuild(struct script_seq *s)
{
    s->state = s->staged;
    s->import_tokens = 0;
    return end_work(s, END_SEGMENT);
}

struct engine_event script_step_seq(struct script_seq *s)
{
    struct engine_event ev;
    if (s->has_pending && compute_pending(s, &ev))
        return ev;
    if (s->cancelled)
        return end_work(s, END_CANCELLED);
    switch (s->work) {
    case WORK_INPUT:
        return step_input(s);
    case WORK_GIVEN:
        return step_given(s);
    case WORK_SAMPLE:
        return sample(s);
    case WORK_REBUILD:
        return step_rebuild(s);
    case WORK_NONE:
        break;
    }
    abort(); /* only sequences with work come here */
}
