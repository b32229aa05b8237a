/* engine/constrain: whatever the logits, a run's tool calls are well formed; what is syntax is
 * greedy; json_literal lets pass only what is read as JSON later. */
#include <jansson.h>

#include "base/json.h"
#include "engine/chat.h"
#include "engine/chat_parser.h"
#include "engine/constrain.h"
#include "engine/pyjson.h"
#include "engine/sample.h"
#include "engine/stop.h"
#include "engine/tokenizer.h"
#include "kernels/philox.h"
#include "tests/support/test.h"

#define MARK "｜DSML｜"
#define EOS "<｜end▁of▁sentence｜>"
#define MAX_VOCAB 1024
#define MAX_RUN 1500

static unsigned pick(uint64_t *s, unsigned n)
{
    *s = *s * 6364136223846793005ull + 1442695040888963407ull;
    return (unsigned)(*s >> 33) % n;
}

/* ---- JSON ---------------------------------------------------------------------------------
 */

static bool literal_takes(const char *text, size_t n, bool *is_complete)
{
    struct json_literal v = {0};
    for (size_t i = 0; i < n; i++)
        if (!json_literal_feed(&v, (uint8_t)text[i]))
            return false;
    *is_complete = json_literal_is_complete(&v);
    return true;
}

static void test_json_by_hand(void **state)
{
    static const struct {
        const char *text;
        bool takes, is_complete;
    } cases[] = {
        {"", true, false},
        {"1", true, true},
        {"-", true, false},
        {"-0.5e+10", true, true},
        {"01", false, false},
        {"1e100", false, false},
        {"123456789012345678", true, true},
        {"1234567890123456789", false, false},
        {" 1", false, false},
        {"1 ", false, false},
        {"true", true, true},
        {"tru", true, false},
        {"trux", false, false},
        {"[1 , 2]", true, true},
        {"[1  ,2]", false, false},
        {"[ ]", true, true},
        {"[1,]", false, false},
        {"{\"a\": {}, \"b\":[null]}", true, true},
        {"{\"a\" 1}", false, false},
        {"{1:2}", false, false},
        {"{\"a\":1", true, false},
        {"]", false, false},
        {"[}", false, false},
        {"\"\\u0041\\n\\\"\"", true, true},
        {"\"\\u0000\"", false, false},
        {"\"\\ud83d\\ude00\"", true, true},
        {"\"\\ud83d\"", false, false},
        {"\"\\ud83d\\u0041\"", false, false},
        {"\"\\ude00\"", false, false},
        {"\"\\x\"", false, false},
        {"\"a\nb\"", false, false},
        {"\"é日🙂\"", true, true},
        {"\"\xc3\"", false, false},
        {"\"\xed\xa0\x80\"", false, false},
        {"\"\xf4\x90\x80\x80\"", false, false},
        {"\"a\"b", false, false},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        bool is_complete = false;
        bool takes = literal_takes(cases[i].text, strlen(cases[i].text), &is_complete);
        if (takes != cases[i].takes || is_complete != cases[i].is_complete)
            fail_msg("%s: takes %d, complete %d", cases[i].text, takes, is_complete);
    }
}

static void test_json_depth(void **state)
{
    char text[2 * JSON_LITERAL_DEPTH + 2];
    bool is_complete = false;
    (void)state;
    memset(text, '[', JSON_LITERAL_DEPTH);
    memset(text + JSON_LITERAL_DEPTH, ']', JSON_LITERAL_DEPTH);
    assert_true(literal_takes(text, 2 * JSON_LITERAL_DEPTH, &is_complete) && is_complete);
    memset(text, '[', JSON_LITERAL_DEPTH + 1);
    assert_false(literal_takes(text, JSON_LITERAL_DEPTH + 1, &is_complete));
}

static void test_json_is_read_later(void **state)
{
    static const char *const pieces[] = {
        "{",   "}",   "[",    "]",        "\"",    "\"a\"",    ",",
        ":",   " ",   "\n",   "-",        "0",     "12",       ".5",
        "e3",  "E-2", "true", "null",     "false", "\\u00e9",  "\\ud83d\\ude00",
        "\\n", "é",   "\xe6", "\x97\xa5", "x",     "{\"k\": ", "[1, "};
    const struct json_limits limits = {.max_bytes = 1 << 16, .max_depth = 32};
    uint64_t seed = 5;
    int n_complete = 0, rounds = getenv("AGENTD_SLOW") ? 5000000 : 100000;
    (void)state;
    for (int round = 0; round < rounds; round++) {
        struct json_literal v = {0};
        char text[256];
        size_t n = 0;
        /* Grown by pieces that fit: most random texts would be refused at their second byte. */
        for (unsigned left = 1 + pick(&seed, 14), tries = 60; left && tries; tries--) {
            const char *piece = pieces[pick(&seed, sizeof pieces / sizeof *pieces)];
            struct json_literal next = v;
            bool fits = true;
            for (const char *p = piece; *p && fits; p++)
                fits = json_literal_feed(&next, (uint8_t)*p);
            if (!fits)
                continue;
            memcpy(text + n, piece, strlen(piece));
            n += strlen(piece);
            v = next;
            left--;
        }
        if (!json_literal_is_complete(&v))
            continue;
        struct error e = {0};
        json_auto_t *read = NULL;
        n_complete++;
        if (!pyjson_valid(text, n))
            fail_msg("no JSON: %.*s", (int)n, text);
        enum err rc = json_parse(text, n, &limits, &read, &e);
        /* The same key twice is JSON, and refused by the one that reads: only this is left. */
        if (rc && !strstr(e.msg, "duplicate"))
            fail_msg("%s: %.*s", e.msg, (int)n, text);
    }
    assert_true(n_complete > rounds / 10);
}

/* ---- runs ---------------------------------------------------------------------------------
 */

static const char functions[] =
    "[{\"name\":\"write\",\"parameters\":{\"type\":\"object\",\"properties\":{"
    "\"path\":{\"type\":\"string\"},\"pat\":{\"type\":\"string\"},"
    "\"lines\":{\"type\":\"array\"},\"mode\":{\"type\":[\"string\",\"null\"]}}}},"
    "{\"name\":\"writes\",\"parameters\":{\"type\":\"object\",\"properties\":{\"n\":{\"type\":"
    "\"integer\"}}}},"
    "{\"name\":\"stop\",\"parameters\":{\"type\":\"object\",\"properties\":{},"
    "\"additionalProperties\":false}},"
    "{\"name\":\"any\",\"parameters\":{\"type\":\"object\"}},"
    "{\"name\":\"bad\\\"name\"}]";

struct fixture {
    struct tokenizer *tokenizer;
    struct call_rules *rules;
    uint32_t n, mark, eos;
    struct chat_ids ids;
};

static void open_fixture(struct fixture *f, const char *dir, const char *tools)
{
    struct error e = {0};
    json_auto_t *list = json_loads(tools, 0, NULL);
    assert_non_null(list);
    if (dir)
        assert_ok(tokenizer_open(&f->tokenizer, dir, &e), &e);
    else
        assert_ok(tokenizer_new_bytes(&f->tokenizer, &e), &e);
    assert_ok(chat_ids_find(&f->ids, f->tokenizer, &e), &e);
    assert_ok(call_rules_new(&f->rules, list, f->tokenizer, &e), &e);
    f->n = tokenizer_size(f->tokenizer);
    f->mark = f->ids.dsml;
    f->eos = f->ids.eos;
    assert_true(f->n <= MAX_VOCAB);
}

static void close_fixture(struct fixture *f)
{
    call_rules_free(f->rules);
    tokenizer_free(f->tokenizer);
}

static bool is_byte(const struct fixture *f, uint32_t id, uint8_t b)
{
    size_t n = 0;
    const uint8_t *bytes = tokenizer_bytes(f->tokenizer, id, &n);
    return n == 1 && bytes[0] == b;
}

/* Random logits that now and then like to end what they are in: behind `before`, the last
 * token, a tag goes on more often than not. */
static void random_logits(const struct fixture *f, uint64_t seed, uint64_t position,
                          uint32_t before, float *logits)
{
    bool closes = k_philox_uniform(seed, position, 0) < 0.1;
    for (uint32_t i = 0; i < f->n; i++) {
        logits[i] = (float)(4 * k_philox_uniform(seed, position, i + 1));
        if (is_byte(f, i, '<') && closes)
            logits[i] += 12;
        if (is_byte(f, i, '/') && is_byte(f, before, '<'))
            logits[i] += 9;
        if (is_byte(f, i, '"') || is_byte(f, i, ']') || is_byte(f, i, '}'))
            logits[i] += 3;
    }
    logits[f->mark] += k_philox_uniform(seed, position, 0) < 0.5 ? 4 : 12;
    logits[f->eos] += position > 200 ? 6 : -2;
}

static const json_t *declared(const json_t *tools, const char *name)
{
    const json_t *t;
    size_t i;
    json_array_foreach(tools, i, t)
        if (!strcmp(json_string_value(json_object_get(t, "name")), name))
            return t;
    return NULL;
}

static json_type type_called(const char *name)
{
    return !strcmp(name, "string")  ? JSON_STRING
           : !strcmp(name, "array") ? JSON_ARRAY
                                    : JSON_INTEGER;
}

static void check_call(const struct chat_call *c)
{
    const struct json_limits limits = {
        .max_bytes = 1 << 20, .max_depth = 32, .allow_nul = true};
    json_auto_t *tools = json_loads(functions, 0, NULL), *arguments = NULL;
    struct error e = {0};
    assert_true(c->is_complete);
    const json_t *tool = declared(tools, c->name);
    if (!tool)
        fail_msg("a call of \"%s\"", c->name);
    enum err rc = json_parse(c->arguments, c->arguments_len, &limits, &arguments, &e);
    if (rc && !strstr(e.msg, "duplicate"))
        fail_msg("%s: %s", e.msg, c->arguments);
    const json_t *properties =
        json_object_get(json_object_get(tool, "parameters"), "properties");
    const char *key;
    json_t *value;
    json_object_foreach(arguments, key, value) {
        const json_t *type = json_object_get(json_object_get(properties, key), "type");
        if (properties && !type)
            fail_msg("%s has no parameter \"%s\"", c->name, key);
        if (json_is_string(type))
            assert_int_equal(json_typeof(value), type_called(json_string_value(type)));
    }
}

/* What the parser may say of a run whose calls are well formed: only about text and values. */
static void check_problems(const struct chat_parser *p)
{
    static const enum chat_problem allowed[] = {
        CHAT_PLAIN_MARKUP, CHAT_STRAY_THINK,    CHAT_STRAY_SPECIAL, CHAT_CALL_IN_THINKING,
        CHAT_BAD_UTF8,     CHAT_DUPLICATE_CALL, CHAT_BAD_NAME,      CHAT_DUPLICATE_PARAMETER};
    for (int i = 0; i < CHAT_N_PROBLEMS; i++) {
        bool is_allowed = false;
        for (size_t k = 0; k < sizeof allowed / sizeof *allowed; k++)
            is_allowed = is_allowed || allowed[k] == (enum chat_problem)i;
        if (!is_allowed && chat_parser_problems(p)[i])
            fail_msg("%s", chat_problem_name((enum chat_problem)i));
    }
}

/* What decides quickly for all of a vocabulary decides the same, and so does the list of what
 * may come where any text may, of any number of ids. */
static void check_filter(const struct fixture *f, const struct constrain_state *s)
{
    struct constrain_filter filter;
    uint32_t mask[MAX_VOCAB / 32 + 2];
    constrain_filter_init(&filter, f->rules, s);
    for (uint32_t i = 0; i < f->n; i++)
        assert_int_equal(constrain_filter_allows(&filter, i), constrain_allows(f->rules, s, i));
    for (uint32_t n = f->n - 1; n <= f->n + 33 && n <= MAX_VOCAB; n += 34) {
        mask[(n + 31) / 32] = 77;
        assert_int_equal(constrain_text_mask(f->rules, s, n, mask), filter.is_free);
        for (uint32_t i = 0; i < n && filter.is_free; i++)
            assert_int_equal(mask[i / 32] >> (i % 32) & 1,
                             i < f->n && constrain_allows(f->rules, s, i));
        assert_int_equal(mask[(n + 31) / 32], 77);
    }
}

/* One run of random logits; counts its calls. */
static uint32_t run(const struct fixture *f, uint64_t seed, bool thinking)
{
    const struct sampling s = {.seed = seed, .temperature = 1, .top_p = 1, .rules = f->rules};
    struct constrain_state calls = {0};
    struct k_sample_entry scratch[2 * MAX_VOCAB];
    float logits[MAX_VOCAB];
    struct chat_parser *p = NULL;
    struct error e = {0};
    uint32_t id = 'x';
    assert_ok(chat_parser_new(&p, &(struct chat_parser_options){.thinking = thinking}, &e), &e);
    for (uint64_t at = 0; at < MAX_RUN && id != f->eos; at++) {
        size_t n = 0;
        if (at % 16 == seed % 16)
            check_filter(f, &calls);
        random_logits(f, seed, at, id, logits);
        assert_ok(sample_token(&s, &calls, logits, f->n, at, scratch, &id, &e), &e);
        constrain_feed(f->rules, &calls, id);
        const uint8_t *bytes = tokenizer_bytes(f->tokenizer, id, &n);
        assert_ok(chat_parser_feed(p, bytes, n, tokenizer_is_added(f->tokenizer, id), &e), &e);
    }
    assert_ok(chat_parser_finish(p, &e), &e);
    uint32_t n_calls = id == f->eos ? chat_parser_n_calls(p) : 0;
    for (uint32_t i = 0; i < n_calls; i++)
        check_call(chat_parser_call(p, i));
    if (id == f->eos) {
        check_problems(p);
        assert_false(chat_parser_block_open(p));
    }
    chat_parser_free(p);
    return n_calls;
}

static void run_all(const char *dir, uint64_t n_runs)
{
    struct fixture f = {0};
    uint64_t n_calls = 0;
    open_fixture(&f, dir, functions);
    for (uint64_t seed = 1; seed <= n_runs; seed++)
        n_calls += run(&f, seed, seed % 2);
    if (getenv("AGENTD_SHOW"))
        printf("%d calls in %d runs\n", (int)n_calls, (int)n_runs);
    assert_true(n_calls > n_runs);
    close_fixture(&f);
}

static void test_runs_of_bytes(void **state)
{
    (void)state;
    run_all(NULL, getenv("AGENTD_SLOW") ? 20000 : 40);
}

static void test_runs_of_tokens(void **state)
{
    (void)state;
    run_all(GOLDEN "a_tiny/model", getenv("AGENTD_SLOW") ? 20000 : 40);
}

/* ---- by hand ------------------------------------------------------------------------------
 */

/* Feeds output with literal marks; where it stands then. */
static struct constrain_state after(const struct fixture *f, const char *text)
{
    AUTO(ids) struct ids ids = IDS_INIT(1 << 16);
    struct constrain_state s = {0};
    struct error e = {0};
    assert_ok(tokenizer_encode_special(f->tokenizer, text, strlen(text), &ids, &e), &e);
    for (size_t i = 0; i < ids.n; i++)
        constrain_feed(f->rules, &s, ids.v[i]);
    return s;
}

/* The bytes that may come, in order, the mark as M and EOS as E. */
static const char *choices(const struct fixture *f, const char *text, char *out)
{
    struct constrain_state s = after(f, text);
    size_t n = 0;
    for (uint32_t b = 0; b < 256; b++)
        if (constrain_allows(f->rules, &s, b))
            out[n++] = (char)b;
    if (constrain_allows(f->rules, &s, f->mark))
        out[n++] = 'M';
    if (constrain_allows(f->rules, &s, f->eos))
        out[n++] = 'E';
    out[n] = '\0';
    return out;
}

#define BLOCK "<" MARK " calls>\n"
#define INVOKE "<" MARK " invoke name=\""
#define PARAMETER "<" MARK " parameter name=\""

static void test_choices(void **state)
{
    static const struct {
        const char *text, *want;
    } cases[] = {
        {"<" MARK, " "},
        {"<" MARK " calls>\n<", "M"},
        {BLOCK INVOKE, "asw"},
        {BLOCK INVOKE "write", "\"s"},
        {BLOCK INVOKE "write\"", ">"},
        {BLOCK INVOKE "write\">\n", "\n<"},
        {BLOCK INVOKE "write\">\n\n<", "/"},
        {BLOCK INVOKE "write\">\n<", "/M"},
        {BLOCK INVOKE "stop\">\n<", "/"}, /* it takes no parameters */
        {BLOCK INVOKE "write\">\n" PARAMETER, "lmp"},
        {BLOCK INVOKE "write\">\n" PARAMETER "pat", "\"h"},
        {BLOCK INVOKE "write\">\n" PARAMETER "pat\" string=\"", "t"},
        {BLOCK INVOKE "write\">\n" PARAMETER "lines\" string=\"", "f"},
        {BLOCK INVOKE "write\">\n" PARAMETER "mode\" string=\"", "ft"},
        {BLOCK INVOKE "any\">\n" PARAMETER "lines\" string=\"false\">12</", "M"},
        {BLOCK INVOKE "write\">\n" PARAMETER "lines\" string=\"false\">[1",
         ",.0123456789E]e\n "},
        {BLOCK INVOKE "write\">\n" PARAMETER "pat\" string=\"true\">x</" MARK
                      " parameter>\n" PARAMETER "pat",
         "h"}, /* given already */
        {BLOCK INVOKE "writes\">\n" PARAMETER "n\" string=\"false\">1</" MARK " parameter>\n",
         "<"}, /* the second line feed is of a call without parameters */
        {BLOCK INVOKE "writes\">\n" PARAMETER "n\" string=\"false\">1</" MARK " parameter>\n<",
         "/"}, /* all are given */
        {BLOCK INVOKE "stop\">\n</" MARK " invoke>\n<", "/M"},
        {BLOCK INVOKE "stop\">\n</" MARK " invoke>\n</" MARK " calls>", "E"},
    };
    struct fixture f = {0};
    (void)state;
    open_fixture(&f, NULL, functions);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char have[300], want[300] = {0};
        size_t n = 0;
        choices(&f, cases[i].text, have);
        for (int b = 0; b < 256;
             b++) /* bytes in order, M and E last: as choices() gives them */
            if (b && strchr(cases[i].want, b) && b != 'M' &&
                !(b == 'E' && !strchr(cases[i].want, 'e')))
                want[n++] = (char)b;
        if (strchr(cases[i].want, 'M'))
            want[n++] = 'M';
        if (strchr(cases[i].want, 'E') && !strchr(cases[i].want, 'e'))
            want[n++] = 'E';
        if (strcmp(have, want) != 0)
            fail_msg("%s\nmay go on with \"%s\", want \"%s\"", cases[i].text, have, want);
        bool is_body = strstr(cases[i].text, "string=\"false\">[1") ||
                       strstr(cases[i].text, "string=\"false\">12</");
        struct constrain_state s = after(&f, cases[i].text);
        bool ends_in_body = is_body && !strstr(cases[i].text, " parameter>");
        assert_int_equal(constrain_is_greedy(&s), !ends_in_body);
    }
    close_fixture(&f);
}

static void test_mark_in_text(void **state)
{
    struct fixture f = {0}, none = {0};
    (void)state;
    open_fixture(&f, NULL, functions);
    open_fixture(&none, NULL, "[]");
    struct constrain_state s = after(&f, "text");
    assert_false(constrain_allows(f.rules, &s, f.mark));
    assert_true(constrain_allows(f.rules, &s, f.eos));
    s = after(&f, "text\n\n<");
    assert_true(constrain_allows(f.rules, &s, f.mark));
    assert_false(constrain_allows(none.rules, &s, none.mark)); /* there is nothing to call */
    s = after(&f, "text</");
    assert_false(constrain_allows(f.rules, &s, f.mark));
    s = after(&f, BLOCK INVOKE "write\">\n" PARAMETER "path\" string=\"true\">a <");
    assert_false(constrain_allows(f.rules, &s, f.mark) || constrain_allows(f.rules, &s, f.eos));
    assert_true(constrain_allows(f.rules, &s, f.ids.user)); /* text to the parser */
    assert_false(constrain_is_greedy(&s));
    close_fixture(&none);
    close_fixture(&f);
}

/* Ids that do not fit switch it off: forced output may be anything. */
static void test_off(void **state)
{
    struct fixture f = {0};
    (void)state;
    open_fixture(&f, NULL, functions);
    struct constrain_state s = after(&f, "<" MARK "oops");
    for (uint32_t i = 0; i < f.n; i++)
        assert_true(constrain_allows(f.rules, &s, i));
    assert_false(constrain_is_greedy(&s));
    close_fixture(&f);
}

/* The same text in other tokens leads to the same state; so does feeding it again. */
static void test_tokens_do_not_matter(void **state)
{
    static const char text[] = "hm\n\n" BLOCK INVOKE "write\">\n" PARAMETER
                               "lines\" string=\"false\">[\"é\", {\"a\": -1.5}]</" MARK
                               " parameter>\n</" MARK " invoke>\n</" MARK " calls>";
    struct fixture bytes = {0}, tokens = {0};
    (void)state;
    open_fixture(&bytes, NULL, functions);
    open_fixture(&tokens, GOLDEN "a_tiny/model", functions);
    for (size_t n = 0; n < sizeof text; n++) {
        char part[sizeof text] = {0};
        memcpy(part, text, n);
        struct constrain_state a = after(&bytes, part), b = after(&tokens, part);
        bool inside_mark = strstr(text, "｜") && ((uint8_t)text[n] & 0xc0) == 0x80;
        if (!inside_mark &&
            !strstr(part + (n > 8 ? n - 8 : 0), "｜")) /* half a mark is no mark */
            assert_memory_equal(&a, &b, sizeof a);
    }
    close_fixture(&tokens);
    close_fixture(&bytes);
}

static void test_bad_functions(void **state)
{
    struct fixture f = {0};
    struct call_rules *r = NULL;
    struct error e = {0};
    json_auto_t *object = json_object();
    (void)state;
    open_fixture(&f, NULL, "[]");
    assert_int_equal(call_rules_new(&r, object, f.tokenizer, &e), ERR_INVAL);
    assert_null(r);
    close_fixture(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_json_by_hand),         cmocka_unit_test(test_json_depth),
        cmocka_unit_test(test_json_is_read_later),   cmocka_unit_test(test_choices),
        cmocka_unit_test(test_mark_in_text),         cmocka_unit_test(test_off),
        cmocka_unit_test(test_tokens_do_not_matter), cmocka_unit_test(test_runs_of_bytes),
        cmocka_unit_test(test_runs_of_tokens),       cmocka_unit_test(test_bad_functions),
    };
    return !!cmocka_run_group_tests(tests, NULL, NULL);
}
