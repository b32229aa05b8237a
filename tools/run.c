/* One run: the launcher's process, its output, its report, its end. */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/auto.h"
#include "base/fault.h"
#include "tools/launch.h"
#include "tools/output.h"
#include "tools/tools.h"
#include "tools/tools_internal.h"

#define READ_BYTES (64 << 10)
#define STEP_BYTES (1 << 20)
#define MAX_STATUS_BYTES (64 << 10)
#define KILL_GRACE_MS 6000 /* the launcher's own limit of killing is 5 s */
#define FREE_WAIT_MS 5000
#define FETCH_GRACE_MS 2000 /* it keeps its time itself, and says so better */

struct tool_run {
    pid_t pid; /* of the launcher; 0 once it was reaped */
    int pidfd, out_fd, status_fd, control_fd;
    const struct tool *tool; /* NULL for a probe */
    struct output output;

    uint64_t start_ms, deadline_ms, limit_ms;
    uint64_t
        kill_ms; /* when a launcher that was told to stop is killed itself; 0: it was not */
    enum tool_end reason; /* why it was told to stop, TOOL_EXITED: it was not */
    struct buf status;    /* the launcher's report */
    bool done;
    struct tool_result result;
};

/* ---- starting ---- */

struct pipes {
    int out[2], status[2], control[2], spec; /* [0] is read, [1] written */
};

static void close_pair(int p[2])
{
    for (int i = 0; i < 2; i++)
        if (p[i] >= 0)
            close(p[i]);
}

static void pipes_fini(struct pipes *p)
{
    close_pair(p->out);
    close_pair(p->status);
    close_pair(p->control);
    if (p->spec >= 0)
        close(p->spec);
}

/* Moves a descriptor out of the range that the launcher's own will have. */
static bool move_up(int *fd)
{
    int up = *fd >= 0 ? fcntl(*fd, F_DUPFD_CLOEXEC, LAUNCH_FDS) : -1;
    if (up < 0)
        return false;
    close(*fd);
    *fd = up;
    return true;
}

static enum err pipes_init(struct pipes *p, struct error *e)
{
    if (fault_point("tool.pipe"))
        return err_sys(e, EMFILE, "tool: pipes");
    if (pipe2(p->out, O_CLOEXEC) != 0 || pipe2(p->status, O_CLOEXEC) != 0 ||
        pipe2(p->control, O_CLOEXEC) != 0 || !move_up(&p->out[1]) || !move_up(&p->status[1]) ||
        !move_up(&p->control[0]) || !move_up(&p->spec))
        return err_sys(e, errno, "tool: pipes");
    fcntl(p->out[0], F_SETFL, O_NONBLOCK);
    fcntl(p->status[0], F_SETFL, O_NONBLOCK);
    fcntl(p->out[1], F_SETPIPE_SZ, STEP_BYTES); /* fewer wake-ups; not everybody may */
    return OK;
}

static int add_descriptors(posix_spawn_file_actions_t *a, const struct pipes *p)
{
    int rc = posix_spawn_file_actions_addopen(a, 0, "/dev/null", O_RDONLY, 0);
    rc = rc ? rc : posix_spawn_file_actions_adddup2(a, p->out[1], 1);
    rc = rc ? rc : posix_spawn_file_actions_adddup2(a, p->out[1], 2);
    rc = rc ? rc : posix_spawn_file_actions_adddup2(a, p->status[1], LAUNCH_STATUS_FD);
    rc = rc ? rc : posix_spawn_file_actions_adddup2(a, p->control[0], LAUNCH_CONTROL_FD);
    return rc ? rc : posix_spawn_file_actions_adddup2(a, p->spec, LAUNCH_SPEC_FD);
}

static int set_attributes(posix_spawnattr_t *attr)
{
    sigset_t none, all;
    sigemptyset(&none);
    sigfillset(&all);
    posix_spawnattr_setsigmask(attr, &none);
    posix_spawnattr_setsigdefault(attr, &all);
    return posix_spawnattr_setflags(attr, POSIX_SPAWN_SETSID | POSIX_SPAWN_SETSIGMASK |
                                              POSIX_SPAWN_SETSIGDEF);
}

static enum err spawn(const char *launcher, const struct pipes *p, pid_t *pid, struct error *e)
{
    char path[PATH_MAX], home[PATH_MAX];
    if (fault_point("tool.spawn"))
        return err_sys(e, EAGAIN, "tool: start %.160s", launcher);
    snprintf(path, sizeof path, "PATH=%s", getenv("PATH") ? getenv("PATH") : "");
    snprintf(home, sizeof home, "HOME=%s", getenv("HOME") ? getenv("HOME") : "/");
    char name[] = "agentd-tool";
    char *const argv[] = {name, NULL}, *const env[] = {path, home, NULL};
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attr;
    posix_spawn_file_actions_init(&actions);
    posix_spawnattr_init(&attr);
    int rc = add_descriptors(&actions, p);
    rc = rc ? rc : set_attributes(&attr);
    rc = rc ? rc : posix_spawn(pid, launcher, &actions, &attr, argv, env);
    posix_spawn_file_actions_destroy(&actions);
    posix_spawnattr_destroy(&attr);
    return rc ? err_sys(e, rc, "tool: start %.160s", launcher) : OK;
}

/* A copy of a list of paths with links resolved, where the paths are there. */
static json_t *resolve_list(const json_t *list)
{
    json_t *out = json_array();
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *path = json_string_value(json_array_get(list, i));
        AUTO_FREE char *real = realpath(path, NULL);
        json_array_append_new(out, json_string(real ? real : path));
    }
    return out;
}

static enum err spill_folder(const char *path, char out[PATH_MAX], struct error *e)
{
    char folder[PATH_MAX];
    const char *slash = strrchr(path, '/');
    if (*path != '/' || slash - path >= PATH_MAX || !slash[1])
        return err_set(e, ERR_INVAL, "spill file \"%.160s\": want an absolute path", path);
    size_t n = slash == path ? 1 : (size_t)(slash - path);
    memcpy(folder, path, n);
    folder[n] = '\0';
    return realpath(folder, out) ? OK : err_sys(e, errno, "spill folder %.160s", folder);
}

static enum err write_spec(const struct tools *t, const struct tool_call *c, int *fd,
                           struct error *e)
{
    char workspace[PATH_MAX], spill[PATH_MAX];
    struct stat st;
    if (!c->workspace || *c->workspace != '/' || !realpath(c->workspace, workspace) ||
        stat(workspace, &st) != 0 || !S_ISDIR(st.st_mode))
        return err_set(e, ERR_INVAL, "workspace \"%.160s\": not an absolute path of a folder",
                       c->workspace ? c->workspace : "");
    enum err rc = c->spill_path ? spill_folder(c->spill_path, spill, e) : OK;
    if (rc)
        return rc;
    json_t *hidden = resolve_list(t->hidden), *read_paths = resolve_list(t->read_paths);
    bool fetches = c->mode == TOOL_MODE_FULL_ACCESS && !strcmp(c->name, "http_fetch");
    struct launch l = {.tool = c->name,
                       .arguments = c->arguments,
                       .workspace = workspace,
                       .spill_folder = c->spill_path ? spill : NULL,
                       .cwd = c->cwd,
                       .mode = fetches ? TOOL_MODE_READ_ONLY : c->mode, /* it writes nothing */
                       .max_processes = t->max_processes,
                       .max_file_bytes = t->max_file_bytes,
                       .hidden = hidden,
                       .read_paths = read_paths,
                       .without = t->without,
                       .fetch_networks = t->fetch_networks};
    rc = launch_write(&l, fd, e);
    json_decref(hidden);
    json_decref(read_paths);
    return rc;
}

static uint64_t time_limit(const struct tools *t, const struct tool_call *c)
{
    const json_t *asked = json_object_get(c->arguments, "timeout_ms");
    uint64_t ms = c->in_background ? t->job_timeout_ms : t->timeout_ms;
    uint64_t most = c->in_background ? t->job_timeout_ms : t->max_timeout_ms;
    if (c->timeout_ms)
        ms = c->timeout_ms;
    else if (json_is_number(asked) && json_number_value(asked) >= 1)
        ms = (uint64_t)json_number_value(asked);
    if (!strcmp(c->name, "http_fetch"))
        ms += FETCH_GRACE_MS;
    return ms < most ? ms : most;
}

static enum err run_new(const struct tools *t, const struct tool_call *c, struct tool_run **out,
                        struct error *e)
{
    struct tool_run *r = calloc(1, sizeof *r);
    if (!r)
        return err_set(e, ERR_NOMEM, "tool: no memory");
    r->pidfd = r->out_fd = r->status_fd = r->control_fd = -1;
    buf_init(&r->status, MAX_STATUS_BYTES);
    r->tool = tool_find(c->name);
    enum err rc =
        output_init(&r->output, t->output_bytes, t->max_output_bytes, c->spill_path, e);
    if (rc)
        tool_run_free(r);
    else
        *out = r;
    return rc;
}

enum err tool_run_launch(struct tools *t, const struct tool_call *call, uint64_t now_ms,
                         struct tool_run **out, struct error *e)
{
    AUTO(pipes) struct pipes p = {{-1, -1}, {-1, -1}, {-1, -1}, -1};
    struct tool_run *r = NULL;
    enum err rc = write_spec(t, call, &p.spec, e);
    if (!rc)
        rc = pipes_init(&p, e);
    if (!rc)
        rc = run_new(t, call, &r, e);
    if (rc)
        return rc;
    if (!(rc = spawn(t->launcher, &p, &r->pid, e))) {
        r->control_fd = TAKE_FD(p.control[1]);
        r->pidfd = fault_point("tool.pidfd") ? -1 : (int)syscall(SYS_pidfd_open, r->pid, 0);
        if (r->pidfd < 0)
            rc = err_sys(e, errno, "tool: pidfd");
    }
    if (rc) {
        tool_run_free(r);
        return rc;
    }
    fcntl(r->pidfd, F_SETFD, FD_CLOEXEC);
    r->out_fd = TAKE_FD(p.out[0]);
    r->status_fd = TAKE_FD(p.status[0]);
    r->limit_ms = time_limit(t, call);
    r->start_ms = now_ms;
    r->deadline_ms = now_ms + r->limit_ms;
    *out = r;
    return OK;
}

enum err tool_run_start(struct tools *t, const struct tool_call *call, uint64_t now_ms,
                        struct tool_run **out, struct error *e)
{
    enum err rc = tool_check(call->name, call->arguments, e);
    if (!rc && tool_find(call->name)->risk == TOOL_KEEPS)
        rc = err_set(e, ERR_INVAL, "%s: has no process of its own", call->name);
    if (!rc && tool_find(call->name)->risk == TOOL_FETCHES && !t->may_fetch)
        rc = err_set(e, ERR_DENIED, TOOL_FETCH_OFF, call->name);
    return rc ? rc : tool_run_launch(t, call, now_ms, out, e);
}

struct tool_run_fds tool_run_fds(const struct tool_run *r)
{
    return (struct tool_run_fds){r->out_fd, r->status_fd, r->pidfd};
}

/* ---- output ---- */

static void stop(struct tool_run *r, enum tool_end reason, uint64_t now_ms)
{
    if (r->kill_ms || r->done || !r->pid)
        return;
    r->reason = reason;
    r->kill_ms = now_ms + KILL_GRACE_MS;
    close(r->control_fd);
    r->control_fd = -1;
}

static void hang_up(int *fd)
{
    close(*fd);
    *fd = -1;
}

/* Reads what is there, STEP_BYTES at most. True when there may be more. */
static bool read_output(struct tool_run *r, uint64_t now_ms, struct buf *fresh)
{
    uint8_t block[READ_BYTES];
    uint64_t before = r->output.total;
    size_t n_read = 0;
    while (r->out_fd >= 0 && n_read < STEP_BYTES) {
        ssize_t n = read(r->out_fd, block, sizeof block);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EAGAIN)
            break;
        if (n <= 0) {
            hang_up(&r->out_fd);
            break;
        }
        n_read += (size_t)n;
        if (!output_add(&r->output, block, (size_t)n))
            stop(r, TOOL_OUTPUT_LIMIT, now_ms);
    }
    if (fresh)
        output_fresh(&r->output, before, fresh);
    return n_read >= STEP_BYTES;
}

static void read_status(struct tool_run *r)
{
    uint8_t block[4096];
    ssize_t n;
    while (r->status_fd >= 0 && (n = read(r->status_fd, block, sizeof block)) != 0) {
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EAGAIN)
            return;
        if (n < 0 || buf_add(&r->status, block, (size_t)n, NULL))
            break;
    }
    if (r->status_fd >= 0)
        hang_up(&r->status_fd);
}

/* ---- the result ---- */

/* The line that says how it ended, "" when there is nothing to say. */
static void describe_end(const struct tool_run *r, const struct tool_result *res,
                         const char *message, char *out, size_t cap)
{
    out[0] = '\0';
    switch (res->end) {
    case TOOL_EXITED:
        if (res->exit_status && r->tool && r->tool->risk == TOOL_EXECUTES)
            snprintf(out, cap, "[exit status %d]", res->exit_status);
        else if (res->n_killed)
            snprintf(out, cap, "[%u left in the background: killed]", res->n_killed);
        break;
    case TOOL_SIGNALLED:
        snprintf(out, cap, "[killed by signal %d: %s]", res->exit_status,
                 strsignal(res->exit_status));
        break;
    case TOOL_TIMED_OUT:
        snprintf(out, cap, "[timed out after %llu ms and was killed]",
                 (unsigned long long)r->limit_ms);
        break;
    case TOOL_CANCELLED:
        snprintf(out, cap, "[cancelled]");
        break;
    case TOOL_OUTPUT_LIMIT:
        snprintf(out, cap, "[killed: wrote more than %llu bytes]",
                 (unsigned long long)r->output.max);
        break;
    case TOOL_REFUSED:
        snprintf(out, cap, "error: refused by the sandbox, nothing ran: %s", message);
        break;
    case TOOL_LOST:
        snprintf(out, cap, "[the launcher died; what the tool did is unknown]");
        break;
    }
}

static enum tool_end end_of(const char *name)
{
    static const struct {
        const char *name;
        enum tool_end end;
    } ends[] = {
        {"exited", TOOL_EXITED}, {"signalled", TOOL_SIGNALLED}, {"refused", TOOL_REFUSED}};
    for (size_t i = 0; name && i < sizeof ends / sizeof ends[0]; i++)
        if (!strcmp(name, ends[i].name))
            return ends[i].end;
    return TOOL_LOST;
}

static enum err add_text(struct tool_run *r, const char *message)
{
    struct tool_result *res = &r->result;
    char line[400];
    enum err rc = output_text(&r->output, &res->text, NULL);
    describe_end(r, res, message, line, sizeof line);
    if (rc || !line[0])
        return rc;
    const struct buf *t = &res->text;
    bool fresh_line = t->len == 0 || t->data[t->len - 1] == '\n';
    return buf_printf(&res->text, NULL, "%s%s\n", fresh_line ? "" : "\n", line);
}

static void finish(struct tool_run *r, uint64_t now_ms)
{
    struct tool_result *res = &r->result;
    json_t *report = json_loadb(buf_str(&r->status), r->status.len, 0, NULL);
    const char *end = json_string_value(json_object_get(report, "end"));
    const char *message = json_string_value(json_object_get(report, "message"));
    res->end = r->reason != TOOL_EXITED ? r->reason : end_of(end);
    res->exit_status = (int)json_integer_value(json_object_get(report, "status"));
    res->n_killed = (uint32_t)json_integer_value(json_object_get(report, "killed"));
    res->layers = json_incref(json_object_get(report, "layers"));
    const char *cwd = json_string_value(json_object_get(report, "cwd"));
    res->cwd = cwd ? strdup(cwd) : NULL;
    res->is_error = res->end != TOOL_EXITED || res->exit_status != 0;
    res->truncated = output_is_cut(&r->output);
    res->output_bytes = r->output.total;
    res->duration_ms = now_ms - r->start_ms;
    buf_init(&res->text, (size_t)r->output.cap + PATH_MAX + 1024);
    if (add_text(r, message ? message : "")) /* out of memory: better short than wrong */
        res->is_error = res->truncated = true;
    res->spill_path = output_take_spill(&r->output);
    json_decref(report);
    r->done = true;
}

/* ---- what the owner's loop calls ---- */

static void reap(struct tool_run *r)
{
    siginfo_t info = {0};
    if (!r->pid)
        return;
    int rc = waitid(P_PID, (id_t)r->pid, &info, WEXITED | WNOHANG);
    if (rc == 0 ? !info.si_pid : errno != ECHILD) /* ECHILD: somebody else reaped it */
        return;
    r->pid = 0;
    hang_up(&r->pidfd);
}

bool tool_run_step(struct tool_run *r, uint64_t now_ms, struct buf *fresh)
{
    if (r->done)
        return true;
    reap(r); /* before reading: what a dead launcher wrote is there to be read */
    bool more = read_output(r, now_ms, fresh);
    read_status(r);
    if (r->pid || more)
        return false;
    finish(r, now_ms);
    return true;
}

uint64_t tool_run_output(const struct tool_run *r, uint64_t from, struct buf *out)
{
    return output_since(&r->output, from, r->done, out);
}

uint32_t tool_run_wait_ms(const struct tool_run *r, uint64_t now_ms)
{
    uint64_t due = r->kill_ms ? r->kill_ms : r->deadline_ms;
    if (due <= now_ms)
        return 0;
    return due - now_ms > INT_MAX ? INT_MAX : (uint32_t)(due - now_ms);
}

void tool_run_timeout(struct tool_run *r, uint64_t now_ms)
{
    if (r->done || !r->pid)
        return;
    if (r->kill_ms && now_ms >= r->kill_ms) {
        kill(r->pid, SIGKILL); /* not reaped yet: the id is still its own */
        r->kill_ms = now_ms + KILL_GRACE_MS;
    } else if (!r->kill_ms && now_ms >= r->deadline_ms) {
        stop(r, TOOL_TIMED_OUT, now_ms);
    }
}

void tool_run_cancel(struct tool_run *r, uint64_t now_ms)
{
    stop(r, TOOL_CANCELLED, now_ms);
}

void tool_run_take(struct tool_run *r, struct tool_result *out)
{
    assert(r->done);
    *out = r->result;
    r->result = (struct tool_result){0};
}

/* Ends a launcher that nobody waits for any more. */
static void end_launcher(struct tool_run *r)
{
    if (r->control_fd >= 0)
        hang_up(&r->control_fd);
    if (!r->pid)
        return;
    struct pollfd p = {r->pidfd, POLLIN, 0};
    if (r->pidfd < 0 || poll(&p, 1, FREE_WAIT_MS) != 1)
        kill(r->pid, SIGKILL);
    while (waitpid(r->pid, NULL, 0) < 0 && errno == EINTR)
        ;
}

void tool_run_free(struct tool_run *r)
{
    if (!r)
        return;
    /* Nobody reads any more: a tool that writes must not keep its launcher waiting. */
    if (r->out_fd >= 0)
        close(r->out_fd);
    if (r->status_fd >= 0)
        close(r->status_fd);
    end_launcher(r);
    if (r->pidfd >= 0)
        close(r->pidfd);
    buf_fini(&r->status);
    tool_result_fini(&r->result);
    output_fini(&r->output);
    free(r);
}

void tool_result_fini(struct tool_result *r)
{
    buf_fini(&r->text);
    free(r->spill_path);
    free(r->cwd);
    json_decref(r->layers);
    *r = (struct tool_result){0};
}
