#include "agentd/seq_job.h"

#include <stdlib.h>
#include <string.h>

#include "agentd/daemon.h"
#include "agentd/engine_thread.h"
#include "agentd/live.h"
#include "base/log.h"
#include "sessions/late.h"

static void on_done(struct job *job)
{
    struct seq_job *j = (struct seq_job *)job;
    struct live *s = j->session;

    j->then(s, j);
    live_unpin(s);
}

static void submit(struct live *s, struct seq_job *j, void (*run)(struct job *, void *),
                   void (*then)(struct live *, struct seq_job *))
{
    live_pin(s);
    j->job.run = run;
    j->job.done = on_done;
    j->session = s;
    j->then = then;
    engine_thread_submit(s->daemon->engine, &j->job);
}

/* ---- work ------------------------------------------------------------------------- */

static void run_input(struct job *job, void *ctx)
{
    struct seq_job *j = (struct seq_job *)job;

    (void)ctx;
    job->rc = seq_input(j->seq, j->u.input.ids, j->u.input.n, j->u.input.mode, &job->error);
    if (!job->rc)
        j->u.input.n_ahead = seq_ahead_tokens(j->seq);
}

void seq_job_input(struct live *s, struct seq_job *j, const uint32_t *ids, uint64_t n,
                   enum prefill_mode mode, void (*then)(struct live *, struct seq_job *))
{
    j->seq = s->model.seq;
    j->u.input.ids = ids;
    j->u.input.n = n;
    j->u.input.mode = mode;
    j->u.input.n_ahead = 0;
    j->is_input = true;
    submit(s, j, run_input, then);
}

static void run_ahead(struct job *job, void *ctx)
{
    struct seq_job *j = (struct seq_job *)job;

    (void)ctx;
    job->rc =
        seq_ahead(j->seq, j->u.ahead.ids.v, j->u.ahead.ids.n, j->u.ahead.mode, &job->error);
}

static void ahead_done(struct live *s, struct seq_job *j)
{
    j->u.ahead.then(s, j);
    ids_fini(&j->u.ahead.ids);
    free(j);
}

struct seq_job *seq_job_ahead(struct live *s, struct ids *ids, enum prefill_mode mode,
                              void (*then)(struct live *, struct seq_job *))
{
    struct seq_job *j = calloc(1, sizeof(*j));

    if (!j)
        return NULL;
    j->seq = s->model.seq;
    j->u.ahead.ids = *ids;
    *ids = (struct ids)IDS_INIT(ids->max);
    j->u.ahead.mode = mode;
    j->u.ahead.then = then;
    submit(s, j, run_ahead, ahead_done);
    return j;
}

static void run_generate(struct job *job, void *ctx)
{
    struct seq_job *j = (struct seq_job *)job;

    (void)ctx;
    job->rc = seq_generate(j->seq, &j->u.generate, &job->error);
}

void seq_job_generate(struct live *s, struct seq_job *j, const struct generate_options *g,
                      void (*then)(struct live *, struct seq_job *))
{
    j->seq = s->model.seq;
    j->u.generate = *g;
    j->is_input = false;
    submit(s, j, run_generate, then);
}

/* ---- import ----------------------------------------------------------------------- */

static void run_open(struct job *job, void *ctx)
{
    struct seq_job *j = (struct seq_job *)job;
    uint64_t n = j->u.open.n_tokens;

    if ((job->rc = seq_new(ctx, j->session, &j->seq, &job->error)) || n == 0)
        return;
    job->rc = seq_import_begin(j->seq, n, &j->u.open.regions, &job->error);
    if (job->rc) {
        seq_free(j->seq);
        j->seq = NULL;
    }
}

void seq_job_open(struct live *s, struct seq_job *j, uint64_t n_tokens,
                  void (*then)(struct live *, struct seq_job *))
{
    j->seq = NULL;
    j->u.open.n_tokens = n_tokens;
    submit(s, j, run_open, then);
}

bool seq_job_takes_late(const struct daemon *d)
{
    struct engine_tier tiers[ENGINE_MAX_TIERS];
    size_t n = d->tiers ? engine_tiers(d->tiers, tiers) : 0;
    bool takes = false;

    for (size_t i = 0; i < n; i++)
        takes = takes || (strcmp(tiers[i].name, "kv") == 0 && tiers[i].budget_bytes > 0);
    return takes;
}

static void run_leave(struct job *job, void *ctx)
{
    struct seq_job *j = (struct seq_job *)job;
    struct state_fetch f = late_fetch(j->u.late); /* its reference goes with it */

    (void)ctx;
    job->rc = seq_import_fetch(j->seq, &f, &job->error);
}

void seq_job_leave(struct live *s, struct seq_job *j, struct seq *seq, struct late *late,
                   void (*then)(struct live *, struct seq_job *))
{
    j->seq = seq;
    j->u.late = late;
    submit(s, j, run_leave, then);
}

static void run_import_tip(struct job *job, void *ctx)
{
    struct seq_job *j = (struct seq_job *)job;

    (void)ctx;
    job->rc =
        seq_import_tip(j->seq, j->u.tip.tip, j->u.tip.n_bytes, j->u.tip.digest, &job->error);
}

void seq_job_import_tip(struct live *s, struct seq_job *j, struct seq *seq, const void *tip,
                        size_t n_bytes, const struct seq_digest *digest,
                        void (*then)(struct live *, struct seq_job *))
{
    j->seq = seq;
    j->u.tip.tip = tip;
    j->u.tip.n_bytes = n_bytes;
    j->u.tip.digest = digest;
    submit(s, j, run_import_tip, then);
}

static void run_rebuild(struct job *job, void *ctx)
{
    struct seq_job *j = (struct seq_job *)job;

    (void)ctx;
    job->rc = seq_rebuild(j->seq, j->u.rebuild.tape, j->u.rebuild.mode, j->u.rebuild.digest,
                          &j->u.rebuild.n_replayed, &job->error);
}

void seq_job_rebuild(struct live *s, struct seq_job *j, struct seq *seq,
                     const struct tape_view *tape, enum resume_mode mode,
                     const struct seq_digest *digest,
                     void (*then)(struct live *, struct seq_job *))
{
    j->seq = seq;
    j->u.rebuild.tape = tape;
    j->u.rebuild.mode = mode;
    j->u.rebuild.digest = digest;
    submit(s, j, run_rebuild, then);
}

/* ---- nobody waits for these ------------------------------------------------------- */

static void done_alone(struct live *s, struct seq_job *j)
{
    (void)s;
    free(j);
}

static void run_cancel(struct job *job, void *ctx)
{
    (void)ctx;
    seq_cancel(((struct seq_job *)job)->seq);
}

static void run_ahead_drop(struct job *job, void *ctx)
{
    (void)ctx;
    seq_ahead_drop(((struct seq_job *)job)->seq);
}

static void run_free(struct job *job, void *ctx)
{
    (void)ctx;
    seq_free(((struct seq_job *)job)->seq);
}

static void submit_alone(struct live *s, struct seq *seq, void (*run)(struct job *, void *))
{
    struct seq_job *j = calloc(1, sizeof(*j));

    if (!j) { /* the sequence goes on, or stays in memory: unpleasant, and not wrong */
        log_error("no memory for a job of session=%s", s->id);
        return;
    }
    live_pin(s);
    j->job.run = run;
    j->job.done = on_done;
    j->session = s;
    j->then = done_alone;
    j->seq = seq;
    engine_thread_submit_urgent(s->daemon->engine, &j->job);
}

void seq_job_cancel(struct live *s)
{
    if (s->model.seq)
        submit_alone(s, s->model.seq, run_cancel);
}

void seq_job_ahead_drop(struct live *s)
{
    if (s->model.seq)
        submit_alone(s, s->model.seq, run_ahead_drop);
}

void seq_job_free(struct live *s, struct seq *seq)
{
    submit_alone(s, seq, run_free);
}

/* ---- export ----------------------------------------------------------------------- */

/* One block for all planes and the tip; sizes are known, parts are aligned to 64 bytes. */
static enum err allocate(const struct state_layout *l, struct state_copy *c, struct error *e)
{
    size_t size[STATE_MAX_PLANES], total = 0;

    for (uint32_t p = 0; p < l->n_planes; p++) {
        uint64_t rows = state_rows(&l->planes[p], c->to) - state_rows(&l->planes[p], c->from);
        size[p] = (rows * l->planes[p].row_bytes + 63) & ~(size_t)63;
        total += size[p];
    }
    uint8_t *memory = malloc(total + l->tip_bytes + 64);
    if (!memory)
        return err_set(e, ERR_NOMEM, "copy of %llu tokens' state",
                       (unsigned long long)(c->to - c->from));
    c->memory = memory;
    for (uint32_t p = 0; p < l->n_planes; p++) {
        c->plane[p] = size[p] ? memory : NULL;
        memory += size[p];
    }
    c->tip = l->tip_bytes ? memory : NULL;
    return OK;
}

static enum err copy_state(const struct export_job *j, struct state_copy *c, struct error *e)
{
    const struct state_layout *l = j->layout;
    enum err rc = allocate(l, c, e);

    if (rc)
        return rc;
    for (uint32_t p = 0; p < l->n_planes; p++) {
        uint64_t row0 = state_rows(&l->planes[p], c->from);
        uint64_t n = state_rows(&l->planes[p], c->to) - row0;
        if (n && (rc = seq_export_rows(j->seq, p, row0, n, c->plane[p], e)))
            return rc;
    }
    c->digest = seq_digest(j->seq);
    return c->tip ? seq_export_tip(j->seq, c->tip, e) : OK;
}

static void run_export(struct job *job, void *ctx)
{
    struct export_job *j = (struct export_job *)job;
    struct state_copy c = {.from = j->from, .to = seq_position(j->seq)};
    enum prefill_mode mode = PREFILL_CED;
    uint64_t start = 0;

    (void)ctx;
    c.inside_segment = seq_segment_open(j->seq, &start, &mode);
    if (c.inside_segment && j->segment_end < c.to + j->layout->window) {
        job->rc = err_set(&job->error, ERR_BUSY,
                          "position %llu is in the last window of the "
                          "segment that ends at %llu",
                          (unsigned long long)c.to, (unsigned long long)j->segment_end);
        return;
    }
    job->rc = copy_state(j, &c, &job->error);
    if (job->rc)
        free(c.memory);
    else
        j->copy = c;
}

static void export_done(struct job *job)
{
    struct export_job *j = (struct export_job *)job;
    struct live *s = j->session;

    j->then(s, j);
    live_unpin(s);
}

void seq_job_export(struct live *s, struct export_job *j,
                    void (*then)(struct live *s, struct export_job *j))
{
    live_pin(s);
    j->job.run = run_export;
    j->job.done = export_done;
    j->session = s;
    j->then = then;
    j->layout = s->daemon->model->layout;
    j->seq = s->model.seq;
    engine_thread_submit(s->daemon->engine, &j->job);
}
