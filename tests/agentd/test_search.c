/* search, diff and log --graph as a user meets them: a real daemon, the scripted engine. */
#include "tests/support/test.h"

#include "agentd/verbs.h"
#include "tests/support/agentctl.h"
#include "tests/support/daemon.h"

#define EOS "<｜end▁of▁sentence｜>"
#define SAY(text) "{\"text\":\"ok</think>" text EOS "\"}\n"

static void make(struct daemon_fixture *d, const char *script)
{
    daemon_make(d, script);
    daemon_start(d, NULL);
    setenv("AGENTD_SOCKET", d->socket, 1);
}

static void run(const struct daemon_fixture *d, const char *name, const char *say)
{
    assert_int_equal(AGENTCTL("run", "-n", name, "-C", d->work, "--tools", "", say)->code,
                     EXIT_DONE);
}

static void test_search(void **state)
{
    (void)state;
    struct daemon_fixture d;
    make(&d, SAY("The Import failed at 3 o'clock.") SAY("Because the key AKIAIOSFODNN7EXAMPLE "
                                                        "had expired, says billing."));
    run(&d, "one", "Why did the nightly import fail?");
    assert_int_equal(AGENTCTL("send", "one", "Why again? \x1b[31m")->code, EXIT_DONE);
    run(&d, "two", "Hello");
    const struct agentctl_ran *r = AGENTCTL("search", "import");
    assert_int_equal(r->code, EXIT_DONE);
    assert_has(r->out, "user  Why did the nightly import fail?\n");
    assert_has(r->out, "assistant  The Import failed at 3 o'clock.\n");
    assert_has(r->out, "one@");
    assert_has(r->out, "two@");
    /* Secrets stay inside. */
    r = AGENTCTL("search", "expired billing");
    assert_has(r->out, "[redacted] had expired, says billing.");
    assert_lacks(r->out, "AKIA");
    r = AGENTCTL("search", "--json", "AKIAIOSFODNN7EXAMPLE");
    assert_int_equal(r->code, EXIT_DONE);
    assert_lacks(r->out, "AKIA");
    assert_has(r->out, "\"more\": false");
    /* In one session only; nothing found; nothing to look for; what survives a kill. */
    assert_int_equal(AGENTCTL("search", "nightly", "two")->code, EXIT_NOTFOUND);
    assert_int_equal(AGENTCTL("search", "\"fail import\"")->code, EXIT_NOTFOUND);
    assert_int_equal(AGENTCTL("search", "***")->code, EXIT_USAGE);
    assert_int_equal(AGENTCTL("search", "x", "nobody")->code, EXIT_NOTFOUND);
    daemon_kill(&d);
    daemon_start(&d, NULL);
    r = AGENTCTL("search", "--jsonl", "--limit", "1", "import");
    assert_int_equal(r->code, EXIT_DONE);
    assert_has(r->out, "\"snippet\":");
    assert_int_equal(strchr(r->out, (char)10)[1], 0);
    assert_int_equal(AGENTCTL("search", "again")->code, EXIT_DONE);
    assert_int_equal(AGENTCTL("rm", "one", "--purge")->code, EXIT_DONE);
    assert_int_equal(AGENTCTL("search", "again")->code, EXIT_NOTFOUND);
    assert_int_equal(AGENTCTL("search", "import")->code, EXIT_DONE);
    daemon_remove(&d);
}

static void test_diff(void **state)
{
    (void)state;
    struct daemon_fixture d;
    make(&d, SAY("yes") SAY("left answer") SAY("right answer"));
    run(&d, "one", "Shall we?");
    assert_int_equal(AGENTCTL("fork", "one", "-n", "other")->code, EXIT_DONE);
    const struct agentctl_ran *r = AGENTCTL("diff", "one", "other");
    assert_int_equal(r->code, EXIT_DONE);
    assert_has(r->out, "the same ");
    assert_int_equal(AGENTCTL("send", "one", "Now: left turn")->code, EXIT_DONE);
    r = AGENTCTL("diff", "one", "other");
    assert_int_equal(r->code, EXIT_FAILED);
    assert_has(r->out, "+ other: ends here\n");
    assert_has(r->out, "+ other: no more items\n");
    assert_int_equal(AGENTCTL("send", "other", "Now: right turn")->code, EXIT_DONE);
    r = AGENTCTL("diff", "one", "other");
    assert_int_equal(r->code, EXIT_FAILED);
    assert_has(r->out, "Now: \n- one: token 108, ");
    assert_has(r->out, "tokens to compute from here\n    left turn");
    assert_has(r->out, "+ other: token 114, ");
    assert_has(r->out, "    right turn");
    assert_has(r->out, "user  Now: left turn\n");
    assert_has(r->out, "user  Now: right turn\n");
    /* The figures are those of the tapes. */
    json_auto_t *diff = json_loads(AGENTCTL("diff", "--json", "one", "other")->out, 0, NULL);
    json_auto_t *one = json_loads(AGENTCTL("show", "--json", "one")->out, 0, NULL);
    assert_non_null(diff);
    json_int_t tokens = json_integer_value(json_object_get(one, "tokens")),
               shared = json_integer_value(json_object_get(diff, "shared"));
    const json_t *a = json_object_get(diff, "a");
    assert_true(tokens > 0 && shared > 0);
    assert_int_equal(json_integer_value(json_object_get(a, "tokens")), tokens);
    assert_int_equal(json_integer_value(json_object_get(a, "recompute")), tokens - shared);
    assert_int_equal(AGENTCTL("diff", "one", "nobody")->code, EXIT_NOTFOUND);
    daemon_remove(&d);
}

/* Sessions that have nothing in common but words. */
static void test_diff_of_strangers(void **state)
{
    (void)state;
    struct daemon_fixture d;
    make(&d, SAY("yes"));
    run(&d, "one", "Same?");
    run(&d, "two", "Same?");
    assert_int_equal(AGENTCTL("diff", "one", "two")->code, EXIT_DONE);
    run(&d, "three", "Sane?");
    const struct agentctl_ran *r = AGENTCTL("diff", "one", "three");
    assert_int_equal(r->code, EXIT_FAILED);
    assert_has(r->out, "first item that differs: number 1\n");
    assert_has(r->out, "user  Sane?\n");
    daemon_remove(&d);
}

static void test_graph(void **state)
{
    (void)state;
    struct daemon_fixture d;
    char file[256];
    make(&d,
         SAY("a long enough answer to be summed up, with words and words and words and words")
             SAY("two") SAY("three") SAY("short"));
    snprintf(file, sizeof file, "%s/root.bundle", d.work);
    run(&d, "root", "hi");
    assert_int_equal(AGENTCTL("fork", "root", "-n", "branch")->code, EXIT_DONE);
    assert_int_equal(AGENTCTL("send", "branch", "on")->code, EXIT_DONE);
    assert_int_equal(AGENTCTL("send", "root", "on")->code, EXIT_DONE);
    assert_int_equal(AGENTCTL("rewind", "root", "~1")->code, EXIT_DONE);
    assert_int_equal(AGENTCTL("compact", "root")->code, EXIT_DONE);
    assert_int_equal(AGENTCTL("export", "root", "-o", file)->code, EXIT_DONE);
    const struct agentctl_ran *in = AGENTCTL("import", file, "-n", "copy", "-C", d.work);
    if (in->code)
        fail_msg("%s", in->err);
    for (int restarted = 0; restarted < 2; restarted++) {
        const struct agentctl_ran *r = AGENTCTL("log", "--graph");
        assert_int_equal(r->code, EXIT_DONE);
        assert_has(r->out, "* root  ");
        assert_has(r->out, "|\\* branch  ");
        assert_has(r->out, ", left root at ");
        assert_has(r->out, "|\\* root.1  ");
        assert_has(r->out, ", what root had before it was rewound\n");
        assert_has(r->out, "|\\* root.2  ");
        assert_has(r->out, ", what root had before it was compacted\n");
        assert_has(r->out, "* copy  ");
        assert_has(r->out, ", imported\n");
        /* The old logs are whole. */
        assert_has(AGENTCTL("logs", "root.1")->out, "two");
        assert_has(AGENTCTL("logs", "root.2")->out, "a long enough answer");
        daemon_kill(&d);
        daemon_start(&d, NULL);
    }
    daemon_remove(&d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_search),
        cmocka_unit_test(test_diff),
        cmocka_unit_test(test_diff_of_strangers),
        cmocka_unit_test(test_graph),
    };
    return !!cmocka_run_group_tests(tests, NULL, NULL);
}
