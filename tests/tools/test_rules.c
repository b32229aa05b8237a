/* Approval rules: what they say about calls, and what people have got past such rules with. */
#include "tests/support/test.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/support/tempdir.h"
#include "tools/rules.h"

static struct rules *make(const char *const *texts)
{
    struct rules *r = rules_new();
    struct error e;
    assert_non_null(r);
    for (; *texts; texts++)
        assert_ok(rules_add(r, *texts, &e), &e);
    return r;
}

static enum rule_verdict ask(const struct rules *r, const char *tool, const char *argument,
                             const char *value, const char *workspace)
{
    char why[ERR_MSG_BYTES];
    json_auto_t *a = json_pack("{s:s}", argument, value);
    const struct rule_call call = {tool, a, workspace, NULL};
    assert_non_null(a);
    enum rule_verdict v = rules_check(&r, 1, &call, why);
    assert_true(v == RULE_NONE || why[0]);
    return v;
}

static void assert_run(const struct rules *r, const char *command, enum rule_verdict want)
{
    enum rule_verdict v = ask(r, "run", "command", command, "/tmp");
    if (v != want)
        fail_msg("%s: %s, want %s", command, rule_verdict_name(v), rule_verdict_name(want));
}

/* charmbracelet/crush #2882, #3425, andrewyng/openworker #29, openai/codex PR #22171: an
 * allowed prefix let everything behind && and the like through, and a shell of another name. */
static void crush_2882_crush_3425_openworker_29_codex_22171_every_simple_command(void **state)
{
    static const char *const texts[] = {"allow run git log *; run git status; run ls *", NULL};
    static const char *const allowed[] = {"git log",
                                          "git log -p 'a b'",
                                          "git status",
                                          "ls",
                                          "ls -la src",
                                          "git log | ls",
                                          "git status && ls; git log",
                                          "(git status)",
                                          "{ git status; }",
                                          "git status\nls",
                                          "\"git\" log",
                                          "gi't' status",
                                          "git status # && rm x",
                                          "git log >/dev/null 2>&1",
                                          "! git status",
                                          "ls <in"};
    static const char *const not_allowed[] = {"git status -s",
                                              "git push",
                                              "git",
                                              "git status && rm -rf x",
                                              "git status; rm -rf x",
                                              "git status || rm -rf x",
                                              "git status | sh",
                                              "git status & rm -rf x",
                                              "git status\nrm -rf x",
                                              "git log $(rm -rf x)",
                                              "git log `rm -rf x`",
                                              "git log \"$(rm -rf x)\"",
                                              "git log <(rm -rf x)",
                                              "git log > ../x",
                                              "git log &> x",
                                              "git log >| x",
                                              "(rm -rf x)",
                                              "(git status) > x",
                                              "ls $x",
                                              "ls *",
                                              "ls {a,b}",
                                              "ls ~",
                                              "$git log",
                                              "GIT_PAGER='rm x' git log",
                                              "PATH=/tmp git status",
                                              "X=1; git status",
                                              "X=1\ngit status",
                                              "/tmp/git log",
                                              "./git log",
                                              "git  log | tee x",
                                              "env git status",
                                              "bash -c 'git status'",
                                              "eval git status",
                                              "git() { rm x; }; git log",
                                              "alias ls='rm x'\nls",
                                              "if git status; then ls; fi",
                                              "git log <<X\n$(rm x)\nX",
                                              "g\\\nit log x; r\\\nm x",
                                              "gitx log",
                                              "git logs",
                                              "ls \\\n; rm x",
                                              "ls;\\\nrm x"};
    struct rules *r = make(texts);
    (void)state;
    for (size_t i = 0; i < sizeof allowed / sizeof *allowed; i++)
        assert_run(r, allowed[i], RULE_ALLOW);
    for (size_t i = 0; i < sizeof not_allowed / sizeof *not_allowed; i++)
        assert_run(r, not_allowed[i], RULE_NONE);
    rules_free(r);
}

static void deny_sees_what_is_executed_by_others(void **state)
{
    static const char *const texts[] = {"deny run rm *", "ask run git push *", "allow run *",
                                        NULL};
    static const char *const denied[] = {"rm x",
                                         "rm",
                                         "/bin/rm x",
                                         "ls; rm x",
                                         "env rm x",
                                         "sudo -u a rm x",
                                         "env A=1 nice rm x",
                                         "xargs rm",
                                         "ls | xargs -n1 rm -f",
                                         "find . -exec rm {} +",
                                         "bash -c 'rm x'",
                                         "sh -ec 'ls; rm x'",
                                         "/bin/sh -c \"nice rm x\"",
                                         "eval rm x",
                                         "eval 'rm x'",
                                         "bash -c \"bash -c 'rm x'\"",
                                         "timeout 5 sh -c 'rm x'",
                                         "trap 'rm x' EXIT",
                                         "exec rm x",
                                         "command rm x",
                                         "'r'm x",
                                         "r\\m x",
                                         "(rm x) | cat",
                                         "rm $x",
                                         "rm *",
                                         "A=1 rm x",
                                         "env -S 'rm x'"};
    static const char *const asked[] = {"git push",
                                        "git push origin",
                                        "/usr/bin/git push",
                                        "nohup git push &",
                                        "$cmd x",
                                        "git $x",
                                        "bash -c \"$x\"",
                                        "eval $x",
                                        "echo $(ls)",
                                        "for x in a; do ls; done",
                                        "sh -c 'echo $(ls)'",
                                        "git ${x}"};
    static const char *const allowed[] = {"ls", "grep rm x", "echo 'rm x'", "git log"};
    struct rules *r = make(texts);
    (void)state;
    for (size_t i = 0; i < sizeof denied / sizeof *denied; i++)
        assert_run(r, denied[i], RULE_DENY);
    for (size_t i = 0; i < sizeof asked / sizeof *asked; i++)
        assert_run(r, asked[i], RULE_ASK);
    for (size_t i = 0; i < sizeof allowed / sizeof *allowed; i++)
        assert_run(r, allowed[i], RULE_ALLOW);
    rules_free(r);
}

static void redirections_need_the_path_rules(void **state)
{
    static const char *const texts[] = {"allow run echo *; write_file out/**",
                                        "deny write_file **.conf; read_file **.key", NULL};
    struct rules *r = make(texts);
    (void)state;
    assert_run(r, "echo a > out/x", RULE_ALLOW);
    assert_run(r, "echo a > ./out/../out/x", RULE_ALLOW);
    assert_run(r, "echo a > x", RULE_NONE);
    assert_run(r, "echo a > out/../x", RULE_NONE);
    assert_run(r, "echo a > out/a.conf", RULE_DENY);
    assert_run(r, "echo a 2>> /etc/a.conf", RULE_DENY);
    assert_run(r, "echo a < x", RULE_ALLOW);
    assert_run(r, "echo a < x/a.key", RULE_DENY);
    assert_run(r, "echo a > $x", RULE_ASK);
    assert_run(r, "echo a < $x", RULE_ASK);
    rules_free(r);
}

static void whole_tools_and_strength(void **state)
{
    static const char *const open[] = {"allow run",      "ask run git push *", "deny edit",
                                       "allow edit a.c", "allow todo",         NULL};
    struct rules *r = make(open);
    (void)state;
    assert_run(r, "ls", RULE_ALLOW);
    assert_run(r, "", RULE_ALLOW);
    assert_run(r, "git push", RULE_ASK);
    assert_run(r, "echo $(ls)", RULE_ASK);
    assert_int_equal(ask(r, "edit", "path", "a.c", "/tmp"), RULE_DENY);
    assert_int_equal(ask(r, "todo", "x", "", "/tmp"), RULE_ALLOW);
    assert_int_equal(ask(r, "client", "x", "", "/tmp"), RULE_NONE);
    rules_free(r);
    static const char *const shut[] = {"deny *", "allow run ls", NULL};
    r = make(shut);
    assert_run(r, "ls", RULE_DENY);
    assert_run(r, "# nothing", RULE_DENY);
    assert_run(r, "echo $(ls)", RULE_DENY);
    assert_int_equal(ask(r, "client", "x", "", "/tmp"), RULE_DENY);
    rules_free(r);
    char why[ERR_MSG_BYTES];
    json_auto_t *a = json_pack("{s:s}", "command", "ls");
    const struct rule_call call = {"run", a, "/tmp", NULL};
    const struct rules *none[] = {NULL, NULL};
    assert_int_equal(rules_check(none, 2, &call, why), RULE_NONE);
}

static void paths_with_and_without_links(void **state)
{
    static const char *const texts[] = {"allow edit src/**; edit *.md", "deny edit **/.env",
                                        "ask edit /etc/*", "allow read_file 'odd*name'", NULL};
    char dir[TEMPDIR_BYTES], path[128];
    struct rules *r = make(texts);
    (void)state;
    tempdir_make(dir);
    snprintf(path, sizeof path, "%s/src", dir);
    assert_int_equal(mkdir(path, 0755), 0);
    snprintf(path, sizeof path, "%s/src/up", dir);
    assert_int_equal(symlink("..", path), 0);
    snprintf(path, sizeof path, "%s/src/harmless", dir);
    assert_int_equal(symlink("../.env", path), 0);
    snprintf(path, sizeof path, "%s/.env", dir);
    close(open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0644));
    const struct {
        const char *path;
        enum rule_verdict want;
    } cases[] = {{"src/a.c", RULE_ALLOW},     {"src/new/b.c", RULE_ALLOW},
                 {"./src//a.c", RULE_ALLOW},  {"a.md", RULE_ALLOW},
                 {"x/a.md", RULE_NONE},       {"src/../a.c", RULE_NONE},
                 {"src/up/a.c", RULE_NONE},   {"src/up/a.md", RULE_NONE},
                 {".env", RULE_DENY},         {"src/.env", RULE_DENY},
                 {"src/harmless", RULE_DENY}, {"src/up/.env", RULE_DENY},
                 {"/etc/passwd", RULE_ASK},   {"../../../../etc/passwd", RULE_ASK},
                 {"srcs/a.c", RULE_NONE},     {"src", RULE_NONE}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        enum rule_verdict v = ask(r, "edit", "path", cases[i].path, dir);
        if (v != cases[i].want)
            fail_msg("%s: %s", cases[i].path, rule_verdict_name(v));
    }
    snprintf(path, sizeof path, "%s/src/x.c", dir);
    assert_int_equal(ask(r, "edit", "path", path, dir), RULE_ALLOW);
    assert_int_equal(ask(r, "read_file", "path", "odd*name", dir), RULE_ALLOW);
    assert_int_equal(ask(r, "read_file", "path", "oddXname", dir), RULE_NONE);
    char deep[2048] = "";
    for (int i = 0; i < 500; i++)
        strncat(deep, "a/", 3);
    assert_int_equal(ask(r, "edit", "path", deep, dir), RULE_ASK);
    rules_free(r);
    tempdir_remove(dir);
}

static void hosts(void **state)
{
    static const char *const texts[] = {
        "allow http_fetch *.example.org; http_fetch example.org",
        "deny http_fetch secret.example.org", NULL};
    struct rules *r = make(texts);
    (void)state;
    const struct {
        const char *url;
        enum rule_verdict want;
    } cases[] = {{"https://example.org/", RULE_ALLOW},
                 {"HTTP://WWW.EXAMPLE.ORG:81/a?b", RULE_ALLOW},
                 {"https://secret.example.org/", RULE_DENY},
                 {"https://SECRET.example.org./", RULE_DENY},
                 {"https://example.org.evil.net/", RULE_NONE},
                 {"https://evil.net/example.org", RULE_NONE},
                 {"https://evil.net#.example.org", RULE_NONE},
                 {"https://evil.net\\.example.org", RULE_NONE},
                 {"https://www.example.org@evil.net/", RULE_NONE},
                 {"ftp://example.org/", RULE_NONE}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        enum rule_verdict v = ask(r, "http_fetch", "url", cases[i].url, "/tmp");
        if (v != cases[i].want)
            fail_msg("%s: %s", cases[i].url, rule_verdict_name(v));
    }
    rules_free(r);
}

static void rules_that_are_wrong(void **state)
{
    static const char *const bad[] = {"",
                                      "run ls",
                                      "permit run ls",
                                      "allow",
                                      "allow run $x",
                                      "allow run ~",
                                      "allow run 'a'*",
                                      "allow run [a]",
                                      "allow run ls > x",
                                      "allow run ls; ",
                                      "allow run $(ls)",
                                      "allow edit a b",
                                      "allow todo x",
                                      "allow * x",
                                      "allow run 'ls",
                                      "allow run ls | run cat x | "};
    struct rules *r = rules_new();
    struct error e;
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        if (!strcmp(bad[i], "allow run ls; "))
            continue; /* a separator at the end is none */
        if (rules_add(r, bad[i], &e) != ERR_INVAL)
            fail_msg("\"%s\" was taken", bad[i]);
        assert_int_equal(strncmp(e.msg, "rule \"", 6), 0);
    }
    assert_run(r, "ls", RULE_NONE); /* nothing of them was kept */
    rules_free(r);
}

static void approval_of_a_line_covers_exactly_its_commands(void **state)
{
    struct rules *r = rules_new();
    (void)state;
    assert_true(rules_allow_line(r, "make test && git commit -m 'a *'"));
    assert_run(r, "make test", RULE_ALLOW);
    assert_run(r, "git commit -m 'a *'; make test", RULE_ALLOW);
    assert_run(r, "git commit -m 'a b'", RULE_NONE);
    assert_run(r, "make", RULE_NONE);
    assert_run(r, "make test x", RULE_NONE);
    assert_run(r, "make test && rm x", RULE_NONE);
    static const char *const not [] = {"ls $x", "ls > x", "A=1 ls", "$(x)",
                                       "",      "ls *",   "ls; A=1"};
    for (size_t i = 0; i < sizeof not / sizeof *not ; i++)
        assert_false(rules_allow_line(r, not [i]));
    assert_run(r, "ls", RULE_NONE);
    rules_free(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(crush_2882_crush_3425_openworker_29_codex_22171_every_simple_command),
        cmocka_unit_test(deny_sees_what_is_executed_by_others),
        cmocka_unit_test(redirections_need_the_path_rules),
        cmocka_unit_test(whole_tools_and_strength),
        cmocka_unit_test(paths_with_and_without_links),
        cmocka_unit_test(hosts),
        cmocka_unit_test(rules_that_are_wrong),
        cmocka_unit_test(approval_of_a_line_covers_exactly_its_commands),
    };
    return !!cmocka_run_group_tests(tests, NULL, NULL);
}
