/* base/json: what is refused and with which words; typed fields; failing allocations. */
#include "tests/support/test.h"

#include "base/fault.h"
#include "base/json.h"
#include "tests/support/alloc_fault.h"

static const struct json_limits limits = {.max_bytes = 4096, .max_depth = 8};

static enum err parse(const char *text, json_t **out, struct error *e)
{
    return json_parse(text, strlen(text), &limits, out, e);
}

static void test_refuses(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        enum err rc;
    } cases[] = {
        {"", ERR_FORMAT},
        {"{", ERR_FORMAT},
        {"{} x", ERR_FORMAT},
        {"{}{}", ERR_FORMAT},
        {"{\"a\":1,\"a\":2}", ERR_FORMAT},
        {"{\"a\":{\"b\":1,\"b\":1}}", ERR_FORMAT},
        {"\"\xff\"", ERR_FORMAT},
        {"\"\xed\xa0\x80\"", ERR_FORMAT},
        {"\"\\ud800\"", ERR_FORMAT},
        {"\"a\\u0000b\"", ERR_FORMAT},
        {"[1,]", ERR_FORMAT},
        {"[01]", ERR_FORMAT},
        {"[NaN]", ERR_FORMAT},
        {"[99999999999999999999]", ERR_FORMAT},
        {"'a'", ERR_FORMAT},
        {"[[[[[[[[[1]]]]]]]]]", ERR_LIMIT},
        {"[{\"a\":[{\"a\":[{\"a\":[[[1]]]}]}]}]", ERR_LIMIT},
        {"[[[[[[[[[[[[[[[[[[[[[", ERR_LIMIT},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct error e = {0};
        json_t *j = NULL;
        assert_int_equal(parse(cases[i].text, &j, &e), cases[i].rc);
        assert_null(j);
        assert_memory_equal(e.msg, "JSON: ", 6);
    }
    struct error e = {0};
    json_t *j = NULL;
    assert_int_equal(json_parse("[1]\0", 4, &limits, &j, &e), ERR_FORMAT);
    assert_int_equal(json_parse("[1\0]", 4, &limits, &j, &e), ERR_FORMAT);
    assert_string_equal(e.msg, "JSON: a NUL byte at 2");
    char big[5000];
    memset(big, ' ', sizeof big);
    assert_int_equal(json_parse(big, sizeof big, &limits, &j, &e), ERR_LIMIT);
    assert_string_equal(e.msg, "JSON: 5000 bytes, at most 4096");
    assert_int_equal(parse("{\n  \"a\": tru\n}", &j, &e), ERR_FORMAT);
    assert_memory_equal(e.msg, "JSON: line 2 column", 19);
}

/* What is counted is what stands outside of strings, and one more than may be is refused. */
static void test_marks(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        size_t n_marks;
    } cases[] = {
        {"1", 0},
        {"[]", 1},
        {"{\"a\":[1,2]}", 4},
        {"[\",,,::[[{{\\\",\\\\\",\"\"]", 2},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        for (size_t max = 1; max < 6; max++) {
            struct json_limits few = limits;
            few.max_marks = max;
            struct error e = {0};
            json_auto_t *j = NULL;
            enum err rc = json_parse(cases[i].text, strlen(cases[i].text), &few, &j, &e);
            assert_int_equal(rc, cases[i].n_marks > max ? ERR_LIMIT : OK);
            assert_true(!rc == !!j);
        }
}

static void test_accepts(void **state)
{
    (void)state;
    static const char *const texts[] = {
        "1",
        "null",
        "\"[[[[[[[[[[[[\"",
        "\"\\\"[[[[[[[[[[[[\"",
        "[[[[[[[[1]]]]]]]]",
        "[[1],[1],[1],[1],[1],[1],[1],[1],[1],[1]]",
        " {\"a\" : 1} \n",
    };
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        struct error e = {0};
        json_auto_t *j = NULL;
        assert_ok(parse(texts[i], &j, &e), &e);
    }
    struct json_limits with_nul = limits;
    with_nul.allow_nul = true;
    struct error e = {0};
    json_auto_t *j = NULL;
    assert_ok(json_parse("\"a\\u0000b\"", 10, &with_nul, &j, &e), &e);
    assert_int_equal(json_string_length(j), 3);
}

static const char *const modes[] = {"ask", "never", NULL};

static void test_fields(void **state)
{
    (void)state;
    struct error e = {0};
    json_auto_t *o = NULL;
    assert_ok(parse("{\"s\":\"abc\",\"i\":7,\"r\":1.5,\"b\":true,\"n\":null,\"o\":{},\"l\":[],"
                    "\"m\":\"never\"}",
                    &o, &e),
              &e);
    const char *s = NULL;
    size_t len;
    int64_t i = 0;
    double r = 0;
    bool b = false;
    int m = -1;
    json_t *t = NULL;
    assert_ok(json_need_str(o, "s", &s, &len, &e), &e);
    assert_string_equal(s, "abc");
    assert_ok(json_need_int(o, "i", 0, 7, &i, &e), &e);
    assert_int_equal(i, 7);
    assert_ok(json_need_num(o, "r", 0, 2, &r, &e), &e);
    assert_true(r > 1.4 && r < 1.6);
    assert_ok(json_need_num(o, "i", 0, 7, &r, &e), &e);
    assert_ok(json_need_bool(o, "b", &b, &e), &e);
    assert_true(b);
    assert_ok(json_need_enum(o, "m", modes, &m, &e), &e);
    assert_int_equal(m, 1);
    assert_ok(json_need_obj(o, "o", &t, &e), &e);
    assert_true(json_is_object(t));
    assert_ok(json_need_arr(o, "l", &t, &e), &e);
    assert_true(json_is_array(t));
    /* Absent and null leave defaults alone. */
    assert_ok(json_opt_int(o, "n", 0, 1, &i, &e), &e);
    assert_ok(json_opt_int(o, "zz", 0, 1, &i, &e), &e);
    assert_ok(json_opt_str(o, "zz", &s, NULL, &e), &e);
    assert_ok(json_opt_enum(o, "n", modes, &m, &e), &e);
    assert_int_equal(i, 7);
    assert_string_equal(s, "abc");
    assert_int_equal(m, 1);
}

static void test_field_messages(void **state)
{
    (void)state;
    struct error e = {0};
    json_auto_t *o = NULL, *nul = NULL;
    struct json_limits with_nul = limits;
    with_nul.allow_nul = true;
    assert_ok(parse("{\"s\":\"abc\",\"i\":7,\"r\":1.0,\"n\":null,\"l\":[]}", &o, &e), &e);
    assert_ok(json_parse("{\"s\":\"a\\u0000b\"}", 16, &with_nul, &nul, &e), &e);
    const char *s = "old";
    size_t len;
    int64_t i = 99;
    double r;
    bool b;
    int m;
    json_t *t;
#define SAYS(call, message)                                                                    \
    do {                                                                                       \
        assert_int_equal(call, ERR_FORMAT);                                                    \
        assert_string_equal(e.msg, message);                                                   \
    } while (0)
    SAYS(json_need_str(o, "i", &s, NULL, &e), "\"i\": want a string, is an integer");
    SAYS(json_need_str(o, "zz", &s, NULL, &e), "\"zz\": missing, want a string");
    SAYS(json_need_str(o, "n", &s, NULL, &e), "\"n\": want a string, is null");
    SAYS(json_need_str(nul, "s", &s, NULL, &e), "\"s\": a NUL inside the string");
    SAYS(json_need_int(o, "i", 1, 6, &i, &e), "\"i\": want an integer 1..6, is 7");
    SAYS(json_opt_int(o, "i", 8, 9, &i, &e), "\"i\": want an integer 8..9, is 7");
    SAYS(json_need_int(o, "r", 0, 6, &i, &e), "\"r\": want an integer, is a fraction");
    SAYS(json_need_num(o, "i", 0, 1, &r, &e), "\"i\": want a number 0..1, is 7");
    SAYS(json_need_bool(o, "i", &b, &e), "\"i\": want a boolean, is an integer");
    SAYS(json_need_enum(o, "s", modes, &m, &e), "\"s\": want one of ask, never, is \"abc\"");
    SAYS(json_need_enum(o, "l", modes, &m, &e), "\"l\": want one of ask, never, is an array");
    SAYS(json_need_obj(o, "l", &t, &e), "\"l\": want an object, is an array");
    SAYS(json_need_arr(o, "s", &t, &e), "\"s\": want an array, is a string");
    SAYS(json_need_int(json_object_get(o, "l"), "x", 0, 1, &i, &e),
         "\"x\": its parent is no object");
    SAYS(json_need_int(NULL, "x", 0, 1, &i, &e), "\"x\": its parent is no object");
    assert_ok(json_need_str(nul, "s", &s, &len, &e), &e);
    assert_int_equal(len, 3);
    assert_int_equal(i, 99);
}

static void test_write(void **state)
{
    (void)state;
    struct error e = {0};
    json_auto_t *j = NULL;
    AUTO(buf) struct buf b = BUF_INIT(20);
    assert_ok(parse("{ \"b\": [1, 2.5], \"a\": \"x\" }", &j, &e), &e);
    assert_int_equal(json_write(j, JSON_COMPACT, &b, &e), ERR_LIMIT);
    assert_int_equal(b.len, 0);
    buf_fini(&b);
    b.max = 100;
    assert_ok(buf_add_str(&b, ">", &e), &e);
    assert_ok(json_write(j, JSON_COMPACT | JSON_SORT_KEYS, &b, &e), &e);
    assert_string_equal(buf_str(&b), ">{\"a\":\"x\",\"b\":[1,2.5]}");
}

/* jansson's allocations fail one after the other: a clean error each time, nothing leaks. */
static void test_no_memory(void **state)
{
    (void)state;
    const char *text = "{\"a\":[1,2,{\"b\":\"text\"}],\"c\":{\"d\":null},\"e\":1.25}";
    json_set_alloc_funcs(alloc_fault_malloc, free);
    uint64_t n = 1;
    for (;; n++) {
        struct error e = {0};
        json_auto_t *j = NULL;
        fault_arm(FAULT_FAIL, "alloc", n);
        enum err rc = parse(text, &j, &e);
        if (!fault_disarm()) {
            assert_ok(rc, &e);
            break;
        }
        assert_true(rc == ERR_NOMEM || rc == ERR_FORMAT);
        assert_null(j);
    }
    assert_true(n > 10);
    json_set_alloc_funcs(malloc, free);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_refuses),        cmocka_unit_test(test_marks),
        cmocka_unit_test(test_accepts),        cmocka_unit_test(test_fields),
        cmocka_unit_test(test_field_messages), cmocka_unit_test(test_write),
        cmocka_unit_test(test_no_memory),
    };
    return !!cmocka_run_group_tests(tests, NULL, NULL);
}
