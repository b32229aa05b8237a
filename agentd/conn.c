#include "agentd/conn.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "agentd/rpc.h"
#include "base/buf.h"

#define READ_BYTES ((size_t)64 << 10)

struct line {
    unsigned refs;
    size_t len; /* with the newline */
    char *text; /* from json_dumps; the newline is in the place of its NUL */
};

/* A line in one connection's queue; freed when the kernel has it. */
struct outgoing {
    uv_write_t req;
    struct conn *conn;
    struct line *line;
};

struct conn {
    uv_pipe_t pipe; /* pipe.data = conn */
    struct conn_owner owner;
    void *user;
    int refs;
    bool closing, paused, starved; /* starved: something was refused for want of room */
    bool skipping;                 /* inside an overlong line */
    pid_t pid;
    struct buf in; /* the unfinished line */
    size_t queued; /* bytes handed to uv_write and not yet written */
    char chunk[READ_BYTES];
};

struct conn *conn_ref(struct conn *c)
{
    c->refs++;
    return c;
}

void conn_unref(struct conn *c)
{
    if (!c || --c->refs > 0)
        return;
    buf_fini(&c->in);
    free(c);
}

bool conn_is_open(const struct conn *c)
{
    return !c->closing;
}

pid_t conn_peer_pid(const struct conn *c)
{
    return c->pid;
}

void **conn_user(struct conn *c)
{
    return &c->user;
}

size_t conn_queued_bytes(const struct conn *c)
{
    return c->queued;
}

static void on_closed(uv_handle_t *h)
{
    struct conn *c = h->data;

    if (c->owner.closed)
        c->owner.closed(c, c->owner.arg);
    conn_unref(c);
}

void conn_close(struct conn *c)
{
    if (c->closing)
        return;
    c->closing = true;
    uv_close((uv_handle_t *)&c->pipe, on_closed);
}

/* ---- input ------------------------------------------------------------------------ */

/* Gives one piece of input (up to and without a newline, `ends` if there was one) to the line
 * that is being gathered. */
static void take_piece(struct conn *c, const char *p, size_t n, bool ends)
{
    if (!c->skipping && c->in.len + n > RPC_MAX_LINE) {
        c->skipping = true;
        buf_fini(&c->in);
        c->owner.overlong(c, c->owner.arg);
    }
    if (!c->skipping && buf_add(&c->in, p, n, NULL)) {
        conn_close(c);
        return;
    }
    if (!ends)
        return;
    if (!c->skipping && c->in.len > 0)
        c->owner.line(c, buf_str(&c->in), c->in.len, c->owner.arg);
    c->skipping = false;
    if (c->in.cap > 4 * READ_BYTES)
        buf_fini(&c->in); /* a rare long line does not stay resident */
    buf_clear(&c->in);
}

static void on_alloc(uv_handle_t *h, size_t hint, uv_buf_t *b)
{
    struct conn *c = h->data;

    (void)hint;
    *b = uv_buf_init(c->chunk, sizeof(c->chunk));
}

static void on_read(uv_stream_t *s, ssize_t n, const uv_buf_t *b)
{
    struct conn *c = s->data;

    if (n < 0) {
        conn_close(c);
        return;
    }
    conn_ref(c);
    const char *p = b->base, *end = b->base + n;
    while (p < end && !c->closing) {
        const char *nl = memchr(p, '\n', (size_t)(end - p));
        const char *stop = nl ? nl : end;
        take_piece(c, p, (size_t)(stop - p), nl != NULL);
        p = nl ? nl + 1 : end;
    }
    conn_unref(c);
}

static void set_paused(struct conn *c, bool pause)
{
    if (c->closing || c->paused == pause)
        return;
    c->paused = pause;
    if (pause)
        uv_read_stop((uv_stream_t *)&c->pipe);
    else if (uv_read_start((uv_stream_t *)&c->pipe, on_alloc, on_read))
        conn_close(c);
}

/* ---- output ----------------------------------------------------------------------- */

struct line *line_new(json_t *msg)
{
    char *text = msg ? json_dumps(msg, JSON_COMPACT) : NULL;
    struct line *l = text ? calloc(1, sizeof(*l)) : NULL;

    json_decref(msg);
    if (!l) {
        free(text);
        return NULL;
    }
    *l = (struct line){.refs = 1, .len = strlen(text) + 1, .text = text};
    text[l->len - 1] = '\n';
    return l;
}

void line_unref(struct line *l)
{
    if (!l || --l->refs > 0)
        return;
    free(l->text);
    free(l);
}

static void on_written(uv_write_t *req, int status)
{
    struct outgoing *o = req->data;
    struct conn *c = o->conn;

    c->queued -= o->line->len;
    line_unref(o->line);
    free(o);
    if (status < 0)
        conn_close(c);
    if (c->queued <= CONN_LOW_BYTES && !c->closing) {
        set_paused(c, false);
        if (c->starved) {
            c->starved = false;
            c->owner.drained(c, c->owner.arg);
        }
    }
    conn_unref(c);
}

static void queue_line(struct conn *c, struct line *l)
{
    struct outgoing *o = l && !c->closing ? calloc(1, sizeof(*o)) : NULL;

    if (!o) {
        conn_close(c);
        return;
    }
    *o = (struct outgoing){.conn = conn_ref(c), .line = l};
    l->refs++;
    o->req.data = o;
    c->queued += l->len;
    uv_buf_t b = uv_buf_init(l->text, (unsigned)l->len);
    if (uv_write(&o->req, (uv_stream_t *)&c->pipe, &b, 1, on_written)) {
        c->queued -= l->len;
        line_unref(l);
        free(o);
        conn_close(c);
        conn_unref(c);
        return;
    }
    if (c->queued > CONN_PAUSE_BYTES)
        set_paused(c, true);
}

void conn_send_reply(struct conn *c, json_t *msg)
{
    struct line *l = line_new(msg);

    queue_line(c, l);
    line_unref(l);
}

static bool has_room(struct conn *c, size_t room)
{
    bool has = !c->closing && c->queued <= room;

    c->starved = c->starved || !has;
    return has;
}

bool conn_has_room(struct conn *c)
{
    return has_room(c, CONN_DELTA_BYTES);
}

static bool send_below(struct conn *c, struct line *l, size_t room)
{
    if (!has_room(c, room))
        return false;
    queue_line(c, l);
    return true;
}

bool conn_send_event(struct conn *c, struct line *l)
{
    return send_below(c, l, CONN_EVENT_BYTES);
}

bool conn_send_delta(struct conn *c, struct line *l)
{
    return send_below(c, l, CONN_DELTA_BYTES);
}

/* ---- accept ----------------------------------------------------------------------- */

static enum err check_peer(struct conn *c, struct error *e)
{
    struct ucred cred;
    socklen_t len = sizeof(cred);
    uv_os_fd_t fd;

    if (uv_fileno((uv_handle_t *)&c->pipe, &fd) ||
        getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &len))
        return err_set(e, ERR_IO, "peer credentials");
    if (cred.uid != geteuid())
        return err_set(e, ERR_DENIED, "peer has uid %u, this daemon serves %u only",
                       (unsigned)cred.uid, (unsigned)geteuid());
    c->pid = cred.pid;
    return OK;
}

static enum err start(uv_stream_t *listener, struct conn *c, struct error *e)
{
    int rc = uv_accept(listener, (uv_stream_t *)&c->pipe);
    enum err err;

    if (rc)
        return err_set(e, ERR_IO, "accept: %s", uv_strerror(rc));
    if ((err = check_peer(c, e)))
        return err;
    if ((rc = uv_read_start((uv_stream_t *)&c->pipe, on_alloc, on_read)))
        return err_set(e, ERR_IO, "read: %s", uv_strerror(rc));
    return OK;
}

enum err conn_accept(uv_stream_t *listener, const struct conn_owner *owner, struct conn **out,
                     struct error *e)
{
    struct conn *c = calloc(1, sizeof(*c));
    enum err err;

    if (!c)
        return err_set(e, ERR_NOMEM, "connection");
    c->refs = 1;
    buf_init(&c->in, RPC_MAX_LINE);
    int rc = uv_pipe_init(listener->loop, &c->pipe, 0);
    if (rc) {
        conn_unref(c);
        return err_set(e, ERR_IO, "pipe: %s", uv_strerror(rc));
    }
    c->pipe.data = c;
    if ((err = start(listener, c, e))) {
        conn_close(c); /* owner.closed is not set yet: nobody hears of it */
        return err;
    }
    c->owner = *owner;
    *out = c;
    return OK;
}
