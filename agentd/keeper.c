#include "agentd/keeper.h"

#include <stdlib.h>

#include "agentd/daemon.h"
#include "agentd/job.h"
#include "agentd/store_thread.h"
#include "base/log.h"

struct keeper_job {
    struct job job;
    struct daemon *daemon;
    struct request *request; /* NULL: nobody asked */
    json_t *fields;
    enum gc_mode mode;
    struct gc *gc;
    bool is_done;
};

static void step_run(struct job *j, void *ctx)
{
    struct keeper_job *k = (struct keeper_job *)j;

    if (!k->gc && (j->rc = gc_begin(ctx, k->mode, &k->gc, &j->error)))
        return;
    j->rc = gc_step(k->gc, &k->is_done, &j->error);
}

static json_t *report_json(const struct gc_report *r, json_t *into)
{
    const struct {
        const char *name;
        uint64_t value;
    } figures[] = {
        {"blocks", r->blocks},
        {"tails", r->tails},
        {"tips", r->tips},
        {"evicted", r->evicted},
        {"extents", r->extents},
        {"bytes", r->bytes},
        {"packsRewritten", r->packs_rewritten},
        {"packsRemoved", r->packs_removed},
        {"bytesMoved", r->bytes_moved},
    };

    for (size_t i = 0; i < sizeof(figures) / sizeof(figures[0]); i++)
        json_object_set_new(into, figures[i].name, json_integer((json_int_t)figures[i].value));
    return into;
}

static void finish(struct keeper_job *k)
{
    struct job *j = &k->job;

    if (k->request && j->rc)
        request_fail(k->request, j->rc, &j->error);
    else if (k->request)
        request_reply(k->request, report_json(gc_so_far(k->gc), json_incref(k->fields)));
    else if (j->rc)
        log_warn("making room: %s", j->error.msg);
    else if (gc_so_far(k->gc)->evicted)
        log_info("made room: evicted=%llu bytes=%llu",
                 (unsigned long long)gc_so_far(k->gc)->evicted,
                 (unsigned long long)gc_so_far(k->gc)->bytes);
    if (!k->request)
        k->daemon->evicting = false;
    gc_end(k->gc);
    json_decref(k->fields);
    free(k);
}

static void step_done(struct job *j)
{
    struct keeper_job *k = (struct keeper_job *)j;

    if (!j->rc && !k->is_done && k->daemon->stopping)
        j->rc = err_set(&j->error, ERR_BUSY, "the daemon is stopping");
    if (j->rc || k->is_done)
        finish(k);
    else
        store_thread_submit(k->daemon->store, j);
}

static bool start(struct daemon *d, struct request *r, enum gc_mode mode, json_t *fields)
{
    struct keeper_job *k = calloc(1, sizeof(*k));

    if (!k || !fields) {
        free(k);
        json_decref(fields);
        return false;
    }
    *k = (struct keeper_job){.job = {.run = step_run, .done = step_done},
                             .daemon = d,
                             .request = r,
                             .fields = fields,
                             .mode = mode};
    store_thread_submit(d->store, &k->job);
    return true;
}

void keeper_run_with(struct request *r, enum gc_mode mode, json_t *fields)
{
    struct error e;

    if (!start(r->daemon, r, mode, fields))
        request_fail(r, err_set(&e, ERR_NOMEM, "%s", r->method), &e);
}

void keeper_run(struct request *r, enum gc_mode mode)
{
    keeper_run_with(r, mode, json_object());
}

void keeper_evict(struct daemon *d)
{
    if (!d->evicting && !d->stopping)
        d->evicting = start(d, NULL, GC_EVICT, json_object());
}
