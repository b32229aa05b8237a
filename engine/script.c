/* The scripted engine: the life of sequences over script_state.h, at the pace of a script.
 *
 * The n-th generated segment of a sequence's history is answered by the n-th line, whatever was
 * forced, given or resumed before: the count is part of the state. So a sequence that is
 * stopped, lost and rebuilt goes on with the same ids. Behind the last line a run is EOS alone.
 * Sampling options have no influence.
 *
 * Delays, stalls and crashes belong to sampling: given ids take no time. A chunk of input takes
 * its part of the prefill_ms of the run that would follow. Waiting happens inside engine_step,
 * for all sequences together, in slices of WAIT_SLICE_MS, and ends early at engine_interrupt.
 */
#include <assert.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/auto.h"
#include "engine/engine_impl.h"
#include "engine/ids.h"
#include "engine/script_file.h"
#include "engine/script_state.h"
#include "engine/stop.h"
#include "engine/tokenizer.h"

#define CHUNK_TOKENS 64
#define WAIT_SLICE_MS 20
#define NS_PER_MS 1000000ull
#define EOS_TEXT "<｜end▁of▁sentence｜>"

enum work {
    WORK_NONE,
    WORK_INPUT,  /* ids of an input segment, in chunks */
    WORK_GIVEN,  /* ids at the start of a generated segment that are known, in chunks */
    WORK_SAMPLE, /* one id after the other */
    WORK_REBUILD
};

struct script_seq {
    struct seq base; /* first */
    struct script_engine *engine;
    struct script_seq *next;
    struct script_state state;
    uint64_t import_tokens;     /* regions are handed out for so many, no tip yet; 0: none */
    struct script_state staged; /* of a rebuild: what the state will be; planes are state's */

    enum work work;
    bool cancelled;
    bool begins; /* the work is a new segment of begin_mode that has no token yet */
    enum prefill_mode begin_mode;
    uint64_t due_ns; /* monotonic: the next piece of work is not done before */
    struct ids todo; /* ids of the input segment, or given ones */
    uint64_t done;   /* of todo */

    uint64_t n_new, max_new; /* of a generated segment: ids of this call and the most of them */
    bool end_with_given;
    bool has_pending; /* an id was handed out that is not computed yet */
    uint32_t pending;
    struct stop_watch *stop; /* NULL: no stop strings */
    bool stops;              /* with the last id that it was fed */
};

struct script_engine {
    struct engine base; /* first */
    struct state_layout layout;
    struct tokenizer *tokenizer;
    struct script script;
    uint32_t eos;
    struct script_seq *seqs; /* in the order in which they are served */
    pthread_mutex_t lock;    /* guards interrupted; everything else is the engine thread's */
    pthread_cond_t wake;
    bool interrupted;
};

static struct script_engine *engine_of(struct engine *m)
{
    return (struct script_engine *)m;
}

static struct script_seq *seq_of(struct seq *s)
{
    return (struct script_seq *)s;
}

static const struct script_seq *const_seq(const struct seq *s)
{
    return (const struct script_seq *)s;
}

static uint64_t now_ns(void)
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

static enum err check_free(const struct script_seq *s, struct error *e)
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
    ids_fini(&s->todo);
    s->todo = copy;
    s->done = 0;
    return OK;
}

static void queue(struct script_seq *s, enum work work, bool begins, uint64_t delay_ms)
{
    s->work = work;
    s->begins = begins;
    s->cancelled = false;
    s->due_ns = now_ns() + delay_ms * NS_PER_MS;
}

static uint64_t chunk_left(const struct script_seq *s)
{
    uint64_t left = s->todo.n - s->done;
    return left < CHUNK_TOKENS ? left : CHUNK_TOKENS;
}

/* What the next chunk takes: its share of the time of the whole segment. */
static uint64_t chunk_ms(const struct script_seq *s)
{
    const struct script_step *step = step_of(s, s->state.n_runs);
    return step ? step->prefill_ms * chunk_left(s) / s->todo.n : 0;
}

static enum err script_input(struct seq *base, const uint32_t *ids, uint64_t n,
                             enum prefill_mode mode, struct error *e)
{
    struct script_seq *s = seq_of(base);
    struct script_state *t = &s->state;
    enum err rc = check_free(s, e);
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
    queue(s, WORK_INPUT, !t->seg.open, chunk_ms(s));
    return OK;
}

/* The first id of a run waits for the stall, too. */
static void start_sampling(struct script_seq *s)
{
    const struct script_step *step = step_now(s);
    uint64_t ms = step ? step->token_ms + (offset_now(s) ? 0 : step->stall_ms) : 0;
    s->work = WORK_SAMPLE;
    s->due_ns = now_ns() + ms * NS_PER_MS;
}

static enum err check_generate(const struct script_seq *s, const struct generate_options *g,
                               struct error *e)
{
    const struct script_state *t = &s->state;
    enum err rc = check_free(s, e);
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

static enum err script_generate(struct seq *base, const struct generate_options *g,
                                struct error *e)
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
    queue(s, WORK_GIVEN, !g->resumes, 0);
    if (!g->n_given)
        start_sampling(s);
    return OK;
}

static void script_cancel(struct seq *base)
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
        compute(s, s->todo.v[s->done + i]);
    s->done += n;
}

static struct engine_event progress(struct script_seq *s)
{
    struct engine_event ev = event_of(s, ENGINE_PROGRESS);
    ev.done = s->done;
    ev.total = s->todo.n;
    return ev;
}

static struct engine_event step_input(struct script_seq *s)
{
    compute_chunk(s, chunk_left(s));
    if (s->done == s->todo.n) {
        s->state.seg.open = false;
        return end_work(s, END_SEGMENT);
    }
    s->due_ns = now_ns() + chunk_ms(s) * NS_PER_MS;
    return progress(s);
}

static struct engine_event step_given(struct script_seq *s)
{
    uint64_t n = chunk_left(s), room = s->max_new - s->n_new;
    compute_chunk(s, n < room ? n : room);
    s->n_new = s->done;
    if (s->done == s->todo.n && s->end_with_given)
        return end_work(s, END_SEGMENT);
    if (s->done == s->todo.n && s->todo.v[s->done - 1] == s->engine->eos)
        return end_work(s, END_EOS);
    if (s->done == s->todo.n && s->stops)
        return end_work(s, END_STOP);
    if (s->n_new == s->max_new)
        return end_work(s, END_LENGTH);
    if (s->done == s->todo.n)
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
    s->due_ns = now_ns() + (step ? step->token_ms : 0) * NS_PER_MS;
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

/* One piece of work. What was handed out is computed also when the run is cancelled. */
static struct engine_event step_seq(struct script_seq *s)
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

/* ---- scheduling ----------------------------------------------------------------- */

static uint64_t due_of(const struct script_seq *s)
{
    return s->work == WORK_NONE ? UINT64_MAX : s->cancelled ? 0 : s->due_ns;
}

static uint64_t earliest(const struct script_engine *m)
{
    uint64_t due = UINT64_MAX;
    for (const struct script_seq *s = m->seqs; s; s = s->next)
        if (due_of(s) < due)
            due = due_of(s);
    return due;
}

/* Until `due`, an interruption, or the end of the slice. */
static void wait_until(struct script_engine *m, uint64_t due)
{
    uint64_t slice = now_ns() + WAIT_SLICE_MS * NS_PER_MS;
    uint64_t until = due < slice ? due : slice;
    struct timespec t = {(time_t)(until / 1000000000u), (long)(until % 1000000000u)};
    pthread_mutex_lock(&m->lock);
    while (!m->interrupted && now_ns() < until)
        pthread_cond_timedwait(&m->wake, &m->lock, &t);
    m->interrupted = false;
    pthread_mutex_unlock(&m->lock);
}

static bool script_has_work(const struct engine *base)
{
    const struct script_engine *m = (const struct script_engine *)base;
    return earliest(m) != UINT64_MAX;
}

static void script_interrupt(struct engine *base)
{
    struct script_engine *m = engine_of(base);
    pthread_mutex_lock(&m->lock);
    m->interrupted = true;
    pthread_cond_signal(&m->wake);
    pthread_mutex_unlock(&m->lock);
}

static void unlink_seq(struct script_engine *m, const struct script_seq *s)
{
    struct script_seq **at = &m->seqs;
    while (*at != s)
        at = &(*at)->next;
    *at = s->next;
}

static void append_seq(struct script_engine *m, struct script_seq *s)
{
    struct script_seq **at = &m->seqs;
    while (*at)
        at = &(*at)->next;
    s->next = NULL;
    *at = s;
}

/* Every sequence that is due does one piece, but only one of them a chunk of input. Those that
 * had their turn go behind those that had none. */
static enum err script_step_all(struct engine *base, struct engine_event *events, size_t cap,
                                size_t *n_events, struct error *e)
{
    (void)e;
    struct script_engine *m = engine_of(base);
    size_t n = 0;
    bool had_input = false;
    wait_until(m, earliest(m));
    uint64_t now = now_ns();
    struct script_seq *last = m->seqs, *s;
    while (last && last->next)
        last = last->next;
    for (bool more = last; more && n < cap;) {
        s = m->seqs;
        more = s != last;
        bool input = s->work == WORK_INPUT && !s->cancelled;
        unlink_seq(m, s);
        append_seq(m, s);
        if (due_of(s) > now || (input && had_input))
            continue;
        had_input = had_input || input;
        events[n++] = step_seq(s);
    }
    *n_events = n;
    return OK;
}

/* ---- state ---------------------------------------------------------------------- */

static uint64_t script_position(const struct seq *base)
{
    return const_seq(base)->state.position;
}

static struct seq_digest script_digest(const struct seq *base)
{
    return const_seq(base)->state.digest;
}

static bool script_segment_open(const struct seq *base, uint64_t *start,
                                enum prefill_mode *mode)
{
    const struct script_segment *g = &const_seq(base)->state.seg;
    if (g->open) {
        *start = g->start;
        *mode = g->mode;
    }
    return g->open;
}

static enum err script_export_rows(const struct seq *base, uint32_t plane, uint64_t row0,
                                   uint64_t n_rows, void *dst, struct error *e)
{
    (void)e;
    const struct script_state *t = &const_seq(base)->state;
    const uint8_t *rows = plane ? t->index : t->kv;
    uint32_t row_bytes = plane ? SCRIPT_INDEX_BYTES : SCRIPT_KV_BYTES;
    if (n_rows)
        memcpy(dst, rows + row0 * row_bytes, n_rows * row_bytes);
    return OK;
}

static enum err script_tip_out(const struct seq *base, void *dst, struct error *e)
{
    const struct script_seq *s = const_seq(base);
    if (!s->state.position)
        return err_set(e, ERR_INVAL, "tip: nothing was computed yet");
    script_export_tip(&s->state, dst);
    return OK;
}

static enum err script_import_begin(struct seq *base, uint64_t n_tokens,
                                    struct state_regions *out, struct error *e)
{
    struct script_seq *s = seq_of(base);
    enum err rc = check_free(s, e);
    if (!rc)
        rc = script_reserve(&s->state, n_tokens, e);
    if (rc)
        return rc;
    s->import_tokens = n_tokens;
    out->n_tokens = n_tokens;
    out->plane[0] = s->state.kv;
    out->plane[1] = s->state.index;
    return OK;
}

static enum err check_importing(const struct script_seq *s, struct error *e)
{
    if (!s->import_tokens || s->work != WORK_NONE)
        return err_set(e, ERR_CONFLICT, "no import was begun, or its rebuild is at work");
    return OK;
}

static enum err script_tip_in(struct seq *base, const void *tip, size_t n_bytes,
                              const struct seq_digest *digest, struct error *e)
{
    (void)n_bytes; /* checked by engine.c */
    struct script_seq *s = seq_of(base);
    enum err rc = check_importing(s, e);
    if (!rc)
        rc = script_import_tip(&s->state, tip, s->import_tokens, digest, e);
    if (!rc)
        s->import_tokens = 0;
    return rc;
}

static enum err script_rebuild_from(struct seq *base, const struct tape_view *tape,
                                    enum resume_mode mode, const struct seq_digest *digest,
                                    uint64_t *n_replayed, struct error *e)
{
    struct script_seq *s = seq_of(base);
    enum err rc = check_importing(s, e);
    if (!rc && tape->n_ids < s->import_tokens)
        rc = err_set(e, ERR_INVAL, "rebuild: %llu tokens, the tape has %llu",
                     (unsigned long long)s->import_tokens, (unsigned long long)tape->n_ids);
    if (rc)
        return rc;
    *n_replayed =
        script_rebuild(&s->state, tape, s->import_tokens, mode == RESUME_REPLAY, &s->staged);
    s->staged.digest = digest ? *digest : (struct seq_digest){.is_partial = true};
    queue(s, WORK_REBUILD, false, 0);
    return OK;
}

/* ---- life ----------------------------------------------------------------------- */

static enum err script_seq_new(struct engine *base, struct seq **out, struct error *e)
{
    struct script_seq *s = calloc(1, sizeof *s);
    if (!s)
        return err_set(e, ERR_NOMEM, "sequence");
    s->engine = engine_of(base);
    append_seq(s->engine, s);
    *out = &s->base;
    return OK;
}

static void script_seq_free(struct seq *base)
{
    struct script_seq *s = seq_of(base);
    unlink_seq(s->engine, s);
    script_state_fini(&s->state);
    ids_fini(&s->todo);
    stop_watch_free(s->stop);
    free(s);
}

static void script_free(struct engine *base)
{
    struct script_engine *m = engine_of(base);
    while (m->seqs)
        script_seq_free(&m->seqs->base);
    script_fini(&m->script);
    tokenizer_free(m->tokenizer);
    pthread_cond_destroy(&m->wake);
    pthread_mutex_destroy(&m->lock);
    free(m);
}

static const struct engine_ops script_ops = {
    .free = script_free,
    .seq_new = script_seq_new,
    .seq_free = script_seq_free,
    .seq_position = script_position,
    .seq_input = script_input,
    .seq_generate = script_generate,
    .seq_cancel = script_cancel,
    .seq_digest = script_digest,
    .seq_segment_open = script_segment_open,
    .has_work = script_has_work,
    .step = script_step_all,
    .interrupt = script_interrupt,
    .seq_export_rows = script_export_rows,
    .seq_export_tip = script_tip_out,
    .seq_import_begin = script_import_begin,
    .seq_import_tip = script_tip_in,
    .seq_rebuild = script_rebuild_from,
};

/* The script is no part of it: a session may go on under another one. */
static void describe(struct script_engine *m)
{
    struct hash h;
    script_layout(&m->layout);
    memcpy(m->layout.numerics, "script/1", sizeof "script/1");
    m->base.info = (struct engine_info){.name = "script",
                                        .layout = &m->layout,
                                        .tokenizer = m->tokenizer,
                                        .vocab_size = tokenizer_size(m->tokenizer),
                                        .max_tokens = SCRIPT_MAX_TOKENS,
                                        .storable = true};
    hash_init(&h, NULL, HASH_BYTES);
    hash_field(&h, "agentd scripted engine", 22);
    hash_field(&h, m->layout.numerics, sizeof "script/1" - 1);
    hash_u32le(&h, m->base.info.vocab_size);
    hash_u32le(&h, m->eos);
    hash_final(&h, m->layout.fingerprint);
}

static void init_wake(struct script_engine *m)
{
    pthread_condattr_t a;
    pthread_condattr_init(&a);
    pthread_condattr_setclock(&a, CLOCK_MONOTONIC);
    pthread_cond_init(&m->wake, &a);
    pthread_condattr_destroy(&a);
    pthread_mutex_init(&m->lock, NULL);
}

enum err engine_open_script(struct engine **out, const char *path, const char *model_dir,
                            struct error *e)
{
    struct script_engine *m = calloc(1, sizeof *m);
    if (!m)
        return err_set(e, ERR_NOMEM, "scripted engine");
    m->base.ops = &script_ops;
    init_wake(m);
    enum err rc = model_dir ? tokenizer_open(&m->tokenizer, model_dir, e)
                            : tokenizer_new_bytes(&m->tokenizer, e);
    if (!rc) {
        m->eos = tokenizer_added(m->tokenizer, EOS_TEXT);
        if (m->eos == TOKEN_NONE)
            rc = err_set(e, ERR_FORMAT, "tokenizer of %s: no " EOS_TEXT, model_dir);
    }
    if (!rc)
        rc = script_load(&m->script, path, m->tokenizer, m->eos, e);
    if (rc) {
        script_free(&m->base);
        return rc;
    }
    describe(m);
    *out = &m->base;
    return OK;
}
