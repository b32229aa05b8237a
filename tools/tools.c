/* The policy, the probe, and who belongs to whom. */
#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "tools/launch.h"
#include "tools/reap.h"
#include "tools/scratch.h"
#include "tools/tools.h"
#include "tools/tools_internal.h"

#define LAUNCHER "agentd-tool"
#define MAX_JOB_MS (24 * 3600 * 1000)
#define MIN_OUTPUT_BYTES 256 /* head, tail and the line between them */
#define MAX_PARENTS 4096

static uint64_t or_default(uint64_t value, uint64_t otherwise)
{
    return value ? value : otherwise;
}

/* The launcher that lies beside the running program. */
static char *find_launcher(void)
{
    char path[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", path, sizeof path - sizeof LAUNCHER);
    if (n <= 0)
        return NULL;
    path[n] = '\0';
    char *slash = strrchr(path, '/');
    memcpy(slash + 1, LAUNCHER, sizeof LAUNCHER);
    return strdup(path);
}

static enum err copy_paths(const char *const *list, const char *what, json_t *out,
                           struct error *e)
{
    for (; list && *list; list++) {
        if (what && **list != '/')
            return err_set(e, ERR_INVAL, "%s: \"%.120s\" is not an absolute path", what, *list);
        if (json_array_append_new(out, json_string(*list)) != 0)
            return err_set(e, ERR_INVAL, "%s: cannot use \"%.120s\"", what ? what : "layer",
                           *list);
    }
    return OK;
}

static void set_limits(struct tools *t, const struct tools_config *c)
{
    t->timeout_ms = (uint32_t)or_default(c->timeout_ms, 120 * 1000);
    t->max_timeout_ms = (uint32_t)or_default(c->max_timeout_ms, 600 * 1000);
    t->job_timeout_ms = (uint32_t)or_default(c->job_timeout_ms, 3600 * 1000);
    if (t->job_timeout_ms > MAX_JOB_MS)
        t->job_timeout_ms = MAX_JOB_MS;
    t->may_fetch = c->may_fetch;
    t->max_processes = (uint32_t)or_default(c->max_processes, 512);
    t->output_bytes = or_default(c->output_bytes, 32 << 10);
    t->max_output_bytes = or_default(c->max_output_bytes, 256 << 20);
    t->max_file_bytes = or_default(c->max_file_bytes, 4ULL << 30);
    if (t->output_bytes < MIN_OUTPUT_BYTES)
        t->output_bytes = MIN_OUTPUT_BYTES;
    if (t->timeout_ms > t->max_timeout_ms)
        t->timeout_ms = t->max_timeout_ms;
}

enum err tools_open(const struct tools_config *config, struct tools **out, struct error *e)
{
    struct tools *t = calloc(1, sizeof *t);
    if (!t)
        return err_set(e, ERR_NOMEM, "tools: no memory");
    set_limits(t, config);
    t->hidden = json_array();
    t->read_paths = json_array();
    t->without = json_array();
    t->fetch_networks = json_array();
    t->launcher = config->launcher ? strdup(config->launcher) : find_launcher();
    enum err rc = copy_paths(config->hidden, "hidden path", t->hidden, e);
    if (!rc)
        rc = copy_paths(config->read_paths, "read path", t->read_paths, e);
    if (!rc)
        rc = copy_paths(config->without, NULL, t->without, e);
    if (!rc)
        rc = copy_paths(config->fetch_networks, NULL, t->fetch_networks, e);
    if (!rc && !t->launcher)
        rc = err_set(e, ERR_NOMEM, "tools: where the launcher is");
    if (rc) {
        tools_close(t);
        return rc;
    }
    scratch_sweep();
    *out = t;
    return OK;
}

void tools_close(struct tools *t)
{
    if (!t)
        return;
    json_decref(t->hidden);
    json_decref(t->read_paths);
    json_decref(t->without);
    json_decref(t->fetch_networks);
    free(t->launcher);
    free(t);
}

enum err tools_ready(const struct tools *t, struct error *e)
{
    if (access(t->launcher, X_OK) == 0)
        return OK;
    return err_set(e, ERR_NOTFOUND, "tools: no launcher %.180s", t->launcher);
}

bool tools_may_fetch(const struct tools *t)
{
    return t->may_fetch;
}

static uint64_t now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

enum err tools_probe(struct tools *t, enum tool_mode mode, const char *workspace, json_t **out,
                     struct error *e)
{
    json_t *none = json_object();
    struct tool_call call = {.name = LAUNCH_PROBE,
                             .arguments = none,
                             .workspace = workspace,
                             .mode = mode,
                             .timeout_ms = 5000};
    struct tool_run *run;
    enum err rc = tools_ready(t, e);
    if (!rc)
        rc = tool_run_launch(t, &call, now_ms(), &run, e);
    json_decref(none);
    if (rc)
        return rc;
    while (!tool_run_step(run, now_ms(), NULL)) {
        struct tool_run_fds fds = tool_run_fds(run);
        struct pollfd p[] = {
            {fds.out_fd, POLLIN, 0}, {fds.status_fd, POLLIN, 0}, {fds.pidfd, POLLIN, 0}};
        poll(p, 3, (int)tool_run_wait_ms(run, now_ms()));
        tool_run_timeout(run, now_ms());
    }
    struct tool_result r;
    tool_run_take(run, &r);
    tool_run_free(run);
    if (r.is_error)
        rc = err_set(e, ERR_DENIED, "%.200s", buf_str(&r.text));
    else
        *out = json_incref(r.layers);
    tool_result_fini(&r);
    return rc;
}

bool tools_owns_pid(int pid, int self)
{
    for (int hops = 0; hops < MAX_PARENTS; hops++) {
        pid_t parent = pid > 0 ? reap_parent(pid) : 1;
        if (parent == self)
            return true;
        if (parent == 0 && pid != 1) /* gone meanwhile */
            return true;
        if (pid <= 1 || parent <= 1)
            return false;
        pid = parent;
    }
    return true;
}
