/* The scripted engine: sequences (script_seq.h) served in turns, at the pace of a script.
 *
 * Waiting happens inside engine_step, for all sequences together, in slices of WAIT_SLICE_MS,
 * and ends early at engine_interrupt.
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/auto.h"
#include "engine/script_seq.h"

#define WAIT_SLICE_MS 20
#define EOS_TEXT "<｜end▁of▁sentence｜>"

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
    uint64_t slice = script_now_ns() + WAIT_SLICE_MS * NS_PER_MS;
    uint64_t until = due < slice ? due : slice;
    struct timespec t = {(time_t)(until / 1000000000u), (long)(until % 1000000000u)};
    pthread_mutex_lock(&m->lock);
    while (!m->interrupted && script_now_ns() < until)
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
    uint64_t now = script_now_ns();
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
        events[n++] = script_step_seq(s);
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
    enum err rc = script_check_free(s, e);
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
    script_queue(s, WORK_REBUILD, false, 0);
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
    ids_fini(&s->ids);
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
