/* What the model answers after a resume: verify-resume's questions on the demo checkpoint. */
#include "tests/support/test.h"

#include <stdbool.h>

#include "base/fs.h"
#include "tests/support/build_folder.h"
#include "tests/support/evals_run.h"
#include "tests/support/tempdir.h"

#ifdef __SANITIZE_ADDRESS__
#define LIMIT_MS 280000
#else
#define LIMIT_MS 58000
#endif

#define DEMO "examples/demo-model/checkpoint"

/* Five depths, seven windows of distance, four questions of two turns. A bounded replay comes
 * to other rows, whatever it answers: the comparison sees that, too. */
static void check_answers(const json_t *answers)
{
    unsigned n_needles = 0, n_calls = 0, n_other = 0;
    double last = -1;
    size_t i;
    json_t *p;
    assert_int_equal(json_array_size(answers), 20);
    json_array_foreach(answers, i, p) {
        const json_t *arms = json_object_get(p, "arms");
        const char *kind = json_string_value(json_object_get(p, "kind"));
        n_needles += !strcmp(kind, "needle");
        n_calls += *json_string_value(json_object_get(p, "tool")) != 0;
        const json_t *b = json_object_get(arms, "B");
        n_other += json_integer_value(json_object_get(b, "different")) > 0;
        const json_t *x = json_object_get(arms, "X");
        assert_true(json_is_true(json_object_get(x, "same_ids")));
        assert_true(json_is_true(json_object_get(x, "same_action")));
        assert_true(json_integer_value(json_object_get(x, "rows")) > 0);
        assert_int_equal(json_integer_value(json_object_get(x, "different")), 0);
        if (strcmp(kind, "distance") != 0)
            continue;
        assert_true(json_number_value(json_object_get(p, "from")) > last); /* no window twice */
        last = json_number_value(json_object_get(p, "from"));
    }
    assert_int_equal(n_needles, 5);
    assert_true(n_calls >= 1 && n_other >= 1);
}

static void answers_after_a_resume(void **state)
{
    (void)state;
    char dir[TEMPDIR_BYTES], log[200], path[256];
    AUTO(buf) struct buf text = BUF_INIT(1 << 24);
    struct error e = {0};
    tempdir_make(dir);
    snprintf(log, sizeof log, "%s/log", dir);
    const char *const args[] = {"verify-resume",
                                "-m",
                                DEMO,
                                "-l",
                                "1K",
                                "--arms",
                                "XB",
                                "--continuation",
                                "128",
                                "--cycles",
                                "0",
                                "--positions",
                                "1024",
                                "--probes",
                                "1",
                                "--out",
                                dir,
                                "-q",
                                NULL};
    const int code = evals_run(args, log, LIMIT_MS);
    assert_ok(fs_read_file(log, &text, &e), &e);
    if (code)
        fail_msg("exit %d\n%s", code, buf_str(&text));
    assert_non_null(strstr(buf_str(&text), "X  needle     5 answers: the same ids 5"));
    json_auto_t *all = evals_read_json(dir, "verify-resume.json");
    check_answers(
        json_object_get(json_array_get(json_object_get(all, "lengths"), 0), "answers"));
    buf_clear(&text);
    snprintf(path, sizeof path, "%s/report.html", dir);
    assert_ok(fs_read_file(path, &text, &e), &e);
    assert_non_null(strstr(buf_str(&text), "Answers by distance to the resume point"));
    tempdir_remove(dir);
}

int main(void)
{
    if (build_folder_use())
        return 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(answers_after_a_resume),
    };
    return !!cmocka_run_group_tests(tests, NULL, NULL);
}
