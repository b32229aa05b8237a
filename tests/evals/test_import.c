/* Benchmark files become suites whose right answers score 1. */
#include "tests/support/test.h"

#include "base/fs.h"
#include "evals/import.h"
#include "evals/score.h"
#include "tests/support/tempdir.h"

#define MODEL "tests/evals/tokenizer_small"

struct bench {
    char dir[TEMPDIR_BYTES], suite[160];
    struct tokenizer *tokenizer;
    json_t *samples;
};

static enum err keep(void *user, json_t *line, struct error *e)
{
    (void)e;
    json_array_append(user, line);
    return OK;
}

/* Imports `text` as a file called `name`. */
static enum err import(struct bench *b, const char *format, const char *name, const char *text,
                       struct error *e)
{
    char path[256];
    const uint8_t digest[HASH_BYTES] = {1};
    struct suite_writer w = {0};
    tempdir_make(b->dir);
    snprintf(b->suite, sizeof b->suite, "%s/suite", b->dir);
    snprintf(path, sizeof path, "%s/%s", b->dir, name);
    b->samples = json_array();
    assert_ok(tokenizer_open(&b->tokenizer, MODEL, e), e);
    assert_ok(fs_write_atomic(path, text, strlen(text), 0600, e), e);
    enum err rc = suite_writer_open(&w, b->suite, format, 1, 0, digest, e);
    if (!rc)
        rc = import_file(format, path, b->tokenizer, &w, e);
    if (!rc)
        rc = suite_writer_finish(&w, e);
    suite_writer_fini(&w);
    tokenizer_free(b->tokenizer);
    return rc;
}

static void bench_end(struct bench *b)
{
    json_decref(b->samples);
    tempdir_remove(b->dir);
}

/* One sample; `right` scores 1 and `wrong` 0. */
static void check(const char *format, const char *name, const char *text, const char *id,
                  const char *question, const char *right, const char *wrong)
{
    struct bench b;
    struct error e = {0};
    char path[256], line[512];
    assert_ok(import(&b, format, name, text, &e), &e);
    snprintf(path, sizeof path, "%s/samples.jsonl", b.suite);
    assert_ok(suite_read_lines(path, keep, b.samples, &e), &e);
    assert_int_equal(json_array_size(b.samples), 1);
    const json_t *s = json_array_get(b.samples, 0);
    assert_string_equal(json_string_value(json_object_get(s, "id")), id);
    assert_string_equal(json_string_value(json_object_get(s, "question")), question);
    for (int k = 0; k < 2; k++) {
        struct score_counts counts;
        json_auto_t *results = NULL;
        snprintf(path, sizeof path, "%s/answers.jsonl", b.suite);
        int n = snprintf(line, sizeof line, "{\"id\": \"%s\", \"text\": \"%s\"}\n", id,
                         k ? wrong : right);
        assert_ok(fs_write_atomic(path, line, (size_t)n, 0600, &e), &e);
        assert_ok(score_run(b.suite, path, &counts, &results, &e), &e);
        const json_t *cell = json_array_get(json_object_get(results, "cells"), 0);
        const double mean =
            json_number_value(json_object_get(json_object_get(cell, "score"), "mean"));
        assert_true(k ? mean <= 0 : mean >= 1);
    }
    bench_end(&b);
}

static void each_format(void **state)
{
    (void)state;
    check("ruler", "vt.jsonl",
          "{\"index\": 0, \"input\": \"X = 5\", \"outputs\": [\"AB\", \"CD\"], "
          "\"answer_prefix\": \" Answer:\"}\n",
          "ruler/vt/1024/0", " Answer:", "cd and ab", "none");
    check("ruler", "qa_1.jsonl", "{\"input\": \"q\", \"outputs\": [\"AB\", \"CD\"]}\n",
          "ruler/qa_1/1024/0", "", "ab", "none");
    check("mrcr", "mrcr.jsonl",
          "{\"prompt\": \"[{\\\"role\\\": \\\"user\\\", \\\"content\\\": \\\"a\\\"}, "
          "{\\\"role\\\": \\\"user\\\", \\\"content\\\": \\\"which?\\\"}]\", \"answer\": "
          "\"0123456789poem\"}\n",
          "mrcr/mrcr/1024/0", "which?", "0123456789poem", "poem");
    check("graphwalks", "g.jsonl",
          "{\"prompt\": \"x -> y\", \"answer_nodes\": [\"a\", \"b\"]}\n", "graphwalks/g/1024/0",
          "", "Final Answer: [b, a]", "a, b");
    check(
        "longbench-v2", "data.json",
        "[{\"context\": \"c\", \"question\": \"q\", \"choice_A\": \"1\", \"choice_B\": \"2\", "
        "\"choice_C\": \"3\", \"choice_D\": \"4\", \"answer\": \"B\"}]",
        "longbench-v2/data/1024/0",
        "\n\nQuestion: q\n(A) 1\n(B) 2\n(C) 3\n(D) 4\n\nAnswer in this form: \"The correct "
        "answer is (letter)\".",
        "The correct answer is (B).", "The correct answer is (A).");
    check("infinitebench", "passkey.jsonl",
          "{\"id\": 0, \"context\": \"c\", \"input\": \"q\", \"answer\": [\"71\"]}\n",
          "infinitebench/passkey/1024/0", "\n\nq", "It is 71.", "It is 17.");
    check("infinitebench", "kv_retrieval.jsonl",
          "{\"context\": \"c\", \"input\": \"q\", \"answer\": \"ab-1\"}\n",
          "infinitebench/kv_retrieval/1024/0", "\n\nq", "key: ab-1", "xab-1");
    check("infinitebench", "code_run.jsonl",
          "{\"context\": \"c\", \"input\": \"q\", \"answer\": -7}\n",
          "infinitebench/code_run/1024/0", "\n\nq", "It is -7.", "7");
    check("infinitebench", "math_find.jsonl",
          "{\"context\": \"c\", \"input\": \"q\", \"answer\": 3.0}\n",
          "infinitebench/math_find/1024/0", "\n\nq", "3.0", "3.5");
    check("infinitebench", "math_calc.jsonl",
          "{\"context\": \"c\", \"input\": \"q\", \"answer\": [1, 4]}\n",
          "infinitebench/math_calc/1024/0", "\n\nq", "[1, 4]", "[4, 1]");
    check("infinitebench", "longbook_choice_eng.jsonl",
          "{\"context\": \"c\", \"input\": \"q\", \"options\": [\"w\", \"x\", \"y\", \"z\"], "
          "\"answer\": [\"y\"]}\n",
          "infinitebench/longbook_choice_eng/1024/0",
          "\n\nq\nA. w\nB. x\nC. y\nD. z\n\nAnswer in this form: \"The answer is: A\".",
          "The answer is: C", "The answer is: A");
    check("infinitebench", "longbook_qa_eng.jsonl",
          "{\"context\": \"c\", \"input\": \"q\", \"answer\": [\"a cat\", \"dog\"]}\n",
          "infinitebench/longbook_qa_eng/1024/0", "\n\nq", "The dog.", "bird");
    check("infinitebench", "longbook_sum_eng.jsonl",
          "{\"context\": \"c\", \"input\": \"q\", \"answer\": [\"A cat, a dog.\"]}\n",
          "infinitebench/longbook_sum_eng/1024/0", "\n\nq", "a cat\\na DOG", "bird");
}

static void refuse(const char *format, const char *name, const char *text, enum err want,
                   const char *says)
{
    struct bench b;
    struct error e = {0};
    assert_int_equal(import(&b, format, name, text, &e), want);
    if (!strstr(e.msg, says))
        fail_msg("\"%s\" does not say \"%s\"", e.msg, says);
    bench_end(&b);
}

static void what_is_no_such_file(void **state)
{
    (void)state;
    refuse("other", "a.jsonl", "{}\n", ERR_NOTFOUND, "no format");
    refuse("ruler", "a.jsonl", "", ERR_FORMAT, "no samples");
    refuse("ruler", "a.jsonl", "{\"input\": \"x\", \"outputs\": []}\n", ERR_FORMAT, ":1");
    refuse("ruler", "a.jsonl", "{\"input\": \"x\", \"outputs\": [\"y\"]}\n{\"input\": 5}\n",
           ERR_FORMAT, ":2");
    refuse("mrcr", "a.jsonl", "{\"prompt\": \"[]\", \"answer\": \"x\"}\n", ERR_FORMAT,
           "messages");
    refuse("mrcr", "a.jsonl", "{\"prompt\": \"not json\", \"answer\": \"x\"}\n", ERR_FORMAT,
           ":1");
    refuse("longbench-v2", "a.json", "[{\"context\": \"c\"}]", ERR_FORMAT, "element 0");
    refuse("infinitebench", "longbook_sum_fra.jsonl",
           "{\"context\": \"c\", \"input\": \"q\", \"answer\": \"x\"}\n", ERR_UNSUPPORTED,
           "no scorer");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_format),
        cmocka_unit_test(what_is_no_such_file),
    };
    return !!cmocka_run_group_tests(tests, NULL, NULL);
}
