/* JSON-RPC lines, hostile ones above all. */
#include "tests/support/test.h"

#include <stdbool.h>

#include "agentd/rpc.h"

static enum err parse(const char *line, size_t n, struct rpc_message *m, enum rpc_code *code)
{
    struct error e = {0};
    enum err rc = rpc_parse(line, n, m, code, &e);
    if (rc)
        assert_true(e.msg[0] != '\0');
    return rc;
}

static void accepts(const char *line, const char *method, bool has_id)
{
    struct rpc_message m;
    enum rpc_code code;
    if (parse(line, strlen(line), &m, &code))
        fail_msg("refused: %s", line);
    assert_string_equal(m.method, method);
    assert_int_equal(m.id != NULL, has_id);
    rpc_message_fini(&m);
}

static void refuses(const char *line, size_t n, enum rpc_code want)
{
    struct rpc_message m;
    enum rpc_code code;
    if (!parse(line, n, &m, &code))
        fail_msg("taken: %.60s", line);
    assert_int_equal(code, want);
    rpc_message_fini(&m);
}

static void test_accepts(void **state)
{
    (void)state;
    accepts("{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"a\"}", "a", true);
    accepts("{\"jsonrpc\":\"2.0\",\"id\":\"x\",\"method\":\"a/b\",\"params\":{}}", "a/b", true);
    accepts("{\"jsonrpc\":\"2.0\",\"id\":null,\"method\":\"a\"}", "a", true);
    accepts("{\"jsonrpc\":\"2.0\",\"method\":\"a\",\"unknown\":[1,2]}", "a", false);
    accepts(" {\"method\":\"\xc3\xa9\",\"jsonrpc\":\"2.0\"} \r", "\xc3\xa9", false);
}

static void test_refuses(void **state)
{
    (void)state;
    static const struct {
        const char *line;
        enum rpc_code code;
    } cases[] = {
        {"", RPC_PARSE_ERROR},
        {"{", RPC_PARSE_ERROR},
        {"nonsense", RPC_PARSE_ERROR},
        {"{\"jsonrpc\":\"2.0\",\"method\":\"a\"} x", RPC_PARSE_ERROR},
        {"{\"jsonrpc\":\"2.0\",\"method\":\"a\",\"method\":\"b\"}", RPC_PARSE_ERROR},
        {"{\"jsonrpc\":\"2.0\",\"method\":\"a\",\"params\":{\"x\":1,\"x\":2}}",
         RPC_PARSE_ERROR},
        {"{\"jsonrpc\":\"2.0\",\"method\":\"a\\u0000b\"}", RPC_PARSE_ERROR},
        {"{\"jsonrpc\":\"2.0\",\"method\":\"\xff\"}", RPC_PARSE_ERROR},
        {"{\"jsonrpc\":\"2.0\",\"method\":\"\xed\xa0\x80\"}", RPC_PARSE_ERROR}, /* surrogate */
        {"{\"jsonrpc\":\"2.0\",\"method\":\"\xc0\x80\"}", RPC_PARSE_ERROR}, /* overlong NUL */
        {"{\"jsonrpc\":\"2.0\",\"id\":99999999999999999999,\"method\":\"a\"}", RPC_PARSE_ERROR},
        {"[]", RPC_INVALID_REQUEST},
        {"[{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"a\"}]", RPC_INVALID_REQUEST},
        {"1", RPC_INVALID_REQUEST},
        {"\"a\"", RPC_INVALID_REQUEST},
        {"{}", RPC_INVALID_REQUEST},
        {"{\"id\":1,\"method\":\"a\"}", RPC_INVALID_REQUEST},
        {"{\"jsonrpc\":\"1.0\",\"method\":\"a\"}", RPC_INVALID_REQUEST},
        {"{\"jsonrpc\":2.0,\"method\":\"a\"}", RPC_INVALID_REQUEST},
        {"{\"jsonrpc\":\"2.0\",\"method\":\"\"}", RPC_INVALID_REQUEST},
        {"{\"jsonrpc\":\"2.0\",\"method\":7}", RPC_INVALID_REQUEST},
        {"{\"jsonrpc\":\"2.0\",\"id\":{},\"method\":\"a\"}", RPC_INVALID_REQUEST},
        {"{\"jsonrpc\":\"2.0\",\"id\":1.5,\"method\":\"a\"}", RPC_INVALID_REQUEST},
        {"{\"jsonrpc\":\"2.0\",\"id\":true,\"method\":\"a\"}", RPC_INVALID_REQUEST},
        {"{\"jsonrpc\":\"2.0\",\"method\":\"a\",\"params\":[1]}", RPC_INVALID_REQUEST},
        {"{\"jsonrpc\":\"2.0\",\"method\":\"a\",\"params\":\"x\"}", RPC_INVALID_REQUEST},
        {"{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{}}", RPC_INVALID_REQUEST},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        refuses(cases[i].line, strlen(cases[i].line), cases[i].code);
    static const char nul[] = "{\"jsonrpc\":\"2.0\",\"method\":\"a\0\"}";
    refuses(nul, sizeof(nul) - 1, RPC_PARSE_ERROR);
}

static char *nested(int depth, size_t *n)
{
    static char line[4096];
    size_t at = (size_t)snprintf(line, sizeof line,
                                 "{\"jsonrpc\":\"2.0\",\"method\":\"a\",\"params\""
                                 ":{\"x\":");
    for (int i = 2; i < depth; i++)
        line[at++] = '[';
    for (int i = 2; i < depth; i++)
        line[at++] = ']';
    line[at++] = '}';
    line[at++] = '}';
    line[at] = '\0';
    *n = at;
    return line;
}

static void test_depth(void **state)
{
    (void)state;
    size_t n;
    char *line = nested(RPC_MAX_DEPTH + 1, &n);
    refuses(line, n, RPC_PARSE_ERROR);
    line = nested(1000, &n);
    refuses(line, n, RPC_PARSE_ERROR);
    line = nested(RPC_MAX_DEPTH - 2, &n);
    line[n - 3] = ']'; /* an innermost empty list is a value of params.x */
    struct rpc_message m;
    enum rpc_code code;
    assert_int_equal(parse(line, n, &m, &code), OK);
    rpc_message_fini(&m);
}

static void test_refused_request_keeps_its_id(void **state)
{
    (void)state;
    struct rpc_message m;
    enum rpc_code code;
    const char *line = "{\"jsonrpc\":\"2.0\",\"id\":\"q7\",\"method\":\"a\",\"params\":3}";
    assert_int_not_equal(parse(line, strlen(line), &m, &code), OK);
    assert_string_equal(json_string_value(m.id), "q7");
    rpc_message_fini(&m);
}

/* Every code of enum err has a place, and ours stay inside -32010..-32019. */
static void test_codes(void **state)
{
    (void)state;
    for (int i = ERR_NOMEM; i <= ERR_GPU; i++) {
        int code = rpc_code((enum err)i);
        bool ours = code <= -32010 && code >= -32019;
        if (!ours && code != RPC_INVALID_PARAMS && code != RPC_CANCELLED)
            fail_msg("%s is %d", err_name((enum err)i), code);
    }
    struct error e;
    err_set(&e, ERR_BUSY, "later");
    json_t *id = json_integer(4), *m = rpc_error(id, rpc_code(ERR_BUSY), &e);
    const json_t *data = json_object_get(json_object_get(m, "error"), "data");
    assert_string_equal(json_string_value(json_object_get(data, "kind")), "busy");
    assert_true(json_is_true(json_object_get(data, "retryable")));
    assert_true(json_is_string(json_object_get(data, "hint")));
    json_decref(m);
    json_decref(id);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_accepts), cmocka_unit_test(test_refuses),
        cmocka_unit_test(test_depth),   cmocka_unit_test(test_refused_request_keeps_its_id),
        cmocka_unit_test(test_codes),
    };
    return !!cmocka_run_group_tests(tests, NULL, NULL);
}
