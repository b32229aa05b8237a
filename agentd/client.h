/* Client of a running agentd: newline-delimited JSON-RPC 2.0 over its Unix socket.
 *
 * Blocking and poll-based, one connection, one thread, no event loop; needs jansson only. This
 * is what agentctl, the evals and the examples are built on, and all a program needs:
 *
 *     struct client *c;
 *     if ((rc = client_open(&c, &(struct client_options){.name = "hello"}, &e)))
 *         ...
 *     json_t *session, *done;
 *     rc = client_call(c, "session/new", json_pack("{s:s}", "cwd", "/tmp"), &session, &e);
 *     rc = client_call(c, "session/prompt", ..., &receipt, &e);
 *     rc = client_call(c, "session/wait", json_pack("{s:s}", "id", id), &done, &e);
 *
 * Methods, parameters and results are those of the daemon's protocol (agentd/protocol.h).
 * Events of sessions that were attached to arrive at the `notify` callback, in order, from
 * inside client_call, client_await and client_poll: never from anywhere else, never
 * recursively.
 *
 * A call that the daemon refuses returns an `enum err` that follows the `kind` of the answer;
 * code, kind, hint and retryAfterMs of the answer are at client_failure(). A
 * connection that breaks (ERR_CLOSED, ERR_IO, ERR_FORMAT) stays broken: free it and open
 * another. */
#ifndef AGENTD_CLIENT_H
#define AGENTD_CLIENT_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

/* Longest line either side may send, without the newline. */
#define CLIENT_MAX_LINE (16u << 20)
/* Most calls of one client that may be unanswered at a time. */
#define CLIENT_MAX_CALLS 32
/* Bytes of sun_path: the longest socket path there can be, with its 0. */
#define CLIENT_PATH_BYTES 108

struct client;

/* params is borrowed for the call and may be NULL. May not call into the same client. */
typedef void client_notify_fn(void *user, const char *method, const json_t *params);

struct client_options {
    const char *socket_path;  /* NULL: as client_socket_path() finds it */
    const char *name;         /* told to the daemon as clientInfo; NULL: "client" */
    client_notify_fn *notify; /* NULL: notifications are dropped */
    void *user;               /* handed to notify */
    int timeout_ms;           /* of every client_call, connecting included; 0 or less: none */
    int wake_fd;              /* > 0: await and poll return ERR_CANCELLED once it is readable */
};

/* Where the daemon listens: `given` if not NULL, else $AGENTD_SOCKET, else agentd/agentd.sock
 * in the first of $XDG_RUNTIME_DIR, /run/user/UID (if it is there and ours), $XDG_STATE_HOME,
 * ~/.local/state. The socket need not exist. ERR_LIMIT: longer
 * than a socket path can be; ERR_NOTFOUND: no variable and no home. */
NODISCARD enum err client_socket_path(const char *given, char out[CLIENT_PATH_BYTES],
                                      struct error *e);

/* Connects, checks that the other side runs as this user (or root), and says `initialize`.
 * ERR_CLOSED: nobody listens there (the message says where); ERR_DENIED: another user's socket;
 * ERR_UNSUPPORTED: another protocol version; ERR_TIMEOUT. */
NODISCARD enum err client_open(struct client **out, const struct client_options *o,
                               struct error *e);
/* Closes the connection. Calls without an answer are forgotten here; turns go on in the daemon.
 */
void client_free(struct client *c);

/* The daemon's answer to `initialize`: protocolVersion, info, capabilities, limits, model, pid.
 * Borrowed. */
const json_t *client_server(const struct client *c);

/* One request and its answer. Takes params (NULL: none) in every case. *result is the caller's
 * to json_decref; result may be NULL if it is of no interest. Errors: that of the daemon's
 * answer, ERR_TIMEOUT, ERR_CANCELLED (wake_fd), ERR_LIMIT (line too long), ERR_CLOSED,
 * ERR_FORMAT. */
NODISCARD enum err client_call(struct client *c, const char *method, json_t *take_params,
                               json_t **result, struct error *e);

/* The same in two halves, so that other calls can be made in between (cancel while waiting).
 * After ERR_TIMEOUT or ERR_CANCELLED client_await may be called again with the same id
 * (ERR_INVAL says that it was answered with such an error); a call that is no longer of
 * interest is given up with client_forget(). timeout_ms < 0: no limit. */
NODISCARD enum err client_start(struct client *c, const char *method, json_t *take_params,
                                uint64_t *id, struct error *e);
NODISCARD enum err client_await(struct client *c, uint64_t id, int timeout_ms, json_t **result,
                                struct error *e);
void client_forget(struct client *c, uint64_t id);

/* Waits until at least one notification was handed out, or timeout_ms passed (ERR_TIMEOUT). */
NODISCARD enum err client_poll(struct client *c, int timeout_ms, struct error *e);

/* How the daemon refused the call that client_call or client_await returned from last; code is
 * 0 if it did not. */
struct client_failure {
    int code;               /* JSON-RPC: -32601, -32800, -32001, ... */
    char kind[32];          /* data.kind: a name of err_name(), or finer ("already_resolved") */
    bool retryable;         /* data.retryable */
    int64_t retry_after_ms; /* data.retryAfterMs, -1 where there is none */
    char hint[200];         /* data.hint, "" where there is none */
};
const struct client_failure *client_failure(const struct client *c);

#endif
