#include "agentd/wait.h"

#include <stdlib.h>
#include <string.h>

#include <uv.h>

#include "agentd/daemon.h"
#include "agentd/peer.h"
#include "agentd/store_thread.h"
#include "agentd/turn.h"

/* ---- the answer ------------------------------------------------------------------- */

struct outcome {
    struct job job;
    struct request *request;
    struct live *session; /* pinned */
    char id[SESSION_ID_CAP], turn[TAPE_ID_CAP];
    bool by_turn;      /* turn was asked for; else it is the newest that has begun */
    const char *state; /* when the waiting ended; a next turn may have begun since */
    char reason[SESSION_STATE_CAP]; /* ditto; by_turn: of its row */
    json_t *ledger;                 /* of the newest turn, or NULL */
    json_t *text;                   /* of its last assistant item, or NULL */
    json_t *stop;                   /* the stop string that ended that, or NULL */
};

static bool take_turn(void *user, const char *session, const struct tape_turn *t)
{
    struct outcome *o = user;

    (void)session;
    if (!o->by_turn && strcmp(t->state, "queued") == 0)
        return true; /* an older one */
    snprintf(o->turn, sizeof(o->turn), "%s", t->id);
    if (o->by_turn && t->finished)
        snprintf(o->reason, sizeof(o->reason), "%s", t->reason);
    if (t->ledger)
        o->ledger = json_loads(t->ledger, 0, NULL);
    return false;
}

static bool take_text(void *user, const struct tape_event *ev)
{
    struct outcome *o = user;

    if (!ev->kind || !ev->turn || !ev->json || strcmp(ev->kind, "assistant") != 0 ||
        strcmp(ev->turn, o->turn) != 0)
        return true;
    json_t *j = json_loads(ev->json, 0, NULL);
    json_decref(o->text);
    json_decref(o->stop);
    o->text = json_incref(json_object_get(json_object_get(j, "item"), "text"));
    o->stop = json_incref(json_object_get(json_object_get(j, "item"), "stop"));
    json_decref(j);
    return true;
}

static void outcome_run(struct job *j, void *ctx)
{
    struct outcome *o = (struct outcome *)j;

    j->rc = tape_turn(ctx, o->id, o->by_turn ? o->turn : NULL, take_turn, o, &j->error);
    if (j->rc == ERR_NOTFOUND && !o->by_turn)
        j->rc = OK; /* no turn yet */
    else if (!j->rc)
        j->rc = tape_items(ctx, o->id, take_text, o, &j->error);
}

static void outcome_done(struct job *j)
{
    struct outcome *o = (struct outcome *)j;
    struct live *s = o->session;

    if (j->rc) {
        request_fail(o->request, j->rc, &j->error);
    } else {
        json_t *result =
            json_pack("{s:s, s:s, s:s, s:O, s:O}", "id", s->id, "state", o->state, "reason",
                      o->reason, "text", o->text ? o->text : (o->text = json_string("")),
                      "ledger", o->ledger ? o->ledger : (o->ledger = json_object()));
        if (o->turn[0])
            json_object_set_new(result, "turnId", json_string(o->turn));
        if (o->stop)
            json_object_set(result, "stop", o->stop);
        if (s->resume.happened)
            json_object_set_new(result, "resume", resume_json(&s->resume));
        request_reply(o->request, result);
    }
    json_decref(o->ledger);
    json_decref(o->text);
    json_decref(o->stop);
    free(o);
    live_unpin(s);
}

static void answer(struct request *r, struct live *s, const char *turn)
{
    struct outcome *o = calloc(1, sizeof(*o));
    struct error e;

    if (!o) {
        request_fail(r, err_set(&e, ERR_NOMEM, "session/wait"), &e);
        return;
    }
    o->job = (struct job){.run = outcome_run, .done = outcome_done};
    o->request = r;
    o->session = s;
    bool acts = s->state == SESSION_REQUIRES_ACTION;
    o->by_turn = turn[0] != '\0';
    memcpy(o->turn, turn, strlen(turn) + 1);
    o->state = live_state_name(o->by_turn && !acts ? SESSION_IDLE : s->state);
    snprintf(o->reason, sizeof(o->reason), "%s", acts ? o->state : s->reason);
    memcpy(o->id, s->id, sizeof(o->id));
    live_pin(s);
    store_thread_submit(s->daemon->store, &o->job);
}

/* ---- waiting ---------------------------------------------------------------------- */

/* request.waits_in of a waiting request. */
struct waiter {
    uv_timer_t timer; /* timer.data = the waiter */
    struct live *session;
    struct request *request;
    char turn[TAPE_ID_CAP]; /* "": whatever the session does */
};

static void waiter_free(uv_handle_t *h)
{
    free(h->data);
}

/* Takes the request out of the session's list. */
static void leave(struct request *r)
{
    struct waiter *w = r->waits_in;
    struct request **link = &w->session->waiters;

    while (*link != r)
        link = &(*link)->next_waiting;
    *link = r->next_waiting;
    r->cancel = NULL;
    r->waits_in = NULL;
    live_pin(w->session);
    live_unpin(w->session); /* it may have been the last hold */
    uv_close((uv_handle_t *)&w->timer, waiter_free);
}

static void on_timeout(uv_timer_t *timer)
{
    struct waiter *w = timer->data;
    struct request *r = w->request;
    struct error e;

    err_set(&e, ERR_TIMEOUT, "session %s is still %s", w->session->name,
            live_state_name(w->session->state));
    leave(r);
    request_fail(r, ERR_TIMEOUT, &e);
}

static bool is_due(const struct live *s, const char *turn)
{
    if (s->cut)
        return false; /* its end wakes them */
    if (s->state == SESSION_REQUIRES_ACTION)
        return true;
    return turn[0] ? !turn_is_pending(s, turn) : s->state == SESSION_IDLE;
}

void wait_begin(struct request *r, struct live *s, const char *turn, int64_t timeout_ms)
{
    struct error e;

    if (!turn)
        turn = "";
    if (strlen(turn) >= TAPE_ID_CAP) {
        err_set(&e, ERR_NOTFOUND, "no turn is called %.64s", turn);
        request_fail(r, ERR_NOTFOUND, &e);
        return;
    }
    if (is_due(s, turn)) {
        answer(r, s, turn);
        return;
    }
    struct waiter *w = calloc(1, sizeof(*w));
    if (!w) {
        request_fail(r, err_set(&e, ERR_NOMEM, "session/wait"), &e);
        return;
    }
    uv_timer_init(s->daemon->loop, &w->timer);
    w->timer.data = w;
    w->session = s;
    w->request = r;
    memcpy(w->turn, turn, strlen(turn) + 1);
    r->waits_in = w;
    r->cancel = leave;
    r->next_waiting = s->waiters;
    s->waiters = r;
    if (timeout_ms >= 0)
        uv_timer_start(&w->timer, on_timeout, (uint64_t)timeout_ms, 0);
}

void wait_wake(struct live *s)
{
    struct request *next;

    live_pin(s);
    for (struct request *r = s->waiters; r; r = next) {
        char turn[TAPE_ID_CAP];
        const struct waiter *w = r->waits_in;
        next = r->next_waiting;
        if (!is_due(s, w->turn))
            continue;
        memcpy(turn, w->turn, sizeof(turn));
        leave(r);
        answer(r, s, turn);
    }
    live_unpin(s);
}
