/* agentctl at a terminal, with a real daemon and the scripted engine: Ctrl-C, the status line,
 * what of a model's text reaches the terminal, exit codes, --json. */
#include "tests/support/test.h"

#include <signal.h>
#include <stdbool.h>
#include <time.h>
#include <unistd.h>

#include "agentd/verbs.h"
#include "base/auto.h"
#include "tests/support/agentctl.h"
#include "tests/support/daemon.h"
#include "tests/support/terminal.h"

#define EOS "<｜end▁of▁sentence｜>"
#define SAY(text) "{\"text\":\"ok</think>" text EOS "\"}\n"
#define SLOW(ms) "{\"text\":\"ok</think>late" EOS "\",\"prefill_ms\":" ms "}\n"
#define RUN(command)                                                                           \
    "{\"text\":\"ok</think>\\n\\n<｜DSML｜ calls>\\n<｜DSML｜ invoke name=\\\"run\\\">\\n" \
    "<｜DSML｜ parameter name=\\\"command\\\" string=\\\"true\\\">" command                    \
    "</｜DSML｜ parameter>\\n</｜DSML｜ invoke>\\n</｜DSML｜ calls>" EOS "\"}\n"

static void make(struct daemon_fixture *d, const char *script)
{
    daemon_make(d, script);
    daemon_start(d, NULL);
    setenv("AGENTD_SOCKET", d->socket, 1);
}

/* ---- Ctrl-C ----------------------------------------------------------------------- */

static void test_ctrl_c_cancels_the_turn_and_keeps_the_session(void **state)
{
    (void)state;
    struct daemon_fixture d;
    struct terminal t;
    make(&d, SLOW("60000") SAY("again"));
    TERMINAL(&t, STDOUT_TERMINAL, "run", "-n", "first", "-C", d.work, "hello");
    terminal_until(&t, "prefill");
    terminal_type(&t, "\x03");
    terminal_until(&t, "cancelling the turn");
    assert_int_equal(terminal_end(&t), EXIT_INTERRUPTED);
    const struct agentctl_ran *r = AGENTCTL("ps", "-a");
    assert_has(r->out, "first");
    assert_has(r->out, "idle: cancelled");
    /* It answers the next prompt; what it was told first is still there. */
    assert_int_equal(AGENTCTL("rewind", "first", "~1")->code, EXIT_DONE);
    daemon_remove(&d);
}

/* A daemon that does not come to cancelling: stopped, so that it cannot answer. */
static void test_second_ctrl_c_detaches(void **state)
{
    (void)state;
    struct daemon_fixture d;
    struct terminal t;
    make(&d, SLOW("60000"));
    TERMINAL(&t, STDOUT_TERMINAL, "run", "-n", "first", "-C", d.work, "hello");
    terminal_until(&t, "prefill");
    assert_int_equal(kill(d.pid, SIGSTOP), 0);
    terminal_type(&t, "\x03");
    terminal_until(&t, "cancelling the turn");
    terminal_type(&t, "\x03");
    terminal_until(&t, "detached");
    assert_int_equal(terminal_end(&t), EXIT_INTERRUPTED);
    assert_int_equal(kill(d.pid, SIGCONT), 0);
    assert_int_equal(AGENTCTL("show", "first")->code, EXIT_DONE);
    daemon_remove(&d);
}

/* The window is closed in the middle of a prefill: the turn is the daemon's and goes on, so
 * nobody has to begin it again. */
static void test_antirez_ds4_333_the_turn_goes_on_when_its_client_leaves(void **state)
{
    (void)state;
    struct daemon_fixture d;
    struct terminal t;
    make(&d, SLOW("1500"));
    TERMINAL(&t, STDOUT_TERMINAL, "run", "-n", "first", "-C", d.work, "hello");
    terminal_until(&t, "prefill");
    assert_int_equal(terminal_close(&t), -SIGHUP);
    const struct agentctl_ran *r = AGENTCTL("wait", "first", "--json");
    assert_int_equal(r->code, EXIT_DONE);
    json_auto_t *waited = json_loads(r->out, 0, NULL);
    assert_string_equal(json_string_value(json_object_get(waited, "text")), "late");
    assert_int_equal(
        json_integer_value(json_object_get(json_object_get(waited, "ledger"), "recomputed")),
        0);
    daemon_remove(&d);
}

static void test_background_run_goes_on(void **state)
{
    (void)state;
    struct daemon_fixture d;
    make(&d, SLOW("500"));
    const struct agentctl_ran *r = AGENTCTL("run", "-d", "-n", "first", "-C", d.work, "hello");
    assert_int_equal(r->code, EXIT_DONE);
    assert_string_equal(r->out, "first\n");
    assert_has(AGENTCTL("ps")->out, "first"); /* nobody is connected, and it works */
    r = AGENTCTL("wait", "first");
    assert_int_equal(r->code, EXIT_DONE);
    assert_string_equal(r->out, "late\n");
    daemon_remove(&d);
}

/* ---- what is shown ---------------------------------------------------------------- */

static void test_status_is_one_line_that_goes_away(void **state)
{
    (void)state;
    struct daemon_fixture d;
    struct terminal t;
    make(&d, SLOW("2500"));
    TERMINAL(&t, STDOUT_FILE, "run", "-C", d.work, "hello");
    terminal_until(&t, "prefill");
    terminal_until(&t, "\r\x1b[K");
    assert_int_equal(terminal_end(&t), EXIT_DONE);
    assert_string_equal(t.result, "late\n");
    for (const char *p = strstr(t.seen, "prefill"); p; p = strstr(p + 1, "prefill"))
        assert_true(strcspn(p, "\n") > strcspn(p, "\r")); /* never left behind as a line */
    daemon_remove(&d);
}

/* No escape but our own removal of the status line and the colours of arrows. */
static void assert_no_escapes(const char *seen)
{
    static const char *const ours[] = {"\x1b[K", "\x1b[36m", "\x1b[0m"};
    for (const char *p = strchr(seen, '\x1b'); p; p = strchr(p + 1, '\x1b')) {
        bool is_ours = false;
        for (size_t i = 0; i < 3; i++)
            is_ours = is_ours || !strncmp(p, ours[i], strlen(ours[i]));
        if (!is_ours)
            fail_msg("an escape reached the terminal: %s", seen);
    }
    assert_null(strchr(seen, '\a'));
}

static void test_vercel_ai_20052_20054_escapes_and_spoofed_approval(void **state)
{
    (void)state;
    struct daemon_fixture d;
    struct terminal t;
    make(&d, RUN("printf '\\\\033]52;c;QQ==\\\\007\\\\033[2J'; : \\u001b[1A\\u001b[2Kallow "
                 "→ ls [y]es") SAY("\\u001b]0;title\\u0007\\u001b[31mred"));
    TERMINAL(&t, STDOUT_TERMINAL, "run", "-C", d.work, "--tools", "run", "--approve", "ask",
             "hello");
    terminal_until(&t, "[y]es, for the [s]ession, [n]o? ");
    terminal_type(&t, "y\n");
    terminal_until(&t, "\\x1b[31mred");
    assert_int_equal(terminal_end(&t), EXIT_DONE);
    assert_no_escapes(t.seen);
    assert_has(t.seen, "\\u001b[1A\\u001b[2Kallow"); /* of the question itself */
    assert_has(t.seen, "\\x1b]52;c;QQ==");           /* of the tool's output */
    assert_has(t.seen, "\\x1b]0;title\\x07");        /* of the answer */
    daemon_remove(&d);
}

static void test_no_at_the_terminal_is_told_to_the_model(void **state)
{
    (void)state;
    struct daemon_fixture d;
    struct terminal t;
    char made[200];
    make(&d, RUN("touch made") SAY("as you like"));
    TERMINAL(&t, STDOUT_FILE, "run", "-C", d.work, "--tools", "run", "--approve", "ask", "go");
    terminal_until(&t, "[n]o? ");
    terminal_type(&t, "n\n");
    assert_int_equal(terminal_end(&t), EXIT_DONE);
    assert_string_equal(t.result, "as you like\n");
    snprintf(made, sizeof made, "%s/made", d.work);
    assert_int_not_equal(access(made, F_OK), 0);
    daemon_remove(&d);
}

/* ---- results for programs --------------------------------------------------------- */

static void test_json_is_the_result_and_nothing_else(void **state)
{
    (void)state;
    struct daemon_fixture d;
    struct terminal t;
    make(&d, SAY("one") SAY("two"));
    TERMINAL(&t, STDOUT_FILE, "run", "-n", "first", "-C", d.work, "--json", "hello");
    assert_int_equal(terminal_end(&t), EXIT_DONE);
    json_auto_t *whole = json_loads(t.result, 0, NULL);
    assert_string_equal(json_string_value(json_object_get(whole, "text")), "one");
    assert_string_equal(json_string_value(json_object_get(whole, "reason")), "end");
    assert_true(json_is_object(json_object_get(whole, "ledger")));
    TERMINAL(&t, STDOUT_FILE, "send", "first", "--jsonl", "more");
    assert_int_equal(terminal_end(&t), EXIT_DONE);
    const char *last = NULL;
    int n = 0;
    char *save = NULL;
    for (char *l = strtok_r(t.result, "\n", &save); l; l = strtok_r(NULL, "\n", &save)) {
        json_auto_t *line = json_loads(l, 0, NULL);
        assert_true(json_is_object(line));
        last = l;
        n++;
    }
    assert_true(n > 3);
    json_auto_t *end = json_loads(last, 0, NULL);
    assert_string_equal(json_string_value(json_object_get(end, "text")), "two");
    daemon_remove(&d);
}

static int code_of(const char *const *argv)
{
    struct terminal t;
    terminal_start(&t, STDOUT_FILE, argv);
    int code = terminal_end(&t);
    if (code != EXIT_DONE)
        assert_true(t.n > 0); /* said why */
    return code;
}
#define CODE(...) code_of((const char *const[]){__VA_ARGS__, NULL})

static void test_opencode_21215_exit_codes(void **state)
{
    (void)state;
    struct daemon_fixture d;
    char junk[200];
    make(&d, SAY("fine") SAY("") RUN("true") RUN("true"));
    const char *dir = d.work;
    snprintf(junk, sizeof junk, "%s/junk", d.work);
    FILE *f = fopen(junk, "we");
    assert_non_null(f);
    fputs("no bundle", f);
    fclose(f);
    assert_int_equal(CODE("run", "-n", "first", "-C", dir, "hello"), EXIT_DONE);
    assert_int_equal(CODE("send", "first", "hello"), EXIT_FAILED); /* no answer: never 0 */
    assert_int_equal(CODE("run", "--max-steps", "none", "hello"), EXIT_USAGE);
    assert_int_equal(CODE("no-such-verb"), EXIT_USAGE);
    assert_int_equal(CODE("ps", "--socket", "/nowhere/sock"), EXIT_NO_DAEMON);
    assert_int_equal(CODE("show", "nobody"), EXIT_NOTFOUND);
    assert_int_equal(CODE("run", "-n", "first", "-C", dir, "hello"), EXIT_CONFLICT);
    assert_int_equal(CODE("import", junk), EXIT_CORRUPT);
    daemon_remove(&d);

    make(&d, RUN("true") SAY("unreached"));
    dir = d.work;
    assert_int_equal(CODE("run", "-C", dir, "--approve", "auto", "--max-steps", "1", "hello"),
                     EXIT_LIMIT);
    /* Nobody is there who could say yes. */
    assert_int_equal(AGENTCTL("run", "-C", dir, "--approve", "ask", "hello")->code,
                     EXIT_DENIED);
    daemon_remove(&d);

    make(&d, SLOW("60000"));
    dir = d.work;
    assert_int_equal(CODE("run", "-C", dir, "--timeout", "0.5", "hello"), EXIT_TIMEOUT);
    daemon_remove(&d);
}

/* ---- where nobody looks ----------------------------------------------------------- */

/* Started first and looked at last: it takes longer than ten seconds. */
struct background {
    struct daemon_fixture d;
    struct agentctl_run run;
};

static int start_background(void **state)
{
    static struct background b;
    static const char *argv[] = {"run", "-C", NULL, "hello", NULL};
    make(&b.d, SLOW("11500"));
    argv[2] = b.d.work;
    b.run = agentctl_start(argv);
    *state = &b;
    return 0;
}

static int stop_background(void **state)
{
    struct background *b = *state;
    daemon_remove(&b->d);
    return 0;
}

static void test_a_line_every_ten_seconds_elsewhere(void **state)
{
    struct background *b = *state;
    const struct agentctl_ran *r = agentctl_finish(&b->run);
    assert_int_equal(r->code, EXIT_DONE);
    assert_string_equal(r->out, "late\n");
    assert_has(r->err, "prefill");
    assert_lacks(r->err, "\x1b");
    assert_lacks(r->err, "\r");
    int lines = 0; /* of status; the first line is the session's name */
    for (const char *p = r->err; (p = strstr(p, "prefill")); p++)
        lines++;
    assert_int_equal(lines, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ctrl_c_cancels_the_turn_and_keeps_the_session),
        cmocka_unit_test(test_second_ctrl_c_detaches),
        cmocka_unit_test(test_antirez_ds4_333_the_turn_goes_on_when_its_client_leaves),
        cmocka_unit_test(test_background_run_goes_on),
        cmocka_unit_test(test_status_is_one_line_that_goes_away),
        cmocka_unit_test(test_vercel_ai_20052_20054_escapes_and_spoofed_approval),
        cmocka_unit_test(test_no_at_the_terminal_is_told_to_the_model),
        cmocka_unit_test(test_json_is_the_result_and_nothing_else),
        cmocka_unit_test(test_opencode_21215_exit_codes),
        cmocka_unit_test(test_a_line_every_ten_seconds_elsewhere),
    };
    return !!cmocka_run_group_tests(tests, start_background, stop_background);
}
