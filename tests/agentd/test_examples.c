/* The examples as a reader would run them, against a daemon with the scripted engine. */
#include "tests/support/test.h"

#include <libgen.h>
#include <unistd.h>

#include "tests/support/agentctl.h"
#include "tests/support/daemon.h"

#define EOS "<｜end▁of▁sentence｜>"
#define SAY(text) "{\"text\":\"ok</think>" text EOS "\"}\n"
#define CALL(name)                                                                             \
    "{\"text\":\"ok</think>\\n\\n<｜DSML｜ calls>\\n<｜DSML｜ invoke name=\\\"" name           \
    "\\\">\\n</｜DSML｜ invoke>\\n</｜DSML｜ calls>" EOS "\"}\n"
#define EXAMPLE(name, ...)                                                                     \
    program_run("examples/" name, (const char *const[]){__VA_ARGS__, NULL})

static void make(struct daemon_fixture *d, const char *script)
{
    daemon_make(d, script);
    daemon_start(d, NULL);
    setenv("AGENTD_SOCKET", d->socket, 1);
}

static void test_client_tool(void **state)
{
    (void)state;
    struct daemon_fixture d;
    make(&d, CALL("time") CALL("time") SAY("Late."));
    const struct agentctl_ran *r = EXAMPLE("client_tool", "What time is it?");
    assert_string_equal(r->out, "Late.\n");
    assert_string_equal(r->err, "asked for time {}\nasked for time {}\n");
    assert_int_equal(r->code, 0);
    /* What the tool said is in the session. */
    r = AGENTCTL("ps", "-a", "--names");
    char name[64];
    assert_int_equal(sscanf(r->out, "%63s", name), 1);
    assert_has(AGENTCTL("logs", name)->out, " UTC");
    assert_int_equal(EXAMPLE("client_tool", "two", "prompts")->code, 2);
    daemon_remove(&d);
}

static void test_chat(void **state)
{
    (void)state;
    struct daemon_fixture d;
    make(&d, SAY("Hello."));
    const char *build = getenv("AGENTD_BUILD");
    char chat[200];
    snprintf(chat, sizeof chat, "%s/examples/chat", build ? build : "build");
    const struct agentctl_ran *r =
        program_run("/bin/sh", (const char *const[]){"-c", "echo Hi | \"$0\"", chat, NULL});
    assert_int_equal(r->code, 0);
    assert_string_equal(r->out, "Hello.\n");
    assert_has(r->err, "session ");
    assert_int_equal(EXAMPLE("chat", "nobody")->code, 1);
    daemon_remove(&d);
}

static void test_resume_fork(void **state)
{
    (void)state;
    struct daemon_fixture d;
    char file[200];
    make(&d, SAY("Read.") SAY("Forty-two."));
    snprintf(file, sizeof file, "%s/context", d.work);
    FILE *f = fopen(file, "we");
    assert_non_null(f);
    for (int i = 0; i < 100; i++)
        fputs("The answer is forty-two.\n", f);
    fclose(f);
    const struct agentctl_ran *r = EXAMPLE("resume_fork", file, "Which?", "Again, which?");
    assert_int_equal(r->code, 0);
    assert_has(r->out, "Forty-two.");
    assert_has(r->out, "recomputed 0");
    daemon_remove(&d);
}

static void test_export_import(void **state)
{
    (void)state;
    struct daemon_fixture d;
    char self[4096], path[8192], script[4200];
    make(&d, CALL("list_dir") SAY("It is empty.") SAY("0 bytes."));
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    assert_true(n > 0);
    self[n] = '\0';
    const char *old = getenv("PATH");
    snprintf(path, sizeof path, "%s:%.3000s", dirname(dirname(dirname(self))), old ? old : "");
    setenv("PATH", path, 1);
    assert_non_null(getcwd(self, sizeof self));
    snprintf(script, sizeof script, "%s/examples/export_import.sh", self);
    /* From the workspace: the session is one of that folder. */
    assert_int_equal(chdir(d.work), 0);
    const struct agentctl_ran *r =
        program_run(script, (const char *const[]){"What is here?", "How large is it?", NULL});
    assert_int_equal(chdir(self), 0);
    if (r->code)
        fail_msg("exit code %d: %s%s", r->code, r->out, r->err);
    assert_string_equal(r->out, "first: It is empty.\ncopy: 0 bytes.\n");
    r = AGENTCTL("ps", "-a", "--names");
    assert_has(r->out, "-copy\n");
    daemon_remove(&d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_client_tool),
        cmocka_unit_test(test_chat),
        cmocka_unit_test(test_resume_fork),
        cmocka_unit_test(test_export_import),
    };
    return !!cmocka_run_group_tests(tests, NULL, NULL);
}
