/* agentd.conf: which setting wins, what a wrong file says, and that it reaches the programs. */
#include "tests/support/test.h"

#include <stddef.h>
#include <sys/stat.h>

#include "agentd/settings.h"
#include "agentd/verbs.h"
#include "tests/support/agentctl.h"
#include "tests/support/tempdir.h"

struct values {
    const char *name;
    int64_t n;
    bool flag;
};

static const struct option table[] = {
    {"name", 'n', OPTION_STRING, offsetof(struct values, name), "NAME", .help = "a name"},
    {"max-n", 0, OPTION_INT, offsetof(struct values, n), "N", .min = 0, .max = 9, .help = "n"},
    {"flag", 0, OPTION_FLAG, offsetof(struct values, flag), .help = "a flag"},
};
static const struct command command = {
    "run", "", "a command", OPTION_TABLE(table), OPTION_TABLE_EMPTY, 0, 1};

static const char *write_file(const char *dir, const char *name, const char *text)
{
    static char path[256];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "we");
    assert_non_null(f);
    assert_true(fputs(text, f) >= 0);
    assert_int_equal(fclose(f), 0);
    return path;
}

static enum err parse(struct settings *s, bool env, const char *const *argv, struct values *v,
                      struct error *e)
{
    static const char *const sections[] = {"all", "run", NULL};
    struct options seen;
    int argc = 0;
    while (argv[argc])
        argc++;
    enum err rc = settings_argv(s, &command, sections, env, argc, (char **)(uintptr_t)argv, e);
    return rc ? rc
              : options_parse(&command, s->argc, (const char *const *)(void *)s->argv, v, &seen,
                              e);
}

static void test_precedence(void **state)
{
    (void)state;
    char dir[TEMPDIR_BYTES];
    struct settings s = {0};
    struct values v = {0};
    struct error e;
    tempdir_make(dir);
    assert_ok(settings_read_file(&s,
                                 write_file(dir, "etc",
                                            "# system\n[all]\nname = etc  \n[run]\nmax-n=1\n"
                                            "flag = true\n[other]\nwhat = ever\n"),
                                 &e),
              &e);
    assert_ok(settings_read_file(
                  &s, write_file(dir, "user", "\n[run]\n  name = a = b \nflag = false"), &e),
              &e);
    assert_ok(settings_read_file(&s, "/nowhere/at/all", &e), &e);
    assert_ok(parse(&s, true, (const char *const[]){"run", NULL}, &v, &e), &e);
    assert_string_equal(v.name, "a = b");
    assert_int_equal(v.n, 1);
    assert_false(v.flag);
    setenv("AGENTD_MAX_N", "2", 1);
    assert_ok(parse(&s, false, (const char *const[]){"run", NULL}, &v, &e), &e);
    assert_int_equal(v.n, 1);
    assert_ok(parse(&s, true, (const char *const[]){"run", NULL}, &v, &e), &e);
    assert_int_equal(v.n, 2);
    assert_ok(parse(&s, true, (const char *const[]){"run", "--max-n", "3", "x", NULL}, &v, &e),
              &e);
    assert_int_equal(v.n, 3);
    unsetenv("AGENTD_MAX_N");
    settings_fini(&s);
    tempdir_remove(dir);
}

static void test_wrong_files_name_the_line(void **state)
{
    (void)state;
    static const struct {
        const char *text, *says;
    } cases[] = {
        {"name = x\n", "f:1: before the first [section]"},
        {"\n[run\n", "f:2: want [section]"},
        {"[]\n", "f:1: want [section]"},
        {"[run]\nname\n", "f:2: want key = value"},
        {"[run]\nNa me = x\n", "f:2: \"Na me\" is no key"},
        {"[run]\nnothing = x\n", "f:2: [run] has no \"nothing\""},
        {"[run]\nflag = yes\n", "f:2: flag is true or false, not \"yes\""},
        {"[run]\nmax-n = 10\n", "--max-n"},
    };
    char dir[TEMPDIR_BYTES];
    tempdir_make(dir);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct settings s = {0};
        struct values v = {0};
        struct error e = {0};
        enum err rc = settings_read_file(&s, write_file(dir, "f", cases[i].text), &e);
        if (!rc)
            rc = parse(&s, true, (const char *const[]){"run", NULL}, &v, &e);
        assert_int_equal(rc, ERR_INVAL);
        assert_has(e.msg, cases[i].says);
        settings_fini(&s);
    }
    tempdir_remove(dir);
}

static void test_agentctl(void **state)
{
    (void)state;
    char dir[TEMPDIR_BYTES], folder[256];
    tempdir_make(dir);
    snprintf(folder, sizeof folder, "%s/agentd", dir);
    assert_int_equal(mkdir(folder, 0700), 0);
    write_file(folder, "agentd.conf",
               "[agentctl]\nsocket = /nowhere/a.sock\n[serve]\nlog = x\n");
    setenv("XDG_CONFIG_HOME", dir, 1);
    unsetenv("AGENTD_SOCKET");
    const struct agentctl_ran *r = AGENTCTL("config", "show", "--origin");
    assert_int_equal(r->code, EXIT_DONE);
    assert_has(r->out, "[agentctl]\nsocket = /nowhere/a.sock    # ");
    assert_has(r->out, "agentd.conf:2\n[serve]\nlog = x");
    r = AGENTCTL("status");
    assert_int_equal(r->code, EXIT_NO_DAEMON);
    assert_has(r->err, "/nowhere/a.sock");
    setenv("AGENTD_SOCKET", "/nowhere/b.sock", 1);
    assert_has(AGENTCTL("status")->err, "/nowhere/b.sock");
    assert_has(AGENTCTL("status", "--socket", "/nowhere/c.sock")->err, "/nowhere/c.sock");
    write_file(folder, "agentd.conf", "[agentctl]\nsock = /nowhere/a.sock\n");
    r = AGENTCTL("status");
    assert_int_equal(r->code, EXIT_USAGE);
    assert_has(r->err, "agentd.conf:2: [agentctl] has no \"sock\"");
    assert_int_equal(AGENTCTL("config", "show")->code, EXIT_DONE);
    unsetenv("XDG_CONFIG_HOME");
    tempdir_remove(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_precedence),
        cmocka_unit_test(test_wrong_files_name_the_line),
        cmocka_unit_test(test_agentctl),
    };
    return !!cmocka_run_group_tests(tests, NULL, NULL);
}
