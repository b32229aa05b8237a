/* Approval rules through the daemon: from agentd.conf and from session/new, in every mode; and
 * http_fetch, which is there only when it was allowed. */
#include "tests/support/test.h"

#include <sys/stat.h>
#include <unistd.h>

#include "agentd/settings.h"
#include "tests/support/agentctl.h"
#include "tests/support/daemon.h"
#include "tools/rules.h"

#define CALL(name, parameter, value)                                                           \
    "ok</think>\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"" name                            \
    "\">\n<｜DSML｜ parameter name=\"" parameter "\" string=\"true\">" value                   \
    "</｜DSML｜ parameter>\n</｜DSML｜ invoke>\n</｜DSML｜ calls>"
#define RUN(command) CALL("run", "command", command)

static struct daemon_fixture d;
static struct client *c;
static char id[27], config_dir[160];
static json_t *approvals, *results; /* seen by the reader */
static struct client *reader;

static void notified(void *user, const char *method, const json_t *params)
{
    const json_t *item = json_object_get(params, "item");
    (void)user;
    if (!strcmp(method, "approval/requested"))
        json_array_append_new(approvals, json_deep_copy(params));
    if (!strcmp(method, "session/event") && !strcmp(text_of(item, "kind"), "tool_result"))
        json_array_append_new(results, json_deep_copy(item));
}

/* A daemon with this agentd.conf, and a session that is watched. */
static void open_with(const char *conf, const char *session)
{
    char path[200];
    daemon_make(&d, "{\"text\":\"unused\"}\n");
    snprintf(config_dir, sizeof config_dir, "%s/config", d.dir);
    snprintf(path, sizeof path, "%s/agentd", config_dir);
    assert_int_equal(mkdir(config_dir, 0755), 0);
    assert_int_equal(mkdir(path, 0755), 0);
    snprintf(path, sizeof path, "%s/agentd/agentd.conf", config_dir);
    FILE *f = fopen(path, "we");
    assert_non_null(f);
    assert_true(fputs(conf, f) >= 0);
    assert_int_equal(fclose(f), 0);
    setenv("XDG_CONFIG_HOME", config_dir, 1);
    approvals = json_array();
    results = json_array();
    daemon_start(&d, NULL);
    c = daemon_connect(&d, NULL, NULL);
    daemon_session(&d, c, session, id);
    reader = daemon_connect(&d, notified, NULL);
    json_decref(
        daemon_call(reader, "session/attach", json_pack("{s:s, s:i}", "id", id, "fromSeq", 0)));
}

static void close_all(void)
{
    client_free(reader);
    client_free(c);
    daemon_remove(&d);
    json_decref(approvals);
    json_decref(results);
    unsetenv("XDG_CONFIG_HOME");
}

/* A turn with this one call; the reason session/wait gives. */
static const char *call(const char *text)
{
    static char reason[32];
    json_decref(daemon_call(c, "session/prompt",
                            json_pack("{s:s, s:[{s:s, s:s}], s:[{s:s}, {s:s}]}", "id", id,
                                      "content", "type", "text", "text", "go", "forced", "text",
                                      text, "text", "ok</think>done")));
    json_auto_t *w = daemon_wait(c, id);
    snprintf(reason, sizeof reason, "%s", text_of(w, "reason"));
    return reason;
}

/* Reads notifications until there are so many results (or approvals). */
static const json_t *nth(json_t *list, size_t n)
{
    for (int i = 0; i < 500 && json_array_size(list) < n; i++)
        assert_int_equal(client_poll(reader, 5000, NULL), OK);
    return json_array_get(list, n - 1);
}

static void assert_ran(const char *text, size_t n, const char *output)
{
    assert_string_equal(call(text), "end");
    assert_string_equal(text_of(nth(results, n), "text"), output);
}

static void assert_refused(const char *text, size_t n, const char *why)
{
    assert_string_equal(call(text), "end");
    const json_t *r = nth(results, n);
    assert_string_equal(text_of(r, "status"), "rejected");
    if (!strstr(text_of(r, "text"), why))
        fail_msg("\"%s\" lacks \"%s\"", text_of(r, "text"), why);
}

/* Asked for, with this reason (NULL: without one), then answered. */
static void assert_asked(const char *text, size_t n, const char *why, const char *outcome)
{
    assert_string_equal(call(text), "requires_action");
    const json_t *a = nth(approvals, n);
    if (why ? !strstr(text_of(a, "reason"), why) : json_object_get(a, "reason") != NULL)
        fail_msg("asked because of \"%s\"", text_of(a, "reason"));
    json_decref(daemon_call(
        c, "approval/resolve",
        json_pack("{s:s, s:s}", "approvalId", text_of(a, "approvalId"), "outcome", outcome)));
    json_decref(daemon_wait(c, id));
}

static const char CONF[] = "[rules]\n"
                           "allow = run echo *; run true\n"
                           "ask = run printf *\n"
                           "deny = run rm *\n"
                           "deny = read_file **.key\n";

static void test_rules_with_mode_ask(void **state)
{
    (void)state;
    open_with(CONF, "{\"rules\":[\"allow run pwd\", \"deny run touch *\"]}");
    assert_ran(RUN("echo a; echo b && true"), 1, "a\nb\n");
    assert_asked(RUN("ls"), 1, NULL, "reject");
    assert_asked(RUN("echo a && ls"), 2, NULL, "once");
    assert_asked(RUN("printf x"), 3, "rule \"ask run printf *\"", "once");
    assert_string_equal(text_of(nth(results, 4), "text"), "x");
    assert_refused(RUN("echo a; rm x"), 5, "rule \"deny run rm *\"");
    assert_refused(RUN("pwd | xargs rm"), 6, "rule \"deny run rm *\"");
    assert_refused(RUN("touch x"), 7, "rule \"deny run touch *\"");
    assert_asked(RUN("echo $(rm x)"), 4, "no rule can be held against it", "reject");
    assert_asked(RUN("echo a > x"), 5, NULL, "reject");
    assert_refused(CALL("read_file", "path", "sub/my.key"), 10, "deny read_file **.key");
    close_all();
}

/* Approved for the session are the simple commands as they are, in any line; not the tool, and
 * nothing that begins alike. */
static void crush_2882_codex_22171_approval_for_the_session_is_exact(void **state)
{
    (void)state;
    open_with(CONF, "{}");
    assert_asked(RUN("ls -a; printf 'x y'"), 1, "ask run printf", "session");
    assert_ran(RUN("printf 'x y'; echo z"), 2, "x yz\n");
    assert_asked(RUN("ls -a x"), 2, NULL, "reject");
    assert_asked(RUN("ls -a && ls"), 3, NULL, "reject");
    assert_asked(RUN("printf 'x z'"), 4, "ask run printf", "reject");
    assert_refused(RUN("ls -a; rm x"), 6, "deny run rm");
    assert_asked(RUN("echo $HOME > f"), 5, NULL, "session"); /* only this very line */
    assert_ran(RUN("echo $HOME > f"), 8, "");
    assert_asked(RUN("echo $HOME > g"), 6, NULL, "reject");
    close_all();
}

static void test_rules_with_mode_never(void **state)
{
    (void)state;
    open_with(CONF, "{\"approve\":\"never\"}");
    assert_ran(RUN("echo a"), 1, "a\n");
    assert_refused(RUN("ls"), 2, "(approve=never)");
    assert_refused(RUN("printf x"), 3, "rule \"ask run printf *\"");
    assert_refused(RUN("rm x"), 4, "rule \"deny run rm *\"");
    close_all();
}

static void test_rules_with_mode_auto(void **state)
{
    (void)state;
    open_with(CONF, "{\"approve\":\"auto\"}");
    assert_ran(RUN("ls"), 1, "");
    assert_refused(RUN("ls && rm x"), 2, "rule \"deny run rm *\"");
    assert_asked(RUN("printf x"), 1, "ask run printf", "reject");
    assert_asked(RUN("for f in a; do rm $f; done"), 2, "no rule can be held", "reject");
    assert_asked(RUN("$cmd x"), 3, "could be meant", "reject");
    close_all();
}

static void test_rules_that_are_wrong_are_named(void **state)
{
    (void)state;
    struct settings s = {0};
    struct rules *r = NULL;
    struct error e;
    char path[200];
    open_with("[rules]\nallow = run echo *\n", "{}");
    assert_int_equal(
        daemon_refused(c, "session/new",
                       json_pack("{s:s, s:[s]}", "cwd", d.work, "rules", "permit run")),
        -32602);
    assert_int_equal(
        daemon_refused(c, "session/new", json_pack("{s:s, s:[i]}", "cwd", d.work, "rules", 1)),
        -32602);
    static const struct {
        const char *text, *says;
    } bad[] = {{"[rules]\nallow = run 'x\n", "bad.conf:2: rule \"allow run 'x\""},
               {"[rules]\n\npermit = run\n", "bad.conf:3: [rules] has no \"permit\""}};
    for (size_t i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s/bad.conf", d.dir);
        FILE *f = fopen(path, "we");
        assert_true(fputs(bad[i].text, f) >= 0);
        assert_int_equal(fclose(f), 0);
        assert_ok(settings_read_file(&s, path, &e), &e);
        assert_int_equal(settings_rules(&s, &r, &e), ERR_INVAL);
        assert_non_null(strstr(e.msg, bad[i].says));
        settings_fini(&s);
    }
    close_all();
}

static void test_config_show_has_every_rule(void **state)
{
    (void)state;
    open_with(CONF, "{}");
    const struct agentctl_ran *ran = AGENTCTL("config", "show");
    assert_int_equal(ran->code, 0);
    assert_has(ran->out, "allow = run echo *; run true\n");
    assert_has(ran->out, "deny = run rm *\n");
    assert_has(ran->out, "deny = read_file **.key\n");
    close_all();
}

/* agentctl run --allow, --ask, --deny: rules of one session. */
static void test_rules_of_agentctl_run(void **state)
{
    (void)state;
    char path[200];
    open_with("", "{}");
    snprintf(path, sizeof path, "%s/forced", d.dir);
    json_auto_t *forced = json_pack("[{s:s}, {s:s}, {s:s}]", "text", RUN("echo ran; pwd"),
                                    "text", RUN("echo a && rm x"), "text", "ok</think>done");
    assert_int_equal(json_dump_file(forced, path, 0), 0);
    setenv("AGENTD_SOCKET", d.socket, 1);
    const struct agentctl_ran *ran =
        AGENTCTL("run", "-n", "ruled", "-C", d.work, "--approve", "never", "--allow",
                 "run echo *; run pwd", "--deny", "run rm *", "--forced", path, "go");
    assert_int_equal(ran->code, 0);
    assert_string_equal(ran->out, "done\n");
    ran = AGENTCTL("logs", "ruled");
    assert_has(ran->out, "ran");
    assert_has(ran->out, "does not permit it (rule \"deny run rm *\")");
    ran = AGENTCTL("run", "-C", d.work, "--allow", "run $x", "go");
    assert_int_equal(ran->code, 2);
    unsetenv("AGENTD_SOCKET");
    close_all();
}

static bool offers_fetch(void)
{
    json_auto_t *r = daemon_call(c, "tool/list", NULL);
    const json_t *f;
    size_t i;
    json_array_foreach(json_object_get(r, "tools"), i, f) {
        if (!strcmp(text_of(f, "name"), "http_fetch"))
            return true;
    }
    return false;
}

static void test_http_fetch_is_off_unless_allowed(void **state)
{
    (void)state;
    open_with("", "{\"approve\":\"auto\"}");
    assert_false(offers_fetch());
    assert_int_equal(
        daemon_refused(c, "session/new",
                       json_pack("{s:s, s:[s]}", "cwd", d.work, "tools", "http_fetch")),
        -32013);
    assert_string_equal(call(CALL("http_fetch", "url", "http://127.0.0.1:1/")), "end");
    assert_non_null(strstr(text_of(nth(results, 1), "text"), "there is no tool called"));
    close_all();
    open_with("[serve]\nhttp-fetch = true\n[rules]\nallow = http_fetch 127.*\n",
              "{\"tools\":[\"http_fetch\"]}");
    assert_true(offers_fetch());
    assert_string_equal(call(CALL("http_fetch", "url", "http://127.0.0.1:1/")), "end");
    assert_non_null(strstr(text_of(nth(results, 1), "text"), "may not be fetched from"));
    assert_asked(CALL("http_fetch", "url", "http://example.invalid/"), 1, NULL, "reject");
    close_all();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rules_with_mode_ask),
        cmocka_unit_test(crush_2882_codex_22171_approval_for_the_session_is_exact),
        cmocka_unit_test(test_rules_with_mode_never),
        cmocka_unit_test(test_rules_with_mode_auto),
        cmocka_unit_test(test_rules_that_are_wrong_are_named),
        cmocka_unit_test(test_config_show_has_every_rule),
        cmocka_unit_test(test_rules_of_agentctl_run),
        cmocka_unit_test(test_http_fetch_is_off_unless_allowed),
    };
    return !!cmocka_run_group_tests(tests, NULL, NULL);
}
