/* One client of the daemon, and its requests: each is answered exactly once.
 *
 * A request may outlive the call that began it (it waits for the store, or for a turn) and even
 * its connection: then its answer goes nowhere. `cancel` is what $/cancel_request and the end
 * of the connection call to make a waiting request let go of what it waits in. Loop thread. */
#ifndef AGENTD_PEER_H
#define AGENTD_PEER_H

#include <stdbool.h>
#include <stddef.h>

#include <jansson.h>

#include "agentd/rpc.h"

#define PEER_MAX_REQUESTS 256 /* unanswered at a time */
#define DAEMON_MAX_PEERS 512

struct conn;
struct daemon;
struct request;
struct subscription;

struct peer {
    struct peer *next, **link; /* of daemon.peers */
    struct daemon *daemon;
    struct conn *conn; /* one reference */
    struct request *requests;
    size_t n_requests;
    struct subscription *subscriptions; /* events.h */
};

struct request {
    struct request *next, **link; /* of peer.requests */
    struct peer *peer;            /* NULL once the connection has ended */
    struct daemon *daemon;
    json_t *id;     /* NULL: a notification, never answered */
    json_t *params; /* an object, perhaps empty */
    const char *method;
    /* Set while the request sits in a list of somebody: takes it out. Does not answer. */
    void (*cancel)(struct request *r);
    void *waits_in; /* for cancel */
    struct request *next_waiting;
};

/* A new connection; ends with peer_gone. NULL when out of memory. */
struct peer *peer_new(struct daemon *d, struct conn *c);
/* The connection has ended: requests that wait are cancelled, subscriptions dropped. */
void peer_gone(struct peer *p);

/* Takes id and params out of m. ERR_LIMIT over PEER_MAX_REQUESTS. */
NODISCARD enum err request_new(struct peer *p, struct rpc_message *m, struct request **out,
                               struct error *e);
/* Each answers and frees r. result is taken; NULL means out of memory. */
void request_reply(struct request *r, json_t *result);
void request_fail(struct request *r, enum err rc, const struct error *e);
/* ERR_FORMAT of a field of params becomes -32602 invalid params. */
void request_fail_params(struct request *r, const struct error *e);
/* As request_fail, with a finer data.kind than the code's. */
void request_fail_kind(struct request *r, enum err rc, const char *kind, const struct error *e);
void request_fail_code(struct request *r, enum rpc_code code, const struct error *e);
/* The waiting request with this id, or NULL. */
struct request *request_find(struct peer *p, const json_t *id);

#endif
