/* store/fsck: a look at everything, a step at a time between the commits of turns; and
 * namespace/drop, which leaves nothing to look at. */
#include <stdlib.h>
#include <string.h>

#include "agentd/daemon.h"
#include "agentd/job.h"
#include "agentd/live.h"
#include "agentd/methods.h"
#include "agentd/spill.h"
#include "agentd/store_thread.h"
#include "base/json.h"
#include "sessions/fsck.h"
#include "sessions/gc.h"
#include "sessions/store.h"

#define MAX_FINDINGS 1000 /* in an answer; the rest is counted */

struct fsck_job {
    struct job job;
    struct request *request;
    bool repair, is_done;
    struct fsck *fsck;
    json_t *findings; /* of whichever thread has the job */
};

static void take_finding(void *user, const struct fsck_finding *f)
{
    struct fsck_job *k = user;

    if (json_array_size(k->findings) < MAX_FINDINGS)
        json_array_append_new(k->findings, json_pack("{s:s, s:s%, s:s, s:b}", "kind", f->kind,
                                                     "what", f->what, strlen(f->what), "action",
                                                     f->action, "repaired", f->repaired));
}

static void step_run(struct job *j, void *ctx)
{
    struct fsck_job *k = (struct fsck_job *)j;

    if (!k->fsck && (j->rc = fsck_begin(ctx, k->repair, take_finding, k, &k->fsck, &j->error)))
        return;
    j->rc = fsck_step(k->fsck, &k->is_done, &j->error);
}

static json_t *report_json(const struct fsck_job *k)
{
    const struct fsck_report *r = fsck_so_far(k->fsck);

    return json_pack(
        "{s:b, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:O}", "repair", k->repair, "rows",
        (json_int_t)r->rows, "sessions", (json_int_t)r->sessions, "tokens",
        (json_int_t)r->tokens, "extents", (json_int_t)r->extents, "bytes", (json_int_t)r->bytes,
        "packs", (json_int_t)r->packs, "unreferenced", (json_int_t)r->unreferenced, "found",
        (json_int_t)r->found, "repaired", (json_int_t)r->repaired, "findings", k->findings);
}

static void step_done(struct job *j)
{
    struct fsck_job *k = (struct fsck_job *)j;

    if (!j->rc && !k->is_done && k->request->daemon->stopping)
        j->rc = err_set(&j->error, ERR_BUSY, "the daemon is stopping");
    if (!j->rc && !k->is_done) {
        store_thread_submit(k->request->daemon->store, j);
        return;
    }
    if (j->rc)
        request_fail(k->request, j->rc, &j->error);
    else
        request_reply(k->request, report_json(k));
    fsck_end(k->fsck);
    json_decref(k->findings);
    free(k);
}

void method_store_fsck(struct request *r)
{
    bool repair = false;
    struct error e;

    if (json_opt_bool(r->params, "repair", &repair, &e)) {
        request_fail_params(r, &e);
        return;
    }
    struct fsck_job *k = calloc(1, sizeof(*k));
    if (!k || !(k->findings = json_array())) {
        free(k);
        request_fail(r, err_set(&e, ERR_NOMEM, "%s", r->method), &e);
        return;
    }
    k->job = (struct job){.run = step_run, .done = step_done};
    k->request = r;
    k->repair = repair;
    store_thread_submit(r->daemon->store, &k->job);
}

/* ---- namespace/drop --------------------------------------------------------------- */

struct drop_job {
    struct job job;
    struct request *request;
    char name[64];
    uint64_t n_sessions, n_packs;
    enum err spill_rc; /* of the first output that could not be removed */
    struct error spill_error;
};

static void session_gone(void *user, const char *id)
{
    struct drop_job *k = user;
    struct error e;
    enum err rc = spill_remove(k->request->daemon->spill_dir, id, true, &e);

    if (rc && !k->spill_rc) {
        k->spill_rc = rc;
        k->spill_error = e;
    }
}

static void drop_run(struct job *j, void *ctx)
{
    struct drop_job *k = (struct drop_job *)j;

    if (strcmp(k->name, store_namespace_name(ctx)) != 0) {
        j->rc = err_set(&j->error, ERR_NOTFOUND, "namespace %s is served, not %s",
                        store_namespace_name(ctx), k->name);
        return;
    }
    j->rc = gc_drop_namespace(ctx, session_gone, k, &k->n_sessions, &k->n_packs, &j->error);
    if (!j->rc && k->spill_rc)
        j->rc = err_set(&j->error, k->spill_rc, "%s", k->spill_error.msg);
}

static void drop_done(struct job *j)
{
    struct drop_job *k = (struct drop_job *)j;

    for (struct live *s = k->request->daemon->sessions; s && j->rc; s = s->next)
        s->deleting = false; /* those that are still there can be found again */
    if (j->rc)
        request_fail(k->request, j->rc, &j->error);
    else
        request_reply(k->request,
                      json_pack("{s:s, s:I, s:I}", "name", k->name, "sessions",
                                (json_int_t)k->n_sessions, "packs", (json_int_t)k->n_packs));
    free(k);
}

/* The name of a session that is at work; NULL: none. */
static const char *busy_session(const struct daemon *d)
{
    for (const struct live *s = d->sessions; s; s = s->next)
        if (s->turn || s->saver || s->queue || s->cut)
            return s->name;
    return NULL;
}

void method_namespace_drop(struct request *r)
{
    const char *name = NULL, *busy = busy_session(r->daemon);
    struct error e;
    size_t n = 0;

    if (json_need_str(r->params, "name", &name, &n, &e)) {
        request_fail_params(r, &e);
        return;
    }
    if (busy) {
        err_set(&e, ERR_BUSY, "session %s is at work: cancel its turn first", busy);
        request_fail(r, ERR_BUSY, &e);
        return;
    }
    struct drop_job *k = n < sizeof(k->name) ? calloc(1, sizeof(*k)) : NULL;
    if (!k) {
        request_fail(r, err_set(&e, ERR_NOTFOUND, "no namespace %.80s", name), &e);
        return;
    }
    for (struct live *s = r->daemon->sessions, *next; s; s = next) {
        next = s->next;
        s->deleting = true;
        live_pin(s);
        live_drop_seq(s);
        live_unpin(s);
    }
    k->job = (struct job){.run = drop_run, .done = drop_done};
    k->request = r;
    memcpy(k->name, name, n + 1);
    store_thread_submit(r->daemon->store, &k->job);
}
