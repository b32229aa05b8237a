#include "tests/support/agentctl.h"

#include <fcntl.h>
#include <libgen.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/test.h"

#define MAX_ARGS 24

/* A binary beside the running test: BUILD/tests/FOLDER/test_NAME. */
static void find_beside(const char *program, char *path, size_t cap)
{
    char self[4096];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    assert_true(n > 0);
    self[n] = 0;
    snprintf(path, cap, "%s/%s", dirname(dirname(dirname(self))), program);
}

static int temp_file(void)
{
    char path[] = "/tmp/agentctl-XXXXXX";
    int fd = mkostemp(path, O_CLOEXEC);
    assert_true(fd >= 0);
    unlink(path);
    return fd;
}

static struct agentctl_run start(const char *program, const char *const *argv)
{
    const char *args[MAX_ARGS] = {program};
    char path[4200];
    struct agentctl_run run = {.out = temp_file(), .err = temp_file()};
    if (program[0] == '/')
        snprintf(path, sizeof path, "%s", program);
    else
        find_beside(program, path, sizeof path);
    for (size_t i = 0; argv[i] && i < MAX_ARGS - 2; i++)
        args[i + 1] = argv[i];
    run.pid = fork();
    assert_true(run.pid >= 0);
    if (run.pid)
        return run;
    int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
    dup2(null, 0);
    dup2(run.out, 1);
    dup2(run.err, 2);
    execv(path, (char *const *)(uintptr_t)args);
    _exit(99);
}

struct agentctl_run agentctl_start(const char *const *argv)
{
    return start("agentctl", argv);
}

static void read_back(int fd, char *text)
{
    ssize_t n = pread(fd, text, AGENTCTL_OUTPUT - 1, 0);
    assert_true(n >= 0);
    text[n] = 0;
    close(fd);
}

const struct agentctl_ran *agentctl_finish(struct agentctl_run *run)
{
    static struct agentctl_ran r;
    int status;
    assert_int_equal(waitpid(run->pid, &status, 0), run->pid);
    r.code = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
    read_back(run->out, r.out);
    read_back(run->err, r.err);
    return &r;
}

const struct agentctl_ran *agentctl_run(const char *const *argv)
{
    struct agentctl_run run = agentctl_start(argv);
    return agentctl_finish(&run);
}

const struct agentctl_ran *agentd_run(const char *const *argv)
{
    struct agentctl_run run = start("agentd", argv);
    return agentctl_finish(&run);
}

const struct agentctl_ran *program_run(const char *program, const char *const *argv)
{
    struct agentctl_run run = start(program, argv);
    return agentctl_finish(&run);
}

void assert_has(const char *text, const char *part)
{
    if (!strstr(text, part))
        fail_msg("no \"%s\" in: %s", part, text);
}

void assert_lacks(const char *text, const char *part)
{
    if (strstr(text, part))
        fail_msg("\"%s\" in: %s", part, text);
}
