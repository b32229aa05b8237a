/* What happens to a daemon's store from outside: another daemon wants it, its -wal is removed
 * while nothing runs, its packs are removed while it runs, its folder cannot be written. */
#include "tests/support/test.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/auto.h"
#include "base/buf.h"
#include "base/fs.h"
#include "tests/support/daemon.h"

#define SAY(text) "{\"text\":\"ok</think>" text "<｜end▁of▁sentence｜>\",\"token_ms\":0}\n"
static const char script[] = SAY("one") SAY("two") SAY("three") SAY("four") SAY("five");

static bool log_says(const struct daemon_fixture *d, const char *text)
{
    AUTO(buf) struct buf b = BUF_INIT(1 << 24);
    return fs_read_file(d->log, &b, NULL) == OK && strstr(buf_str(&b), text);
}

/* Starts the daemon again as a plain child, without waiting for it to serve; its exit status.
 */
static int exit_of_second(const struct daemon_fixture *d)
{
    const char *build = getenv("AGENTD_BUILD");
    char binary[256], socket[160];
    int status;
    snprintf(binary, sizeof binary, "%s/agentd", build ? build : "build");
    snprintf(socket, sizeof socket, "%s/second", d->dir);
    pid_t pid = fork();
    if (pid == 0) {
        int fd = open(d->log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
        dup2(fd, 1);
        dup2(fd, 2);
        execl(binary, "agentd", "serve", "--engine", d->script, "--socket", socket, "--store",
              d->store, (char *)NULL);
        _exit(127);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static json_t *say(struct client *c, const char *id, const char *text)
{
    daemon_prompt(c, id, text);
    json_t *a = daemon_wait(c, id);
    assert_string_equal(text_of(a, "reason"), "end");
    return a;
}

/* A turn ends before its state is on the disk. */
static void wait_saved(struct client *c, const char *id)
{
    for (int i = 0; i < 5000; i++) {
        const struct timespec t = {0, 2000000};
        json_auto_t *s = daemon_call(c, "session/get", json_pack("{s:s}", "id", id));
        if (int_of(s, "statePosition") == int_of(s, "tokens"))
            return;
        nanosleep(&t, NULL);
    }
    fail_msg("the state of %s is not saved", id);
}

static void the_second_daemon_refuses(void **state)
{
    (void)state;
    struct daemon_fixture d;
    char id[27];
    daemon_make(&d, script);
    daemon_start(&d, NULL);
    struct client *c = daemon_connect(&d, NULL, NULL);
    daemon_session(&d, c, NULL, id);
    json_decref(say(c, id, "hello"));
    int code = exit_of_second(&d);
    assert_true(code != 0 && code != 127);
    assert_true(log_says(&d, "in use by another process"));
    json_auto_t *a = say(c, id, "still there?");
    assert_string_equal(text_of(a, "text"), "two");
    client_free(c);
    daemon_remove(&d);
}

/* Both sessions have a turn; the first has one more from a daemon with that fault (NULL: none,
 * and its state is saved), which dies, and the -wal goes. The next daemon names it alone, and
 * both go on from their first turn. What it says of its store; to be decref'd. */
static json_t *without_its_wal(const char *fault)
{
    struct daemon_fixture d;
    char id[27], other[27], wal[200], named[80];
    daemon_make(&d, script);
    daemon_start(&d, NULL);
    struct client *c = daemon_connect(&d, NULL, NULL);
    daemon_session(&d, c, NULL, id);
    daemon_session(&d, c, NULL, other);
    json_decref(say(c, id, "hello"));
    json_decref(say(c, other, "hello"));
    client_free(c);
    assert_int_equal(daemon_stop(&d), 0);
    daemon_start(&d, fault);
    c = daemon_connect(&d, NULL, NULL);
    json_decref(say(c, id, "again"));
    if (!fault)
        wait_saved(c, id);
    client_free(c);
    daemon_kill(&d);
    snprintf(wal, sizeof wal, "%s/agentd.db-wal", d.store);
    assert_int_equal(unlink(wal), 0);
    daemon_start(&d, NULL);
    assert_true(log_says(&d, "its -wal is gone"));
    assert_true(log_says(&d, "that were acknowledged are not in the database"));
    snprintf(named, sizeof named, "session %s has lost commits", id);
    assert_true(log_says(&d, named));
    snprintf(named, sizeof named, "session %s has lost commits", other);
    assert_false(log_says(&d, named));
    c = daemon_connect(&d, NULL, NULL);
    json_auto_t *status = daemon_call(c, "daemon/status", NULL);
    json_auto_t *a = say(c, id, "and now?"), *b = say(c, other, "and now?");
    assert_string_equal(text_of(a, "text"), "two");
    assert_string_equal(text_of(b, "text"), "two");
    assert_int_equal(int_of(json_object_get(b, "ledger"), "relost"), 0);
    client_free(c);
    daemon_remove(&d);
    return json_incref(json_object_get(status, "store"));
}

static void a_removed_wal_is_told(void **state)
{
    (void)state;
    json_auto_t *store = without_its_wal(NULL);
    assert_int_equal(int_of(store, "walLost"), 1);
}

/* The turn's state never reached a pack: only the daemon's witness knows of it. */
static void a_turn_without_state_is_named(void **state)
{
    (void)state;
    json_auto_t *store = without_its_wal("fail-from:aio.write:1");
    assert_true(int_of(store, "tapeCommitsLost") > 0);
    assert_int_equal(int_of(store, "commitsLost"), 0);
}

static void packs_removed_while_it_runs(void **state)
{
    (void)state;
    struct daemon_fixture d;
    char id[27], pack[200];
    daemon_make(&d, script);
    daemon_start(&d, NULL);
    struct client *c = daemon_connect(&d, NULL, NULL);
    daemon_session(&d, c, NULL, id);
    json_decref(say(c, id, "hello"));
    wait_saved(c, id);
    snprintf(pack, sizeof pack, "%s/packs/00000001.pack", d.store);
    assert_int_equal(unlink(pack), 0);
    json_decref(say(c, id, "again"));
    json_decref(say(c, id, "and again"));
    client_free(c);
    assert_int_equal(daemon_stop(&d), 0);
    daemon_start(&d, NULL);
    c = daemon_connect(&d, NULL, NULL);
    json_auto_t *a = say(c, id, "and now?");
    const json_t *w = json_object_get(a, "ledger");
    assert_string_equal(text_of(a, "text"), "four");
    /* What was saved after the removal is all there. */
    assert_int_equal(int_of(w, "relost") + int_of(w, "recomputed"), 0);
    assert_true(int_of(w, "restored") > 0);
    client_free(c);
    daemon_remove(&d);
}

/* The disk fills up at some write of the database, in the middle of whatever is being
 * committed: requests are refused with a reason, the daemon lives, and what was acknowledged is
 * there once there is room again. */
static void a_disk_that_fills_up(void **state)
{
    (void)state;
    static const int writes[] = {150, 190, 230, 270, 330, 400};
    int refused = 0;
    for (size_t i = 0; i < sizeof writes / sizeof writes[0]; i++) {
        struct daemon_fixture d;
        struct error e;
        char id[27] = "", fault[48];
        json_int_t acked = 0;
        daemon_make(&d, script);
        snprintf(fault, sizeof fault, "fail-from:fs.write:%d", writes[i]);
        daemon_start(&d, fault);
        struct client *c = daemon_connect(&d, NULL, NULL);
        json_auto_t *s = NULL;
        enum err rc = client_call(c, "session/new", json_pack("{s:s}", "cwd", d.work), &s, &e);
        if (!rc)
            snprintf(id, sizeof id, "%s", text_of(s, "id"));
        for (int k = 0; k < 4 && !rc; k++) {
            json_auto_t *r = NULL;
            rc = client_call(c, "session/prompt",
                             json_pack("{s:s, s:[{s:s, s:s}]}", "id", id, "content", "type",
                                       "text", "text", "hello"),
                             &r, &e);
            acked = rc ? acked : int_of(r, "seq");
            if (!rc)
                json_decref(daemon_wait(c, id));
        }
        if (rc) {
            refused++;
            assert_int_equal(client_failure(c)->code != 0, true);
            assert_true(e.msg[0] != '\0');
        }
        client_free(c);
        daemon_kill(&d);
        daemon_start(&d, NULL);
        c = daemon_connect(&d, NULL, NULL);
        if (id[0]) {
            json_auto_t *info = daemon_call(c, "session/get", json_pack("{s:s}", "id", id));
            assert_true(int_of(info, "lastSeq") >= acked);
            json_decref(daemon_wait(c, id));
            json_decref(say(c, id, "and now?"));
        }
        client_free(c);
        daemon_remove(&d);
    }
    assert_true(refused > 1);
}

static void a_folder_that_cannot_be_written(void **state)
{
    (void)state;
    struct daemon_fixture d;
    if (geteuid() == 0)
        skip(); /* root may write everywhere; tests/sessions/test_session.c drops it */
    daemon_make(&d, script);
    assert_int_equal(mkdir(d.store, 0500), 0);
    int code = exit_of_second(&d);
    assert_true(code != 0 && code != 127);
    assert_true(log_says(&d, "Permission denied"));
    assert_true(log_says(&d, d.store));
    daemon_remove(&d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_second_daemon_refuses),
        cmocka_unit_test(a_removed_wal_is_told),
        cmocka_unit_test(a_turn_without_state_is_named),
        cmocka_unit_test(packs_removed_while_it_runs),
        cmocka_unit_test(a_disk_that_fills_up),
        cmocka_unit_test(a_folder_that_cannot_be_written),
    };
    return !!cmocka_run_group_tests(tests, NULL, NULL);
}
