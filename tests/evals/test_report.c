/* report, diff and gate on runs that are made here: one cell, and 35 depths by 35 lengths. With
 * AGENTD_REPORTS=DIR the reports stay there, to be looked at. */
#include "tests/support/test.h"

#include <math.h>
#include <stdbool.h>
#include <sys/stat.h>

#include "base/fs.h"
#include "evals/report.h"
#include "evals/score.h"
#include "evals/suite.h"
#include "evals/svg.h"
#include "tests/support/build_folder.h"
#include "tests/support/evals_run.h"
#include "tests/support/tempdir.h"

/* A run of n lengths and n depths; every `hole`-th sample has no answer (0: all have). An
 * answer is right unless its length and depth are both large, past `edge`. */
static void make_run_sharing(const char *dir, uint32_t n, uint32_t hole, uint32_t edge,
                             uint32_t per_context)
{
    const uint8_t tokenizer[HASH_BYTES] = {1};
    char path[256];
    struct error e = {0};
    struct suite_writer w = {0};
    AUTO(wordlist) struct wordlist right = WORDLIST_INIT;
    AUTO(buf) struct buf answers = BUF_INIT(1 << 24);
    assert_ok(wordlist_add(&right, "yes", 3, &e), &e);
    assert_ok(suite_writer_open(&w, dir, "needle-session", 1, 1, tokenizer, &e), &e);
    for (uint32_t l = 0; l < n; l++)
        for (uint32_t d = 0; d < n; d++) {
            struct suite_sample s = {.question = "?",
                                     .n_question = 1,
                                     .answer_prefix = "",
                                     .answers = &right,
                                     .metric = SUITE_ALL_MATCH,
                                     .max_tokens = 8,
                                     .depth = (d + 0.5) / n};
            snprintf(s.id, sizeof s.id, "needle-session/depot/%u/%u", 1024 * (l + 1), d);
            snprintf(s.context, sizeof s.context, "needle-session/depot/%u/c%u", 1024 * (l + 1),
                     d / per_context);
            if (d % per_context == 0)
                assert_ok(suite_add_context(&w, s.context, 1, "x", 1, &e), &e);
            assert_ok(suite_add_sample(&w, &s, &e), &e);
            if (!hole || (l * n + d) % hole)
                assert_ok(buf_printf(&answers, &e, "{\"id\": \"%s\", \"text\": \"%s\"}\n", s.id,
                                     l + d < edge ? "yes" : "no"),
                          &e);
        }
    assert_ok(suite_writer_finish(&w, &e), &e);
    suite_writer_fini(&w);
    snprintf(path, sizeof path, "%s/answers.jsonl", dir);
    assert_ok(fs_write_atomic(path, answers.data, answers.len, 0600, &e), &e);
    struct score_counts counts;
    json_auto_t *results = NULL;
    assert_ok(score_run(dir, path, &counts, &results, &e), &e);
    snprintf(path, sizeof path, "%s/timings.jsonl", dir);
    const char timing[] =
        "{\"id\": \"x\", \"ms\": 12.5, \"ledger\": {\"prompt_tokens\": 900, \"restored\": 850, "
        "\"prefilled\": 50, \"decoded\": 8, \"ms\": {\"queue\": 0.4, \"store_read\": 3.2, "
        "\"import\": 1.1, \"prefill\": 6.0, \"first_decode\": 1.5, \"decode\": 4}}}\n";
    assert_ok(fs_write_atomic(path, timing, sizeof timing - 1, 0600, &e), &e);
}

static void make_run(const char *dir, uint32_t n, uint32_t hole, uint32_t edge)
{
    make_run_sharing(dir, n, hole, edge, 1);
}

static void read_file(const char *dir, const char *name, struct buf *out)
{
    char path[256];
    struct error e = {0};
    buf_clear(out);
    snprintf(path, sizeof path, "%s/%s", dir, name);
    assert_ok(fs_read_file(path, out, &e), &e);
}

static size_t occurrences(const char *text, const char *what)
{
    size_t n = 0;
    while ((text = strstr(text, what))) {
        text += strlen(what);
        n++;
    }
    return n;
}

static void sizes(void **state)
{
    static const struct {
        uint32_t n, hole;
        const char *name;
        size_t n_cells, n_missing;
    } table[] = {{1, 0, "one", 1, 0}, {35, 9, "many", 1225, 137}};
    (void)state;
    const char *keep = getenv("AGENTD_REPORTS");
    for (size_t i = 0; i < 2; i++) {
        char root[TEMPDIR_BYTES], dir[256];
        AUTO(buf) struct buf text = BUF_INIT(1 << 24);
        struct error e = {0};
        tempdir_make(root);
        snprintf(dir, sizeof dir, "%s/%s", keep ? keep : root, table[i].name);
        make_run(dir, table[i].n, table[i].hole, 40);
        assert_ok(report_run(dir, &e), &e);
        read_file(dir, "report.html", &text);
        /* A rectangle for each cell, grey and said so where nothing was measured. */
        assert_int_equal(occurrences(buf_str(&text), "<title>missing</title>"),
                         table[i].n_missing);
        assert_int_equal(occurrences(buf_str(&text), ", n = 1</title>"),
                         table[i].n_cells - table[i].n_missing);
        assert_null(strstr(buf_str(&text), "nan"));
        assert_null(strstr(buf_str(&text), "http:"));
        assert_null(strstr(buf_str(&text), "<script"));
        assert_non_null(strstr(buf_str(&text), "Time to first token"));
        read_file(dir, "summary.md", &text);
        assert_int_equal(occurrences(buf_str(&text), "| needle-session/depot/"), table[i].n);
        tempdir_remove(root);
    }
}

static void hostile_names_are_text(void **state)
{
    (void)state;
    AUTO(buf) struct buf out = BUF_INIT(1 << 20);
    const double x[] = {1, 2, 3}, y[] = {1, NAN, -1};
    const struct svg_line line = {.name = "<script>&\"", .x = x, .y = y, .n = 3};
    const struct svg_chart c = {.title = "</svg>",
                                .x_name = "x",
                                .y_name = "y",
                                .log_y = true,
                                .lines = &line,
                                .n_lines = 1};
    struct error e = {0};
    assert_ok(svg_lines(&out, &c, &e), &e);
    assert_null(strstr(buf_str(&out), "<script"));
    assert_non_null(strstr(buf_str(&out), "&lt;script&gt;&amp;&quot;"));
    assert_int_equal(occurrences(buf_str(&out), "</svg>"), 1);
    assert_int_equal(occurrences(buf_str(&out), "<circle"), 1); /* NAN and -1 are gaps */
    assert_null(strstr(buf_str(&out), "nan"));
}

static int evals(const char *const *args, struct buf *out)
{
    char root[TEMPDIR_BYTES], log[200];
    struct error e = {0};
    tempdir_make(root);
    snprintf(log, sizeof log, "%s/log", root);
    int code = evals_run(args, log, 50000);
    buf_clear(out);
    assert_ok(fs_read_file(log, out, &e), &e);
    tempdir_remove(root);
    return code;
}

static void gate(const char *dir, const char *thresholds, int want, const char *says)
{
    char path[256];
    struct error e = {0};
    AUTO(buf) struct buf out = BUF_INIT(1 << 20);
    snprintf(path, sizeof path, "%s/thresholds.json", dir);
    assert_ok(fs_write_atomic(path, thresholds, strlen(thresholds), 0600, &e), &e);
    const char *const args[] = {"gate", dir, path, NULL};
    const int code = evals(args, &out);
    if (code != want || !strstr(buf_str(&out), says))
        fail_msg("%s: exit %d, want %d with \"%s\"\n%s", thresholds, code, want, says,
                 buf_str(&out));
}

static void gates_and_differences(void **state)
{
    (void)state;
    char root[TEMPDIR_BYTES], a[200], b[200], other[200];
    AUTO(buf) struct buf out = BUF_INIT(1 << 20);
    tempdir_make(root);
    snprintf(a, sizeof a, "%s/a", root);
    snprintf(b, sizeof b, "%s/b", root);
    snprintf(other, sizeof other, "%s/c", root);
    make_run(a, 8, 0, 7); /* 8 lengths: length l has 7 - l of 8 right */
    make_run(b, 8, 0, 10);
    make_run(other, 7, 5, 10);
    gate(a, "{\"*/1024\": {\"min_score\": 0.8}}", 0, "pass  1 cells");
    gate(a, "{\"*\": {\"min_score\": 0.8}}", 1, "FAIL  needle-session/depot/2048: min_score");
    gate(a, "{\"*/1024\": {\"min_low\": 0.8}}", 1, "min_low");
    gate(a, "{\"*/1024\": {\"min_n\": 9}}", 1, "min_n");
    gate(a, "{\"none/*\": {\"min_n\": 1}}", 1, "no cell is like none/*");
    gate(a, "{\"*\": {\"min_scor\": 1}}", 8, "no threshold");
    gate(a, "{}", 8, "want an object");
    gate(other, "{\"*\": {\"min_n\": 1}}", 10, "samples have no answer");
    gate(other, "{\"*\": {\"max_missing\": 7}}", 0, "pass");
    const char *const same[] = {"diff", a, b, NULL};
    assert_int_equal(evals(same, &out), 0);
    /* Length 8192: none of 8 right, then 3 (0 + d < 3); no pair the other way. */
    assert_non_null(strstr(buf_str(&out), "needle-session/depot/8192"));
    assert_non_null(strstr(buf_str(&out), "A 0.0000  B 0.3750  B-A +0.3750"));
    assert_non_null(strstr(buf_str(&out), "only A 0, only B 3  McNemar p 0.2500"));
    const char *const wrong[] = {"diff", a, other, NULL};
    assert_int_equal(evals(wrong, &out), 11);
    /* Two contexts of five: one has all right behind, one none. Ten values on their own would
     * leave [0.12, 0.88], and McNemar would take them for ten. */
    snprintf(a, sizeof a, "%s/d", root);
    snprintf(b, sizeof b, "%s/e", root);
    make_run_sharing(a, 10, 0, 0, 5);
    make_run_sharing(b, 10, 0, 5, 5);
    const char *const sharing[] = {"diff", a, b, NULL};
    assert_int_equal(evals(sharing, &out), 0);
    assert_non_null(strstr(buf_str(&out), "B 0.5000  B-A +0.5000 [+0.0000, +1.0000]  of 2 "
                                          "contexts  only A 0, only B 5\n"));
    const char *const none[] = {"report", root, NULL};
    assert_int_equal(evals(none, &out), 4);
    tempdir_remove(root);
}

/* A depth that is none would be a cell outside of the map. */
static void a_depth_that_is_none(void **state)
{
    (void)state;
    static const char *const wrong[] = {"-0.50000", "1.600000", "-1e300  "};
    char dir[TEMPDIR_BYTES], path[256];
    AUTO(buf) struct buf text = BUF_INIT(1 << 20);
    struct error e = {0};
    tempdir_make(dir);
    make_run(dir, 2, 0, 40);
    snprintf(path, sizeof path, "%s/samples.jsonl", dir);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        read_file(dir, "samples.jsonl", &text);
        char *depth = strstr((char *)text.data, "\"depth\": ");
        assert_non_null(depth);
        memcpy(depth + strlen("\"depth\": "), wrong[i], strlen(wrong[i]));
        assert_ok(fs_write_atomic(path, text.data, text.len, 0600, &e), &e);
        assert_int_equal(report_run(dir, &e), ERR_FORMAT);
        assert_non_null(strstr(e.msg, "depth"));
    }
    tempdir_remove(dir);
}

int main(void)
{
    if (build_folder_use())
        return 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sizes), cmocka_unit_test(hostile_names_are_text),
        cmocka_unit_test(gates_and_differences), cmocka_unit_test(a_depth_that_is_none)};
    return !!cmocka_run_group_tests(tests, NULL, NULL);
}
