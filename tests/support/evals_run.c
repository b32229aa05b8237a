#include "tests/support/evals_run.h"

#include <fcntl.h>
#include <sys/wait.h>

#include "base/fs.h"
#include "base/json.h"
#include "base/spawn.h"
#include "tests/support/test.h"

#define MAX_ARGS 24

int evals_run(const char *const *args, const char *log, int limit_ms)
{
    const char *argv[MAX_ARGS] = {"agentd-evals"};
    int n = 1, status = 0;
    for (; *args; args++) {
        assert_true(n < MAX_ARGS - 1);
        argv[n++] = *args;
    }
    struct error e = {0};
    AUTO_FD int fd = open(log, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    const struct spawn_fd fds[] = {{fd, 1}, {fd, 2}};
    const struct spawn_options o = {.argv = argv, .fds = fds, .n_fds = 2};
    struct spawn child = SPAWN_INIT;
    assert_ok(spawn_start(&o, &child, &e), &e);
    assert_ok(spawn_wait(&child, limit_ms, &status, &e), &e);
    spawn_fini(&child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

json_t *evals_read_json(const char *dir, const char *name)
{
    static const struct json_limits limits = {.max_bytes = 1 << 24, .max_depth = 16};
    char path[256];
    struct error e = {0};
    json_t *j = NULL;
    AUTO(buf) struct buf text = BUF_INIT(1 << 24);
    snprintf(path, sizeof path, "%s/%s", dir, name);
    assert_ok(fs_read_file(path, &text, &e), &e);
    assert_ok(json_parse(buf_str(&text), text.len, &limits, &j, &e), &e);
    return j;
}
