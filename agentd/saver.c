#include "agentd/saver.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "agentd/cut.h"
#include "agentd/daemon.h"
#include "agentd/keeper.h"
#include "agentd/live.h"
#include "agentd/methods.h"
#include "agentd/seq_job.h"
#include "agentd/store_thread.h"
#include "agentd/turn.h"
#include "base/fault.h"
#include "base/log.h"
#include "sessions/head.h"
#include "sessions/space.h"

struct state_saver {
    struct export_job export;
    struct job write;
    struct live *session;
    struct seq *seq;     /* whose state this is; NULL: the session has dropped it since */
    uint32_t lineage;    /* of its rows */
    bool wants_again;    /* asked while this one was under way */
    bool space_is_short; /* after the commit */
    bool retried;        /* from an earlier position, after ERR_CORRUPT */
    uint64_t again_end;  /* its segment_end */
    struct head_receipt receipt;
};

static void take_copy(struct state_saver *v, uint64_t from, uint64_t segment_end);

bool saver_holds_input(const struct live *s)
{
    return s->saver && s->saver->wants_again;
}

uint32_t saver_count(const struct daemon *d)
{
    uint32_t n = 0;

    for (const struct live *s = d->sessions; s; s = s->next)
        n += s->saver != NULL;
    return n;
}

/* This one is over: begin the one that was asked for meanwhile, and let the turn go on. */
static void finish(struct state_saver *v)
{
    struct live *s = v->session;
    bool again = v->wants_again;
    uint64_t end = v->again_end;

    live_pin(s);
    s->saver = NULL;
    free(v);
    if (again)
        saver_start(s, end);
    if (s->turn)
        turn_on_saver(s->turn);
    else
        live_evict(s->daemon);
    cut_on_saver(s);
    session_delete_on_saver(s);
    live_unpin(s);
}

static void report(struct live *s, const struct error *e)
{
    if (s->said_not_saving)
        return;
    log_error("state of session=%s is not saved: %s", s->id, e->msg);
    s->said_not_saving = true;
    turn_say_error(s, e);
}

static struct state_saver *of_write(struct job *job)
{
    return (struct state_saver *)(void *)((char *)job - offsetof(struct state_saver, write));
}

static void write_run(struct job *job, void *ctx)
{
    struct state_saver *v = of_write(job);
    const struct state_copy *c = &v->export.copy;
    struct head_save h = {
        .session = v->session->id,
        .layout = v->export.layout,
        .from = c->from,
        .to = c->to,
        .tip = c->tip,
        .inside_segment = c->inside_segment,
        .digest_rows = c->digest.is_partial ? HEAD_DIGEST_PARTIAL : c->digest.n_rows,
        .lineage = v->lineage,
    };

    for (uint32_t p = 0; p < v->export.layout->n_planes; p++)
        h.plane[p] = c->plane[p];
    memcpy(h.digest, c->digest.d, sizeof(h.digest));
    if (fault_point("turn.state"))
        job->rc = err_set(&job->error, ERR_IO, "state commit: fault");
    else
        job->rc = head_save(ctx, &h, &v->receipt, &job->error);
    v->space_is_short = space_is_short(ctx);
}

static void write_done(struct job *job)
{
    struct state_saver *v = of_write(job);
    struct live *s = v->session;
    bool same = v->seq != NULL;
    uint64_t to = v->export.copy.to;

    free(v->export.copy.memory);
    v->export.copy = (struct state_copy){0};
    if (v->space_is_short)
        keeper_evict(s->daemon);
    if (job->rc == ERR_CORRUPT && same && !v->retried) {
        v->retried = true;
        take_copy(v, v->receipt.retry_from, 0);
        return;
    }
    if (job->rc) {
        report(s, &job->error);
        if (same)
            s->model.refused = to;
    } else {
        s->said_not_saving = false;
        if (same)
            s->model.saved = v->receipt.position;
        turn_count_written(s, v->receipt.bytes_written);
    }
    finish(v);
}

static void copy_done(struct live *s, struct export_job *j)
{
    struct state_saver *v = (struct state_saver *)j;

    if (j->job.rc) {
        if (j->job.rc != ERR_BUSY)
            report(s, &j->job.error);
        finish(v);
        return;
    }
    if (s->turn)
        turn_flush(s->turn); /* the tape first: state position <= tape position */
    v->write = (struct job){.run = write_run, .done = write_done};
    store_thread_submit(s->daemon->store, &v->write);
}

static void take_copy(struct state_saver *v, uint64_t from, uint64_t segment_end)
{
    v->export.from = from;
    v->export.segment_end = segment_end;
    seq_job_export(v->session, &v->export, copy_done);
}

void saver_forget_seq(struct live *s)
{
    if (s->saver)
        s->saver->seq = NULL; /* not its address: the next sequence may have the same */
}

void saver_start(struct live *s, uint64_t segment_end)
{
    if (!s->daemon->model->storable || !s->model.seq)
        return;
    if (s->saver) {
        s->saver->wants_again = true;
        s->saver->again_end = segment_end;
        return;
    }
    if (s->model.saved >= s->model.position)
        return;
    struct state_saver *v = calloc(1, sizeof(*v));
    if (!v) {
        struct error e;
        err_set(&e, ERR_NOMEM, "state commit");
        report(s, &e);
        return;
    }
    v->session = s;
    v->seq = s->model.seq;
    v->lineage = s->model.lineage;
    s->saver = v;
    take_copy(v, s->model.saved, segment_end);
}
