/* agentctl against a real daemon with the scripted engine: a session's life from the command
 * line, through a SIGKILL. */
#include "tests/support/test.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "agentd/verbs.h"
#include "base/auto.h"
#include "base/buf.h"
#include "base/fs.h"
#include "tests/support/agentctl.h"
#include "tests/support/daemon.h"

#define CALL(tool)                                                                             \
    "{\"text\":\"let me see</think>\\n\\n<｜DSML｜ calls>\\n<｜DSML｜ invoke name=\\\"" tool   \
    "\\\">\\n</｜DSML｜ invoke>\\n</｜DSML｜ calls>\"}\n"

static void make(struct daemon_fixture *d, const char *script)
{
    daemon_make(d, script);
    daemon_start(d, NULL);
    setenv("AGENTD_SOCKET", d->socket, 1);
}

static void test_life(void **state)
{
    (void)state;
    struct daemon_fixture d;
    make(&d, CALL("list_dir") "{\"text\":\"so</think>It is empty.\"}\n"
                              "{\"text\":\"so</think>Still empty.\"}\n");
    const struct agentctl_ran *r =
        AGENTCTL("run", "-n", "first", "-C", d.work, "--tools", "list_dir", "What is here?");
    assert_int_equal(r->code, EXIT_DONE);
    assert_string_equal(r->out, "It is empty.\n");
    assert_has(r->err, "→ list_dir {}");
    r = AGENTCTL("ps", "-a");
    assert_has(r->out, "idle: end");
    assert_int_equal(AGENTCTL("run", "-n", "first", "-C", d.work, "again")->code,
                     EXIT_CONFLICT);
    r = AGENTCTL("fork", "first", "-n", "second");
    assert_int_equal(r->code, EXIT_DONE);
    assert_string_equal(r->out, "second\n");
    daemon_kill(&d);
    assert_int_equal(AGENTCTL("ps")->code, EXIT_NO_DAEMON);
    daemon_start(&d, NULL);
    r = AGENTCTL("send", "fir", "And now?", "--json");
    assert_int_equal(r->code, EXIT_DONE);
    json_auto_t *waited = json_loads(r->out, 0, NULL);
    const json_t *resume = json_object_get(waited, "resume");
    assert_string_equal(json_string_value(json_object_get(waited, "text")), "Still empty.");
    assert_string_equal(json_string_value(json_object_get(resume, "mode")), "exact");
    assert_int_equal(json_integer_value(json_object_get(resume, "recomputed")), 0);
    r = AGENTCTL("verify", "first");
    assert_int_equal(r->code, EXIT_DONE);
    assert_has(r->out, "equal: ");
    assert_int_equal(AGENTCTL("verify", "second")->code, EXIT_DONE);
    assert_has(AGENTCTL("usage", "first")->out, "total");
    assert_has(AGENTCTL("logs", "first")->out, "assistant: Still empty.");
    assert_int_equal(AGENTCTL("rename", "second", "third")->code, EXIT_DONE);
    assert_int_equal(AGENTCTL("rm", "--purge", "third")->code, EXIT_DONE);
    assert_int_equal(AGENTCTL("show", "third")->code, EXIT_NOTFOUND);
    r = AGENTCTL("gc");
    assert_int_equal(r->code, EXIT_DONE);
    assert_has(r->out, "extents: 0\n"); /* the purge has left nothing */
    assert_int_equal(AGENTCTL("verify", "first")->code, EXIT_DONE);
    assert_has(AGENTCTL("show", "first")->out, "functions:\n    - list_dir\n");
    assert_has(AGENTCTL("status")->out, "name: script");
    assert_has(AGENTCTL("tools")->out, "read_file");
    daemon_remove(&d);
}

/* A session leaves as a file while its turn runs, comes back, and goes on where it was. */
static void test_bundles(void **state)
{
    (void)state;
    struct daemon_fixture d;
    char file[256], bad[256];
    make(&d, CALL("list_dir") "{\"text\":\"so</think>It is empty.\"}\n"
                              "{\"text\":\"so</think>Still empty.\"}\n"
                              "{\"text\":\"late\",\"stall_ms\":600000}\n");
    snprintf(file, sizeof file, "%s/one.bundle", d.work);
    snprintf(bad, sizeof bad, "%s/bad.bundle", d.work);
    AGENTCTL("run", "-n", "one", "-C", d.work, "--tools", "list_dir", "What is here?");
    const struct agentctl_ran *r = AGENTCTL("export", "one", "-o", file);
    assert_int_equal(r->code, EXIT_DONE);
    assert_has(r->out, "events");
    r = AGENTCTL("import", file, "-C", d.work, "--dry-run");
    assert_int_equal(r->code, EXIT_DONE);
    assert_has(r->out, "would be one-2");
    r = AGENTCTL("import", file, "-C", d.work);
    assert_int_equal(r->code, EXIT_DONE);
    assert_string_equal(r->out, "one-2\n");
    assert_has(AGENTCTL("show", "one-2")->out, "approve: ask");
    assert_int_equal(AGENTCTL("verify", "one-2")->code, EXIT_DONE);
    assert_string_equal(AGENTCTL("send", "one-2", "And now?")->out, "Still empty.\n");
    assert_string_equal(AGENTCTL("send", "one", "And now?")->out, "Still empty.\n");
    r = AGENTCTL("import", file, "-n", "one");
    assert_int_equal(r->code, EXIT_CONFLICT);
    /* In the middle of a turn: the import's is over, and nothing of it goes on. */
    AGENTCTL("send", "-d", "one", "More?");
    while (!strstr(AGENTCTL("ps")->out, "generating"))
        nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
    assert_int_equal(AGENTCTL("export", "one", "-o", file)->code, EXIT_DONE);
    assert_int_equal(AGENTCTL("import", file, "-n", "cut", "-C", d.work)->code, EXIT_DONE);
    assert_has(AGENTCTL("ps", "-a")->out, "idle: cancelled");
    assert_int_equal(AGENTCTL("cancel", "one")->code, EXIT_DONE);
    assert_int_equal(AGENTCTL("send", "-d", "cut", "And then?")->code, EXIT_DONE);
    while (!strstr(AGENTCTL("ps")->out, "cut "))
        nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
    assert_int_equal(AGENTCTL("cancel", "cut")->code, EXIT_DONE);
    assert_int_equal(AGENTCTL("wait", "cut")->code, EXIT_INTERRUPTED);
    assert_int_equal(AGENTCTL("verify", "cut")->code, EXIT_DONE);
    /* What is no bundle, or none to go on from, is refused with its own code. */
    assert_int_equal(AGENTCTL("export", "one", "-o", bad, "--redact")->code, EXIT_DONE);
    r = AGENTCTL("import", bad);
    assert_int_equal(r->code, EXIT_CORRUPT);
    assert_has(r->err, "redacted");
    r = AGENTCTL("import", "Makefile");
    assert_int_equal(r->code, EXIT_CORRUPT);
    assert_has(r->err, "not a zstd frame");
    assert_int_equal(AGENTCTL("import", "nowhere")->code, EXIT_NOTFOUND);
    assert_int_equal(AGENTCTL("export", "one")->code, EXIT_USAGE);
    assert_int_equal(AGENTCTL("export", "nobody", "-o", bad)->code, EXIT_NOTFOUND);
    daemon_remove(&d);
}

/* Two clients wait for one turn that does not end by itself; one gives up, the other cancels.
 */
static void test_cancel(void **state)
{
    (void)state;
    static const char *const send[] = {"send", "one", "hello", NULL};
    struct daemon_fixture d;
    make(&d, "{\"text\":\"so</think>fine\"}\n{\"text\":\"late\",\"stall_ms\":600000}\n");
    assert_int_equal(AGENTCTL("run", "-n", "one", "-C", d.work, "--tools", "", "hi")->code,
                     EXIT_DONE);
    struct agentctl_run run = agentctl_start(send);
    while (!strstr(AGENTCTL("ps")->out, "generating"))
        nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
    assert_int_equal(AGENTCTL("wait", "one", "--timeout", "0.2")->code, EXIT_TIMEOUT);
    assert_int_equal(kill(run.pid, SIGINT), 0);
    const struct agentctl_ran *r = agentctl_finish(&run);
    assert_int_equal(r->code, EXIT_INTERRUPTED);
    assert_string_equal(r->out, "");
    assert_has(AGENTCTL("ps", "-a")->out, "idle: cancelled");
    assert_string_equal(AGENTCTL("cancel", "one")->out, "nothing to cancel\n");
    daemon_remove(&d);
}

/* ---- no launcher ------------------------------------------------------------------ */

static void copy_file(const char *from, const char *to)
{
    AUTO(buf) struct buf bytes = BUF_INIT(256u << 20);
    struct error e;
    assert_ok(fs_read_file(from, &bytes, &e), &e);
    int fd = open(to, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0700);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, bytes.data, bytes.len), (ssize_t)bytes.len);
    close(fd);
}

/* A daemon without agentd-tool beside it serves sessions without its tools, with those of a
 * client as well; others are refused, and a call of one that was made before does not run. */
static void test_without_a_launcher(void **state)
{
    (void)state;
    struct daemon_fixture d;
    const char *build = getenv("AGENTD_BUILD") ? getenv("AGENTD_BUILD") : "build";
    char bin[200], from[300], to[300], old[27], id[27];
    daemon_make(&d, CALL("run") "{\"text\":\"ok</think>done\"}\n");
    daemon_start(&d, NULL);
    struct client *c = daemon_connect(&d, NULL, NULL);
    daemon_session(&d, c, "{\"approve\":\"auto\",\"tools\":[\"run\"]}", old);
    client_free(c);
    daemon_stop(&d);
    snprintf(bin, sizeof bin, "%s/bin", d.dir);
    assert_int_equal(mkdir(bin, 0700), 0);
    snprintf(from, sizeof from, "%s/agentd", build);
    snprintf(to, sizeof to, "%s/agentd", bin);
    copy_file(from, to);
    setenv("AGENTD_BUILD", bin, 1);
    daemon_start(&d, NULL);
    if (strcmp(build, "build") != 0)
        setenv("AGENTD_BUILD", build, 1);
    else
        unsetenv("AGENTD_BUILD");
    c = daemon_connect(&d, NULL, NULL);
    assert_int_not_equal(daemon_refused(c, "session/new", json_pack("{s:s}", "cwd", d.work)),
                         0);
    daemon_session(&d, c, "{\"tools\":[]}", id);
    daemon_prompt(c, id, "go");
    json_auto_t *answer = daemon_wait(c, id);
    assert_string_equal(json_string_value(json_object_get(answer, "reason")), "end");
    daemon_prompt(c, old, "go");
    json_auto_t *other = daemon_wait(c, old);
    assert_string_equal(json_string_value(json_object_get(other, "reason")), "end");
    assert_string_equal(json_string_value(json_object_get(other, "text")), "done");
    client_free(c);
    daemon_remove(&d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_life),
        cmocka_unit_test(test_bundles),
        cmocka_unit_test(test_cancel),
        cmocka_unit_test(test_without_a_launcher),
    };
    return !!cmocka_run_group_tests(tests, NULL, NULL);
}
