/* Results are computed while their tools still run.
 *
 * What a running tool wrote so far, as far as it is certain to be in its result, goes to the
 * engine as uncommitted input (seq_ahead in engine.h): in call order, so a call's output waits
 * until the results of the calls before it are complete. Held back is what may still become
 * something else: bytes that could merge with bytes to come (tokenizer_encode_open), an
 * unfinished character, and everything past the part of an output that a cut in the middle
 * would keep (tools/output.h: fresh bytes are of the head).
 *
 * Nothing here decides anything. The input segment is built from the results when they are
 * durable, as if nothing had been ahead, and the engine keeps what it begins with. Should a
 * result begin otherwise than its output did (the tool's process was lost), what is ahead is
 * dropped at once. */
#include <stdlib.h>
#include <string.h>

#include "agentd/turn_internal.h"
#include "base/log.h"

#define AHEAD_MAX_BYTES ((size_t)1 << 20) /* of all results of a step: past it nothing more */
#define AHEAD_MIN_IDS 64                  /* fewer are not worth a job */
#define AHEAD_MIN_BYTES 256               /* nor fewer bytes a look at them */

struct step_ahead {
    struct chat_segment segment;
    struct prompt_place place; /* in it: ids up to here are known */
    struct ids ids;            /* known, not handed over yet */
    size_t at;                 /* the call whose result is in work */
    size_t n_added;            /* bytes of it in the segment */
    bool in_result;            /* its frame is open */
    size_t n_looked;           /* bytes of the segment when ids were last looked for */
    bool stopped;              /* no more is added; what is ahead stays good */
    struct seq_job *job;       /* on its way to the engine */
};

void step_ahead_free(struct step_ahead *a)
{
    if (!a)
        return;
    chat_segment_fini(&a->segment);
    ids_fini(&a->ids);
    free(a); /* a job on its way owns its ids and does not find us any more */
}

/* ---- to the engine ---------------------------------------------------------------- */

static void hand_over(struct turn *t, struct step_ahead *a);

static void handed(struct live *s, struct seq_job *j)
{
    struct step_ahead *a = s->turn && s->turn->tools ? s->turn->tools->ahead : NULL;

    if (!a || a->job != j)
        return;
    a->job = NULL;
    if (j->job.rc) {
        if (j->job.rc != ERR_UNSUPPORTED)
            log_info("session=%s: nothing more is computed ahead: %s", s->id, j->job.error.msg);
        a->stopped = true;
    } else if (s->turn->phase == TURN_TOOLS) {
        hand_over(s->turn, a);
    }
}

static void hand_over(struct turn *t, struct step_ahead *a)
{
    if (a->job || a->stopped || a->ids.n < AHEAD_MIN_IDS)
        return;
    if (!t->session->model.seq) { /* it has left memory for another session */
        a->stopped = true;
        return;
    }
    a->job = seq_job_ahead(t->session, &a->ids, t->session->config->mode, handed);
    a->stopped = !a->job;
    t->is_ahead = t->is_ahead || a->job;
}

static void drop(struct turn *t, struct step_ahead *a)
{
    a->stopped = true;
    if (t->is_ahead && t->session->model.seq)
        seq_job_ahead_drop(t->session);
    t->is_ahead = false;
}

void turn_ahead_end(struct turn *t)
{
    if (t->is_ahead && t->session->model.seq)
        seq_job_ahead_drop(t->session);
    t->is_ahead = false;
}

/* ---- what is certain -------------------------------------------------------------- */

static bool begins_with(const struct step_call *c, const struct buf *output)
{
    return output->len <= c->n_result &&
           (output->len == 0 || memcmp(c->result, output->data, output->len) == 0);
}

/* Adds what is known of the call in work. True: its result is complete, the next one's turn. */
static bool add_call(struct turn *t, struct step_ahead *a, const struct step_call *c,
                     enum err *rc)
{
    bool is_whole = !call_is_open(c->status);
    const void *bytes = is_whole ? (const void *)c->result : c->output.data;
    size_t n = is_whole ? (c->result ? c->n_result : 0) : c->output.len;

    if (is_whole && !begins_with(c, &c->output)) {
        drop(t, a);
        return false;
    }
    if (n - a->n_added > AHEAD_MAX_BYTES - a->segment.prompt.text.len) {
        a->stopped = true;
        return false;
    }
    if (!a->in_result)
        *rc = chat_segment_result_begin(&a->segment, NULL);
    a->in_result = true;
    if (!*rc && n > a->n_added)
        *rc = prompt_add(&a->segment.prompt, (const uint8_t *)bytes + a->n_added,
                         n - a->n_added, NULL);
    a->n_added = n;
    if (*rc || !is_whole)
        return false;
    *rc = chat_segment_result_end(&a->segment, NULL);
    a->in_result = false;
    a->n_added = 0;
    a->at++;
    return *rc == OK;
}

void turn_ahead_advance(struct turn *t)
{
    struct tool_step *ts = t->tools;
    struct step_ahead *a = ts->ahead;
    enum err rc = OK;
    bool next = true;

    if (!a || a->stopped || t->cancelled || t->failed)
        return;
    while (next && a->at < ts->n_calls)
        next = add_call(t, a, &ts->calls[a->at], &rc);
    size_t n = a->segment.prompt.text.len;
    if (!rc && !a->stopped && n - a->n_looked >= AHEAD_MIN_BYTES) {
        a->n_looked = n;
        rc = prompt_ids_open(&a->segment.prompt, t->session->daemon->model->tokenizer,
                             &a->place, &a->ids, NULL);
    }
    if (rc) /* out of memory: the segment is built without any of this */
        a->stopped = true;
    hand_over(t, a);
}

void turn_ahead_output(struct step_call *c, const void *bytes, size_t n)
{
    if (!c->turn->tools->ahead)
        return;
    /* A full buffer: the bytes that it has are still those that the result begins with. */
    if (buf_add(&c->output, bytes, n, NULL))
        c->turn->tools->ahead->stopped = true;
    turn_ahead_advance(c->turn);
}

void turn_ahead_begin(struct turn *t)
{
    const struct live *s = t->session;
    struct step_ahead *a;

    /* Only behind a complete tape: where the sequence is, the results will follow. */
    if (!s->model.seq || s->model.position != s->length || !t->tools->n_calls ||
        t->tools->ahead || !(a = calloc(1, sizeof(*a))))
        return;
    a->segment = (struct chat_segment)CHAT_SEGMENT_INIT(&s->daemon->chat, s->config->thinking,
                                                        2 * AHEAD_MAX_BYTES);
    a->ids = (struct ids)IDS_INIT(2 * AHEAD_MAX_BYTES);
    t->tools->ahead = a;
    turn_ahead_advance(t);
}
