/* FEED: computes what is on the tape and not in the sequence, segment by segment: new input,
 * and after a restore whatever came after the last state commit. A generated segment that is
 * open at the tape's end is handed to RUN, which goes on with it. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "agentd/store_thread.h"
#include "agentd/turn_internal.h"
#include "base/log.h"

void feed_fini(struct feed *f)
{
    free(f->ids);
    free(f->segments);
    *f = (struct feed){0};
}

/* Copies positions [first, first + n) and the segments that reach past `first`. */
static enum err fill(struct feed *f, uint64_t first, const uint32_t *ids, uint64_t n,
                     const struct tape_segment *segs, size_t n_segs, struct error *e)
{
    feed_fini(f);
    f->ids = malloc((n ? n : 1) * sizeof(*ids));
    f->segments = malloc((n_segs ? n_segs : 1) * sizeof(*segs));
    if (!f->ids || !f->segments) {
        feed_fini(f);
        return err_set(e, ERR_NOMEM, "%llu tokens of tape", (unsigned long long)n);
    }
    if (n)
        memcpy(f->ids, ids, n * sizeof(*ids));
    f->first = first;
    f->end = first + n;
    for (size_t i = 0; i < n_segs; i++) {
        struct tape_segment s = segs[i];
        if (s.open)
            s.seg.len = f->end - s.seg.start;
        if (s.seg.start + s.seg.len > first || s.open)
            f->segments[f->n_segments++] = s;
    }
    return OK;
}

enum err feed_from_tape(struct turn *t, const struct tape *tape, struct error *e)
{
    const struct tape_view *v = &tape->view;
    uint64_t first = t->session->model.position;
    const struct tape_segment *last =
        v->n_segments ? &tape->tape_segments[v->n_segments - 1] : NULL;

    /* The parser of an open run needs the run from its start. */
    if (last && last->open && last->seg.start < first)
        first = last->seg.start;
    if (first > v->n_ids)
        return err_set(e, ERR_CORRUPT, "tape of %llu tokens, state of %llu",
                       (unsigned long long)v->n_ids, (unsigned long long)first);
    return fill(&t->feed, first, v->ids + first, v->n_ids - first, tape->tape_segments,
                v->n_segments, e);
}

enum err feed_from_commit(struct turn *t, const struct commit *c, struct error *e)
{
    return fill(&t->feed, c->c.position, c->ids, c->c.n_ids, c->segments, c->c.n_segments, e);
}

/* ---- reading the tape ------------------------------------------------------------- */

/* The sequence stopped inside an earlier segment (a cancelled prefill): the rest of that
 * segment comes first, and only the store has it. */
struct tape_read {
    struct job job;
    struct live *session; /* pinned */
    struct tape tape;
};

static void read_run(struct job *j, void *ctx)
{
    struct tape_read *r = (struct tape_read *)j;

    j->rc = tape_load(ctx, r->session->id, &r->tape, &j->error);
}

static void read_done(struct job *j)
{
    struct tape_read *r = (struct tape_read *)j;
    struct live *s = r->session;
    struct turn *t = s->turn;
    enum err rc = j->rc;

    if (!rc)
        rc = feed_from_tape(t, &r->tape, &j->error);
    tape_fini(&r->tape);
    if (rc) {
        turn_fail(t, rc, &j->error);
        (void)turn_stops(t);
    } else {
        turn_feed(t);
    }
    free(r);
    live_unpin(s);
}

static void read_tape(struct turn *t)
{
    struct tape_read *r = calloc(1, sizeof(*r));
    struct error e;

    if (!r) {
        turn_fail(t, err_set(&e, ERR_NOMEM, "tape"), &e);
        (void)turn_stops(t);
        return;
    }
    r->job = (struct job){.run = read_run, .done = read_done};
    r->session = t->session;
    live_pin(t->session);
    store_thread_submit(t->session->daemon->store, &r->job);
}

/* ---- feeding ---------------------------------------------------------------------- */

static void feed_next(struct turn *t);

void turn_count(struct turn *t, uint64_t position, enum segment_kind new_kind)
{
    uint64_t from = t->counted, old = 0, lost = 0;

    if (position <= from)
        return;
    if (from < t->history)
        old = (position < t->history ? position : t->history) - from;
    if (from < t->durable)
        lost = t->durable - from < old ? t->durable - from : old;
    t->ledger.relost += lost;
    t->ledger.recomputed += old - lost;
    if (new_kind == SEGMENT_INPUT)
        t->ledger.prefilled += position - from - old;
    else
        t->ledger.decoded += position - from - old;
    t->counted = position;
}

/* The part of dt that went into tokens which had been computed before. */
static uint64_t recompute_share(const struct turn *t, uint64_t dt)
{
    uint64_t from = t->feed.from, to = t->session->model.position;
    uint64_t old_end = to < t->history ? to : t->history;

    if (old_end <= from)
        return 0;
    return (uint64_t)((double)dt * (double)(old_end - from) / (double)(to - from));
}

static void feed_done(struct turn *t)
{
    struct feed *f = &t->feed;
    struct daemon *d = t->session->daemon;
    uint64_t dt = daemon_now_ns(d) - f->t0_ns;
    /* None: the state reached to the tape's end, which is that of a closed run. */
    const struct tape_segment *last = f->n_segments ? &f->segments[f->n_segments - 1] : NULL;

    t->ledger.ns[STAGE_PREFILL] += dt;
    t->session->resume.recompute_ns += recompute_share(t, dt);
    if (last && last->open && last->seg.kind == SEGMENT_GENERATED) {
        uint64_t start = last->seg.start;
        turn_run(t, start, f->ids + (start - f->first), f->end - start);
    } else if (t->tools) {
        turn_tools(t);
    } else {
        struct error e;
        turn_fail(t, err_set(&e, ERR_CORRUPT, "the tape ends in no open run"), &e);
        (void)turn_stops(t);
    }
}

static void queued(struct live *s, struct seq_job *j)
{
    struct turn *t = s->turn;

    if (!j->job.rc) { /* its events follow */
        if (j->is_input)
            t->ledger.ahead += j->u.input.n_ahead;
        return;
    }
    t->engine_busy = false;
    turn_fail(t, j->job.rc, &j->job.error);
    (void)turn_stops(t);
}

/* Queues what is missing of the segment in work. */
static void queue_segment(struct turn *t, const struct segment *seg)
{
    struct live *s = t->session;
    struct feed *f = &t->feed;
    uint64_t from = s->model.position, to = seg->start + seg->len;

    t->engine_busy = true;
    t->is_ahead = false; /* the engine takes it over, or drops it */
    if (seg->kind == SEGMENT_INPUT) {
        seq_job_input(s, &t->job, f->ids + (from - f->first), to - from, seg->mode, queued);
        return;
    }
    struct generate_options g = {.max_tokens = to - from,
                                 .given = f->ids + (from - f->first),
                                 .n_given = to - from,
                                 .end_with_given = true,
                                 .resumes = from > seg->start};
    seq_job_generate(s, &t->job, &g, queued);
}

static void feed_next(struct turn *t)
{
    struct feed *f = &t->feed;
    uint64_t position = t->session->model.position;

    if (turn_stops(t))
        return;
    while (f->at < f->n_segments) {
        const struct tape_segment *s = &f->segments[f->at];
        if (s->open || s->seg.start + s->seg.len > position)
            break;
        f->at++;
    }
    if (f->at == f->n_segments || f->segments[f->at].open) {
        feed_done(t);
        return;
    }
    queue_segment(t, &f->segments[f->at].seg);
}

void turn_feed(struct turn *t)
{
    struct live *s = t->session;

    if (t->phase != TURN_FEED)
        turn_move(t, TURN_FEED);
    t->input_waits = saver_holds_input(s);
    if (t->input_waits)
        return; /* goes on in turn_feed_on_saver */
    if (s->model.position < t->feed.first) {
        read_tape(t);
        return;
    }
    uint64_t now = daemon_now_ns(s->daemon);
    if (!t->feed.t0_ns) {
        t->feed.t0_ns = now;
        t->feed.from = s->model.position;
        if (t->step == 0 && !t->ledger.ns[STAGE_QUEUE])
            t->ledger.ns[STAGE_QUEUE] = now - t->created_ns;
    }
    feed_next(t);
}

uint64_t turn_input_end(const struct turn *t)
{
    if (t->phase != TURN_FEED || t->feed.at >= t->feed.n_segments)
        return 0;
    const struct segment *seg = &t->feed.segments[t->feed.at].seg;
    return seg->kind == SEGMENT_INPUT ? seg->start + seg->len : 0;
}

void turn_feed_on_saver(struct turn *t)
{
    if (!turn_stops(t))
        turn_feed(t);
}

/* The exporter refuses in the last window of an input segment. */
void turn_save_midway(struct turn *t, uint64_t input_end)
{
    struct live *s = t->session;
    const struct residency *m = &s->model;
    /* After a failure (a full disk) not at once again, with all rows since: at the next mark.
     */
    uint64_t since = m->refused > m->saved ? m->refused : m->saved;

    if (m->position - since >= s->daemon->save_every && !s->saver)
        saver_start(s, input_end);
}

static void check_digest(struct turn *t, const struct tape_segment *seg,
                         const struct seq_digest *d)
{
    if (d->is_partial)
        return;
    if (!seg->has_digest) {
        turn_keep_digest(t, seg, d);
        return;
    }
    if (seg->n_rows != d->n_rows || memcmp(seg->digest, d->d, sizeof(d->d)) != 0)
        log_warn("session=%s: segment at %llu was computed again to other logits (%llu rows, "
                 "the tape has %llu): another numerics class?",
                 t->session->id, (unsigned long long)seg->seg.start,
                 (unsigned long long)d->n_rows, (unsigned long long)seg->n_rows);
}

void turn_feed_on_engine(struct turn *t, const struct engine_note *n)
{
    struct feed *f = &t->feed;
    const struct engine_event *ev = &n->event;
    const struct tape_segment *seg = &f->segments[f->at];

    turn_progress(t, "prefill", ev->position - f->first, f->end - f->first, f->t0_ns);
    turn_count(t, ev->position, SEGMENT_INPUT);
    if (ev->kind != ENGINE_DONE) {
        turn_save_midway(t, turn_input_end(t));
        return;
    }
    if (ev->reason == END_SEGMENT || ev->reason == END_EOS)
        check_digest(t, seg, &n->digest);
    feed_next(t);
}
