#include "agentd/loop.h"

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include "agentd/conn.h"
#include "agentd/engine_thread.h"
#include "agentd/events.h"
#include "agentd/live.h"
#include "agentd/peer.h"
#include "agentd/protocol.h"
#include "agentd/saver.h"
#include "agentd/store_thread.h"
#include "agentd/turn.h"
#include "base/log.h"
#include "tools/tools.h"

#define BACKLOG 128
#define STOP_MS 20000 /* longest time the clean end may take */
#define STOP_LOOK_MS 5
#define TICK_MS 1000
#define N_SIGNALS 3

struct loop {
    struct daemon *daemon;
    uv_pipe_t listener;
    uv_poll_t engine, store;
    uv_signal_t signals[N_SIGNALS]; /* each ends the daemon as `daemon/shutdown` does */
    uv_timer_t stopping, tick;
    uint64_t stop_ns;
    int n_open; /* handles that were initialised */
};

/* ---- clients ---------------------------------------------------------------------- */

static void on_line(struct conn *c, const char *line, size_t len, void *arg)
{
    protocol_line(arg, c, line, len);
}

static void on_overlong(struct conn *c, void *arg)
{
    protocol_overlong(arg, c);
}

static void on_drained(struct conn *c, void *arg)
{
    (void)arg;
    events_peer_drained(*conn_user(c));
}

static void on_gone(struct conn *c, void *arg)
{
    (void)arg;
    if (*conn_user(c))
        peer_gone(*conn_user(c));
}

static void on_connection(uv_stream_t *listener, int status)
{
    struct loop *l = listener->data;
    struct daemon *d = l->daemon;
    const struct conn_owner owner = {d, on_line, on_overlong, on_drained, on_gone};
    struct conn *c = NULL;
    struct error e;

    if (status < 0) {
        log_warn("accept: %s", uv_strerror(status));
        return;
    }
    if (conn_accept(listener, &owner, &c, &e)) {
        log_warn("connection refused: %s", e.msg);
        return;
    }
    /* A tool that reached the socket in spite of its sandbox must not drive its own session. */
    bool ours = tools_owns_pid(conn_peer_pid(c), getpid());
    if (ours || d->n_peers >= DAEMON_MAX_PEERS || !(*conn_user(c) = peer_new(d, c))) {
        log_warn("connection of pid=%d refused: %s", (int)conn_peer_pid(c),
                 ours ? "it belongs to a tool" : "too many");
        conn_close(c);
    }
}

/* ---- workers ---------------------------------------------------------------------- */

static void on_engine(uv_poll_t *p, int status, int events)
{
    struct loop *l = p->data;

    (void)status;
    (void)events;
    engine_thread_drain(l->daemon->engine);
}

static void on_store(uv_poll_t *p, int status, int events)
{
    struct loop *l = p->data;

    (void)status;
    (void)events;
    store_thread_drain(l->daemon->store);
}

static void on_tick(uv_timer_t *timer)
{
    const struct loop *l = timer->data;

    for (const struct live *s = l->daemon->sessions; s; s = s->next)
        if (s->turn)
            turn_tick(s->turn);
}

/* ---- the end ---------------------------------------------------------------------- */

/* Until nothing is under way any more. */
static void on_stopping(uv_timer_t *timer)
{
    struct loop *l = timer->data;
    struct daemon *d = l->daemon;
    bool late = daemon_now_ns(d) - l->stop_ns > UINT64_C(1000000) * STOP_MS;

    if (saver_count(d) || store_thread_outstanding(d->store) ||
        engine_thread_outstanding(d->engine)) {
        if (!late)
            return;
        log_warn("stopping with %u state commits not done", saver_count(d));
    }
    uv_stop(d->loop);
}

static void stop(struct daemon *d)
{
    struct loop *l = d->loop->data;

    if (d->stopping)
        return;
    log_info("stopping");
    d->stopping = true;
    l->stop_ns = daemon_now_ns(d);
    uv_close((uv_handle_t *)&l->listener, NULL);
    for (struct live *s = d->sessions; s; s = s->next) {
        if (s->turn)
            turn_abandon(s->turn);
        saver_start(s, s->turn ? turn_input_end(s->turn) : 0);
    }
    uv_timer_start(&l->stopping, on_stopping, STOP_LOOK_MS, STOP_LOOK_MS);
}

static void on_signal(uv_signal_t *h, int number)
{
    struct loop *l = h->data;

    (void)number;
    stop(l->daemon);
}

/* ---- life ------------------------------------------------------------------------- */

static enum err uv_fail(struct error *e, const char *what, int rc)
{
    return err_set(e, ERR_IO, "%s: %s", what, uv_strerror(rc));
}

/* A signal that is ignored stays so: that is how nohup keeps a daemon from its terminal's end.
 */
static void watch_signals(struct loop *l)
{
    static const int ends[N_SIGNALS] = {SIGTERM, SIGINT, SIGHUP};

    for (size_t i = 0; i < N_SIGNALS; i++) {
        struct sigaction was;
        if (sigaction(ends[i], NULL, &was) == 0 && was.sa_handler != SIG_IGN)
            uv_signal_start(&l->signals[i], on_signal, ends[i]);
    }
}

static enum err start(struct loop *l, int fd, struct error *e)
{
    struct daemon *d = l->daemon;
    int own = fcntl(fd, F_DUPFD_CLOEXEC, 0), rc; /* uv closes what it is given */

    uv_timer_init(d->loop, &l->stopping);
    uv_timer_init(d->loop, &l->tick);
    for (size_t i = 0; i < N_SIGNALS; i++) {
        uv_signal_init(d->loop, &l->signals[i]);
        l->signals[i].data = l;
    }
    uv_pipe_init(d->loop, &l->listener, 0);
    l->stopping.data = l->tick.data = l->listener.data = l;
    if (own < 0)
        return err_set(e, ERR_IO, "socket");
    if ((rc = uv_pipe_open(&l->listener, own))) {
        close(own);
        return uv_fail(e, "socket", rc);
    }
    if ((rc = uv_listen((uv_stream_t *)&l->listener, BACKLOG, on_connection)))
        return uv_fail(e, "listen", rc);
    if ((rc = uv_poll_init(d->loop, &l->engine, engine_thread_fd(d->engine))))
        return uv_fail(e, "engine thread", rc);
    if ((rc = uv_poll_init(d->loop, &l->store, store_thread_fd(d->store))))
        return uv_fail(e, "store thread", rc);
    l->engine.data = l->store.data = l;
    uv_poll_start(&l->engine, UV_READABLE, on_engine);
    uv_poll_start(&l->store, UV_READABLE, on_store);
    uv_timer_start(&l->tick, on_tick, TICK_MS, TICK_MS);
    watch_signals(l);
    return OK;
}

enum err loop_new(struct daemon *d, int fd, struct loop **out, struct error *e)
{
    struct loop *l = calloc(1, sizeof(*l));

    if (!l)
        return err_set(e, ERR_NOMEM, "loop");
    l->daemon = d;
    d->loop->data = l;
    d->stop = stop;
    enum err rc = start(l, fd, e);
    if (rc) {
        loop_free(l);
        return rc;
    }
    *out = l;
    return OK;
}

void loop_run(struct loop *l)
{
    uv_run(l->daemon->loop, UV_RUN_DEFAULT);
    /* The workers, with the descriptors that were watched, end before the loop is freed. */
    uv_poll_stop(&l->engine);
    uv_poll_stop(&l->store);
    uv_timer_stop(&l->stopping);
    uv_timer_stop(&l->tick);
}

static void close_handle(uv_handle_t *h, void *arg)
{
    (void)arg;
    if (!uv_is_closing(h) && h->type != UV_NAMED_PIPE)
        uv_close(h, NULL);
}

void loop_free(struct loop *l)
{
    if (!l)
        return;
    struct daemon *d = l->daemon;

    for (struct peer *p = d->peers; p; p = p->next)
        conn_close(p->conn);
    if (!uv_is_closing((uv_handle_t *)&l->listener))
        uv_close((uv_handle_t *)&l->listener, NULL);
    uv_run(d->loop, UV_RUN_NOWAIT); /* the ends of connections */
    live_free_all(d);
    uv_walk(d->loop, close_handle, NULL);
    uv_run(d->loop, UV_RUN_DEFAULT);
    free(l);
}
