/* Every generated question is solved again from its text alone; same options, same bytes. */
#include "tests/support/test.h"

#include <sys/stat.h>

#include "base/fs.h"
#include "evals/md5.h"
#include "evals/prose.h"
#include "evals/suite.h"

#define N_CONTEXTS 3

static char folder[] = "/tmp/agentd-suites-XXXXXX";
static const uint8_t digest[HASH_BYTES] = {1, 2, 3};
static struct tokenizer *tokenizer;

static int open_all(void **state)
{
    (void)state;
    struct error e = {0};
    assert_non_null(mkdtemp(folder));
    assert_ok(tokenizer_open(&tokenizer, "tests/evals/tokenizer_small", &e), &e);
    return 0;
}

static void drop(const char *name)
{
    static const char *const files[] = {"contexts.jsonl", "samples.jsonl", "suite.json"};
    char path[FS_PATH_BYTES];
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        snprintf(path, sizeof path, "%s/%s/%s", folder, name, files[i]);
        unlink(path);
    }
    snprintf(path, sizeof path, "%s/%s", folder, name);
    rmdir(path);
}

static int close_all(void **state)
{
    (void)state;
    tokenizer_free(tokenizer);
    return rmdir(folder);
}

static void write_suite(const struct suite_kind *k, const char *name, uint64_t seed,
                        const uint32_t *lengths, size_t n, uint32_t n_questions)
{
    struct suite_writer w = {0};
    struct error e = {0};
    char dir[FS_PATH_BYTES];
    snprintf(dir, sizeof dir, "%s/%s", folder, name);
    assert_ok(suite_writer_open(&w, dir, k->name, k->version, seed, digest, &e), &e);
    for (size_t i = 0; i < n; i++) {
        const struct suite_options o = {.tokenizer = tokenizer,
                                        .seed = seed,
                                        .n_tokens = lengths[i],
                                        .n_questions = n_questions};
        for (uint32_t c = 0; c < N_CONTEXTS; c++)
            assert_ok(k->generate(&o, c, &w, &e), &e);
    }
    assert_ok(suite_writer_finish(&w, &e), &e);
    suite_writer_fini(&w);
}

/* ---- solving again ------------------------------------------------------------------------
 */

struct check {
    const struct suite_kind *kind;
    json_t *texts; /* context id -> text */
    json_t *ids;
    int n_samples;
};

static enum err keep_context(void *user, json_t *line, struct error *e)
{
    struct check *c = user;
    const char *id, *text;
    size_t n;
    int64_t n_tokens, limit;
    AUTO(ids) struct ids ids = IDS_INIT(1 << 24);
    assert_ok(json_need_str(line, "id", &id, NULL, e), e);
    assert_ok(json_need_str(line, "text", &text, &n, e), e);
    assert_ok(json_need_int(line, "n_tokens", 1, 1 << 24, &n_tokens, e), e);
    assert_ok(tokenizer_encode(tokenizer, text, n, &ids, e), e);
    assert_int_equal(ids.n, n_tokens); /* the sum over the pieces is that of the whole */
    limit = strtol(strchr(strchr(id, '/') + 1, '/') + 1, NULL, 10);
    assert_in_range(n_tokens, limit * 6 / 10 - 600, limit);
    assert_null(json_object_get(c->texts, id));
    return json_object_set_new(c->texts, id, json_stringn(text, n)) ? ERR_NOMEM : OK;
}

static enum err solve_sample(void *user, json_t *line, struct error *e)
{
    struct check *c = user;
    const char *id, *context, *question;
    json_t *answers;
    size_t n_question;
    AUTO(wordlist) struct wordlist want = WORDLIST_INIT;
    AUTO(wordlist) struct wordlist have = WORDLIST_INIT;
    assert_ok(json_need_str(line, "id", &id, NULL, e), e);
    assert_ok(json_need_str(line, "context", &context, NULL, e), e);
    assert_ok(json_need_str(line, "question", &question, &n_question, e), e);
    assert_ok(json_need_arr(line, "answers", &answers, e), e);
    assert_null(json_object_get(c->ids, id));
    json_object_set_new(c->ids, id, json_true());
    json_t *text = json_object_get(c->texts, context);
    assert_non_null(text);
    for (size_t i = 0; i < json_array_size(answers); i++) {
        json_t *a = json_array_get(answers, i);
        assert_ok(wordlist_add(&want, json_string_value(a), json_string_length(a), e), e);
    }
    assert_ok(c->kind->solve(json_string_value(text), json_string_length(text), question,
                             n_question, &have, e),
              e);
    assert_ok(wordlist_sort_unique(&want, e), e);
    assert_ok(wordlist_sort_unique(&have, e), e);
    assert_true(want.n > 0);
    if (want.text.len != have.text.len || memcmp(want.text.data, have.text.data, want.text.len))
        fail_msg("%s: %s: want %s have %s", id, question, buf_str(&want.text),
                 buf_str(&have.text));
    c->n_samples++;
    return OK;
}

static void check_suite(const struct suite_kind *k, const char *name, int n_want)
{
    char path[FS_PATH_BYTES];
    struct error e = {0};
    struct check c = {.kind = k, .texts = json_object(), .ids = json_object()};
    snprintf(path, sizeof path, "%s/%s/contexts.jsonl", folder, name);
    assert_ok(suite_read_lines(path, keep_context, &c, &e), &e);
    snprintf(path, sizeof path, "%s/%s/samples.jsonl", folder, name);
    assert_ok(suite_read_lines(path, solve_sample, &c, &e), &e);
    assert_int_equal(c.n_samples, n_want);
    json_decref(c.texts);
    json_decref(c.ids);
}

static void solved_again(void **state)
{
    (void)state;
    const uint32_t fast[] = {2048, 16384}, slow[] = {2048, 4096, 16384, 65536, 1u << 20};
    const bool is_slow = getenv("AGENTD_SLOW");
    const size_t n = is_slow ? 5 : 2;
    for (size_t i = 0; i < suite_n_kinds; i++) {
        write_suite(&suite_kinds[i], "a", 7, is_slow ? slow : fast, n, 20);
        check_suite(&suite_kinds[i], "a", (int)n * N_CONTEXTS * 20);
        drop("a");
    }
}

/* ---- repeating ----------------------------------------------------------------------------
 */

static void read_text(const char *name, const char *file, struct buf *out)
{
    char path[FS_PATH_BYTES];
    struct error e = {0};
    snprintf(path, sizeof path, "%s/%s/%s", folder, name, file);
    buf_clear(out);
    assert_ok(fs_read_file(path, out, &e), &e);
}

static void same_options_same_bytes(void **state)
{
    (void)state;
    const uint32_t length = 2048;
    static const char *const files[] = {"contexts.jsonl", "samples.jsonl", "suite.json"};
    AUTO(buf) struct buf a = BUF_INIT(1 << 24);
    AUTO(buf) struct buf b = BUF_INIT(1 << 24);
    for (size_t i = 0; i < suite_n_kinds; i++) {
        write_suite(&suite_kinds[i], "a", 1, &length, 1, 5);
        write_suite(&suite_kinds[i], "b", 1, &length, 1, 5);
        write_suite(&suite_kinds[i], "c", 2, &length, 1, 5);
        for (size_t k = 0; k < 3; k++) {
            read_text("a", files[k], &a);
            read_text("b", files[k], &b);
            assert_int_equal(a.len, b.len);
            assert_memory_equal(a.data, b.data, a.len);
            read_text("c", files[k], &b);
            assert_true(a.len != b.len || memcmp(a.data, b.data, a.len));
        }
        drop("a");
        drop("b");
        drop("c");
    }
}

static void a_finished_suite_stays(void **state)
{
    (void)state;
    const uint32_t length = 2048;
    char dir[FS_PATH_BYTES];
    struct suite_writer w = {0};
    struct error e = {0};
    write_suite(&suite_kinds[0], "a", 1, &length, 1, 5);
    snprintf(dir, sizeof dir, "%s/a", folder);
    assert_int_equal(suite_writer_open(&w, dir, "x", 1, 1, digest, &e), ERR_CONFLICT);
    suite_writer_fini(&w);
    check_suite(&suite_kinds[0], "a", N_CONTEXTS * 5);
    drop("a");
}

static void too_short_for_the_questions(void **state)
{
    (void)state;
    char dir[FS_PATH_BYTES];
    snprintf(dir, sizeof dir, "%s/a", folder);
    for (size_t i = 0; i < suite_n_kinds; i++) {
        struct suite_writer w = {0};
        struct error e = {0};
        const struct suite_options o = {
            .tokenizer = tokenizer, .n_tokens = 512, .n_questions = 200};
        assert_ok(suite_writer_open(&w, dir, "x", 1, 1, digest, &e), &e);
        enum err rc = suite_kinds[i].generate(&o, 0, &w, &e);
        if (rc != ERR_LIMIT)
            fail_msg("%s: code %d: %s", suite_kinds[i].name, (int)rc, e.msg);
        suite_writer_fini(&w);
        drop("a");
    }
}

static void questions_of_another_suite(void **state)
{
    (void)state;
    static const char text[] = "nothing of the kind\n", question[] = "Why?";
    for (size_t i = 0; i < suite_n_kinds; i++) {
        AUTO(wordlist) struct wordlist answers = WORDLIST_INIT;
        struct error e = {0};
        assert_int_equal(
            suite_kinds[i].solve(text, strlen(text), question, strlen(question), &answers, &e),
            ERR_FORMAT);
        assert_true(strlen(e.msg) > 8);
    }
}

/* ---- parts --------------------------------------------------------------------------------
 */

static void md5_of_known_texts(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        uint8_t want[MD5_BYTES];
    } cases[] = {
        {"",
         {0xd4, 0x1d, 0x8c, 0xd9, 0x8f, 0x00, 0xb2, 0x04, 0xe9, 0x80, 0x09, 0x98, 0xec, 0xf8,
          0x42, 0x7e}},
        {"message digest",
         {0xf9, 0x6b, 0x69, 0x7d, 0x7c, 0xb7, 0x93, 0x8d, 0x52, 0x5a, 0x2f, 0x31, 0xaa, 0xf1,
          0x61, 0xd0}},
        {"0",
         {0xcf, 0xcd, 0x20, 0x84, 0x95, 0xd5, 0x65, 0xef, 0x66, 0xe7, 0xdf, 0xf9, 0xf9, 0x87,
          0x64, 0xda}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        uint8_t out[MD5_BYTES];
        md5_short(cases[i].text, strlen(cases[i].text), out);
        assert_memory_equal(out, cases[i].want, MD5_BYTES);
    }
}

static void names_are_all_different(void **state)
{
    (void)state;
    AUTO(wordlist) struct wordlist names = WORDLIST_INIT;
    struct error e = {0};
    for (uint32_t i = 0; i < PROSE_N_NAMES; i += 7) {
        char name[PROSE_NAME_BYTES];
        prose_name(i, name);
        assert_ok(wordlist_add(&names, name, strlen(name), &e), &e);
    }
    uint32_t n = names.n;
    assert_ok(wordlist_sort_unique(&names, &e), &e);
    assert_int_equal(names.n, n);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(solved_again),
        cmocka_unit_test(same_options_same_bytes),
        cmocka_unit_test(a_finished_suite_stays),
        cmocka_unit_test(too_short_for_the_questions),
        cmocka_unit_test(questions_of_another_suite),
        cmocka_unit_test(md5_of_known_texts),
        cmocka_unit_test(names_are_all_different),
    };
    return !!cmocka_run_group_tests(tests, open_all, close_all);
}
