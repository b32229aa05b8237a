/* engine/constrain with declared types: what a value may begin with, and random walks that
 * would rather write something else end in a value that the schema allows. */
#include <jansson.h>

#include "base/auto.h"
#include "base/json.h"
#include "engine/chat.h"
#include "engine/constrain.h"
#include "engine/ids.h"
#include "engine/tokenizer.h"
#include "tests/support/test.h"

#define MARK "｜DSML｜"
#define BEFORE                                                                                 \
    "<" MARK " calls>\n<" MARK " invoke name=\"t\">\n<" MARK " parameter name=\"p\" string=\""
#define MAX_VALUE 3000

struct fixture {
    struct tokenizer *tokenizer;
    struct call_rules *rules;
    struct chat_ids ids;
    uint32_t n;
};

/* One tool t with one parameter p of this schema. */
static void open_fixture(struct fixture *f, const char *schema)
{
    struct error e = {0};
    json_auto_t *p = json_loads(schema, JSON_DECODE_ANY, NULL);
    assert_non_null(p);
    json_auto_t *tools = json_pack("[{s:s, s:{s:s, s:{s:O}}}]", "name", "t", "parameters",
                                   "type", "object", "properties", "p", p);
    assert_ok(tokenizer_new_bytes(&f->tokenizer, &e), &e);
    assert_ok(chat_ids_find(&f->ids, f->tokenizer, &e), &e);
    assert_ok(call_rules_new(&f->rules, tools, f->tokenizer, &e), &e);
    f->n = tokenizer_size(f->tokenizer);
}

static void close_fixture(struct fixture *f)
{
    call_rules_free(f->rules);
    tokenizer_free(f->tokenizer);
}

static struct constrain_state after(const struct fixture *f, const char *text)
{
    AUTO(ids) struct ids ids = IDS_INIT(1 << 12);
    struct constrain_state s = {0};
    struct error e = {0};
    assert_ok(tokenizer_encode_special(f->tokenizer, text, strlen(text), &ids, &e), &e);
    for (size_t i = 0; i < ids.n; i++)
        constrain_feed(f->rules, &s, ids.v[i]);
    return s;
}

/* ---- by hand ------------------------------------------------------------------------------
 */

/* What a value may be, by its first byte as JSON, or s as text:
 * s"text", "string, 0 number, . with a fraction, t boolean, n null, [ array, { object. */
struct declared {
    const char *schema, *types;
    const char *values; /* the only ones, as a JSON array; NULL: not listed */
};

static const struct declared CASES[] = {
    {"{\"type\":\"string\"}", "s", NULL},
    {"{\"type\":\"integer\"}", "0", NULL},
    {"{\"type\":\"number\"}", "0.", NULL},
    {"{\"type\":\"boolean\"}", "t", NULL},
    {"{\"type\":\"null\"}", "n", NULL},
    {"{\"type\":\"array\",\"items\":{\"type\":\"integer\"}}", "[", NULL},
    {"{\"type\":\"object\"}", "{", NULL},
    {"{\"type\":[\"string\",\"null\"]}", "sn", NULL},
    {"{\"type\":[\"integer\",\"boolean\"]}", "0t", NULL},
    {"{\"type\":\"integer\",\"nullable\":true}", "0n", NULL},
    {"{\"anyOf\":[{\"type\":\"integer\"},{\"type\":\"null\"}]}", "0n", NULL},
    {"{\"oneOf\":[{\"type\":\"string\"},{\"anyOf\":[{\"type\":\"array\"}]}]}", "s[", NULL},
    {"{\"allOf\":[{\"type\":[\"integer\",\"string\"]},{\"type\":[\"integer\",\"null\"]}]}", "0",
     NULL},
    {"{\"type\":[\"number\",\"string\"],\"anyOf\":[{\"type\":\"integer\"}]}", "0", NULL},
    /* Nothing is said, or nothing that fits: anything. */
    {"{}", "s\"0.tn[{", NULL},
    {"true", "s\"0.tn[{", NULL},
    {"{\"type\":\"str\"}", "s\"0.tn[{", NULL},
    {"{\"$ref\":\"#/$defs/x\"}", "s\"0.tn[{", NULL},
    {"{\"type\":3}", "s\"0.tn[{", NULL},
    {"{\"type\":[]}", "s\"0.tn[{", NULL},
    {"{\"type\":\"integer\",\"allOf\":[{\"type\":\"string\"}]}", "s\"0.tn[{", NULL},
    {"{\"type\":\"integer\",\"enum\":[\"1\"]}", "s\"0.tn[{", NULL},
    {"{\"anyOf\":[{\"type\":\"null\"},true]}", "s\"0.tn[{", NULL},
    /* Few values. */
    {"{\"enum\":[\"on\",\"off\",\"of\"]}", "s", "[\"on\",\"off\",\"of\"]"},
    {"{\"type\":\"string\",\"enum\":[\"\",\"a\\nb\",\"a\"]}", "s", "[\"\",\"a\\nb\",\"a\"]"},
    {"{\"enum\":[1,12,-3]}", "0", "[1,12,-3]"},
    {"{\"enum\":[1.5,true,null,\"x\"]}", "s0.tn", "[1.5,true,null,\"x\"]"},
    {"{\"type\":\"string\",\"enum\":[\"x\",7]}", "s", "[\"x\"]"},
    {"{\"const\":false}", "t", "[false]"},
    {"{\"const\":\"é\"}", "s", "[\"é\"]"},
    /* Values that cannot be listed are held to their types. */
    {"{\"enum\":[\"a<b\",\"c\"]}", "s", NULL},
    {"{\"enum\":[[1],2]}", "0[", NULL},
    {"{\"const\":{\"a\":1}}", "{", NULL},
};
#define N_CASES (sizeof CASES / sizeof *CASES)

static bool allows(const struct fixture *f, const char *text, uint8_t b)
{
    struct constrain_state s = after(f, text);
    return constrain_allows(f->rules, &s, b);
}

static void test_first_bytes(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_CASES; i++) {
        const struct declared *c = &CASES[i];
        struct fixture f = {0};
        open_fixture(&f, c->schema);
        bool is_text = strchr(c->types, 's'), is_json = strlen(c->types) > is_text;
        if (allows(&f, BEFORE, 't') != is_text || allows(&f, BEFORE, 'f') != is_json)
            fail_msg("%s: string= true or false", c->schema);
        for (const char *t = "\"tn[{"; *t && is_json && !c->values; t++)
            if (allows(&f, BEFORE "false\">", (uint8_t)*t) != !!strchr(c->types, *t))
                fail_msg("%s: a value may begin with %c", c->schema, *t);
        if (is_json && !c->values &&
            allows(&f, BEFORE "false\">", '7') != !!strchr(c->types, '0'))
            fail_msg("%s: a number", c->schema);
        if (strchr(c->types, '0') && !c->values)
            for (const char *t = ".eE"; *t; t++)
                if (allows(&f, BEFORE "false\">7", (uint8_t)*t) != !!strchr(c->types, '.'))
                    fail_msg("%s: 7%c", c->schema, *t);
        close_fixture(&f);
    }
}

/* What is inside a value is not held to the type of the whole. */
static void test_inside(void **state)
{
    struct fixture f = {0};
    (void)state;
    open_fixture(&f, "{\"type\":\"array\"}");
    assert_true(allows(&f, BEFORE "false\">[1", '.'));
    assert_true(allows(&f, BEFORE "false\">[", '"'));
    assert_true(allows(&f, BEFORE "false\">[", '{'));
    assert_false(allows(&f, BEFORE "false\">[1", '<'));
    close_fixture(&f);
    open_fixture(&f, "{\"type\":\"integer\"}");
    assert_true(allows(&f, BEFORE "false\">-1", '<'));
    assert_false(allows(&f, BEFORE "false\">-", '<'));
    close_fixture(&f);
}

/* More values than are listed, longer ones than that, and as many names as there may be. */
static void test_many_choices(void **state)
{
    struct fixture f = {0};
    char text[1200];
    (void)state;
    json_auto_t *many = json_array(), *schema = json_object();
    for (int i = 0; i < 257; i++)
        json_array_append_new(many, json_integer(i));
    json_object_set(schema, "enum", many);
    char *dump = json_dumps(schema, 0);
    open_fixture(&f, dump);
    free(dump);
    assert_true(allows(&f, BEFORE "false\">9999", '9')); /* an integer is all that is asked */
    assert_false(allows(&f, BEFORE "false\">", 't'));
    close_fixture(&f);
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    json_auto_t *one = json_pack("{s:s}", "const", text);
    dump = json_dumps(one, 0);
    open_fixture(&f, dump);
    free(dump);
    assert_true(allows(&f, BEFORE "true\">", 'y'));
    close_fixture(&f);
}

/* ---- walks --------------------------------------------------------------------------------
 */

static unsigned pick(uint64_t *s, unsigned n)
{
    *s = *s * 6364136223846793005ull + 1442695040888963407ull;
    return (unsigned)(*s >> 33) % n;
}

/* Ids that a model may like too much: it begins with what does not fit, and at times wants to
 * end what it is in. */
static uint32_t wanted(const struct fixture *f, uint64_t *seed)
{
    static const char LIKED[] = "false true null \"x\" 1.5e3 -0.7 {\"a\":[]} ]}]}\"\"\"";
    unsigned how = pick(seed, 8);
    if (how == 0)
        return '<';
    if (how == 1)
        return '/';
    if (how == 2)
        return f->ids.dsml;
    return how < 6 ? (uint8_t)LIKED[pick(seed, sizeof LIKED - 1)] : pick(seed, f->n);
}

/* The next id: one that is wanted if it may be, else the next that may be; there always is. */
static uint32_t step(const struct fixture *f, struct constrain_state *s, uint64_t *seed,
                     const char *text)
{
    uint32_t id = 0;
    for (int tries = 0; tries < 6; tries++)
        if (constrain_allows(f->rules, s, id = wanted(f, seed)))
            return id;
    for (uint32_t i = 0; i < f->n; i++, id = (id + 1) % f->n)
        if (constrain_allows(f->rules, s, id))
            return id;
    fail_msg("nothing may come behind %s", text);
    return 0;
}

static char type_letter(const json_t *v, bool is_text)
{
    static const char LETTERS[] = {
        [JSON_OBJECT] = '{', [JSON_ARRAY] = '[', [JSON_STRING] = '"', [JSON_INTEGER] = '0',
        [JSON_REAL] = '.',   [JSON_TRUE] = 't',  [JSON_FALSE] = 't',  [JSON_NULL] = 'n'};
    return is_text ? 's' : LETTERS[json_typeof(v)];
}

static void check_value(const struct declared *c, const char *text, size_t n, bool is_text)
{
    const struct json_limits limits = {.max_bytes = 1 << 16, .max_depth = 32};
    json_auto_t *v = NULL, *list = c->values ? json_loads(c->values, 0, NULL) : NULL;
    struct error e = {0};
    const json_t *one;
    bool is_listed = !list;
    size_t i;
    if (is_text && !c->values)
        return; /* any bytes */
    enum err rc = is_text ? OK : json_parse(text, n, &limits, &v, &e);
    if (rc && strstr(e.msg, "duplicate"))
        return; /* a key twice is JSON, and refused by the one that reads */
    if (rc)
        fail_msg("%s: %s: %.*s", c->schema, e.msg, (int)n, text);
    if (is_text)
        assert_non_null(v = json_stringn(text, n));
    if (!strchr(c->types, type_letter(v, is_text)))
        fail_msg("%s: %.*s", c->schema, (int)n, text);
    json_array_foreach(list, i, one)
        is_listed = is_listed || json_equal(one, v);
    if (!is_listed)
        fail_msg("%s: not one of its values: \"%.*s\"", c->schema, (int)n, text);
}

static void check_filter(const struct fixture *f, const struct constrain_state *s)
{
    struct constrain_filter filter;
    constrain_filter_init(&filter, f->rules, s);
    for (uint32_t i = 0; i < f->n; i++)
        assert_int_equal(constrain_filter_allows(&filter, i), constrain_allows(f->rules, s, i));
}

/* One value; false: it became long. */
static bool walk(const struct fixture *f, const struct declared *c, uint64_t *seed)
{
    struct constrain_state s = after(f, BEFORE);
    char text[MAX_VALUE + 200] = "";
    size_t n = 0, from = 0;
    bool is_text = false;
    while (n < MAX_VALUE) {
        uint32_t id = step(f, &s, seed, text);
        if (!pick(seed, 64))
            check_filter(f, &s);
        constrain_feed(f->rules, &s, id);
        if (id == f->ids.dsml) {
            assert_true(from && n >= from + 2 && !memcmp(text + n - 2, "</", 2));
            check_value(c, text + from, n - 2 - from, is_text);
            return true;
        }
        size_t len = 0;
        const uint8_t *bytes = tokenizer_bytes(f->tokenizer, id, &len);
        assert_true(len < 200);
        memcpy(text + n, bytes, len);
        n += len;
        text[n] = '\0';
        if (!from && text[n - 1] == '>') {
            from = n;
            is_text = text[0] == 't';
        }
    }
    return false;
}

static void test_walks(void **state)
{
    const unsigned n_walks = getenv("AGENTD_SLOW") ? 100000 : 20000;
    unsigned n_whole = 0;
    (void)state;
    for (unsigned i = 0; i < N_CASES; i++) {
        struct fixture f = {0};
        open_fixture(&f, CASES[i].schema);
        for (unsigned k = 0; k < n_walks / N_CASES + 1; k++) {
            uint64_t seed = 1 + k * N_CASES + i;
            n_whole += walk(&f, &CASES[i], &seed);
        }
        close_fixture(&f);
    }
    if (getenv("AGENTD_SHOW"))
        printf("%u of %u walks end\n", n_whole, n_walks);
    assert_true(n_whole > n_walks / 10 * 9);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_first_bytes),
        cmocka_unit_test(test_inside),
        cmocka_unit_test(test_many_choices),
        cmocka_unit_test(test_walks),
    };
    return !!cmocka_run_group_tests(tests, NULL, NULL);
}
