#include "agentd/tool_watch.h"

#include <stdlib.h>

#define FRESH_MAX_BYTES ((size_t)1 << 20) /* of one step */

enum { N_POLLS = 3 };

struct tool_watch {
    const struct clock *clock;
    struct tool_run *run;
    struct tool_watcher watcher;
    uv_poll_t polls[N_POLLS];
    int fds[N_POLLS]; /* -1: not watched (any more) */
    uv_timer_t timer;
    int n_handles; /* not yet closed by the loop */
    bool is_over;
};

static uint64_t now_ms(const struct tool_watch *w)
{
    return clock_mono_ns(w->clock) / 1000000;
}

static void on_closed(uv_handle_t *h)
{
    struct tool_watch *w = h->data;

    if (--w->n_handles == 0)
        free(w);
}

/* Stops watching. The descriptors are the run's, so this comes before it is freed. */
static void close_handles(struct tool_watch *w)
{
    w->is_over = true;
    for (int i = 0; i < N_POLLS; i++)
        if (w->fds[i] >= 0) {
            w->fds[i] = -1;
            uv_poll_stop(&w->polls[i]);
            uv_close((uv_handle_t *)&w->polls[i], on_closed);
        }
    uv_close((uv_handle_t *)&w->timer, on_closed);
}

static void step(struct tool_watch *w);

static void on_ready(uv_poll_t *p, int status, int events)
{
    struct tool_watch *w = p->data;

    (void)status;
    (void)events;
    if (!w->is_over)
        step(w);
}

static void on_timer(uv_timer_t *timer)
{
    struct tool_watch *w = timer->data;

    tool_run_timeout(w->run, now_ms(w));
    step(w);
}

/* Drops the watches of descriptors that have hung up. */
static void update(struct tool_watch *w)
{
    struct tool_run_fds f = tool_run_fds(w->run);
    const int now[N_POLLS] = {f.out_fd, f.status_fd, f.pidfd};

    for (int i = 0; i < N_POLLS; i++)
        if (w->fds[i] >= 0 && now[i] != w->fds[i]) {
            w->fds[i] = -1;
            uv_poll_stop(&w->polls[i]);
            uv_close((uv_handle_t *)&w->polls[i], on_closed);
        }
    uv_timer_start(&w->timer, on_timer, tool_run_wait_ms(w->run, now_ms(w)), 0);
}

static void step(struct tool_watch *w)
{
    AUTO(buf) struct buf fresh = BUF_INIT(FRESH_MAX_BYTES);
    bool listens = w->watcher.output != NULL;
    struct tool_result result;
    bool is_over = tool_run_step(w->run, now_ms(w), listens ? &fresh : NULL);

    if (fresh.len)
        w->watcher.output(w->watcher.user, fresh.data, fresh.len);
    if (!is_over) {
        update(w);
        return;
    }
    close_handles(w); /* w lives until the loop has closed them */
    tool_run_take(w->run, &result);
    w->watcher.done(w->watcher.user, &result);
    tool_run_free(w->run);
    w->run = NULL;
    tool_result_fini(&result);
}

static enum err watch(struct tool_watch *w, uv_loop_t *loop, struct error *e)
{
    struct tool_run_fds f = tool_run_fds(w->run);
    const int fds[N_POLLS] = {f.out_fd, f.status_fd, f.pidfd};

    uv_timer_init(loop, &w->timer);
    w->timer.data = w;
    w->n_handles = 1;
    for (int i = 0; i < N_POLLS; i++) {
        if (fds[i] < 0)
            continue;
        int rc = uv_poll_init(loop, &w->polls[i], fds[i]);
        if (rc)
            return err_set(e, ERR_IO, "watching a tool: %s", uv_strerror(rc));
        w->polls[i].data = w;
        w->fds[i] = fds[i];
        w->n_handles++;
        uv_poll_start(&w->polls[i], UV_READABLE, on_ready);
    }
    uv_timer_start(&w->timer, on_timer, tool_run_wait_ms(w->run, now_ms(w)), 0);
    return OK;
}

enum err tool_watch_start(uv_loop_t *loop, const struct clock *clock, struct tools *tools,
                          const struct tool_call *call, const struct tool_watcher *watcher,
                          struct tool_watch **out, struct error *e)
{
    struct tool_watch *w = calloc(1, sizeof(*w));
    enum err rc;

    if (!w)
        return err_set(e, ERR_NOMEM, "tool run");
    *w = (struct tool_watch){.clock = clock, .watcher = *watcher, .fds = {-1, -1, -1}};
    if ((rc = tool_run_start(tools, call, now_ms(w), &w->run, e))) {
        free(w);
        return rc;
    }
    if ((rc = watch(w, loop, e))) {
        tool_watch_drop(w);
        return rc;
    }
    *out = w;
    return OK;
}

uint64_t tool_watch_output(const struct tool_watch *w, uint64_t from, struct buf *out)
{
    return tool_run_output(w->run, from, out);
}

void tool_watch_cancel(struct tool_watch *w)
{
    tool_run_cancel(w->run, now_ms(w));
    uv_timer_start(&w->timer, on_timer, tool_run_wait_ms(w->run, now_ms(w)), 0);
}

void tool_watch_drop(struct tool_watch *w)
{
    close_handles(w);
    tool_run_free(w->run);
    w->run = NULL;
}
