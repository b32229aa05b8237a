#include "agentd/session_jobs.h"

#include <stdlib.h>
#include <string.h>

#include "agentd/daemon.h"
#include "agentd/live.h"
#include "agentd/tool_watch.h"
#include "base/hash.h"
#include "base/log.h"

#define TEXT_BYTES ((size_t)256 << 10) /* more than a run keeps of its output */

struct session_job {
    struct session_job *next;
    struct live *session; /* pinned while it runs */
    char id[JOB_ID_CAP];
    char *command;
    struct tool_watch *watch; /* NULL: it has ended */
    uint64_t started_ns;
    uint64_t read;   /* bytes of its output that were */
    struct buf rest; /* of one that has ended: what was not read, and how it ended */
    char how[96];    /* it ended */

    void (*then)(void *user); /* NULL: nobody waits */
    void *user;
    uv_timer_t *timer; /* of the wait; NULL: without a limit */
};

static struct session_job *find(const struct live *s, const char *id)
{
    struct session_job *j = s->jobs;
    while (j && strcmp(j->id, id) != 0)
        j = j->next;
    return j;
}

static enum err not_found(const char *id, struct error *e)
{
    return err_set(
        e, ERR_NOTFOUND,
        "there is no job \"%.20s\" (jobs end with the daemon; the list has those that "
        "there are)",
        id);
}

/* ---- waiting ---------------------------------------------------------------------- */

static void free_handle(uv_handle_t *h)
{
    free(h);
}

static void stop_waiting(struct session_job *j)
{
    if (j->timer)
        uv_close((uv_handle_t *)j->timer, free_handle);
    j->timer = NULL;
    j->then = NULL;
}

static void wake(struct session_job *j)
{
    void (*then)(void *) = j->then;

    stop_waiting(j);
    if (then)
        then(j->user);
}

static void on_timer(uv_timer_t *timer)
{
    wake(timer->data);
}

enum err session_job_wait(struct live *s, const char *id, uint32_t wait_ms,
                          void (*then)(void *user), void *user, struct error *e)
{
    struct session_job *j = find(s, id);

    if (!j || !j->watch)
        return not_found(id, e);
    if (j->then)
        return err_set(e, ERR_BUSY, "another call waits for job %s", id);
    if (wait_ms && !(j->timer = calloc(1, sizeof(*j->timer))))
        return err_set(e, ERR_NOMEM, "job");
    if (j->timer) {
        uv_timer_init(s->daemon->loop, j->timer);
        j->timer->data = j;
        uv_timer_start(j->timer, on_timer, wait_ms, 0);
    }
    j->then = then;
    j->user = user;
    return OK;
}

void session_jobs_unwait(struct live *s, const void *user)
{
    for (struct session_job *j = s->jobs; j; j = j->next)
        if (j->then && j->user == user)
            stop_waiting(j);
}

/* ---- life ------------------------------------------------------------------------- */

static void job_free(struct session_job *j)
{
    stop_waiting(j);
    if (j->watch) {
        j->session->daemon->n_jobs--;
        tool_watch_drop(j->watch);
    }
    free(j->command);
    buf_fini(&j->rest);
    free(j);
}

/* Drops the oldest of those that have ended, beyond what is kept. */
static void trim(struct live *s)
{
    size_t n_ended = 0;

    for (struct session_job *j = s->jobs; j; j = j->next)
        n_ended += j->watch == NULL;
    for (struct session_job **link = &s->jobs; *link && n_ended > SESSION_KEPT_JOBS;) {
        struct session_job *j = *link;
        if (j->watch || j->then) {
            link = &j->next;
            continue;
        }
        *link = j->next;
        job_free(j);
        n_ended--;
    }
}

static void describe_end(struct session_job *j, const struct tool_result *r)
{
    switch (r->end) {
    case TOOL_EXITED:
        snprintf(j->how, sizeof(j->how), "ended with exit status %d", r->exit_status);
        break;
    case TOOL_SIGNALLED:
        snprintf(j->how, sizeof(j->how), "ended by signal %d", r->exit_status);
        break;
    case TOOL_TIMED_OUT:
        snprintf(j->how, sizeof(j->how), "killed at its time limit");
        break;
    case TOOL_CANCELLED:
        snprintf(j->how, sizeof(j->how), "killed");
        break;
    case TOOL_OUTPUT_LIMIT:
        snprintf(j->how, sizeof(j->how), "killed: it wrote more than %llu bytes",
                 (unsigned long long)r->output_bytes);
        break;
    case TOOL_REFUSED:
        snprintf(j->how, sizeof(j->how), "not run: refused by the sandbox");
        break;
    case TOOL_LOST:
        snprintf(j->how, sizeof(j->how), "lost: its launcher was killed from outside");
        break;
    }
}

static void job_done(void *user, struct tool_result *r)
{
    struct session_job *j = user;
    struct live *s = j->session;

    (void)tool_watch_output(j->watch, j->read, &j->rest);
    if (r->end == TOOL_REFUSED && buf_add(&j->rest, r->text.data, r->text.len, NULL))
        log_warn("job=%s: its refusal does not fit", j->id);
    describe_end(j, r);
    j->watch = NULL;
    s->daemon->n_jobs--;
    wake(j);
    trim(s);
    live_unpin(s); /* may free it, and j */
}

static void name_job(const struct live *s, const char *key, char id[JOB_ID_CAP])
{
    static const char letters[] = "abcdefghijkmnpqrstuvwxyz23456789"; /* 32 */
    uint8_t digest[HASH_BYTES];
    struct hash h;

    for (unsigned tries = 0; tries == 0 || find(s, id); tries++) {
        hash_init(&h, NULL, HASH_BYTES);
        hash_field(&h, key, strlen(key));
        hash_field(&h, &tries, sizeof(tries));
        hash_final(&h, digest);
        for (int i = 0; i < 5; i++)
            id[i] = letters[digest[i] % 32];
        id[5] = '\0';
    }
}

static enum err check_room(const struct live *s, struct error *e)
{
    size_t n = 0;

    for (const struct session_job *j = s->jobs; j; j = j->next)
        n += j->watch != NULL;
    if (n >= SESSION_MAX_JOBS)
        return err_set(e, ERR_LIMIT, "%zu jobs of this session run already, and no more may",
                       n);
    if (s->daemon->n_jobs >= DAEMON_MAX_JOBS)
        return err_set(e, ERR_LIMIT, "%d jobs of all sessions run already, and no more may",
                       DAEMON_MAX_JOBS);
    return OK;
}

enum err session_job_start(struct live *s, const struct tool_call *call, const char *key,
                           char id[JOB_ID_CAP], struct error *e)
{
    struct daemon *d = s->daemon;
    const char *command = json_string_value(json_object_get(call->arguments, "command"));
    struct session_job *j, **end = &s->jobs;
    enum err rc = check_room(s, e);

    if (rc)
        return rc;
    if (!(j = calloc(1, sizeof(*j))) || !(j->command = strdup(command ? command : ""))) {
        free(j);
        return err_set(e, ERR_NOMEM, "job");
    }
    j->session = s;
    buf_init(&j->rest, TEXT_BYTES);
    name_job(s, key, j->id);
    j->started_ns = daemon_now_ns(d);
    const struct tool_watcher watcher = {.done = job_done, .user = j};
    if ((rc = tool_watch_start(d->loop, d->clock, d->tools, call, &watcher, &j->watch, e))) {
        job_free(j);
        return rc;
    }
    while (*end)
        end = &(*end)->next;
    *end = j;
    d->n_jobs++;
    live_pin(s);
    memcpy(id, j->id, JOB_ID_CAP);
    return OK;
}

void session_jobs_end(struct live *s)
{
    for (struct session_job *j = s->jobs; j; j = j->next)
        if (j->watch)
            tool_watch_cancel(j->watch);
}

void session_jobs_free(struct live *s)
{
    while (s->jobs) {
        struct session_job *j = s->jobs;
        s->jobs = j->next;
        job_free(j);
    }
}

/* ---- seeing to them --------------------------------------------------------------- */

static unsigned long long seconds(const struct session_job *j)
{
    return (daemon_now_ns(j->session->daemon) - j->started_ns) / 1000000000;
}

void session_jobs_list(const struct live *s, struct buf *out)
{
    enum err rc = s->jobs ? OK : buf_add_str(out, "[no jobs]\n", NULL);

    for (const struct session_job *j = s->jobs; j && !rc; j = j->next) {
        int n = (int)strcspn(j->command, "\n"); /* its first line, cut */
        if (j->watch)
            rc = buf_printf(out, NULL, "%s  running for %llu s  ", j->id, seconds(j));
        else
            rc = buf_printf(out, NULL, "%s  %s  ", j->id, j->how);
        if (!rc)
            rc = buf_printf(out, NULL, "%.*s\n", n < 120 ? n : 120, j->command);
    }
}

enum err session_job_is_running(const struct live *s, const char *id, bool *running,
                                struct error *e)
{
    const struct session_job *j = find(s, id);

    if (!j)
        return not_found(id, e);
    *running = j->watch != NULL;
    return OK;
}

enum err session_job_read(struct live *s, const char *id, struct buf *out, struct error *e)
{
    struct session_job *j = find(s, id);
    enum err rc = OK;

    if (!j)
        return not_found(id, e);
    if (j->watch)
        j->read = tool_watch_output(j->watch, j->read, out);
    else if (j->rest.len)
        rc = buf_add(out, j->rest.data, j->rest.len, e);
    buf_fini(&j->rest);
    if (!rc && out->len && out->data[out->len - 1] != '\n')
        rc = buf_add_byte(out, '\n', e);
    if (rc)
        return rc;
    return j->watch ? buf_printf(out, e, "[%s has been running for %llu s]\n", id, seconds(j))
                    : buf_printf(out, e, "[%s: %s]\n", id, j->how);
}

void session_job_kill(struct live *s, const char *id)
{
    struct session_job *j = find(s, id);

    if (j && j->watch)
        tool_watch_cancel(j->watch);
}
