/* Methods about the room that model state takes. */
#include <stdlib.h>
#include <string.h>

#include "agentd/daemon.h"
#include "agentd/keeper.h"
#include "agentd/live.h"
#include "agentd/methods.h"
#include "agentd/store_thread.h"
#include "base/json.h"
#include "sessions/head.h"
#include "sessions/hold.h"
#include "sessions/space.h"

void method_kv_gc(struct request *r)
{
    keeper_run(r, GC_COLLECT);
}

struct kv_job {
    struct job job;
    struct request *request;
    struct live *session; /* pinned, or NULL */
    bool pin;
    json_t *result; /* of whichever thread has the job */
};

static void kv_free(struct kv_job *k)
{
    if (k->session)
        live_unpin(k->session);
    json_decref(k->result);
    free(k);
}

/* NULL: answered with an error already. */
static struct kv_job *kv_new(struct request *r, struct live *s,
                             void (*run)(struct job *, void *), void (*done)(struct job *))
{
    struct kv_job *k = calloc(1, sizeof(*k));
    struct error e;

    if (!k) {
        request_fail(r, err_set(&e, ERR_NOMEM, "%s", r->method), &e);
        return NULL;
    }
    k->job = (struct job){.run = run, .done = done};
    k->request = r;
    k->session = s;
    if (s)
        live_pin(s);
    return k;
}

static void kv_done(struct job *j)
{
    struct kv_job *k = (struct kv_job *)j;

    if (j->rc)
        request_fail(k->request, j->rc, &j->error);
    else
        request_reply(k->request, json_incref(k->result));
    kv_free(k);
}

/* ---- stats ------------------------------------------------------------------------ */

static bool add_session(void *user, const struct space_session *s)
{
    json_array_append_new(user, json_pack("{s:s, s:s, s:b, s:f, s:I, s:I, s:I}", "id", s->id,
                                          "name", s->name, "pinned", s->pinned, "uses",
                                          s->weight, "tokens", (json_int_t)s->n_tokens,
                                          "heldBytes", (json_int_t)s->held_bytes, "ownBytes",
                                          (json_int_t)s->own_bytes));
    return true;
}

static void stats_run(struct job *j, void *ctx)
{
    struct kv_job *k = (struct kv_job *)j;
    json_t *sessions = json_array();
    struct space s;

    if (!(j->rc = space_read(ctx, &s, &j->error)))
        j->rc = space_sessions(ctx, add_session, sessions, &j->error);
    k->result = json_pack("{s:I, s:I, s:I, s:i, s:i, s:o}", "quotaBytes", (json_int_t)s.quota,
                          "usedBytes", (json_int_t)s.used, "liveBytes", (json_int_t)s.live,
                          "highPercent", (int)SPACE_HIGH, "lowPercent", (int)SPACE_LOW,
                          "sessions", sessions);
}

void method_kv_stats(struct request *r)
{
    struct kv_job *k = kv_new(r, NULL, stats_run, kv_done);

    if (k)
        store_thread_submit(r->daemon->store, &k->job);
}

/* ---- pin -------------------------------------------------------------------------- */

static void pin_run(struct job *j, void *ctx)
{
    struct kv_job *k = (struct kv_job *)j;

    j->rc = hold_pin(ctx, k->session->id, k->pin, &j->error);
    k->result = json_pack("{s:s, s:b}", "id", k->session->id, "pinned", k->pin);
}

static void pin_session(struct request *r, struct live *s)
{
    bool pinned = true;
    struct error e;

    if (json_opt_bool(r->params, "pinned", &pinned, &e)) {
        request_fail_params(r, &e);
        return;
    }
    struct kv_job *k = kv_new(r, s, pin_run, kv_done);
    if (!k)
        return;
    k->pin = pinned;
    store_thread_submit(r->daemon->store, &k->job);
}

void method_kv_pin(struct request *r)
{
    live_resolve(r, pin_session);
}

/* ---- drop ------------------------------------------------------------------------- */

static void drop_run(struct job *j, void *ctx)
{
    struct kv_job *k = (struct kv_job *)j;

    j->rc = head_drop(ctx, k->session->id, &j->error);
}

/* What only this session needed is garbage now. */
static void drop_done(struct job *j)
{
    struct kv_job *k = (struct kv_job *)j;

    if (j->rc)
        request_fail(k->request, j->rc, &j->error);
    else
        keeper_run_with(k->request, GC_COLLECT, json_pack("{s:s}", "id", k->session->id));
    kv_free(k);
}

static void drop_session(struct request *r, struct live *s)
{
    struct error e;

    if (s->turn || s->saver || s->cut) {
        err_set(&e, ERR_BUSY, "session %s is %s: its state is in use", s->name,
                live_state_name(s->state));
        request_fail(r, ERR_BUSY, &e);
        return;
    }
    struct kv_job *k = kv_new(r, s, drop_run, drop_done);
    if (!k)
        return;
    live_drop_seq(s);
    store_thread_submit(r->daemon->store, &k->job);
}

void method_kv_drop(struct request *r)
{
    live_resolve(r, drop_session);
}
