#include "tests/support/toolrun.h"

#include <ctype.h>
#include <dirent.h>
#include <fcntl.h>
#include <grp.h>
#include <limits.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/auto.h"
#include "tests/support/test.h"

uint64_t toolrun_now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

/* build/[VARIANT/]agentd-tool, from build/[VARIANT/]tests/tools/test_x; or the copy that a
 * plain user can reach. */
static void launcher_path(char out[PATH_MAX])
{
    if (getenv("TOOLRUN_LAUNCHER")) {
        snprintf(out, PATH_MAX, "%s", getenv("TOOLRUN_LAUNCHER"));
        return;
    }
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

struct tool_run *toolrun_start_bash(struct toolrun *t, const char *command)
{
    return start(t, "run", json_pack("{s:s}", "command", command));
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
    toolrun_finish(toolrun_start_bash(t, command), 20000, out);
}

/* ---- as a plain user ---- */

#define PLAIN_ID 65534

/* Copies the launcher to where everybody may execute it. */
static void publish_launcher(char folder[64], char path[96])
{
    char from[PATH_MAX];
    launcher_path(from);
    snprintf(folder, 64, "/tmp/agentd-launcher.XXXXXX");
    assert_non_null(mkdtemp(folder));
    assert_int_equal(chmod(folder, 0755), 0);
    snprintf(path, 96, "%s/agentd-tool", folder);
    pid_t pid = fork();
    if (pid == 0) {
        execl("/bin/cp", "cp", from, path, (char *)NULL);
        _exit(127);
    }
    waitpid(pid, NULL, 0);
    assert_int_equal(chmod(path, 0755), 0);
}

static int run_as_plain(int (*group)(void), const char *launcher)
{
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        setenv("TOOLRUN_LAUNCHER", launcher, 1);
        if (chdir("/") != 0 || setgroups(0, NULL) != 0 ||
            setresgid(PLAIN_ID, PLAIN_ID, PLAIN_ID) != 0 ||
            setresuid(PLAIN_ID, PLAIN_ID, PLAIN_ID) != 0)
            _exit(1);
        prctl(PR_SET_DUMPABLE, 1);
        int rc = !!group();
        fflush(NULL);
        _exit(rc);
    }
    int status = 1;
    waitpid(pid, &status, 0);
    return status != 0;
}

int toolrun_as_both(int (*group)(void))
{
    char folder[64], launcher[96];
    int failed = !!group();
    if (geteuid() != 0)
        return failed;
    publish_launcher(folder, launcher);
    failed |= run_as_plain(group, launcher);
    unlink(launcher);
    rmdir(folder);
    return failed;
}

bool toolrun_is_plain_user(void)
{
    return geteuid() != 0;
}

/* ---- looking around ---- */

/* The command line of a process, its arguments divided by NULs; 0 bytes when it is gone. */
static size_t command_line(const char *pid, char out[4096])
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%.20s/cmdline", pid);
    AUTO_FD int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? 0 : read(fd, out, 4095);
    out[n > 0 ? n : 0] = '\0';
    return n > 0 ? (size_t)n : 0;
}

static unsigned count_now(const char *marker)
{
    unsigned n = 0;
    char text[4096];
    DIR *dir = opendir("/proc");
    for (struct dirent *d; dir && (d = readdir(dir));) {
        if (!isdigit((unsigned char)d->d_name[0]) || strtol(d->d_name, NULL, 10) == getpid())
            continue;
        size_t len = command_line(d->d_name, text);
        n += memmem(text, len, marker, strlen(marker)) != NULL;
    }
    if (dir)
        closedir(dir);
    return n;
}

unsigned toolrun_count_processes(const char *marker)
{
    unsigned n = 0;
    for (int i = 0; i < 300 && (n = count_now(marker)) > 0; i++)
        nanosleep(&(struct timespec){.tv_nsec = 10 * 1000 * 1000}, NULL);
    return n;
}

pid_t toolrun_find_process(const char *name)
{
    pid_t found = 0;
    char text[4096];
    DIR *dir = opendir("/proc");
    for (struct dirent *d; dir && !found && (d = readdir(dir));)
        if (isdigit((unsigned char)d->d_name[0]) && command_line(d->d_name, text) > 0 &&
            !strcmp(text, name))
            found = (pid_t)strtol(d->d_name, NULL, 10);
    if (dir)
        closedir(dir);
    return found;
}

bool toolrun_layer(const struct tool_result *r, const char *layer, const char *prefix)
{
    const char *text = json_string_value(json_object_get(r->layers, layer));
    return text && !strncmp(text, prefix, strlen(prefix));
}

int toolrun_listen_unix(const char *path)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    snprintf(a.sun_path, sizeof a.sun_path, "%s", path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&a, sizeof a), 0);
    assert_int_equal(chmod(path, 0777), 0);
    assert_int_equal(listen(fd, 16), 0);
    return fd;
}

int toolrun_listen_tcp(int *port)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t n = sizeof a;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&a, sizeof a), 0);
    assert_int_equal(listen(fd, 16), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&a, &n), 0);
    *port = ntohs(a.sin_port);
    return fd;
}
