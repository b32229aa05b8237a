/* store/fsck: a look at everything, a step at a time between the commits of turns. */
#include <stdlib.h>
#include <string.h>

#include "agentd/daemon.h"
#include "agentd/job.h"
#include "agentd/methods.h"
#include "agentd/store_thread.h"
#include "base/json.h"
#include "sessions/fsck.h"

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
