/* The argument check: what fits, what does not and what the model is told; hostile schemas. */
#include "tests/support/test.h"

#include <jansson.h>

#include "base/buf.h"
#include "tools/schema.h"
#include "tools/tools.h"

static json_t *parse(const char *text)
{
    json_error_t why;
    json_t *v = json_loads(text, JSON_DECODE_ANY, &why);
    if (!v)
        fail_msg("%s: %s", text, why.text);
    return v;
}

/* `message` NULL: fits. Otherwise exactly what the model is told. */
static const struct {
    const char *schema, *value, *message;
} checks[] = {
    {"{}", "{\"anything\": [1, null]}", NULL},
    {"{\"type\": \"object\"}", "[]", "arguments: got array [...], want object"},
    {"{\"type\": \"integer\"}", "3", NULL},
    {"{\"type\": \"integer\"}", "3.0", NULL},
    {"{\"type\": \"integer\"}", "3.5", "arguments: got number 3.5, want integer"},
    {"{\"type\": \"integer\"}", "\"3\"", "arguments: got string \"3\", want integer"},
    {"{\"type\": \"number\"}", "3", NULL},
    {"{\"type\": [\"string\", \"null\"]}", "null", NULL},
    {"{\"type\": [\"string\", \"null\"]}", "true",
     "arguments: got boolean true, want string or null"},
    {"{\"properties\": {\"a\": {\"type\": \"string\"}}}", "{\"a\": 1}",
     "arguments.a: got integer 1, want string"},
    {"{\"properties\": {\"a\": {\"type\": \"string\"}}, \"required\": [\"a\"]}", "{\"b\": 1}",
     "arguments: \"a\" is missing"},
    {"{\"properties\": {\"a\": {}, \"b\": {}}, \"additionalProperties\": false}", "{\"c\": 1}",
     "arguments: there is no \"c\"; there is a, b"},
    {"{\"additionalProperties\": false}", "{\"c\": 1}",
     "arguments: there is no \"c\"; there is nothing to pass"},
    {"{\"additionalProperties\": {\"type\": \"integer\"}}", "{\"c\": 1}", NULL},
    {"{\"additionalProperties\": {\"type\": \"integer\"}}", "{\"c\": {}}",
     "arguments.c: got object {...}, want integer"},
    {"{\"enum\": [\"ask\", \"never\", 3]}", "3", NULL},
    {"{\"enum\": [\"ask\", \"never\", 3]}", "\"x\"",
     "arguments: got \"x\", want one of \"ask\", \"never\", 3"},
    {"{\"const\": 1}", "2", "arguments: got 2, want 1"},
    {"{\"items\": {\"type\": \"integer\"}}", "[1, 2, \"x\"]",
     "arguments[2]: got string \"x\", want integer"},
    {"{\"minItems\": 2}", "[1]", "arguments: got 1 items, want at least 2"},
    {"{\"maxItems\": 2}", "[1, 2, 3]", "arguments: got 3 items, want at most 2"},
    {"{\"minimum\": 1}", "0", "arguments: got 0, want at least 1"},
    {"{\"minimum\": 1}", "1", NULL},
    {"{\"exclusiveMinimum\": 1}", "1", "arguments: got 1, want more than 1"},
    {"{\"maximum\": 2.5}", "2.5", NULL},
    {"{\"maximum\": 2.5}", "3", "arguments: got 3, want at most 2.5"},
    {"{\"exclusiveMaximum\": 3}", "3", "arguments: got 3, want less than 3"},
    {"{\"minLength\": 2}", "\"ä\"", "arguments: got 1 characters, want at least 2"},
    {"{\"maxLength\": 2}", "\"äö\"", NULL},
    {"{\"maxLength\": 2}", "\"äöü\"", "arguments: got 3 characters, want at most 2"},
    {"{\"minLength\": 2, \"maximum\": 1}", "[]", NULL},
    {"{\"anyOf\": [{\"type\": \"string\"}, {\"type\": \"integer\"}]}", "1", NULL},
    {"{\"anyOf\": [{\"type\": \"string\"}, {\"type\": \"integer\"}]}", "null",
     "arguments: got null null, want string"},
    {"{\"properties\": {\"a\": false}}", "{\"a\": 1}", "arguments.a: is not allowed here"},
    {"{\"properties\": {\"a\": {\"items\": {\"properties\": {\"b\": {\"type\": \"null\"}}}}}}",
     "{\"a\": [{}, {\"b\": \"\\u001b[31mred\"}]}",
     "arguments.a[1].b: got string \"\\u001B[31mred\", want null"},
    {"{\"type\": \"integer\"}", "\"0123456789012345678901234567890123456789\"",
     "arguments: got string \"012345678901234567890123456789012345678..., want integer"},
};

static void test_checks(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof checks / sizeof checks[0]; i++) {
        struct error e = {0};
        json_t *schema = parse(checks[i].schema), *value = parse(checks[i].value);
        enum err rc = schema_check(schema, value, &e);
        if (!checks[i].message && rc)
            fail_msg("%s against %s: %s", checks[i].value, checks[i].schema, e.msg);
        if (checks[i].message) {
            assert_int_equal(rc, ERR_INVAL);
            assert_string_equal(e.msg, checks[i].message);
            assert_int_equal(schema_check(schema, value, NULL), ERR_INVAL);
        }
        json_decref(schema);
        json_decref(value);
    }
}

static const struct {
    const char *schema, *message;
} declarations[] = {
    {"{\"type\": \"object\"}", NULL},
    {"{\"type\": \"object\", \"properties\": {\"a\": {\"$ref\": \"#/x\", \"pattern\": \"(\"}}}",
     NULL},
    {"[]", "parameters: want a JSON Schema object"},
    {"{}", "parameters.type: want \"object\""},
    {"{\"type\": \"array\"}", "parameters.type: want \"object\""},
    {"{\"type\": \"object\", \"properties\": []}",
     "parameters.properties: want an object of schemas"},
    {"{\"type\": \"object\", \"properties\": {\"a\": 1}}",
     "parameters.a: want a schema (an object)"},
    {"{\"type\": \"object\", \"properties\": {\"a\": {\"type\": \"int\"}}}",
     "parameters.a.type: want a JSON type or a list of them"},
    {"{\"type\": \"object\", \"properties\": {\"a\": {\"type\": [\"string\", 1]}}}",
     "parameters.a.type: want JSON types"},
    {"{\"type\": \"object\", \"properties\": {\"a\": {\"enum\": 1}}}",
     "parameters.a.enum: want a list of values"},
    {"{\"type\": \"object\", \"properties\": {\"a\": {\"items\": 1}}}",
     "parameters.a.items: want a schema (an object)"},
    {"{\"type\": \"object\", \"required\": [1]}", "parameters.required: want a list of names"},
    {"{\"type\": \"object\", \"properties\": {\"a\": {\"minLength\": -1}}}",
     "parameters.a.minLength: want a count"},
    {"{\"type\": \"object\", \"properties\": {\"a\": {\"maximum\": \"9\"}}}",
     "parameters.a.maximum: want a number"},
    {"{\"type\": \"object\", \"anyOf\": []}", "parameters.anyOf: want a list of schemas"},
};

static void test_declarations(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof declarations / sizeof declarations[0]; i++) {
        struct error e = {0};
        json_t *schema = parse(declarations[i].schema);
        enum err rc = schema_valid(schema, &e);
        if (declarations[i].message) {
            assert_int_equal(rc, ERR_INVAL);
            assert_string_equal(e.msg, declarations[i].message);
        } else {
            assert_ok(rc, &e);
        }
        json_decref(schema);
    }
}

/* {"items": {"items": ... }} or [[[ ... ]]], `depth` levels. */
static json_t *nest(bool schema, int depth)
{
    json_t *v = schema ? json_object() : json_array();
    for (int i = 0; i < depth; i++) {
        json_t *outer = schema ? json_object() : json_array();
        if (schema)
            json_object_set_new(outer, "items", v);
        else
            json_array_append_new(outer, v);
        v = outer;
    }
    return v;
}

/* ggml-org/llama.cpp #27619, #12196, #25895: large and odd schemas crash the server. */
static void test_too_deep(void **state)
{
    (void)state;
    struct error e;
    json_t *schema = nest(true, 2000), *value = nest(false, 2000), *any = json_object();
    assert_int_equal(schema_check(schema, value, &e), ERR_LIMIT);
    assert_int_equal(schema_check(any, value, &e), ERR_LIMIT);
    json_object_set_new(schema, "type", json_string("object"));
    assert_int_equal(schema_valid(schema, &e), ERR_LIMIT);
    json_decref(schema);
    json_decref(value);
    json_decref(any);
}

static void test_llama_cpp_27619_12196_25895_too_large(void **state)
{
    (void)state;
    struct error e;
    json_t *schema = parse("{\"type\": \"object\"}");
    AUTO_FREE char *long_text = malloc(SCHEMA_MAX_BYTES + 1);
    memset(long_text, 'x', SCHEMA_MAX_BYTES);
    long_text[SCHEMA_MAX_BYTES] = '\0';
    json_object_set_new(schema, "description", json_string(long_text));
    assert_int_equal(schema_valid(schema, &e), ERR_LIMIT);
    json_decref(schema);
}

/* anyOf in anyOf multiplies: the work is capped, not the time waited for. */
static void test_too_much_work(void **state)
{
    (void)state;
    struct error e;
    json_t *schema = parse("{\"type\": \"null\"}");
    for (int level = 0; level < 10; level++) {
        json_t *any = json_array();
        for (int i = 0; i < 8; i++)
            json_array_append(any, schema);
        json_decref(schema);
        schema = json_pack("{s:o}", "anyOf", any);
    }
    json_t *value = json_true();
    assert_int_equal(schema_check(schema, value, &e), ERR_LIMIT);
    assert_non_null(strstr(e.msg, "too large to check"));
    json_decref(schema);
}

/* ---- the registry ---- */

static void test_registry(void **state)
{
    (void)state;
    size_t n;
    struct error e;
    const struct tool *list = tool_list(&n);
    for (size_t i = 0; i < n; i++) {
        json_t *schema = parse(list[i].parameters);
        assert_ok(schema_valid(schema, &e), &e);
        json_decref(schema);
        assert_ptr_equal(tool_find(list[i].name), &list[i]);
        if (i > 0)
            assert_true(strcmp(list[i - 1].name, list[i].name) < 0);
    }
    assert_null(tool_find("rm"));
    assert_null(tool_find(""));
    assert_int_equal(tool_find("read_file")->risk, TOOL_READS);
    assert_int_equal(tool_find("edit")->risk, TOOL_WRITES);
    assert_int_equal(tool_find("run")->risk, TOOL_EXECUTES);
}

static void test_functions(void **state)
{
    (void)state;
    struct error e;
    json_t *list;
    const char *const names[] = {"run", "grep", "run"};
    assert_ok(tool_functions(names, 3, false, &list, &e), &e);
    assert_int_equal(json_array_size(list), 2);
    json_t *first = json_array_get(list, 0);
    assert_string_equal(json_string_value(json_object_get(first, "name")), "grep");
    AUTO_FREE char *text = json_dumps(first, 0);
    assert_int_equal(strncmp(text, "{\"name\": \"grep\", \"description\": \"", 32), 0);
    assert_non_null(strstr(text, ", \"parameters\": {\"type\": \"object\", \"properties\": {"));
    json_decref(list);
    const char *const unknown[] = {"run", "nope"};
    assert_int_equal(tool_functions(unknown, 2, false, &list, &e), ERR_NOTFOUND);
    assert_non_null(strstr(e.msg, "\"nope\""));
    assert_ok(tool_functions(NULL, 0, false, &list, &e), &e);
    assert_int_equal(json_array_size(list), 8);
    json_decref(list);
    assert_ok(tool_functions(NULL, 0, true, &list, &e), &e);
    assert_int_equal(json_array_size(list), 9);
    json_decref(list);
    const char *const fetch[] = {"http_fetch"};
    assert_int_equal(tool_functions(fetch, 1, false, &list, &e), ERR_DENIED);
    assert_non_null(strstr(e.msg, "http_fetch is off: `http-fetch = true` in [serve]"));
}

static void test_tool_check(void **state)
{
    (void)state;
    static const struct {
        const char *name, *arguments, *message;
    } calls[] = {
        {"run", "{\"command\": \"true\"}", NULL},
        {"run", "{}", "run: arguments: \"command\" is missing"},
        {"run", "[]", "run: arguments: want an object"},
        {"run", "{\"command\": \"x\", \"timeout_ms\": 0}",
         "run: arguments.timeout_ms: got 0, want at least 1"},
        {"read_file", "{\"path\": \"a\", \"limit\": \"ten\"}",
         "read_file: arguments.limit: got string \"ten\", want integer"},
        {"list_dir", "{\"dir\": \"a\"}",
         "list_dir: arguments: there is no \"dir\"; there is path, depth"},
        {"bash\n\033", "{}",
         "there is no tool \"bash??\"; there is edit, grep, http_fetch, jobs, "
         "list_dir, read_file, run, todo, write_file"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++) {
        struct error e = {0};
        json_t *arguments = parse(calls[i].arguments);
        enum err rc = tool_check(calls[i].name, arguments, &e);
        json_decref(arguments);
        if (!calls[i].message)
            assert_ok(rc, &e);
        else
            assert_string_equal(e.msg, calls[i].message);
        assert_int_equal(rc != OK, calls[i].message != NULL);
    }
}

static void test_modes(void **state)
{
    (void)state;
    enum tool_mode mode;
    struct error e;
    assert_ok(tool_mode_parse("read-only", &mode, &e), &e);
    assert_int_equal(mode, TOOL_MODE_READ_ONLY);
    assert_ok(tool_mode_parse("full-access", &mode, &e), &e);
    assert_int_equal(mode, TOOL_MODE_FULL_ACCESS);
    assert_int_equal(tool_mode_parse("full", &mode, &e), ERR_INVAL);
    assert_int_equal(mode, TOOL_MODE_FULL_ACCESS);
    assert_string_equal(tool_mode_name(TOOL_MODE_WORKSPACE_WRITE), "workspace-write");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_checks),
        cmocka_unit_test(test_declarations),
        cmocka_unit_test(test_too_deep),
        cmocka_unit_test(test_llama_cpp_27619_12196_25895_too_large),
        cmocka_unit_test(test_too_much_work),
        cmocka_unit_test(test_registry),
        cmocka_unit_test(test_functions),
        cmocka_unit_test(test_tool_check),
        cmocka_unit_test(test_modes),
    };
    return !!cmocka_run_group_tests(tests, NULL, NULL);
}
