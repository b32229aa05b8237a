/* engine/tokenizer: the golden cases, every byte comes back, added tokens only where asked for,
 * long pieces in time, and files that are not what they should be. */
#include "tests/support/test.h"

#include <jansson.h>
#include <time.h>

#include "base/fs.h"
#include "engine/chat.h"
#include "engine/pretokenizer.h"
#include "engine/tokenizer.h"

#define DIR GOLDEN "e_encoding"

static int open_golden(void **state)
{
    struct tokenizer *t = NULL;
    struct error e = {0};
    assert_ok(tokenizer_open(&t, DIR, &e), &e);
    *state = t;
    return 0;
}

static int close_golden(void **state)
{
    tokenizer_free(*state);
    return 0;
}

static void assert_ids(const struct ids *have, const json_t *want, const char *text)
{
    if (have->n != json_array_size(want))
        fail_msg("%s: %zu ids, want %zu", text, have->n, json_array_size(want));
    for (size_t i = 0; i < have->n; i++)
        if (have->v[i] != json_integer_value(json_array_get(want, i)))
            fail_msg("%s: id %zu is %u", text, i, have->v[i]);
}

static void assert_pieces(const char *text, size_t n, const json_t *want)
{
    struct pretokenizer p = pretokenizer_start((const uint8_t *)text, n);
    const uint8_t *piece;
    size_t i = 0;
    for (size_t len; (len = pretokenizer_next(&p, &piece)); i++) {
        const json_t *w = json_array_get(want, i);
        if (json_string_length(w) != len || memcmp(json_string_value(w), piece, len))
            fail_msg("%s: piece %zu is \"%.*s\"", text, i, (int)len, (const char *)piece);
    }
    assert_int_equal(i, json_array_size(want));
}

static void test_golden(void **state)
{
    const struct tokenizer *t = *state;
    json_auto_t *cases = json_load_file(DIR "/tokenizer_cases.json", JSON_ALLOW_NUL, NULL);
    assert_int_equal(json_array_size(cases), 20);
    size_t i;
    json_t *c;
    json_array_foreach(cases, i, c) {
        const json_t *v = json_object_get(c, "text");
        const char *text = json_string_value(v);
        size_t n = json_string_length(v);
        struct error e = {0};
        AUTO(ids) struct ids plain = IDS_INIT(1 << 16), special = IDS_INIT(1 << 16);
        AUTO(buf) struct buf back = BUF_INIT(1 << 16);
        assert_pieces(text, n, json_object_get(c, "pieces"));
        assert_ok(tokenizer_encode(t, text, n, &plain, &e), &e);
        assert_ids(&plain, json_object_get(c, "plain_ids"), text);
        assert_ok(tokenizer_encode_special(t, text, n, &special, &e), &e);
        assert_ids(&special, json_object_get(c, "ids"), text);
        assert_ok(tokenizer_decode(t, special.v, special.n, &back, &e), &e);
        assert_string_equal(buf_str(&back), json_string_value(json_object_get(c, "decoded")));
    }
}

static uint64_t next_random(uint64_t *s)
{
    *s = *s * 6364136223846793005ull + 1442695040888963407ull;
    return *s >> 33;
}

static void check_round_trip(const struct tokenizer *t, const void *bytes, size_t n)
{
    struct error e = {0};
    AUTO(ids) struct ids plain = IDS_INIT(1 << 20), special = IDS_INIT(1 << 20);
    AUTO(buf) struct buf back = BUF_INIT(1 << 20);
    assert_ok(tokenizer_encode(t, bytes, n, &plain, &e), &e);
    for (size_t i = 0; i < plain.n; i++)
        assert_false(tokenizer_is_added(t, plain.v[i]));
    assert_ok(tokenizer_encode_special(t, bytes, n, &special, &e), &e);
    assert_ok(tokenizer_decode(t, plain.v, plain.n, &back, &e), &e);
    assert_int_equal(back.len, n);
    assert_memory_equal(buf_str(&back), bytes, n);
    buf_clear(&back);
    assert_ok(tokenizer_decode(t, special.v, special.n, &back, &e), &e);
    assert_int_equal(back.len, n);
    assert_memory_equal(buf_str(&back), bytes, n);
}

/* Random bytes, then random choices of what the splits and the vocabulary care about. */
static void test_any_bytes_come_back(void **state)
{
    static const char *const parts[] = {
        "<｜User｜>", "｜DSML｜", "</think>", "<think",      "\xff", "\xe4\xbd",
        "你",         "ア",       "é",        "e\xcc\x81",   "  ",   "\r\n",
        "12345",      "the ",     "'s",       "\xc2\xa0",    "①",    "\t",
        "�",          "a",        ".",        "\xed\xa0\x80"};
    uint64_t seed = 7;
    char text[600];
    for (int round = 0; round < 3000; round++) {
        size_t n = 0, want = next_random(&seed) % 400;
        while (n < want) {
            if (round & 1) {
                text[n++] = (char)next_random(&seed);
                continue;
            }
            const char *p = parts[next_random(&seed) % (sizeof parts / sizeof parts[0])];
            memcpy(text + n, p, strlen(p));
            n += strlen(p);
        }
        check_round_trip(*state, text, n);
    }
}

static void test_added_tokens(void **state)
{
    const struct tokenizer *t = *state;
    assert_int_equal(tokenizer_size(t), 512);
    assert_int_equal(tokenizer_added(t, "</think>"), 502);
    assert_int_equal(tokenizer_added(t, "</think"), TOKEN_NONE);
    assert_int_equal(tokenizer_added(t, ""), TOKEN_NONE);
    for (uint32_t id = 0; id < tokenizer_size(t); id++) {
        if (!tokenizer_is_added(t, id))
            continue;
        struct error e = {0};
        size_t n = 0;
        const uint8_t *text = tokenizer_bytes(t, id, &n);
        AUTO(ids) struct ids out = IDS_INIT(4096);
        assert_ok(tokenizer_encode_special(t, text, n, &out, &e), &e);
        assert_int_equal(out.n, 1);
        assert_int_equal(out.v[0], id);
        check_round_trip(t, text, n); /* encoded plainly, no id of it is an added one */
    }
}

/* Where several added tokens fit, the longest is taken, and after a near miss nothing is lost.
 */
static void test_longest_added_token(void **state)
{
    (void)state;
    struct error e = {0};
    AUTO(buf) struct buf file = BUF_INIT(1 << 20);
    assert_ok(fs_read_file(DIR "/tokenizer.json", &file, &e), &e);
    json_auto_t *root = json_loadb(buf_str(&file), file.len, 0, NULL);
    static const char *const texts[] = {"<a", "<abc", "<abcd>"};
    for (int i = 0; i < 3; i++)
        json_array_append_new(json_object_get(root, "added_tokens"),
                              json_pack("{s:i,s:s}", "id", 600 + i, "content", texts[i]));
    AUTO_FREE char *json = json_dumps(root, 0);
    struct tokenizer *t = NULL;
    assert_ok(tokenizer_parse(&t, json, strlen(json), &e), &e);
    AUTO(ids) struct ids out = IDS_INIT(64);
    assert_ok(tokenizer_encode_special(t, "<abcd<abcd>", 11, &out, &e), &e);
    assert_int_equal(out.n, 3);
    assert_int_equal(out.v[0], 601);
    assert_int_equal(out.v[2], 602);
    tokenizer_free(t);
}

static double seconds(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec + (double)ts.tv_nsec * 1e-9;
}

/* One piece of a megabyte: with a quadratic merge this would take hours. */
static void test_long_pieces(void **state)
{
    size_t n = 1 << 20;
    AUTO_FREE char *text = malloc(n);
    assert_non_null(text);
    static const char *const units[] = {"a", "the", " ", "\n", "!", "e\xcc\x81", "你"};
    for (size_t u = 0; u < sizeof units / sizeof units[0]; u++) {
        size_t len = strlen(units[u]);
        for (size_t i = 0; i + len <= n; i += len)
            memcpy(text + i, units[u], len);
        struct error e = {0};
        AUTO(ids) struct ids out = IDS_INIT(n);
        double before = seconds();
        assert_ok(tokenizer_encode(*state, text, n / len * len, &out, &e), &e);
        assert_true(seconds() - before < 5);
        assert_true(out.n > 0);
    }
}

static void test_bytes_vocabulary(void **state)
{
    (void)state;
    struct error e = {0};
    struct tokenizer *t = NULL;
    assert_ok(tokenizer_new_bytes(&t, &e), &e);
    assert_int_equal(tokenizer_size(t), 256 + 16);
    AUTO(ids) struct ids out = IDS_INIT(64);
    assert_ok(tokenizer_encode_special(t, "h\xff</think>", 10, &out, &e), &e);
    assert_int_equal(out.n, 3);
    assert_int_equal(out.v[0], 'h');
    assert_int_equal(out.v[1], 0xff);
    struct chat_ids ids;
    assert_ok(chat_ids_find(&ids, t, &e), &e);
    assert_int_equal(out.v[2], ids.think_end);
    assert_int_equal(ids.bos, 256);
    assert_int_equal(ids.image, 271);
    check_round_trip(t, "<｜User｜>\0x", 14);
    tokenizer_free(t);
}

static void test_errors_change_nothing(void **state)
{
    const struct tokenizer *t = *state;
    struct error e = {0};
    AUTO(ids) struct ids out = IDS_INIT(3);
    assert_ok(tokenizer_encode(t, "a", 1, &out, &e), &e);
    assert_int_equal(tokenizer_encode(t, "QQQQ", 4, &out, &e), ERR_LIMIT);
    assert_int_equal(out.n, 1);
    AUTO(buf) struct buf text = BUF_INIT(100);
    const uint32_t ids[] = {100, 4000};
    assert_int_equal(tokenizer_decode(t, ids, 2, &text, &e), ERR_INVAL);
    assert_string_equal(e.msg, "id 4000 (number 1): no token has it");
    assert_int_equal(text.len, 0);
}

/* One change to the golden file, and what must be said about it. */
struct bad_file {
    const char *find, *replace;
    enum err want;
    const char *message;
};

static void test_refuses_other_files(void **state)
{
    (void)state;
    static const struct bad_file bad[] = {
        {"\"type\": \"BPE\"", "\"type\": \"Unigram\"", ERR_UNSUPPORTED, "model.type"},
        {"\"byte_fallback\": false", "\"byte_fallback\": true", ERR_UNSUPPORTED,
         "byte_fallback"},
        {"{1,3}", "{1,4}", ERR_UNSUPPORTED, "pre_tokenizer 0"},
        {"\"use_regex\": false", "\"use_regex\": true", ERR_UNSUPPORTED, "pre_tokenizer 3"},
        {"\"normalizers\": []", "\"normalizers\": [{}]", ERR_UNSUPPORTED, "normalizer"},
        {"\"lstrip\": false", "\"lstrip\": true", ERR_UNSUPPORTED, "added_tokens[0].lstrip"},
        {"\"id\": 497", "\"id\": 498", ERR_FORMAT, "token id 498 is given twice"},
        {"\"id\": 497", "\"id\": 49700000", ERR_LIMIT, "49700000"},
        {"\"id\": 497", "\"id\": -1", ERR_FORMAT, "want an id"},
        {"\"<｜System｜>\"", "\"\"", ERR_FORMAT, "is empty"},
        {"\"<｜System｜>\"", "\"<｜User｜>\"", ERR_FORMAT, "same text"},
        {"\"Ā\": 3", "\"一\": 3", ERR_FORMAT, "token 3 is not in the byte alphabet"},
        {"\"Ā\": 3", "\"ĀĀĀ\": 3", ERR_FORMAT, "no token for byte 0x00"},
        {"\"h e\"", "\"h  e\"", ERR_FORMAT, "model.merges[0]: want two tokens"},
        {"\"h e\"", "\"h q\"", ERR_FORMAT, "model.merges[0]: hq"},
        {"\"h e\"", "\"i n\"", ERR_FORMAT, "merge 1 is the same as merge 0"},
        {"\"h e\"", "[\"h\", \"e\", \"e\"]", ERR_FORMAT, "model.merges[0]"},
        {"\"merges\"", "\"verges\"", ERR_FORMAT, "merges"},
        {"\"id\": 500,\n\"content\": \"<|EOT|>\"", "\"id\": 259, \"content\": \"he\"",
         ERR_FORMAT, "makes the added token 259"}, /* text would become a special id */
    };
    struct error e = {0};
    AUTO(buf) struct buf file = BUF_INIT(1 << 20);
    assert_ok(fs_read_file(DIR "/tokenizer.json", &file, &e), &e);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        const char *at = strstr(buf_str(&file), bad[i].find);
        if (!at)
            fail_msg("%s is not in the file", bad[i].find);
        AUTO(buf) struct buf json = BUF_INIT(1 << 20);
        size_t head = (size_t)(at - buf_str(&file));
        assert_ok(buf_add(&json, file.data, head, &e), &e);
        assert_ok(buf_add_str(&json, bad[i].replace, &e), &e);
        assert_ok(buf_add_str(&json, at + strlen(bad[i].find), &e), &e);
        struct tokenizer *t = NULL;
        enum err rc = tokenizer_parse(&t, buf_str(&json), json.len, &e);
        if (rc != bad[i].want || !strstr(e.msg, bad[i].message))
            fail_msg("%s: code %d, %s", bad[i].replace, rc, e.msg);
        assert_null(t);
    }
}

/* The newer spelling of merges, and line ends as characters in the expressions. */
static void test_other_spellings(void **state)
{
    struct error e = {0};
    json_auto_t *root = json_load_file(DIR "/tokenizer.json", 0, NULL);
    json_t *merges = json_object_get(json_object_get(root, "model"), "merges"), *m;
    json_t *pairs = json_array();
    size_t i;
    json_array_foreach(merges, i, m) {
        const char *s = json_string_value(m), *space = strchr(s, ' ');
        json_array_append_new(pairs, json_pack("[s#,s]", s, (int)(space - s), space + 1));
    }
    json_object_set_new(json_object_get(root, "model"), "merges", pairs);
    json_t *split = json_array_get(
        json_object_get(json_object_get(root, "pre_tokenizer"), "pretokenizers"), 2);
    AUTO(buf) struct buf pattern = BUF_INIT(4096);
    for (const char *s = pretokenizer_patterns[2]; *s; s++) {
        bool escape = *s == '\\' && (s[1] == 'r' || s[1] == 'n');
        assert_ok(buf_add_byte(&pattern,
                               (uint8_t)(!escape       ? *s
                                         : *++s == 'r' ? '\r'
                                                       : '\n'),
                               &e),
                  &e);
    }
    json_object_set_new(json_object_get(split, "pattern"), "Regex",
                        json_string(buf_str(&pattern)));
    AUTO_FREE char *json = json_dumps(root, 0);
    struct tokenizer *t = NULL;
    assert_ok(tokenizer_parse(&t, json, strlen(json), &e), &e);
    static const char text[] = "The engine reads each token and the model answers.";
    AUTO(ids) struct ids a = IDS_INIT(100), b = IDS_INIT(100);
    assert_ok(tokenizer_encode(t, text, strlen(text), &a, &e), &e);
    assert_ok(tokenizer_encode(*state, text, strlen(text), &b, &e), &e);
    assert_int_equal(a.n, b.n);
    assert_memory_equal(a.v, b.v, a.n * sizeof *a.v);
    tokenizer_free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden),
        cmocka_unit_test(test_any_bytes_come_back),
        cmocka_unit_test(test_added_tokens),
        cmocka_unit_test(test_longest_added_token),
        cmocka_unit_test(test_long_pieces),
        cmocka_unit_test(test_bytes_vocabulary),
        cmocka_unit_test(test_errors_change_nothing),
        cmocka_unit_test(test_refuses_other_files),
        cmocka_unit_test(test_other_spellings),
    };
    return !!cmocka_run_group_tests(tests, open_golden, close_golden);
}
