/* One client connection: lines in, lines out, and never more memory than its caps.
 *
 * Input: bytes are cut at newlines; a line over RPC_MAX_LINE is answered by the owner's
 * `overlong` and skipped up to its end, the connection lives on. Reading pauses while the
 * output queue is over CONN_PAUSE_BYTES, so that a client that asks without reading the answers
 * stops itself.
 *
 * Output: whole lines, in order. Three kinds of room, so that a slow client loses deltas first
 * and durable events never (they are read again from the store when it drains):
 *
 *     conn_send_reply   always queued (bounded by the pause above)
 *     conn_send_event   refused over CONN_EVENT_BYTES: the caller catches up later
 *     conn_send_delta   refused over CONN_DELTA_BYTES: dropped, the caller owes a `gap`
 *
 * What goes to many readers is written as text once (struct line) and shared by their queues.
 *
 * After a refusal the owner's `drained` runs once the queue is under CONN_LOW_BYTES.
 *
 * A conn is counted: requests in flight hold it (conn_ref) past the peer's end; sending to a
 * closed one does nothing. Belongs to the loop thread. */
#ifndef AGENTD_CONN_H
#define AGENTD_CONN_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include <jansson.h>
#include <uv.h>

#include "base/err.h"

#define CONN_LOW_BYTES ((size_t)64 << 10)
#define CONN_DELTA_BYTES ((size_t)1 << 20)
#define CONN_EVENT_BYTES ((size_t)4 << 20)
#define CONN_PAUSE_BYTES ((size_t)8 << 20)

struct conn;

/* What a connection tells its owner. `line` has len bytes and a NUL behind them, without the
 * newline; it is valid for the call. `closed` is the last call for this conn. */
struct conn_owner {
    void *arg;
    void (*line)(struct conn *c, const char *line, size_t len, void *arg);
    void (*overlong)(struct conn *c, void *arg);
    void (*drained)(struct conn *c, void *arg);
    void (*closed)(struct conn *c, void *arg);
};

/* Accepts one pending connection of a listening pipe. The peer's uid must be ours
 * (SO_PEERCRED). Errors: ERR_DENIED (the peer is closed), ERR_IO, ERR_NOMEM. The owner is
 * copied. */
NODISCARD enum err conn_accept(uv_stream_t *listener, const struct conn_owner *owner,
                               struct conn **out, struct error *e);
struct conn *conn_ref(struct conn *c);
void conn_unref(struct conn *c);
/* Starts the end; `closed` follows from the loop. Nothing is flushed. */
void conn_close(struct conn *c);
bool conn_is_open(const struct conn *c);
/* The peer's process, from SO_PEERCRED. */
pid_t conn_peer_pid(const struct conn *c);
/* Free for the owner's use. */
void **conn_user(struct conn *c);

/* A message as one compact line of JSON, counted. */
struct line;
/* Takes the message (NULL: out of memory). NULL: out of memory. */
struct line *line_new(json_t *msg);
void line_unref(struct line *l);

/* Takes the message. NULL (out of memory) closes the connection, as does a NULL line below: a
 * line left out would lie about the order. */
void conn_send_reply(struct conn *c, json_t *msg);
/* The line stays the caller's. False: no room, nothing was queued. */
NODISCARD bool conn_send_event(struct conn *c, struct line *l);
NODISCARD bool conn_send_delta(struct conn *c, struct line *l);
/* Whether conn_send_delta would take one; no counts as a refusal. */
bool conn_has_room(struct conn *c);
size_t conn_queued_bytes(const struct conn *c);

#endif
