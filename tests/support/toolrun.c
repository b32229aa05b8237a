#include "tests/support/toolrun.h"

#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tests/support/test.h"

uint64_t toolrun_now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

/* build/[VARIANT/]agentd-tool, from build/[VARIANT/]tests/tools/test_x. */
static void launcher_path(char out[PATH_MAX])
{
    ssize_t n = readlink("/proc/self/exe", out, PATH_MAX - 32);
    assert_true(n > 0);
    out[n] = '\0';
    char *tests = NULL;
    for (char *p = out; (p = strstr(p, "/tests/")); p++)
        tests = p;
    assert_non_null(tests);
    memcpy(tests, "/agentd-tool", sizeof "/agentd-tool");
}

static void make_secret(const struct toolrun *t)
{
    char path[128];
    assert_int_equal(mkdir(t->secret, 0700), 0);
    snprintf(path, sizeof path, "%s/key", t->secret);
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    assert_int_equal(write(fd, "SECRETKEY\n", 10), 10);
    close(fd);
}

void toolrun_open(struct toolrun *t, const struct tools_config *config)
{
    char launcher[PATH_MAX];
    struct error e;
    *t = (struct toolrun){.mode = TOOL_MODE_WORKSPACE_WRITE};
    snprintf(t->dir, sizeof t->dir, "/tmp/agentd-toolrun.XXXXXX");
    assert_non_null(mkdtemp(t->dir));
    assert_int_equal(chmod(t->dir, 0755), 0);
    snprintf(t->ws, sizeof t->ws, "%s/ws", t->dir);
    snprintf(t->spill, sizeof t->spill, "%s/spill", t->dir);
    snprintf(t->secret, sizeof t->secret, "%s/secret", t->dir);
    assert_int_equal(mkdir(t->ws, 0755), 0);
    assert_int_equal(mkdir(t->spill, 0755), 0);
    make_secret(t);
    launcher_path(launcher);
    const char *hidden[] = {t->secret, NULL};
    struct tools_config c = config ? *config : (struct tools_config){0};
    c.launcher = launcher;
    c.hidden = hidden;
    if (tools_open(&c, &t->tools, &e))
        fail_msg("%s", e.msg);
}

void toolrun_close(struct toolrun *t)
{
    tools_close(t->tools);
    pid_t pid = fork();
    if (pid == 0) {
        execl("/bin/rm", "rm", "-rf", t->dir, (char *)NULL);
        _exit(127);
    }
    waitpid(pid, NULL, 0);
}

static json_t *parse(const char *arguments)
{
    AUTO_FREE char *text = strdup(arguments);
    for (char *p = text; *p; p++)
        if (*p == '\'')
            *p = '"';
    json_error_t why;
    json_t *v = json_loads(text, JSON_ALLOW_NUL, &why);
    if (!v)
        fail_msg("%s: %s", arguments, why.text);
    return v;
}

static struct tool_run *start(struct toolrun *t, const char *name, json_t *arguments)
{
    char spill[128];
    struct error e;
    struct tool_run *run = NULL;
    snprintf(spill, sizeof spill, "%s/%u.out", t->spill, t->n_calls++);
    struct tool_call call = {.name = name,
                             .arguments = arguments,
                             .workspace = t->ws,
                             .mode = t->mode,
                             .spill_path = spill};
    if (tool_run_start(t->tools, &call, toolrun_now_ms(), &run, &e))
        fail_msg("%s: %s", name, e.msg);
    json_decref(arguments);
    return run;
}

struct tool_run *toolrun_start(struct toolrun *t, const char *name, const char *arguments)
{
    return start(t, name, parse(arguments));
}

void toolrun_finish(struct tool_run *run, uint64_t limit_ms, struct tool_result *out)
{
    uint64_t begin = toolrun_now_ms();
    while (!tool_run_step(run, toolrun_now_ms(), NULL)) {
        struct tool_run_fds fds = tool_run_fds(run);
        struct pollfd p[] = {
            {fds.out_fd, POLLIN, 0}, {fds.status_fd, POLLIN, 0}, {fds.pidfd, POLLIN, 0}};
        uint32_t wait = tool_run_wait_ms(run, toolrun_now_ms());
        poll(p, 3, wait > 100 ? 100 : (int)wait);
        tool_run_timeout(run, toolrun_now_ms());
        if (toolrun_now_ms() - begin > limit_ms) {
            tool_run_free(run);
            fail_msg("the tool took longer than %llu ms", (unsigned long long)limit_ms);
        }
    }
    tool_run_take(run, out);
    tool_run_free(run);
}

void toolrun_call(struct toolrun *t, const char *name, const char *arguments,
                  struct tool_result *out)
{
    toolrun_finish(toolrun_start(t, name, arguments), 20000, out);
}

void toolrun_bash(struct toolrun *t, const char *command, struct tool_result *out)
{
    toolrun_finish(start(t, "run", json_pack("{s:s}", "command", command)), 20000, out);
}

bool toolrun_layer(const struct tool_result *r, const char *layer, const char *prefix)
{
    const char *text = json_string_value(json_object_get(r->layers, layer));
    return text && !strncmp(text, prefix, strlen(prefix));
}
