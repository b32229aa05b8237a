/* Scoring a run: counts, means with their intervals, and what does not belong together. */
#include "tests/support/test.h"

#include <math.h>
#include <stdbool.h>

#include "base/fs.h"
#include "evals/score.h"
#include "evals/stats.h"
#include "evals/suite.h"

static char folder[] = "/tmp/agentd-score-XXXXXX";
static const uint8_t digest[HASH_BYTES] = {9};

static int make_folder(void **state)
{
    (void)state;
    return !mkdtemp(folder);
}

static int drop_folder(void **state)
{
    (void)state;
    static const char *const files[] = {"contexts.jsonl", "samples.jsonl", "suite.json",
                                        "answers.jsonl",  "scores.jsonl",  "results.json"};
    char path[FS_PATH_BYTES];
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, files[i]);
        unlink(path);
    }
    return rmdir(folder);
}

static const char *path_of(const char *name)
{
    static char path[FS_PATH_BYTES];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

/* n samples of task t/1024, `per_context` of them on one context; the answer to i is "ai". */
static void write_suite(unsigned n, unsigned per_context)
{
    struct suite_writer w = {0};
    struct error e = {0};
    unlink(path_of("suite.json"));
    assert_ok(suite_writer_open(&w, folder, "s", 3, 42, digest, &e), &e);
    for (unsigned i = 0; i < n; i++) {
        char answer[16];
        AUTO(wordlist) struct wordlist answers = WORDLIST_INIT;
        struct suite_sample s = {.question = "q",
                                 .n_question = 1,
                                 .answer_prefix = "",
                                 .answers = &answers,
                                 .metric = SUITE_ALL_MATCH,
                                 .max_tokens = 1,
                                 .depth = -1};
        snprintf(answer, sizeof answer, "a%u.", i);
        snprintf(s.id, sizeof s.id, "s/t/1024/%u", i);
        snprintf(s.context, sizeof s.context, "s/t/1024/c%u", i / per_context);
        assert_ok(wordlist_add(&answers, answer, strlen(answer), &e), &e);
        assert_ok(suite_add_sample(&w, &s, &e), &e);
    }
    assert_ok(suite_writer_finish(&w, &e), &e);
    suite_writer_fini(&w);
}

static void write_text(const char *name, const char *text)
{
    struct error e = {0};
    assert_ok(fs_write_atomic(path_of(name), text, strlen(text), 0600, &e), &e);
}

static enum err score(json_t **results, struct score_counts *counts, struct error *e)
{
    return score_run(folder, path_of("answers.jsonl"), counts, results, e);
}

static int64_t count(const json_t *results, const char *name)
{
    const json_t *cell = json_array_get(json_object_get(results, "cells"), 0);
    return json_integer_value(json_object_get(cell, name));
}

static double figure(const json_t *results, const char *of, const char *name)
{
    const json_t *cell = json_array_get(json_object_get(results, "cells"), 0);
    return json_real_value(json_object_get(json_object_get(cell, of), name));
}

static const char *kind(const json_t *results, const char *of)
{
    const json_t *cell = json_array_get(json_object_get(results, "cells"), 0);
    return json_string_value(json_object_get(json_object_get(cell, of), "interval"));
}

static bool equal(double a, double b)
{
    return fabs(a - b) < 1e-12;
}

static void errors_counted_apart(void **state)
{
    (void)state;
    json_auto_t *results = NULL;
    struct score_counts counts;
    struct error e = {0};
    struct stats_interval all, answered;
    AUTO(buf) struct buf scores = BUF_INIT(1 << 16);
    write_suite(6, 1);
    write_text("answers.jsonl",
               "{\"id\": \"s/t/1024/4\", \"text\": \"no\"}\n"
               "{\"id\": \"s/t/1024/0\", \"text\": \"It is A0.\"}\n"
               "{\"id\": \"s/t/1024/1\", \"status\": \"error\"}\n"
               "\n"
               "{\"id\": \"s/t/1024/2\", \"status\": \"timeout\", \"text\": \"a2.\"}\n"
               "{\"id\": \"s/t/1024/3\", \"status\": \"ok\", \"text\": \" \"}\n");
    assert_ok(score(&results, &counts, &e), &e);
    assert_int_equal(counts.n, 6);
    assert_int_equal(counts.n_missing, 1);
    assert_int_equal(count(results, "n"), 6);
    assert_int_equal(count(results, "ok"), 2);
    assert_int_equal(count(results, "empty"), 1);
    assert_int_equal(count(results, "error"), 1);
    assert_int_equal(count(results, "timeout"), 1);
    assert_int_equal(count(results, "missing"), 1);
    assert_ok(stats_wilson(1, 6, SCORE_CONFIDENCE, &all, &e), &e);
    assert_ok(stats_wilson(1, 3, SCORE_CONFIDENCE, &answered, &e), &e);
    assert_true(equal(figure(results, "score", "mean"), all.mean));
    assert_true(equal(figure(results, "score", "low"), all.low));
    assert_true(equal(figure(results, "answered", "high"), answered.high));
    assert_string_equal(kind(results, "score"), "wilson");
    assert_ok(fs_read_file(path_of("scores.jsonl"), &scores, &e), &e);
    assert_string_equal(buf_str(&scores),
                        "{\"id\": \"s/t/1024/0\", \"status\": \"ok\", \"score\": 1.0}\n"
                        "{\"id\": \"s/t/1024/1\", \"status\": \"error\", \"score\": 0.0}\n"
                        "{\"id\": \"s/t/1024/2\", \"status\": \"timeout\", \"score\": 0.0}\n"
                        "{\"id\": \"s/t/1024/3\", \"status\": \"empty\", \"score\": 0.0}\n"
                        "{\"id\": \"s/t/1024/4\", \"status\": \"ok\", \"score\": 0.0}\n"
                        "{\"id\": \"s/t/1024/5\", \"status\": \"missing\", \"score\": 0.0}\n");
}

static void answer_all(unsigned n, unsigned right)
{
    AUTO(buf) struct buf text = BUF_INIT(1 << 16);
    struct error e = {0};
    for (unsigned i = 0; i < n; i++)
        assert_ok(buf_printf(&text, &e, "{\"id\": \"s/t/1024/%u\", \"text\": \"a%u.\"}\n", i,
                             i < right ? i : 999),
                  &e);
    write_text("answers.jsonl", buf_str(&text));
}

static void contexts_are_the_unit(void **state)
{
    (void)state;
    json_auto_t *shared = NULL, *one = NULL;
    struct score_counts counts;
    struct error e = {0};
    write_suite(12, 4);
    answer_all(12, 4); /* one context all right, two all wrong */
    assert_ok(score(&shared, &counts, &e), &e);
    assert_string_equal(kind(shared, "score"), "bootstrap");
    assert_int_equal(count(shared, "n_contexts"), 3);
    assert_true(equal(figure(shared, "score", "low"), 0));
    assert_true(equal(figure(shared, "score", "high"), 1));
    write_suite(12, 12);
    assert_ok(score(&one, &counts, &e), &e);
    assert_string_equal(kind(one, "score"), "none");
    assert_true(equal(figure(one, "score", "mean"), 1 / 3.0));
}

static void same_files_same_bytes(void **state)
{
    (void)state;
    json_auto_t *a = NULL, *b = NULL;
    struct score_counts counts;
    struct error e = {0};
    AUTO(buf) struct buf first = BUF_INIT(1 << 16);
    AUTO(buf) struct buf second = BUF_INIT(1 << 16);
    write_suite(10, 2);
    answer_all(10, 7);
    assert_ok(score(&a, &counts, &e), &e);
    assert_ok(fs_read_file(path_of("results.json"), &first, &e), &e);
    assert_ok(score(&b, &counts, &e), &e);
    assert_ok(fs_read_file(path_of("results.json"), &second, &e), &e);
    assert_string_equal(buf_str(&first), buf_str(&second));
}

static void expect(enum err want, const char *message)
{
    json_t *results = NULL;
    struct score_counts counts;
    struct error e = {0};
    assert_int_equal(score(&results, &counts, &e), want);
    assert_null(results);
    if (!strstr(e.msg, message))
        fail_msg("\"%s\", want \"%s\"", e.msg, message);
}

static void what_does_not_belong_together(void **state)
{
    (void)state;
    struct error e = {0};
    AUTO(buf) struct buf text = BUF_INIT(1 << 16);
    write_suite(3, 1);
    write_text("answers.jsonl", "{\"id\": \"s/t/1024/7\", \"text\": \"x\"}\n");
    expect(ERR_CONFLICT, "s/t/1024/7, which is no sample");
    answer_all(3, 3);
    assert_ok(fs_read_file(path_of("samples.jsonl"), &text, &e), &e);
    text.data[text.len - 2] = ' '; /* the last brace */
    write_text("samples.jsonl", buf_str(&text));
    expect(ERR_CONFLICT, "samples.jsonl: digest");
    write_suite(3, 1);
    answer_all(3, 3);
    write_text("contexts.jsonl", "{}\n");
    expect(ERR_CONFLICT, "contexts.jsonl: digest");
    unlink(path_of("suite.json"));
    expect(ERR_NOTFOUND, "suite.json");
}

static void lines_that_are_no_answers(void **state)
{
    (void)state;
    write_suite(3, 1);
    write_text("answers.jsonl", "{\"id\": \"s/t/1024/0\", \"text\": \"x\"}\n"
                                "{\"id\": \"s/t/1024/0\", \"text\": \"x\"}\n");
    expect(ERR_FORMAT, "answers.jsonl:2: a second answer to s/t/1024/0");
    write_text("answers.jsonl", "{\"id\": \"s/t/1024/0\"}\n");
    expect(ERR_FORMAT, "\"text\": missing");
    write_text("answers.jsonl", "{\"id\": \"s/t/1024/0\", \"status\": \"fine\"}\n");
    expect(ERR_FORMAT, "want ok, error or timeout");
    write_text("answers.jsonl", "{\"id\": \"s/t/1024/0\", \"text\": \"x\"}\n[1]\n");
    expect(ERR_FORMAT, "answers.jsonl:2: want an object");
    write_text("answers.jsonl", "{\"id\": \"s/t/1024/0\", \"text\": \"x");
    expect(ERR_FORMAT, "answers.jsonl:1:");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(errors_counted_apart),
        cmocka_unit_test(contexts_are_the_unit),
        cmocka_unit_test(same_files_same_bytes),
        cmocka_unit_test(what_does_not_belong_together),
        cmocka_unit_test(lines_that_are_no_answers),
    };
    return !!cmocka_run_group_tests(tests, make_folder, drop_folder);
}
