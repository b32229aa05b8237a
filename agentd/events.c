#include "agentd/events.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "agentd/conn.h"
#include "agentd/daemon.h"
#include "agentd/peer.h"
#include "agentd/store_thread.h"
#include "agentd/turn.h"
#include "base/encode.h"
#include "base/log.h"
#include "engine/unicode.h"

#define BATCH_EVENTS 256
#define BATCH_BYTES ((size_t)1 << 20)

struct subscription {
    struct subscription *next_of_session, *next_of_peer;
    struct live *session; /* pinned */
    struct peer *peer;    /* NULL: detached while a read is under way */
    uint64_t cursor;      /* seq of the last event that was sent */
    bool live;            /* cursor is the newest; events go straight out */
    bool marker_due;      /* session/live is still owed */
    bool reading;         /* a batch is being read */
    bool stale;           /* the read began before the session was cut */
    bool gap_due;         /* something ephemeral was dropped */
};

/* ---- JSON ------------------------------------------------------------------------- */

json_t *events_notification(const char *session_id, uint64_t seq, const char *json)
{
    json_t *params = json_loads(json, 0, NULL);

    if (!json_is_object(params)) {
        json_decref(params);
        return NULL;
    }
    json_object_set_new(params, "sessionId", json_string(session_id));
    json_object_set_new(params, "seq", json_integer((json_int_t)seq));
    return rpc_notification("session/event", params);
}

json_t *events_payload(const struct daemon *d, const char *turn, const char *type,
                       json_t *fields)
{
    if (turn)
        json_object_set_new(fields, "turnId", json_string(turn));
    json_object_set_new(fields, "type", json_string(type));
    json_object_set_new(fields, "tMs", json_integer((json_int_t)clock_wall_ms(d->clock)));
    return fields;
}

/* Bytes of the character at s, 0 if JSON text cannot hold what is there: NUL, or not UTF-8. */
static size_t plain_length(const uint8_t *s, size_t n)
{
    uint32_t cp = 0;
    unsigned len = utf8_decode(s, n, &cp);

    return cp == 0 && len == 1 ? 0 : len;
}

static bool is_plain(const uint8_t *s, size_t n)
{
    for (size_t i = 0; i < n;) {
        size_t len = plain_length(s + i, n - i);
        if (!len)
            return false;
        i += len;
    }
    return true;
}

json_t *events_text(const void *bytes, size_t n)
{
    static const char replacement[] = "\xef\xbf\xbd";
    const uint8_t *s = bytes;

    if (is_plain(s, n))
        return json_stringn_nocheck(n ? (const char *)s : "", n);
    AUTO_FREE char *out = malloc(3 * n);
    size_t len = 0;
    if (!out)
        return NULL;
    for (size_t i = 0; i < n;) {
        size_t l = plain_length(s + i, n - i);
        memcpy(out + len, l ? (const char *)s + i : replacement, l ? l : 3);
        len += l ? l : 3;
        i += l ? l : 1;
    }
    return json_stringn_nocheck(out, len);
}

json_t *events_item(const char *id, const char *kind, const void *bytes, size_t n)
{
    json_t *item =
        json_pack("{s:s, s:s, s:o}", "id", id, "kind", kind, "text", events_text(bytes, n));

    if (item && !is_plain(bytes, n)) {
        AUTO_FREE char *b64 = malloc(BASE64_CHARS(n));
        if (b64) {
            base64_encode(bytes, n, b64);
            json_object_set_new(item, "bytesB64", json_string(b64));
        }
    }
    return item;
}

/* ---- catching up ------------------------------------------------------------------ */

/* A batch of stored events on its way to one reader. */
struct batch {
    struct job job;
    struct subscription *to;
    char session[SESSION_ID_CAP];
    uint64_t after;
    json_t *messages; /* array of notifications */
    size_t bytes;
};

static void catch_up(struct subscription *sub);

static bool batch_add(void *user, const struct tape_event *ev)
{
    struct batch *b = user;
    json_t *m = events_notification(b->session, ev->seq, ev->json ? ev->json : "{}");

    if (!m)
        return false;
    json_array_append_new(b->messages, m);
    b->bytes += strlen(ev->json ? ev->json : "");
    return b->bytes < BATCH_BYTES;
}

static void batch_run(struct job *j, void *ctx)
{
    struct batch *b = (struct batch *)j;

    j->rc = tape_events(ctx, b->session, b->after, BATCH_EVENTS, batch_add, b, &j->error);
}

static void remove_from(struct subscription **list, struct subscription *sub, bool of_peer)
{
    while (*list != sub)
        list = of_peer ? &(*list)->next_of_peer : &(*list)->next_of_session;
    *list = of_peer ? sub->next_of_peer : sub->next_of_session;
}

static void subscription_free(struct subscription *sub)
{
    struct live *s = sub->session;

    free(sub);
    live_unpin(s);
}

/* Takes it out of both lists; freed now, or when its read is back. */
static void unsubscribe(struct subscription *sub)
{
    remove_from(&sub->session->subscriptions, sub, false);
    remove_from(&sub->peer->subscriptions, sub, true);
    sub->peer = NULL;
    if (!sub->reading)
        subscription_free(sub);
}

/* Sends one event. False: no room. */
static bool send_event(struct subscription *sub, json_t *m)
{
    struct line *l = line_new(m);
    bool sent = conn_send_event(sub->peer->conn, l);

    line_unref(l);
    return sent;
}

/* Sends ephemeral news to one live reader. What has no room is dropped and owed as a gap, which
 * goes out before anything else ephemeral does. A reader that does not read costs a look at its
 * queue. */
static void send_line(struct subscription *sub, struct line *l)
{
    struct conn *c = sub->peer->conn;

    if (!conn_has_room(c)) {
        sub->gap_due = true;
        return;
    }
    if (sub->gap_due) {
        json_t *params = json_pack("{s:s}", "sessionId", sub->session->id);
        struct line *gap = line_new(rpc_notification("gap", params));
        sub->gap_due = !conn_send_delta(c, gap);
        line_unref(gap);
    }
    if (!sub->gap_due)
        sub->gap_due = !conn_send_delta(c, l);
}

/* The same; takes m. */
static void send_ephemeral(struct subscription *sub, json_t *m)
{
    struct line *l = line_new(m);

    send_line(sub, l);
    line_unref(l);
}

static json_t *state_message(const struct live *s)
{
    json_t *p = json_pack("{s:s, s:s}", "sessionId", s->id, "state", live_state_name(s->state));

    if (s->reason[0])
        json_object_set_new(p, "reason", json_string(s->reason));
    return rpc_notification("session/state", p);
}

static void go_live(struct subscription *sub)
{
    struct live *s = sub->session;

    sub->live = true;
    if (!sub->marker_due)
        return;
    json_t *m = rpc_notification("session/live", json_pack("{s:s, s:I}", "sessionId", s->id,
                                                           "seq", (json_int_t)sub->cursor));
    sub->marker_due = !send_event(sub, m);
    sub->live = !sub->marker_due;
    if (sub->live) {
        send_ephemeral(sub, state_message(s));
        if (s->turn)
            turn_repeat_news(s->turn, sub);
    }
}

static void batch_done(struct job *j)
{
    struct batch *b = (struct batch *)j;
    struct subscription *sub = b->to;
    json_t *m;
    size_t i;

    sub->reading = false;
    if (!sub->peer) {
        subscription_free(sub);
    } else if (sub->stale) {
        sub->stale = false;
        catch_up(sub);
    } else if (j->rc) {
        /* Damage: the reader has everything before it, and is told that something is missing.
         */
        log_error("events of session=%s after seq=%llu: %s", b->session,
                  (unsigned long long)b->after, j->error.msg);
        sub->cursor = sub->session->last_seq;
        sub->gap_due = true;
        go_live(sub);
    } else {
        json_array_foreach(b->messages, i, m) {
            json_t *seq = json_object_get(json_object_get(m, "params"), "seq");
            if (!send_event(sub, json_incref(m)))
                break; /* goes on in events_peer_drained */
            sub->cursor = (uint64_t)json_integer_value(seq);
        }
        if (i == json_array_size(b->messages))
            catch_up(sub);
    }
    json_decref(b->messages);
    free(b);
}

static void catch_up(struct subscription *sub)
{
    struct live *s = sub->session;

    if (sub->live || sub->reading)
        return;
    if (sub->cursor >= s->last_seq) {
        go_live(sub);
        return;
    }
    struct batch *b = calloc(1, sizeof(*b));
    json_t *messages = json_array();
    if (!b || !messages) {
        free(b);
        json_decref(messages);
        conn_close(sub->peer->conn); /* it cannot be served in order any more */
        return;
    }
    b->job = (struct job){.run = batch_run, .done = batch_done};
    b->to = sub;
    memcpy(b->session, s->id, sizeof(b->session));
    b->after = sub->cursor;
    b->messages = messages;
    sub->reading = true;
    store_thread_submit(s->daemon->store, &b->job);
}

/* ---- readers ---------------------------------------------------------------------- */

static struct subscription *find(struct live *s, struct peer *p)
{
    for (struct subscription *sub = s->subscriptions; sub; sub = sub->next_of_session)
        if (sub->peer == p)
            return sub;
    return NULL;
}

enum err events_attach(struct live *s, struct peer *p, uint64_t from_seq, struct error *e)
{
    struct subscription *sub = find(s, p);

    if (sub)
        unsubscribe(sub);
    sub = calloc(1, sizeof(*sub));
    if (!sub)
        return err_set(e, ERR_NOMEM, "subscription");
    live_pin(s);
    *sub =
        (struct subscription){.session = s, .peer = p, .cursor = from_seq, .marker_due = true};
    sub->next_of_session = s->subscriptions;
    s->subscriptions = sub;
    sub->next_of_peer = p->subscriptions;
    p->subscriptions = sub;
    catch_up(sub);
    return OK;
}

void events_detach(struct live *s, struct peer *p)
{
    struct subscription *sub = find(s, p);

    if (sub)
        unsubscribe(sub);
}

void events_peer_gone(struct peer *p)
{
    while (p->subscriptions)
        unsubscribe(p->subscriptions);
}

void events_peer_drained(struct peer *p)
{
    for (struct subscription *sub = p->subscriptions; sub; sub = sub->next_of_peer) {
        catch_up(sub);
        if (sub->live && sub->gap_due)
            send_ephemeral(sub, state_message(sub->session));
    }
}

/* ---- news ------------------------------------------------------------------------- */

void events_publish(struct live *s, uint64_t seq, const char *json)
{
    json_t *m = s->subscriptions ? events_notification(s->id, seq, json) : NULL;
    struct line *l = m ? line_new(m) : NULL;

    for (struct subscription *sub = s->subscriptions; m && sub; sub = sub->next_of_session) {
        if (!sub->live)
            continue;
        assert(sub->cursor + 1 == seq);
        if (conn_send_event(sub->peer->conn, l))
            sub->cursor = seq;
        else
            sub->live = false; /* catches up when there is room */
    }
    line_unref(l);
}

void events_cut(struct live *s, json_t *kept)
{
    json_t *m =
        rpc_notification("session/cut", json_pack("{s:s, s:I, s:o}", "sessionId", s->id, "seq",
                                                  (json_int_t)s->last_seq, "kept", kept));
    struct line *l = line_new(m);

    for (struct subscription *sub = s->subscriptions; sub; sub = sub->next_of_session) {
        if (sub->cursor > s->last_seq)
            sub->cursor = s->last_seq;
        sub->stale = sub->reading;
        if (!conn_send_event(sub->peer->conn, l))
            conn_close(sub->peer->conn); /* it would take other events for those it has */
    }
    line_unref(l);
}

/* Takes m. */
static void broadcast(struct live *s, json_t *m)
{
    struct line *l = line_new(m);

    for (struct subscription *sub = s->subscriptions; sub; sub = sub->next_of_session)
        if (sub->live)
            send_line(sub, l);
    line_unref(l);
}

static json_t *delta_message(const struct live *s, const char *item, const char *kind,
                             uint64_t offset, json_t *text)
{
    return rpc_notification("session/delta",
                            json_pack("{s:s, s:s, s:s, s:I, s:o}", "sessionId", s->id, "itemId",
                                      item, "kind", kind, "offset", (json_int_t)offset, "text",
                                      text));
}

void events_delta(struct live *s, const char *item, const char *kind, uint64_t offset,
                  json_t *text)
{
    if (s->subscriptions)
        broadcast(s, delta_message(s, item, kind, offset, text));
    else
        json_decref(text);
}

void events_delta_to(struct subscription *sub, const char *item, const char *kind, json_t *text)
{
    send_ephemeral(sub, delta_message(sub->session, item, kind, 0, text));
}

void events_ephemeral_to(struct subscription *sub, const char *method, json_t *params)
{
    json_object_set_new(params, "sessionId", json_string(sub->session->id));
    send_ephemeral(sub, rpc_notification(method, params));
}

void events_state(struct live *s)
{
    if (s->subscriptions)
        broadcast(s, state_message(s));
}

void events_ephemeral(struct live *s, const char *method, json_t *params)
{
    if (!s->subscriptions) {
        json_decref(params);
        return;
    }
    json_object_set_new(params, "sessionId", json_string(s->id));
    broadcast(s, rpc_notification(method, params));
}
