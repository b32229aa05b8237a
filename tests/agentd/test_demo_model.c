/* The demo model as a reader of this repository meets it: the tools it was trained with are the
 * daemon's, its page names the checkpoint that lies here, and what the demo and the first
 * session show is what it says. */
#include "tests/support/test.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "tests/support/agentctl.h"
#include "tests/support/tempdir.h"
#include "tools/tools.h"

#define FOLDER "examples/demo-model/"

static void run_ok(const char *program, const char *const *argv)
{
    const struct agentctl_ran *r = program_run(program, argv);
    if (r->code)
        fail_msg("%s: exit code %d: %s%s", program, r->code, r->out, r->err);
}

/* tools.json is what the daemon puts into a prompt: another text is another model. */
static void test_tools(void **state)
{
    (void)state;
    json_error_t where;
    json_t *theirs = json_load_file(FOLDER "tools.json", JSON_REJECT_DUPLICATES, &where), *ours;
    assert_non_null(theirs);
    assert_int_equal(tool_functions(NULL, 0, false, &ours, NULL), 0);
    char *a = json_dumps(theirs, JSON_PRESERVE_ORDER | JSON_INDENT(2));
    char *b = json_dumps(ours, JSON_PRESERVE_ORDER | JSON_INDENT(2));
    assert_string_equal(a, b);
    free(a);
    free(b);
    json_decref(theirs);
    json_decref(ours);
}

static void test_digest(void **state)
{
    (void)state;
    run_ok("/bin/sh", (const char *const[]){
                          "-c",
                          "digest=$(cd " FOLDER "checkpoint && cat config.json "
                          "model.safetensors model.safetensors.index.json "
                          "tokenizer.json | sha256sum) && grep -q \"${digest%% *}\" " FOLDER
                          "README.md || { echo \"README.md lacks $digest\"; exit 1; }",
                          NULL});
}

static void test_live(void **state)
{
    (void)state;
    char dir[TEMPDIR_BYTES];
    tempdir_make(dir);
    run_ok("/bin/sh", (const char *const[]){"scripts/demo/live.sh", dir, NULL});
    tempdir_remove(dir);
}

static void test_quickstart(void **state)
{
    (void)state;
    run_ok("/bin/sh",
           (const char *const[]){"tests/agentd/quickstart.sh", "examples/quickstart.md", NULL});
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tools),
        cmocka_unit_test(test_digest),
        cmocka_unit_test(test_live),
        cmocka_unit_test(test_quickstart),
    };
    return !!cmocka_run_group_tests(tests, NULL, NULL);
}
