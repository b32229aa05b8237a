#include "tests/support/terminal.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdbool.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

#include "tests/support/test.h"

#define PATIENCE_MS 20000

static void child(const char *name, int out, const char *const *argv)
{
    const char *build = getenv("AGENTD_BUILD");
    const char *all[32] = {"agentctl"};
    char binary[256];

    for (size_t i = 0; argv[i] && i + 2 < sizeof all / sizeof *all; i++)
        all[i + 1] = argv[i];
    setsid();
    int fd = open(name, O_RDWR);
    if (fd < 0 || ioctl(fd, TIOCSCTTY, 0))
        _exit(126);
    dup2(fd, STDIN_FILENO);
    dup2(out >= 0 ? out : fd, STDOUT_FILENO);
    dup2(fd, STDERR_FILENO);
    snprintf(binary, sizeof binary, "%s/agentctl", build ? build : "build");
    execv(binary, (char *const *)(uintptr_t)all);
    _exit(127);
}

void terminal_start(struct terminal *t, enum terminal_stdout out, const char *const *argv)
{
    char file[] = "/tmp/agentd-terminal-XXXXXX";

    *t = (struct terminal){.master = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC), .out = -1};
    assert_true(t->master >= 0);
    assert_int_equal(grantpt(t->master), 0);
    assert_int_equal(unlockpt(t->master), 0);
    if (out == STDOUT_FILE) {
        t->out = mkstemp(file);
        assert_true(t->out >= 0);
        unlink(file);
    }
    const char *name = ptsname(t->master);
    assert_non_null(name);
    t->pid = fork();
    assert_true(t->pid >= 0);
    if (t->pid == 0)
        child(name, t->out, argv);
}

/* Whatever comes within so much time; false at the end of all. */
static bool read_some(struct terminal *t, int ms)
{
    struct pollfd p = {.fd = t->master, .events = POLLIN};

    if (poll(&p, 1, ms) <= 0)
        return true;
    assert_true(t->n + 1 < sizeof t->seen);
    ssize_t n = read(t->master, t->seen + t->n, sizeof t->seen - t->n - 1);
    if (n <= 0)
        return n < 0 && errno == EINTR; /* EIO: nobody has it open any more */
    t->n += (size_t)n;
    t->seen[t->n] = '\0';
    return true;
}

void terminal_until(struct terminal *t, const char *text)
{
    for (int ms = 0; ms < PATIENCE_MS; ms += 20) {
        const char *at = strstr(t->seen + t->mark, text);
        if (at) {
            t->mark = (size_t)(at - t->seen) + strlen(text);
            return;
        }
        if (!read_some(t, 20) && !strstr(t->seen + t->mark, text))
            break;
    }
    fail_msg("\"%s\" does not appear in:\n%s", text, t->seen);
}

void terminal_type(struct terminal *t, const char *keys)
{
    assert_int_equal(write(t->master, keys, strlen(keys)), (ssize_t)strlen(keys));
}

static int reap(struct terminal *t)
{
    int status = 0;

    for (int ms = 0; waitpid(t->pid, &status, WNOHANG) == 0; ms += 10) {
        if (ms > PATIENCE_MS)
            fail_msg("agentctl does not end:\n%s", t->seen);
        nanosleep(&(struct timespec){0, 10000000}, NULL);
    }
    if (t->out >= 0) {
        ssize_t n = pread(t->out, t->result, sizeof t->result - 1, 0);
        assert_true(n >= 0);
        t->result[n] = '\0';
        close(t->out);
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

int terminal_end(struct terminal *t)
{
    for (int ms = 0; read_some(t, 20); ms += 20)
        if (ms > PATIENCE_MS * 2)
            fail_msg("agentctl does not end:\n%s", t->seen);
    int code = reap(t);
    close(t->master);
    return code;
}

int terminal_close(struct terminal *t)
{
    close(t->master);
    return reap(t);
}
