/* RESTORE: brings a session's state back into memory.
 *
 *     find     store   the tape, and what there is: exact (a tip), deep (rows), or cold
 *     open     engine  a sequence with room for the rows
 *     read     store   planes and tip straight into it, verified; with a budget for KV rows
 *     leave    engine  main rows of whole blocks stay in the packs until they are selected
 *     tip      engine  exact: all becomes visible at once; or
 *     rebuild  engine  deep: the windows are computed again from the planes
 *
 * Damage shortens what can be restored: then everything begins again with what is left, and
 * each round is shorter than the one before. What no state covers is computed by FEED. */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "agentd/store_thread.h"
#include "agentd/turn_internal.h"
#include "base/log.h"
#include "sessions/head.h"
#include "sessions/late.h"

struct restore {
    struct job job;       /* on the store's thread */
    struct live *session; /* pinned while a job is out */
    const struct state_layout *layout;
    uint64_t limit; /* look for state of at most so many tokens */
    struct tape tape;
    struct head_plan *plan; /* NULL: cold */
    struct state_regions regions;
    void *tip;
    bool takes_late;      /* the engine lets main rows stay behind */
    struct late *late;    /* has them, after reading; NULL: none did */
    struct late *spoiled; /* of the restore before: its damaged extents are set aside first */
    uint32_t n_spoiled;   /* that were */
    struct seq_digest digest; /* of the segment open at digest_at, by the tip's row */
    uint64_t digest_at;       /* 0: not known */
    struct head_restored got;
    uint64_t state_position; /* of the last state commit, before anything was set aside */
    bool is_short;           /* less was found or read than the last state commit holds */
    bool no_tip;             /* the engine refused the tip: rows only */
    atomic_bool cancelled;   /* for the reader on the store's thread */
    uint64_t t0_ns, find_ns, import0_ns, replay0_ns;
};

void restore_free(struct restore *r)
{
    if (!r)
        return;
    head_plan_free(r->plan);
    tape_fini(&r->tape); /* the plan borrows from it */
    late_unref(r->late);
    late_unref(r->spoiled);
    free(r->tip);
    free(r);
}

static void begin(struct turn *t);

static void submit(struct turn *t, void (*run)(struct job *, void *),
                   void (*done)(struct job *))
{
    struct restore *r = t->restore;

    r->job.run = run;
    r->job.done = done;
    live_pin(t->session);
    store_thread_submit(t->session->daemon->store, &r->job);
}

/* If the turn has to stop, its half-restored sequence goes with it. */
static bool stops(struct turn *t)
{
    if (t->session->daemon->stopping)
        return true;
    if (!t->cancelled && !t->failed)
        return false;
    live_drop_seq(t->session);
    return turn_stops(t);
}

/* The turn, or NULL: it had to stop, and that is under way. */
static struct turn *back(struct restore *r)
{
    struct live *s = r->session;
    struct turn *t = s->turn;

    if (r->job.rc && r->job.rc != ERR_CANCELLED)
        turn_fail(t, r->job.rc, &r->job.error);
    live_unpin(s); /* the turn holds it */
    return stops(t) ? NULL : t;
}

/* ---- the end ---------------------------------------------------------------------- */

static void finish(struct turn *t, enum resume_mode mode)
{
    struct live *s = t->session;
    struct restore *r = t->restore;
    struct resume_record *rec = &s->resume;
    struct error e;

    rec->mode = mode;
    rec->tape = t->recovered ? r->tape.view.n_ids : t->tape_start;
    rec->restored = s->model.position;
    rec->same_numerics = r->plan ? r->plan->same_numerics : true;
    t->history = t->recovered ? r->tape.view.n_ids : t->tape_start;
    if (t->history > s->reached) /* a turn was cancelled before anything was computed */
        t->history = s->reached;
    rec->happened = t->history > 0;
    /* Rows that were there and were not worth a replay are not lost. */
    t->durable = r->is_short ? r->state_position : s->model.position;
    t->counted = s->model.position;
    t->ledger.restored += s->model.position;
    rec->recomputed = t->history > s->model.position ? t->history - s->model.position : 0;
    uint64_t lost = t->durable > s->model.position ? t->durable - s->model.position : 0;
    rec->relost = lost < rec->recomputed ? lost : rec->recomputed;
    rec->recomputed -= rec->relost;
    log_info("resume session=%s mode=%s tape=%llu restored=%llu recomputed=%llu relost=%llu "
             "replayed=%llu bytes=%llu",
             s->id, resume_mode_name(mode), (unsigned long long)rec->tape,
             (unsigned long long)rec->restored, (unsigned long long)rec->recomputed,
             (unsigned long long)rec->relost, (unsigned long long)rec->replayed,
             (unsigned long long)rec->bytes_read);
    enum err rc = feed_from_tape(t, &r->tape, &e);
    restore_free(r);
    t->restore = NULL;
    if (rc) {
        turn_fail(t, rc, &e);
        (void)turn_stops(t);
        return;
    }
    turn_feed(t);
}

/* ---- engine ----------------------------------------------------------------------- */

static void fail_engine(struct turn *t, struct seq_job *j)
{
    turn_fail(t, j->job.rc, &j->job.error);
    (void)stops(t);
}

/* Restored n tokens: visible from now on. */
static void take_position(struct turn *t, uint64_t n)
{
    struct live *s = t->session;

    s->model.position = n;
    s->model.saved = n;
    s->model.lineage = t->restore->plan->lineage;
}

static void rebuilt_queued(struct live *s, struct seq_job *j)
{
    struct turn *t = s->turn;

    if (j->job.rc) {
        t->engine_busy = false;
        fail_engine(t, j);
        return;
    }
    t->ledger.replayed += j->u.rebuild.n_replayed;
    s->resume.replayed = j->u.rebuild.n_replayed;
    if (t->cancelled)
        seq_job_cancel(s);
}

/* The logits' digest at the end of the rows that were restored. A tip that cannot be used has
 * left its row, with the digest of its position; elsewhere inside a segment none is known. */
static bool knows_digest(const struct restore *r)
{
    return r->digest_at == r->got.n_tokens;
}

static void rebuild(struct turn *t)
{
    struct restore *r = t->restore;

    r->replay0_ns = daemon_now_ns(t->session->daemon);
    t->engine_busy = true;
    seq_job_rebuild(t->session, &t->job, t->session->model.seq, &r->tape.view, RESUME_DEEP,
                    knows_digest(r) ? &r->digest : NULL, rebuilt_queued);
}

void turn_restore_on_engine(struct turn *t, const struct engine_note *n)
{
    struct live *s = t->session;
    struct restore *r = t->restore;

    if (n->event.kind == ENGINE_PROGRESS)
        turn_progress(t, "replay", n->event.done, n->event.total, r->replay0_ns);
    if (n->event.kind != ENGINE_DONE)
        return;
    uint64_t dt = daemon_now_ns(s->daemon) - r->replay0_ns;
    t->ledger.ns[STAGE_REPLAY] += dt;
    s->resume.replay_ns = dt;
    if (n->event.reason != END_SEGMENT)
        t->cancelled = true;
    if (stops(t))
        return;
    take_position(t, r->got.n_tokens);
    finish(t, RESUME_DEEP);
}

static void tip_taken(struct live *s, struct seq_job *j)
{
    struct turn *t = s->turn;
    struct restore *r = t->restore;
    uint64_t dt = daemon_now_ns(s->daemon) - r->import0_ns;

    t->ledger.ns[STAGE_IMPORT] += dt;
    s->resume.import_ns = dt;
    if (j->job.rc == ERR_FORMAT) {
        log_warn("session=%s: the engine refuses the tip: %s", s->id, j->job.error.msg);
        rebuild(t);
        return;
    }
    if (j->job.rc) {
        fail_engine(t, j);
        return;
    }
    take_position(t, r->got.n_tokens);
    if (!stops(t))
        finish(t, RESUME_EXACT);
}

static void import(struct turn *t)
{
    struct restore *r = t->restore;

    if (r->got.has_tip)
        seq_job_import_tip(t->session, &t->job, t->session->model.seq, r->tip,
                           r->layout->tip_bytes, &r->digest, tip_taken);
    else
        rebuild(t);
}

static void left(struct live *s, struct seq_job *j)
{
    struct turn *t = s->turn;

    if (!j->job.rc && !stops(t))
        import(t);
    else if (j->job.rc && !turn_start_over(t, &j->job.error))
        fail_engine(t, j);
}

/* ---- store: reading --------------------------------------------------------------- */

static bool on_read(void *user, enum head_stage stage, uint64_t done, uint64_t total)
{
    struct restore *r = user;

    (void)stage;
    (void)done;
    (void)total;
    return !atomic_load(&r->cancelled);
}

static void read_run(struct job *j, void *ctx)
{
    struct restore *r = (struct restore *)j;
    const struct head_restore h = {.session = r->session->id,
                                   .layout = r->layout,
                                   .plan = r->plan,
                                   .dst = &r->regions,
                                   .tip = r->plan->has_tip ? r->tip : NULL,
                                   .late = r->takes_late ? &r->late : NULL,
                                   .progress = on_read,
                                   .user = r};

    j->rc = head_restore(ctx, &h, &r->got, &j->error);
}

static void read_done(struct job *j)
{
    struct restore *r = (struct restore *)j;
    struct turn *t = back(r);

    if (!t)
        return;
    struct live *s = t->session;
    t->ledger.bytes_read += r->got.bytes_read;
    t->ledger.ns[STAGE_STORE_READ] += r->got.total_ns;
    s->resume.bytes_read += r->got.bytes_read;
    s->resume.read_ns += r->got.total_ns;
    s->resume.index_ns += r->got.index_ns;
    s->resume.extents_damaged += r->got.extents_damaged;
    if (r->plan->has_tip) {
        memcpy(r->digest.d, r->plan->digest, sizeof(r->digest.d));
        r->digest.is_partial = r->plan->digest_rows == HEAD_DIGEST_PARTIAL;
        r->digest.n_rows = r->digest.is_partial ? 0 : r->plan->digest_rows;
        r->digest_at = r->plan->n_tokens;
    }
    if (r->got.n_tokens < r->plan->n_tokens || r->got.has_tip != r->plan->has_tip) {
        log_warn("session=%s: %llu of %llu tokens restored, %u extents damaged", s->id,
                 (unsigned long long)r->got.n_tokens, (unsigned long long)r->plan->n_tokens,
                 r->got.extents_damaged);
        live_drop_seq(s);
        late_unref(TAKE(r->late));
        r->is_short = true;
        /* The tip alone was damaged: the same rows, deep. Else: less of them. */
        r->no_tip = r->got.n_tokens == r->plan->n_tokens;
        r->limit = r->got.n_tokens;
        begin(t);
        return;
    }
    r->import0_ns = daemon_now_ns(s->daemon);
    if (r->late) {
        s->resume.late = late_tokens(r->late);
        s->model.late = TAKE(r->late);
        seq_job_leave(s, &t->job, s->model.seq, s->model.late, left);
    } else {
        import(t);
    }
}

/* ---- engine: room ----------------------------------------------------------------- */

static void opened(struct live *s, struct seq_job *j)
{
    struct turn *t = s->turn;
    struct restore *r = t->restore;

    if (j->job.rc) {
        fail_engine(t, j);
        return;
    }
    s->model = (struct residency){.seq = j->seq};
    if (stops(t))
        return;
    if (!r->plan) {
        finish(t, RESUME_COLD);
        return;
    }
    r->regions = j->u.open.regions;
    submit(t, read_run, read_done);
}

/* ---- store: finding --------------------------------------------------------------- */

/* Rows without a tip cost a replay of up to layout.replay_tokens; so they are worth it only if
 * they reach further than that past the tip. */
static enum err choose(struct restore *r, struct store *st, struct error *e)
{
    struct head_plan *tip = NULL, *rows = NULL;
    enum err rc = OK;

    if (!r->no_tip)
        rc = head_find_on(st, r->session->id, r->layout, &r->tape, r->limit, HEAD_TIP, &tip, e);
    uint64_t by_tip = tip && tip->has_tip ? tip->n_tokens : 0;
    uint64_t most = r->tape.view.n_ids < r->limit ? r->tape.view.n_ids : r->limit;
    if (!rc && by_tip && by_tip == most) { /* nothing can reach further */
        r->is_short = r->is_short || by_tip < r->state_position;
        r->plan = tip;
        return OK;
    }
    if (!rc)
        rc = head_find_on(st, r->session->id, r->layout, &r->tape, r->limit, HEAD_ROWS, &rows,
                          e);
    if (rc) {
        head_plan_free(tip);
        return rc;
    }
    bool deep = rows->n_tokens > by_tip + r->layout->replay_tokens ||
                (by_tip == 0 && rows->n_tokens > 0);
    r->plan = deep ? rows : by_tip ? tip : NULL;
    r->is_short = r->is_short || rows->n_tokens < r->state_position;
    if (deep)
        r->plan->has_tip = false;
    if (r->plan != tip)
        head_plan_free(tip);
    if (r->plan != rows)
        head_plan_free(rows);
    return OK;
}

static void find_run(struct job *j, void *ctx)
{
    struct restore *r = (struct restore *)j;
    struct session_info info = {0};

    if ((j->rc = session_find(ctx, r->session->id, &info, &j->error)))
        return;
    if (!r->tape.ids && r->limit == TAPE_END)
        r->state_position = info.state_position;
    session_info_fini(&info);
    if (r->spoiled && (j->rc = late_set_aside(ctx, r->spoiled, &r->n_spoiled, &j->error)))
        return;
    if (!r->tape.ids && (j->rc = tape_load(ctx, r->session->id, &r->tape, &j->error)))
        return;
    if (r->tape.damaged) {
        j->rc = err_set(&j->error, ERR_CORRUPT, "session %s is damaged after %llu tokens",
                        r->session->id, (unsigned long long)r->tape.view.n_ids);
        return;
    }
    j->rc = choose(r, ctx, &j->error);
}

static void find_done(struct job *j)
{
    struct restore *r = (struct restore *)j;
    struct turn *t = back(r);

    if (!t)
        return;
    t->session->resume.extents_damaged += r->n_spoiled;
    late_unref(TAKE(r->spoiled));
    r->n_spoiled = 0;
    t->session->resume.find_ns += daemon_now_ns(t->session->daemon) - r->find_ns;
    if (r->plan && r->layout->tip_bytes && !r->tip &&
        !(r->tip = malloc(r->layout->tip_bytes))) {
        struct error e;
        turn_fail(t, err_set(&e, ERR_NOMEM, "tip"), &e);
        (void)turn_stops(t);
        return;
    }
    seq_job_open(t->session, &t->job, r->plan ? r->plan->n_tokens : 0, opened);
}

static void begin(struct turn *t)
{
    struct restore *r = t->restore;

    head_plan_free(r->plan);
    r->plan = NULL;
    r->find_ns = daemon_now_ns(t->session->daemon);
    submit(t, find_run, find_done);
}

void turn_restore(struct turn *t)
{
    struct restore *r = calloc(1, sizeof(*r));
    struct error e;

    if (!r) {
        turn_fail(t, err_set(&e, ERR_NOMEM, "restore"), &e);
        (void)turn_stops(t);
        return;
    }
    t->restore = r;
    r->spoiled = TAKE(t->spoiled);
    r->is_short = r->spoiled != NULL;
    r->takes_late = seq_job_takes_late(t->session->daemon);
    r->session = t->session;
    r->layout = t->session->daemon->model->layout;
    r->limit = TAPE_END;
    t->session->resume = (struct resume_record){0};
    begin(t);
}

void turn_restore_again(struct turn *t)
{
    struct restore *r = t->restore;

    r->spoiled = TAKE(t->spoiled);
    r->is_short = true;
    begin(t);
}

void turn_restore_cancel(struct turn *t)
{
    if (t->restore)
        atomic_store(&t->restore->cancelled, true);
}
