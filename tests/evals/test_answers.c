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

/* ---- a suite's samples ------------------------------------------------------------------ */

static int run_in(const char *dir, const char *const *args, struct buf *log)
{
    char path[200];
    struct error e = {0};
    snprintf(path, sizeof path, "%s/log", dir);
    const int code = evals_run(args, path, LIMIT_MS);
    buf_clear(log);
    assert_ok(fs_read_file(path, log, &e), &e);
    return code;
}

/* Forks of X and D are the never-stopped session's to the last bit; those of a bounded replay
 * have other rows, which shows that rows are looked at. Intervals: Wilson's of 6 of 6. */
static void check_cell(const json_t *cell)
{
    static const char *const arms[] = {"X", "D", "B"};
    const json_t *answers = json_object_get(cell, "answers");
    size_t i;
    json_t *p;
    assert_int_equal(json_integer_value(json_object_get(cell, "length")), 1024);
    assert_int_equal(json_integer_value(json_object_get(cell, "n_contexts")), 2);
    assert_null(json_object_get(cell, "unfinished"));
    assert_true(json_is_true(json_object_get(cell, "equal")));
    assert_int_equal(json_array_size(json_object_get(cell, "checks")), 2);
    assert_int_equal(json_array_size(answers), 6);
    json_array_foreach(answers, i, p) {
        const char *expected =
            json_string_value(json_array_get(json_object_get(p, "expected"), 0));
        const char *text = json_string_value(json_object_get(p, "text"));
        assert_int_equal(json_is_true(json_object_get(p, "right")),
                         strstr(text, expected) != NULL);
        for (size_t a = 0; a < 3; a++) {
            const json_t *one = json_object_get(json_object_get(p, "arms"), arms[a]);
            assert_true(json_integer_value(json_object_get(one, "rows")) > 20);
            assert_int_equal(json_integer_value(json_object_get(one, "different")) > 0, a == 2);
            assert_int_equal(json_integer_value(json_object_get(one, "replayed")) > 0,
                             a > 0 && i % 3 == 0); /* one resume for three forks */
            if (a < 2)
                assert_true(json_is_true(json_object_get(one, "same_ids")));
        }
    }
    const json_t *c = json_object_get(json_object_get(cell, "accuracy"), "C");
    const double right = json_number_value(json_object_get(c, "right"));
    assert_int_equal(json_integer_value(json_object_get(c, "n")), 6);
    assert_true(right >= 4); /* so short a report is easy */
    assert_true(json_number_value(json_object_get(c, "low")) < right / 6);
}

static void samples_of_a_suite_in_forks(void **state)
{
    (void)state;
    char dir[TEMPDIR_BYTES], suite[200], other[200];
    AUTO(buf) struct buf log = BUF_INIT(1 << 24);
    tempdir_make(dir);
    snprintf(suite, sizeof suite, "%s/suite", dir);
    snprintf(other, sizeof other, "%s/other", dir);
    const char *const gen[] = {"gen", "needle-session", "-m", DEMO,          "-o", suite, "-l",
                               "1K",  "--contexts",     "2",  "--questions", "3",  NULL};
    const char *const ask[] = {"verify-resume", "-m", DEMO, "--suite", suite,
                               "--out",         dir,  "-q", NULL};
    if (run_in(dir, gen, &log) || run_in(dir, ask, &log))
        fail_msg("%s", buf_str(&log));
    assert_non_null(strstr(buf_str(&log), "X  sample     6 answers: the same ids 6"));
    assert_non_null(strstr(buf_str(&log), "needle-session/code/1024, 2 contexts"));
    json_auto_t *all = evals_read_json(dir, "verify-resume.json");
    assert_int_equal(json_array_size(json_object_get(all, "lengths")), 1);
    check_cell(json_array_get(json_object_get(all, "lengths"), 0));

    const char *const none[] = {"verify-resume", "-m", DEMO, "--suite", other, NULL};
    assert_int_equal(run_in(dir, none, &log), 4);
    const char *const foreign[] = {
        "gen", "needle-session", "-m", "tests/evals/tokenizer_small", "-o", other, NULL};
    assert_int_equal(run_in(dir, foreign, &log), 0);
    assert_int_equal(run_in(dir, none, &log), 11);
    assert_non_null(strstr(buf_str(&log), "another tokenizer"));
    char contexts[220];
    snprintf(contexts, sizeof contexts, "%s/contexts.jsonl", suite);
    assert_int_equal(truncate(contexts, 5), 0);
    assert_int_equal(run_in(dir, ask, &log), 11);
    assert_non_null(strstr(buf_str(&log), "contexts.jsonl: digest"));
    tempdir_remove(dir);
}

static void options_of_a_suite(void **state)
{
    (void)state;
    char dir[TEMPDIR_BYTES];
    AUTO(buf) struct buf log = BUF_INIT(1 << 24);
    tempdir_make(dir);
    const char *const both[] = {"verify-resume", "-m", DEMO, "--suite",
                                "none",          "-l", "4K", NULL};
    assert_int_equal(run_in(dir, both, &log), 2);
    const char *const many[] = {"verify-resume", "-m",        DEMO, "--suite",
                                "none",          "--threads", "2",  NULL};
    assert_int_equal(run_in(dir, many, &log), 2);
    const char *const arms[] = {"verify-resume", "-m",     DEMO, "--suite",
                                "none",          "--arms", "XK", NULL};
    assert_int_equal(run_in(dir, arms, &log), 2);
    tempdir_remove(dir);
}

int main(void)
{
    if (build_folder_use())
        return 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(answers_after_a_resume),
        cmocka_unit_test(samples_of_a_suite_in_forks),
        cmocka_unit_test(options_of_a_suite),
    };
    return !!cmocka_run_group_tests(tests, NULL, NULL);
}
