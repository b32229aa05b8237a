/* Generators, scorers and traces when an allocation or a write fails: the call says so, and
 * leaks nothing (under ASan). */
#include "tests/support/test.h"

#include "base/fault.h"
#include "base/fs.h"
#include "evals/ruler_suite.h"
#include "evals/score.h"
#include "evals/suite.h"
#include "evals/trace.h"

static char folder[] = "/tmp/agentd-evalfault-XXXXXX";
static const uint8_t digest[HASH_BYTES] = {4};
static struct tokenizer *tokenizer;

static const char *path_of(const char *name)
{
    static char path[FS_PATH_BYTES];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static void write_text(const char *name, const char *text)
{
    struct error e = {0};
    assert_ok(fs_write_atomic(path_of(name), text, strlen(text), 0600, &e), &e);
}

static int set_up(void **state)
{
    (void)state;
    struct error e = {0};
    assert_non_null(mkdtemp(folder));
    assert_ok(tokenizer_open(&tokenizer, "tests/evals/tokenizer_small", &e), &e);
    write_text("words", "one\ntwo\ntwo-three\nfour\n");
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    static const char *const files[] = {"contexts.jsonl",
                                        "samples.jsonl",
                                        "suite.json",
                                        "answers.jsonl",
                                        "scores.jsonl",
                                        "results.json",
                                        "niah_single_1-1024.jsonl",
                                        "words"};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        unlink(path_of(files[i]));
    tokenizer_free(tokenizer);
    return rmdir(folder);
}

/* ---- operations ---------------------------------------------------------------------------
 */

static enum err finish(struct suite_writer *w, enum err rc, struct error *e)
{
    if (!rc)
        rc = suite_writer_finish(w, e);
    suite_writer_fini(w);
    return rc;
}

static enum err write_ruler(struct error *e)
{
    struct suite_writer w = {0};
    char words[FS_PATH_BYTES];
    snprintf(words, sizeof words, "%s", path_of("words"));
    const struct ruler_suite s = {.tokenizer = tokenizer,
                                  .tasks = {RULER_NIAH_SINGLE_1},
                                  .n_tasks = 1,
                                  .n_samples = 1,
                                  .seed = 42,
                                  .nouns = words,
                                  .adjectives = words};
    unlink(path_of("suite.json"));
    enum err rc = suite_writer_open(&w, folder, "ruler", 1, 42, digest, e);
    return finish(&w, rc ? rc : ruler_suite_add(&s, 1024, &w, e), e);
}

static const struct suite_kind *kind;

static enum err write_kind(struct error *e)
{
    struct suite_writer w = {0};
    const struct suite_options o = {
        .tokenizer = tokenizer, .seed = 1, .n_tokens = 2048, .n_questions = 2};
    unlink(path_of("suite.json"));
    enum err rc = suite_writer_open(&w, folder, kind->name, 1, 1, digest, e);
    return finish(&w, rc ? rc : kind->generate(&o, 0, &w, e), e);
}

static enum err score(struct error *e)
{
    struct score_counts counts;
    json_t *results = NULL;
    char answers[FS_PATH_BYTES];
    snprintf(answers, sizeof answers, "%s", path_of("answers.jsonl"));
    enum err rc = score_run(folder, answers, &counts, &results, e);
    assert_true(!rc == !!results);
    json_decref(results);
    return rc;
}

static enum err read_trace(struct error *e)
{
    static const char text[] = "{\"timestamp\": 0, \"input_length\": 700, \"output_length\": "
                               "5, \"hash_ids\": [3, 4]}\n";
    struct trace t = TRACE_INIT(TRACE_MOONCAKE);
    struct trace_summary s;
    AUTO(buf) struct buf out = BUF_INIT(1 << 16);
    enum err rc = trace_parse(&t, TRACE_MOONCAKE, text, sizeof text - 1, "t", e);
    if (!rc)
        rc = trace_write(&t, &out, e);
    if (!rc)
        rc = trace_summarise(&t, &s, e);
    trace_fini(&t);
    return rc;
}

static enum err synthesise(struct error *e)
{
    struct trace t = TRACE_INIT(TRACE_TRACELAB);
    enum err rc = trace_synthesise(&t, 3, 1, e);
    trace_fini(&t);
    return rc;
}

/* ---- walking ------------------------------------------------------------------------------
 */

/* Runs op with every hit of a fault point failing in turn, then without; counts the failures.
 * A failed allocation is ERR_NOMEM (but jansson can take one for a bad token); other points may
 * be any error. */
static void walk(enum err (*op)(struct error *e), const char *point, uint64_t at_least)
{
    for (uint64_t n = 1;; n++) {
        struct error e = {0};
        fault_arm(FAULT_FAIL, point, n);
        enum err rc = op(&e);
        bool failed = fault_disarm();
        if (!failed) {
            assert_ok(rc, &e);
            assert_true(n > at_least);
            return;
        }
        if (!rc || (!strcmp(point, "alloc") && rc != ERR_NOMEM))
            fail_msg("%s %d: code %d, %s", point, (int)n, (int)rc, e.msg);
        assert_true(strlen(e.msg) > 5);
    }
}

static void writing_suites(void **state)
{
    (void)state;
    walk(write_ruler, "alloc", 20);
    walk(write_ruler, "fs.sync", 2);
    walk(write_ruler, "fs.write", 0);
    for (size_t i = 0; i < suite_n_kinds; i++) {
        kind = &suite_kinds[i];
        walk(write_kind, "alloc", 10);
    }
}

static void scoring(void **state)
{
    (void)state;
    struct error e = {0};
    kind = &suite_kinds[1]; /* lists, of which one answer is scored in full */
    assert_ok(write_kind(&e), &e);
    write_text(
        "answers.jsonl",
        "{\"id\": \"graphwalks-synth/walk/2048/0\", \"text\": \"Final Answer: [a, b]\"}\n");
    walk(score, "alloc", 20);
    walk(score, "fs.read", 1);
    walk(score, "fs.rename", 1);
}

static void traces(void **state)
{
    (void)state;
    walk(read_trace, "alloc", 3);
    walk(synthesise, "alloc", 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(writing_suites),
        cmocka_unit_test(scoring),
        cmocka_unit_test(traces),
    };
    return !!cmocka_run_group_tests(tests, set_up, tear_down);
}
