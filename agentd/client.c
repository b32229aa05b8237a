#include "agentd/client.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "base/auto.h"
#include "base/buf.h"
#include "base/json.h"

#define PROTOCOL_VERSION 1
/* Objects and arrays open at once in a line of the daemon. */
#define MAX_DEPTH 128
#define READ_CHUNK (64u << 10)
/* A listen queue that stays full this long is a daemon that does not accept any more. */
#define CONNECT_PATIENCE_MS 5000

struct call {
    uint64_t id;    /* 0: free */
    json_t *answer; /* the whole response object, once it is here */
};

struct client {
    int fd, wake_fd, timeout_ms;
    client_notify_fn *notify;
    void *user;
    bool dispatching;
    uint64_t next_id;
    struct call calls[CLIENT_MAX_CALLS];
    struct buf in;       /* what was received and not yet taken apart */
    size_t scanned;      /* bytes of `in` known to hold no newline */
    uint64_t n_notified; /* notifications handed out so far */
    struct error broken; /* code != OK: the connection is of no use any more */
    json_t *server;
    struct client_failure failure;
};

/* ---- time ----------------------------------------------------------------------- */

static int64_t now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* A deadline of INT64_MAX never comes. */
static int64_t deadline_in(int timeout_ms)
{
    return timeout_ms < 0 ? INT64_MAX : now_ms() + timeout_ms;
}

static int poll_timeout(int64_t deadline)
{
    if (deadline == INT64_MAX)
        return -1;
    int64_t left = deadline - now_ms();
    return left <= 0 ? 0 : left > INT_MAX ? INT_MAX : (int)left;
}

/* ---- where the daemon is -------------------------------------------------------- */

static bool is_own_dir(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode) && st.st_uid == geteuid();
}

static const char *absolute_env(const char *name)
{
    const char *v = getenv(name);
    return v && v[0] == '/' ? v : NULL;
}

/* The folder that holds agentd/agentd.sock, in three parts that are to be joined. */
static enum err runtime_dir(const char **dir, const char **below, char run_user[32],
                            struct error *e)
{
    *below = "";
    if ((*dir = absolute_env("XDG_RUNTIME_DIR")))
        return OK;
    snprintf(run_user, 32, "/run/user/%u", (unsigned)geteuid());
    if (is_own_dir(run_user)) {
        *dir = run_user;
        return OK;
    }
    if ((*dir = absolute_env("XDG_STATE_HOME")))
        return OK;
    *below = "/.local/state";
    if ((*dir = absolute_env("HOME")))
        return OK;
    return err_set(e, ERR_NOTFOUND,
                   "no socket path: none of AGENTD_SOCKET, XDG_RUNTIME_DIR, XDG_STATE_HOME and "
                   "HOME is set");
}

enum err client_socket_path(const char *given, char out[CLIENT_PATH_BYTES], struct error *e)
{
    const char *path = given ? given : getenv("AGENTD_SOCKET");
    char run_user[32];
    int n;
    if (path && *path) {
        n = snprintf(out, CLIENT_PATH_BYTES, "%s", path);
    } else {
        const char *dir, *below;
        enum err rc = runtime_dir(&dir, &below, run_user, e);
        if (rc)
            return rc;
        n = snprintf(out, CLIENT_PATH_BYTES, "%s%s/agentd/agentd.sock", dir, below);
    }
    if (n >= CLIENT_PATH_BYTES)
        return err_set(e, ERR_LIMIT, "socket path of %d bytes, the system takes %d: %.60s...",
                       n, CLIENT_PATH_BYTES - 1, out);
    return OK;
}

/* ---- bytes ---------------------------------------------------------------------- */

static enum err broken(struct client *c, struct error *e)
{
    if (e)
        *e = c->broken;
    return c->broken.code;
}

/* Waits until the socket can do one of `want`, or for the wake-up or the deadline. */
static enum err wait_socket(struct client *c, short want, short *got, int64_t deadline,
                            struct error *e)
{
    for (;;) {
        struct pollfd p[2] = {{.fd = c->fd, .events = want},
                              {.fd = c->wake_fd > 0 ? c->wake_fd : -1, .events = POLLIN}};
        int n = poll(p, 2, poll_timeout(deadline));
        if (n < 0 && errno != EINTR)
            return err_sys(e, errno, "poll");
        if (n > 0 && p[0].revents) {
            *got = p[0].revents;
            return OK;
        }
        if (n > 0)
            return err_set(e, ERR_CANCELLED, "interrupted");
        if (n == 0 && poll_timeout(deadline) == 0)
            return err_set(e, ERR_TIMEOUT, "no answer from agentd in time");
    }
}

/* Takes in what has arrived; does not block. At least one byte has, or the connection ended. */
static enum err receive(struct client *c, struct error *e)
{
    if (c->broken.code)
        return broken(c, e);
    enum err rc = buf_reserve(&c->in, READ_CHUNK, e);
    if (rc)
        return rc;
    ssize_t n = recv(c->fd, c->in.data + c->in.len, READ_CHUNK, 0);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return OK;
    if (n < 0)
        err_sys(&c->broken, errno, "read from agentd");
    else if (n == 0)
        err_set(&c->broken, ERR_CLOSED, "agentd closed the connection");
    if (n <= 0)
        return broken(c, e);
    c->in.len += (size_t)n;
    return OK;
}

/* Sends everything, and takes in what arrives meanwhile, so that two full pipes cannot wait for
 * each other. A line that was sent in part leaves the connection broken. */
static enum err send_all(struct client *c, const uint8_t *p, size_t n, int64_t deadline,
                         struct error *e)
{
    size_t sent = 0;
    while (sent < n) {
        ssize_t w = send(c->fd, p + sent, n - sent, MSG_NOSIGNAL);
        if (w > 0) {
            sent += (size_t)w;
            continue;
        }
        if (w < 0 && errno == EINTR)
            continue;
        if (w < 0 && errno != EAGAIN) {
            int sys = errno;
            if (sys == EPIPE || sys == ECONNRESET)
                err_set(&c->broken, ERR_CLOSED, "agentd closed the connection");
            else
                err_sys(&c->broken, sys, "write to agentd");
            return broken(c, e);
        }
        short got = 0;
        short want = (short)(c->in.len <= CLIENT_MAX_LINE ? POLLIN | POLLOUT : POLLOUT);
        enum err rc = wait_socket(c, want, &got, deadline, e);
        if (!rc && (got & POLLIN))
            rc = receive(c, e);
        if (rc) {
            if (sent && !c->broken.code)
                err_set(&c->broken, ERR_CLOSED, "a request was sent in part only");
            return rc;
        }
    }
    return OK;
}

/* ---- messages ------------------------------------------------------------------- */

static const char *text_of(const json_t *object, const char *key, const char *otherwise)
{
    const char *s = json_string_value(json_object_get(object, key));
    return s ? s : otherwise;
}

static void dispatch(struct client *c, const char *method, const json_t *params)
{
    c->n_notified++;
    if (!c->notify)
        return;
    c->dispatching = true;
    c->notify(c->user, method, params);
    c->dispatching = false;
}

static struct call *find_call(struct client *c, uint64_t id)
{
    for (size_t i = 0; i < CLIENT_MAX_CALLS; i++)
        if (id && c->calls[i].id == id)
            return &c->calls[i];
    return NULL;
}

static enum err take_message(struct client *c, json_t *m, struct error *e)
{
    const char *method = json_string_value(json_object_get(m, "method"));
    const json_t *id = json_object_get(m, "id");
    if (method && !id) {
        dispatch(c, method, json_object_get(m, "params"));
        return OK;
    }
    if (method || (!json_object_get(m, "result") && !json_object_get(m, "error")))
        return err_set(e, ERR_FORMAT, "neither an answer nor a notification");
    if (!json_is_integer(id))
        return err_set(e, ERR_FORMAT, "a request was not understood: %s",
                       text_of(json_object_get(m, "error"), "message", "no message"));
    struct call *call = find_call(c, (uint64_t)json_integer_value(id));
    if (call && !call->answer)
        call->answer = json_incref(m);
    return OK; /* an answer nobody waits for any more is dropped */
}

static enum err take_line(struct client *c, const char *line, size_t n, struct error *e)
{
    const struct json_limits limits = {.max_bytes = CLIENT_MAX_LINE, .max_depth = MAX_DEPTH};
    json_auto_t *m = NULL;
    enum err rc = json_parse(line, n, &limits, &m, e);
    if (!rc && !json_is_object(m))
        rc = err_set(e, ERR_FORMAT, "want an object");
    if (!rc)
        rc = take_message(c, m, e);
    return rc ? err_wrap(e, ERR_FORMAT, "answer of agentd") : OK;
}

/* Handles every complete line that is here. */
static enum err take_lines(struct client *c, struct error *e)
{
    size_t start = 0;
    enum err rc = OK;
    while (!rc && c->scanned < c->in.len) {
        uint8_t *nl = memchr(c->in.data + c->scanned, '\n', c->in.len - c->scanned);
        if (!nl) {
            c->scanned = c->in.len;
            break;
        }
        size_t end = (size_t)(nl - c->in.data);
        rc = take_line(c, (const char *)c->in.data + start, end - start, &c->broken);
        start = c->scanned = end + 1;
    }
    buf_drop(&c->in, start);
    c->scanned -= start;
    if (!rc && c->in.len > CLIENT_MAX_LINE)
        rc = err_set(&c->broken, ERR_FORMAT, "agentd sent a line of more than %u bytes",
                     CLIENT_MAX_LINE);
    return rc ? broken(c, e) : OK;
}

/* One round: wait for bytes, take them in, handle what is complete. */
static enum err pump(struct client *c, int64_t deadline, struct error *e)
{
    if (c->broken.code)
        return broken(c, e);
    short got = 0;
    enum err rc = wait_socket(c, POLLIN, &got, deadline, e);
    if (!rc)
        rc = receive(c, e);
    return rc ? rc : take_lines(c, e);
}

/* ---- calls ---------------------------------------------------------------------- */

static enum err code_of(int code, const char *kind)
{
    for (int i = OK + 1; i <= ERR_GPU; i++)
        if (!strcmp(kind, err_name((enum err)i)))
            return (enum err)i;
    switch (code) {
    case -32700:
        return ERR_FORMAT;
    case -32600:
    case -32602:
        return ERR_INVAL;
    case -32601:
        return ERR_UNSUPPORTED;
    case -32800:
        return ERR_CANCELLED;
    case -32001:
        return ERR_BUSY;
    case -32603:
        return ERR_IO;
    default:
        return ERR_CONFLICT;
    }
}

static enum err refused(struct client *c, const json_t *error, struct error *e)
{
    const json_t *data = json_object_get(error, "data");
    const json_t *after = json_object_get(data, "retryAfterMs");
    const char *kind = text_of(data, "kind", "");
    const char *hint = text_of(data, "hint", "");
    struct client_failure *f = &c->failure;
    f->code = (int)json_integer_value(json_object_get(error, "code"));
    snprintf(f->kind, sizeof f->kind, "%s", kind);
    snprintf(f->hint, sizeof f->hint, "%s", hint);
    f->retryable = json_is_true(json_object_get(data, "retryable"));
    f->retry_after_ms = json_is_integer(after) ? json_integer_value(after) : -1;
    return err_set(e, code_of(f->code, kind), "%s", text_of(error, "message", "no message"));
}

static enum err send_request(struct client *c, uint64_t id, const char *method, json_t *params,
                             struct error *e)
{
    json_t *m = json_pack("{s:s, s:I, s:s, s:O*}", "jsonrpc", "2.0", "id", (json_int_t)id,
                          "method", method, "params", params);
    AUTO_FREE char *text = m ? json_dumps(m, JSON_COMPACT) : NULL;
    json_decref(m);
    if (!text)
        return err_set(e, ERR_INVAL, "%s: parameters that cannot be written as JSON", method);
    size_t n = strlen(text);
    if (n > CLIENT_MAX_LINE)
        return err_set(e, ERR_LIMIT, "%s: a request of %zu bytes, at most %u", method, n,
                       CLIENT_MAX_LINE);
    text[n] = '\n'; /* the 0 is not sent */
    return send_all(c, (const uint8_t *)text, n + 1,
                    deadline_in(c->timeout_ms > 0 ? c->timeout_ms : -1), e);
}

enum err client_start(struct client *c, const char *method, json_t *take_params, uint64_t *id,
                      struct error *e)
{
    assert(!c->dispatching);
    struct call *call = NULL;
    for (size_t i = 0; i < CLIENT_MAX_CALLS && !call; i++)
        if (!c->calls[i].id)
            call = &c->calls[i];
    enum err rc;
    if (c->broken.code)
        rc = broken(c, e);
    else if (!call)
        rc = err_set(e, ERR_LIMIT, "%s: %d calls are unanswered", method, CLIENT_MAX_CALLS);
    else
        rc = send_request(c, c->next_id, method, take_params, e);
    json_decref(take_params);
    if (rc)
        return rc;
    *id = call->id = c->next_id++;
    return OK;
}

void client_forget(struct client *c, uint64_t id)
{
    struct call *call = find_call(c, id);
    if (!call)
        return;
    json_decref(call->answer);
    *call = (struct call){0};
}

enum err client_await(struct client *c, uint64_t id, int timeout_ms, json_t **result,
                      struct error *e)
{
    assert(!c->dispatching);
    struct call *call = find_call(c, id);
    if (!call)
        return err_set(e, ERR_INVAL, "call %llu was answered before, or never made",
                       (unsigned long long)id);
    int64_t deadline = deadline_in(timeout_ms);
    c->failure = (struct client_failure){.retry_after_ms = -1};
    enum err rc = take_lines(c, e);
    while (!rc && !call->answer)
        rc = pump(c, deadline, e);
    if (!call->answer)
        return rc;
    const json_t *error = json_object_get(call->answer, "error");
    rc = error ? refused(c, error, e) : OK;
    if (!error && result)
        *result = json_incref(json_object_get(call->answer, "result"));
    client_forget(c, id);
    return rc;
}

enum err client_call(struct client *c, const char *method, json_t *take_params, json_t **result,
                     struct error *e)
{
    uint64_t id;
    enum err rc = client_start(c, method, take_params, &id, e);
    if (rc)
        return rc;
    rc = client_await(c, id, c->timeout_ms > 0 ? c->timeout_ms : -1, result, e);
    client_forget(c, id);
    return rc;
}

enum err client_poll(struct client *c, int timeout_ms, struct error *e)
{
    assert(!c->dispatching);
    int64_t deadline = deadline_in(timeout_ms);
    uint64_t before = c->n_notified;
    enum err rc = take_lines(c, e);
    while (!rc && c->n_notified == before)
        rc = pump(c, deadline, e);
    return c->n_notified != before ? OK : rc;
}

const struct client_failure *client_failure(const struct client *c)
{
    return &c->failure;
}

const json_t *client_server(const struct client *c)
{
    return c->server;
}

/* ---- connecting ----------------------------------------------------------------- */

static enum err connect_path(int fd, const char *path, int64_t deadline, struct error *e)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    memcpy(a.sun_path, path, strlen(path) + 1);
    while (connect(fd, (const struct sockaddr *)&a, sizeof a) < 0) {
        if (errno == EAGAIN && poll_timeout(deadline) > 0)
            poll(NULL, 0,
                 10); /* the listen queue is full: no descriptor tells when it is not */
        else if (errno == EAGAIN)
            return err_set(e, ERR_TIMEOUT, "agentd at %s accepts no connection", path);
        else if (errno == ENOENT || errno == ECONNREFUSED || errno == ENOTDIR)
            return err_set(e, ERR_CLOSED, "no agentd listens at %s (start it: agentd serve)",
                           path);
        else if (errno != EINTR)
            return err_sys(e, errno, "connect to %s", path);
    }
    struct ucred peer;
    socklen_t n = sizeof peer;
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &n) < 0)
        return err_sys(e, errno, "peer of %s", path);
    if (peer.uid != geteuid() && peer.uid != 0)
        return err_set(e, ERR_DENIED, "%s belongs to user %u, not to this one", path,
                       (unsigned)peer.uid);
    return OK;
}

static enum err say_initialize(struct client *c, const char *name, struct error *e)
{
    json_t *hello = json_pack("{s:i, s:{s:s}}", "protocolVersion", PROTOCOL_VERSION,
                              "clientInfo", "name", name ? name : "client");
    enum err rc = client_call(c, "initialize", hello, &c->server, e);
    if (rc)
        return err_wrap(e, rc, "initialize");
    json_int_t v = json_integer_value(json_object_get(c->server, "protocolVersion"));
    if (v != PROTOCOL_VERSION)
        return err_set(e, ERR_UNSUPPORTED, "agentd speaks protocol %lld, this client %d",
                       (long long)v, PROTOCOL_VERSION);
    return OK;
}

enum err client_open(struct client **out, const struct client_options *o, struct error *e)
{
    char path[CLIENT_PATH_BYTES];
    enum err rc = client_socket_path(o->socket_path, path, e);
    if (rc)
        return rc;
    struct client *c = calloc(1, sizeof *c);
    if (!c)
        return err_set(e, ERR_NOMEM, "client");
    c->next_id = 1;
    c->notify = o->notify;
    c->user = o->user;
    c->wake_fd = o->wake_fd;
    c->timeout_ms = o->timeout_ms;
    buf_init(&c->in, CLIENT_MAX_LINE + 1 + READ_CHUNK);
    c->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (c->fd < 0)
        rc = err_sys(e, errno, "socket");
    if (!rc)
        rc = connect_path(c->fd, path,
                          deadline_in(o->timeout_ms > 0 ? o->timeout_ms : CONNECT_PATIENCE_MS),
                          e);
    if (!rc)
        rc = say_initialize(c, o->name, e);
    if (rc) {
        client_free(c);
        return rc;
    }
    *out = c;
    return OK;
}

void client_free(struct client *c)
{
    if (!c)
        return;
    for (size_t i = 0; i < CLIENT_MAX_CALLS; i++)
        json_decref(c->calls[i].answer);
    json_decref(c->server);
    buf_fini(&c->in);
    if (c->fd >= 0)
        close(c->fd);
    free(c);
}
