#include "agentd/peer.h"

#include <assert.h>
#include <stdlib.h>

#include "agentd/conn.h"
#include "agentd/daemon.h"
#include "agentd/events.h"

struct peer *peer_new(struct daemon *d, struct conn *c)
{
    struct peer *p = calloc(1, sizeof(*p));

    if (!p)
        return NULL;
    p->daemon = d;
    p->conn = conn_ref(c);
    p->next = d->peers;
    p->link = &d->peers;
    if (p->next)
        p->next->link = &p->next;
    d->peers = p;
    d->n_peers++;
    return p;
}

static void request_free(struct request *r)
{
    if (r->link) {
        *r->link = r->next;
        if (r->next)
            r->next->link = r->link;
    }
    if (r->peer)
        r->peer->n_requests--;
    json_decref(r->id);
    json_decref(r->params);
    free(r);
}

void peer_gone(struct peer *p)
{
    struct request *next;

    for (struct request *r = p->requests; r; r = next) {
        next = r->next;
        if (r->cancel) {
            r->cancel(r);
            request_free(r);
        } else { /* in a job: answered, to nobody, when that is done */
            r->peer = NULL;
            r->link = NULL;
        }
    }
    events_peer_gone(p);
    *p->link = p->next;
    if (p->next)
        p->next->link = p->link;
    p->daemon->n_peers--;
    conn_unref(p->conn);
    free(p);
}

enum err request_new(struct peer *p, struct rpc_message *m, struct request **out,
                     struct error *e)
{
    if (p->n_requests >= PEER_MAX_REQUESTS)
        return err_set(e, ERR_LIMIT, "%zu requests are unanswered on this connection",
                       p->n_requests);
    struct request *r = calloc(1, sizeof(*r));
    json_t *params = m->params ? json_incref(m->params) : json_object();
    if (!r || !params) {
        free(r);
        json_decref(params);
        return err_set(e, ERR_NOMEM, "request");
    }
    r->peer = p;
    r->daemon = p->daemon;
    r->id = json_incref(m->id);
    r->params = params;
    r->next = p->requests;
    r->link = &p->requests;
    if (r->next)
        r->next->link = &r->next;
    p->requests = r;
    p->n_requests++;
    *out = r;
    return OK;
}

static void answer(struct request *r, json_t *message)
{
    if (r->peer && r->id)
        conn_send_reply(r->peer->conn, message);
    else
        json_decref(message);
    request_free(r);
}

void request_reply(struct request *r, json_t *result)
{
    struct error e;

    if (result) {
        answer(r, rpc_result(r->id, result));
        return;
    }
    request_fail(r, err_set(&e, ERR_NOMEM, "no memory for the answer"), &e);
}

void request_fail_code(struct request *r, enum rpc_code code, const struct error *e)
{
    answer(r, rpc_error(r->id, code, e));
}

void request_fail(struct request *r, enum err rc, const struct error *e)
{
    request_fail_code(r, rpc_code(rc), e);
}

void request_fail_kind(struct request *r, enum err rc, const char *kind, const struct error *e)
{
    json_t *m = rpc_error(r->id, rpc_code(rc), e);

    json_object_set_new(json_object_get(json_object_get(m, "error"), "data"), "kind",
                        json_string(kind));
    answer(r, m);
}

void request_fail_params(struct request *r, const struct error *e)
{
    bool is_form = e->code == ERR_FORMAT || e->code == ERR_INVAL;

    request_fail_code(r, is_form ? RPC_INVALID_PARAMS : rpc_code(e->code), e);
}

struct request *request_find(struct peer *p, const json_t *id)
{
    for (struct request *r = p->requests; r; r = r->next)
        if (r->id && json_equal(r->id, id))
            return r;
    return NULL;
}
