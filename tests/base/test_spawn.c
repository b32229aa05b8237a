/* base/spawn: what a child gets and what it does not, failures, waiting, dying with its parent.
 */
#include "tests/support/test.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/fs.h"
#include "base/spawn.h"
#include "tests/support/tempdir.h"

/* The probe lies one folder above this test program. */
static int use_build_folder(void **state)
{
    (void)state;
    const char *build = getenv("AGENTD_BUILD");
    char path[FS_PATH_BYTES], absolute[FS_PATH_BYTES + 8];
    snprintf(path, sizeof path, "%s/tests", build ? build : "build");
    assert_non_null(realpath(path, absolute));
    setenv("AGENTD_LIBEXEC", absolute, 1);
    return 0;
}

/* Runs the probe with its stdout in `out`; returns the wait status. */
static int run_probe(struct spawn_options *o, const char *const *argv, struct buf *out)
{
    struct error e = {0};
    struct spawn child = SPAWN_INIT;
    int fds[2], status = -1;
    assert_int_equal(pipe2(fds, O_CLOEXEC), 0);
    struct spawn_fd map[4] = {{fds[1], 1}};
    for (size_t i = 0; i < o->n_fds; i++)
        map[i + 1] = o->fds[i];
    o->fds = map;
    o->n_fds++;
    o->argv = argv;
    assert_ok(spawn_start(o, &child, &e), &e);
    close(fds[1]);
    assert_ok(fs_read_fd(fds[0], "probe", out, &e), &e);
    close(fds[0]);
    assert_ok(spawn_wait(&child, 10000, &status, &e), &e);
    assert_int_equal(child.pid, -1);
    return status;
}

static void test_child_gets_what_is_mapped(void **state)
{
    (void)state;
    const char *const argv[] = {"spawn_probe", "report", "two words", NULL};
    const char *const envp[] = {"SPAWN_PROBE=yes", NULL};
    AUTO(buf) struct buf out = BUF_INIT(1 << 16);
    AUTO_FD int inherited = open("/", O_RDONLY); /* not close-on-exec: must not arrive */
    AUTO_FD int high = fcntl(inherited, F_DUPFD, 700);
    assert_true(inherited >= 0 && high >= 700);
    struct spawn_fd fds[] = {{inherited, 9}};
    struct spawn_options o = {
        .envp = envp, .cwd = "/", .fds = fds, .n_fds = 1, .new_group = true};
    signal(SIGUSR1, SIG_IGN);
    sigset_t block, old;
    sigemptyset(&block);
    sigaddset(&block, SIGUSR2);
    sigprocmask(SIG_BLOCK, &block, &old);
    int status = run_probe(&o, argv, &out);
    sigprocmask(SIG_SETMASK, &old, NULL);
    signal(SIGUSR1, SIG_DFL);
    assert_int_equal(WEXITSTATUS(status), 7);
    assert_string_equal(buf_str(&out), "fd 0 /dev/null\nfd 1 open\nfd 2 /dev/null\nfd 9 open\n"
                                       "cwd /\nleader 1\narg spawn_probe\narg report\n"
                                       "arg two words\nenv yes\n");
}

static void test_descriptors_may_swap(void **state)
{
    (void)state;
    const char *const argv[] = {"spawn_probe", "report", NULL};
    AUTO(buf) struct buf out = BUF_INIT(1 << 16);
    AUTO_FD int a = open("/", O_RDONLY | O_CLOEXEC), b = open("/dev/null", O_RDWR | O_CLOEXEC);
    AUTO_FD int ten = fcntl(a, F_DUPFD_CLOEXEC, 20), eleven = fcntl(b, F_DUPFD_CLOEXEC, 30);
    close(b);
    struct spawn_fd fds[] = {{ten, eleven}, {eleven, ten}};
    struct spawn_options o = {.fds = fds, .n_fds = 2};
    unsetenv("SPAWN_PROBE");
    run_probe(&o, argv, &out);
    char want[64];
    snprintf(want, sizeof want, "fd %d /dev/null\nfd %d open\ncwd", ten, eleven);
    assert_non_null(strstr(buf_str(&out), want));
    assert_non_null(strstr(buf_str(&out), "leader 0\n"));
    assert_non_null(strstr(buf_str(&out), "env none\n"));
}

static void test_failures_leave_nothing(void **state)
{
    (void)state;
    struct error e = {0};
    struct spawn child = SPAWN_INIT;
    const char *const missing[] = {"no_such_binary", NULL};
    const char *const slash[] = {"../bin/sh", NULL}, *const empty[] = {"", NULL};
    const char *const probe[] = {"spawn_probe", "sleep", NULL};
    struct spawn_options o = {.argv = missing};
    assert_int_equal(spawn_start(&o, &child, &e), ERR_NOTFOUND);
    assert_non_null(strstr(e.msg, "/no_such_binary"));
    o.argv = slash;
    assert_int_equal(spawn_start(&o, &child, &e), ERR_INVAL);
    o.argv = empty;
    assert_int_equal(spawn_start(&o, &child, &e), ERR_INVAL);
    o.argv = probe;
    o.cwd = "/nonexistent";
    assert_int_equal(spawn_start(&o, &child, &e), ERR_NOTFOUND);
    assert_non_null(strstr(e.msg, "chdir"));
    o.cwd = NULL;
    struct spawn_fd bad = {999, 5};
    o.fds = &bad;
    o.n_fds = 1;
    assert_int_equal(spawn_start(&o, &child, &e), ERR_IO);
    bad = (struct spawn_fd){1, -1};
    assert_int_equal(spawn_start(&o, &child, &e), ERR_INVAL);
    assert_int_equal(child.pid, -1);
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1); /* no child at all */
}

static void test_a_file_that_is_no_program(void **state)
{
    (void)state;
    struct error e = {0};
    struct spawn child = SPAWN_INIT;
    char dir[TEMPDIR_BYTES], path[128], old[FS_PATH_BYTES];
    tempdir_make(dir);
    snprintf(path, sizeof path, "%s/text", dir);
    assert_ok(fs_write_atomic(path, "hello", 5, 0700, &e), &e);
    snprintf(old, sizeof old, "%s", getenv("AGENTD_LIBEXEC"));
    setenv("AGENTD_LIBEXEC", dir, 1);
    const char *const argv[] = {"text", NULL};
    struct spawn_options o = {.argv = argv};
    assert_int_equal(spawn_start(&o, &child, &e), ERR_IO);
    assert_non_null(strstr(e.msg, "exec: Exec format error"));
    setenv("AGENTD_LIBEXEC", old, 1);
    tempdir_remove(dir);
}

static void test_wait_and_signal(void **state)
{
    (void)state;
    struct error e = {0};
    struct spawn child = SPAWN_INIT;
    const char *const argv[] = {"spawn_probe", "sleep", NULL};
    struct spawn_options o = {.argv = argv};
    int status;
    assert_ok(spawn_start(&o, &child, &e), &e);
    assert_int_equal(spawn_wait(&child, 1, &status, &e), ERR_TIMEOUT);
    assert_ok(spawn_signal(&child, SIGTERM, &e), &e);
    assert_ok(spawn_wait(&child, 10000, &status, &e), &e);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM);
    assert_ok(spawn_signal(&child, SIGTERM, &e), &e);
    spawn_fini(&child);
    /* A child that still runs is killed with its handle. */
    assert_ok(spawn_start(&o, &child, &e), &e);
    pid_t pid = child.pid;
    spawn_fini(&child);
    assert_int_equal(kill(pid, 0), -1);
}

static void test_500_children_leave_no_descriptor(void **state)
{
    (void)state;
    struct error e = {0};
    const char *const argv[] = {"spawn_probe", "sleep", NULL};
    struct spawn_options o = {.argv = argv};
    int before = dup(0);
    close(before);
    for (int i = 0; i < (getenv("AGENTD_SLOW") ? 500 : 50); i++) {
        struct spawn child = SPAWN_INIT;
        assert_ok(spawn_start(&o, &child, &e), &e);
        spawn_fini(&child);
    }
    int after = dup(0);
    close(after);
    assert_int_equal(after, before);
}

static void test_dies_with_its_parent(void **state)
{
    (void)state;
    struct error e = {0};
    struct spawn parent = SPAWN_INIT;
    const char *const argv[] = {"spawn_probe", "parent", NULL};
    int fds[2], status, grandchild = 0;
    assert_int_equal(pipe2(fds, O_CLOEXEC), 0);
    struct spawn_fd map = {fds[1], 1};
    struct spawn_options o = {.argv = argv, .fds = &map, .n_fds = 1};
    assert_ok(spawn_start(&o, &parent, &e), &e);
    close(fds[1]);
    char line[32] = "";
    assert_true(read(fds[0], line, sizeof line - 1) > 0);
    close(fds[0]);
    assert_int_equal(sscanf(line, "%d", &grandchild), 1);
    int pidfd = (int)syscall(SYS_pidfd_open, grandchild, 0);
    assert_true(pidfd >= 0);
    assert_ok(spawn_signal(&parent, SIGKILL, &e), &e);
    assert_ok(spawn_wait(&parent, 10000, &status, &e), &e);
    struct pollfd p = {.fd = pidfd, .events = POLLIN};
    assert_int_equal(poll(&p, 1, 10000), 1);
    close(pidfd);
}

static void test_find_beside_the_binary(void **state)
{
    (void)state;
    struct error e = {0};
    char path[FS_PATH_BYTES], old[FS_PATH_BYTES];
    snprintf(old, sizeof old, "%s", getenv("AGENTD_LIBEXEC"));
    unsetenv("AGENTD_LIBEXEC");
    assert_ok(spawn_find("test_spawn", path, sizeof path, &e), &e);
    assert_int_equal(path[0], '/');
    assert_int_equal(spawn_find("spawn_probe", path, sizeof path, &e), ERR_NOTFOUND);
    setenv("AGENTD_LIBEXEC", old, 1);
}

/* ---- copies of the process -------------------------------------------------------------- */

static int seen_by_all = 1;

static enum err change_and_tell(void *user, struct buf *out, struct error *e)
{
    seen_by_all++;
    return buf_printf(out, e, "%s%d", (const char *)user, seen_by_all);
}

static enum err fail_halfway(void *user, struct buf *out, struct error *e)
{
    (void)user;
    enum err rc = buf_add_str(out, "half", e);
    return rc ? rc : err_set(e, ERR_LIMIT, "no further than here");
}

static enum err die(void *user, struct buf *out, struct error *e)
{
    (void)user, (void)out, (void)e;
    kill(getpid(), SIGKILL);
    return OK;
}

static void test_a_copy_changes_nothing_here(void **state)
{
    (void)state;
    struct error e = {0};
    AUTO(buf) struct buf out = BUF_INIT(64);
    char have[] = "have ";
    assert_ok(spawn_copy(change_and_tell, have, &out, &e), &e);
    assert_ok(spawn_copy(change_and_tell, have, &out, &e), &e);
    assert_string_equal(buf_str(&out), "have 2have 2");
    assert_int_equal(seen_by_all, 1);
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1); /* none is left */
}

static void test_a_copy_that_fails(void **state)
{
    (void)state;
    struct error e = {0};
    AUTO(buf) struct buf out = BUF_INIT(64);
    assert_ok(buf_add_str(&out, "before", &e), &e);
    assert_int_equal(spawn_copy(fail_halfway, NULL, &out, &e), ERR_LIMIT);
    assert_string_equal(e.msg, "no further than here");
    assert_int_equal(spawn_copy(die, NULL, &out, &e), ERR_CORRUPT);
    assert_non_null(strstr(e.msg, "status 0x9"));
    assert_string_equal(buf_str(&out), "before");
}

static void *wait_for_byte(void *fd)
{
    char byte;
    return read(*(int *)fd, &byte, 1) < 0 ? fd : NULL;
}

static void test_no_copy_of_two_threads(void **state)
{
    (void)state;
    struct error e = {0};
    AUTO(buf) struct buf out = BUF_INIT(64);
    char have[] = "";
    int fds[2];
    pthread_t other;
    assert_int_equal(pipe2(fds, O_CLOEXEC), 0);
    assert_int_equal(pthread_create(&other, NULL, wait_for_byte, &fds[0]), 0);
    assert_int_equal(spawn_copy(change_and_tell, have, &out, &e), ERR_UNSUPPORTED);
    assert_int_equal(out.len, 0);
    close(fds[1]);
    pthread_join(other, NULL);
    close(fds[0]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_child_gets_what_is_mapped),
        cmocka_unit_test(test_descriptors_may_swap),
        cmocka_unit_test(test_failures_leave_nothing),
        cmocka_unit_test(test_a_file_that_is_no_program),
        cmocka_unit_test(test_wait_and_signal),
        cmocka_unit_test(test_500_children_leave_no_descriptor),
        cmocka_unit_test(test_dies_with_its_parent),
        cmocka_unit_test(test_find_beside_the_binary),
        cmocka_unit_test(test_a_copy_changes_nothing_here),
        cmocka_unit_test(test_a_copy_that_fails),
        cmocka_unit_test(test_no_copy_of_two_threads),
    };
    return !!cmocka_run_group_tests(tests, use_build_folder, NULL);
}
