#include "tests/support/test.h"

#include <unistd.h>

#include "agentd/client.h"
#include "base/auto.h"
#include "tests/support/fake_server.h"

/* A daemon never sends these. */
static const char *const bad_lines[] = {
    "not json\n",
    "[1,2]\n",
    "{\"jsonrpc\":\"2.0\"}\n",
    "{\"jsonrpc\":\"2.0\",\"id\":\"one\",\"result\":1}\n",
    "{\"jsonrpc\":\"2.0\",\"id\":null,\"error\":{\"code\":-32700,\"message\":\"parse\"}}\n",
    "{\"a\":1,\"a\":2,\"id\":2,\"result\":0}\n",
    "{\"id\":2,\"result\":\"\xff\"}\n",
    "{\"id\":2,\"result\":\"a\\u0000b\"}\n",
};

/* What the server does with a request is named by its method; see the branches of handle(). */
static bool handle(struct fake_server *s, void *user, const json_t *request)
{
    (void)user;
    const char *m = json_string_value(json_object_get(request, "method"));
    json_t *params = json_object_get(request, "params");
    if (fake_initialize(s, request) || !strcmp(m, "silent"))
        return true;
    if (!strcmp(m, "echo")) {
        fake_answer(s, request, json_incref(params));
    } else if (!strcmp(m, "events")) {
        for (json_int_t i = 0; i < 100; i++)
            fake_notify(s, "session/event", json_pack("{s:I}", "seq", i));
        fake_answer(s, request, json_null());
        fake_notify(s, "session/event", json_pack("{s:i}", "seq", 100));
    } else if (!strcmp(m, "refuse")) {
        fake_refuse(s, request, -32010, "no session brisk-otter",
                    json_pack("{s:s, s:b, s:s, s:i}", "kind", "not_found", "retryable", 1,
                              "hint", "see agentctl ps", "retryAfterMs", 250));
    } else if (!strcmp(m, "unknown")) {
        fake_refuse(s, request, -32601, "no such method", NULL);
    } else if (!strcmp(m, "bytewise")) {
        char line[96];
        int n =
            snprintf(line, sizeof line, "{\"jsonrpc\":\"2.0\",\"id\":%lld,\"result\":[1,2]}\n",
                     (long long)json_integer_value(json_object_get(request, "id")));
        for (int i = 0; i < n; i++)
            fake_send(s, line + i, 1);
    } else if (!strcmp(m, "break")) {
        const char *line = bad_lines[json_integer_value(params)];
        fake_send(s, line, strlen(line));
    } else if (!strcmp(m, "flood")) {
        size_t n = CLIENT_MAX_LINE + 2;
        char *line = malloc(n);
        assert_non_null(line);
        memset(line, 'x', n);
        fake_send(s, line, n);
        free(line);
    }
    return strcmp(m, "hangup") != 0;
}

struct seen {
    json_int_t next;
    int n;
    bool in_order;
};

static void note_event(void *user, const char *method, const json_t *params)
{
    struct seen *seen = user;
    seen->in_order = seen->in_order && !strcmp(method, "session/event") &&
                     json_integer_value(json_object_get(params, "seq")) == seen->next;
    seen->next++;
    seen->n++;
}

static struct client *open_client(const struct fake_server *s, struct seen *seen, int wake_fd)
{
    struct client_options o = {.socket_path = fake_server_path(s),
                               .notify = seen ? note_event : NULL,
                               .user = seen,
                               .timeout_ms = 5000,
                               .wake_fd = wake_fd};
    struct client *c = NULL;
    struct error e;
    assert_ok(client_open(&c, &o, &e), &e);
    return c;
}

static int setup(void **state)
{
    *state = fake_server_new(handle, NULL);
    return 0;
}

static int teardown(void **state)
{
    fake_server_free(*state);
    return 0;
}

static void test_call(void **state)
{
    struct client *c = open_client(*state, NULL, 0);
    struct error e;
    json_t *r = NULL;
    assert_int_equal(json_integer_value(json_object_get(client_server(c), "pid")), getpid());
    assert_ok(
        client_call(c, "echo", json_pack("{s:s}", "text", "line\nbreak \xc3\xa9"), &r, &e), &e);
    assert_string_equal(json_string_value(json_object_get(r, "text")), "line\nbreak \xc3\xa9");
    json_decref(r);
    assert_ok(client_call(c, "bytewise", NULL, &r, &e), &e);
    assert_int_equal(json_array_size(r), 2);
    json_decref(r);
    client_free(c);
}

static void test_long_lines(void **state)
{
    struct client *c = open_client(*state, NULL, 0);
    struct error e;
    size_t n = CLIENT_MAX_LINE - 256;
    AUTO_FREE char *text = malloc(n + 1024);
    assert_non_null(text);
    memset(text, 'a', n);
    text[n] = 0;
    json_t *r = NULL;
    assert_ok(client_call(c, "echo", json_pack("{s:s}", "t", text), &r, &e), &e);
    assert_int_equal(json_string_length(json_object_get(r, "t")), n);
    json_decref(r);
    memset(text, 'a', n + 1023);
    text[n + 1023] = 0;
    assert_int_equal(client_call(c, "echo", json_pack("{s:s}", "t", text), &r, &e), ERR_LIMIT);
    /* refused before a byte was sent: the connection is as good as before */
    assert_ok(client_call(c, "echo", json_object(), NULL, &e), &e);
    assert_int_equal(client_call(c, "flood", NULL, NULL, &e), ERR_FORMAT);
    client_free(c);
}

static void test_notifications_in_order(void **state)
{
    struct seen seen = {.in_order = true};
    struct client *c = open_client(*state, &seen, 0);
    struct error e;
    assert_ok(client_call(c, "events", NULL, NULL, &e), &e);
    while (seen.n < 101)
        assert_ok(client_poll(c, 5000, &e), &e);
    assert_true(seen.in_order);
    assert_int_equal(client_poll(c, 1, &e), ERR_TIMEOUT);
    client_free(c);
}

static void test_refusals(void **state)
{
    struct client *c = open_client(*state, NULL, 0);
    struct error e;
    json_t *r = NULL;
    assert_int_equal(client_call(c, "refuse", NULL, &r, &e), ERR_NOTFOUND);
    assert_null(r);
    assert_string_equal(e.msg, "no session brisk-otter");
    const struct client_failure *f = client_failure(c);
    assert_int_equal(f->code, -32010);
    assert_string_equal(f->kind, "not_found");
    assert_string_equal(f->hint, "see agentctl ps");
    assert_true(f->retryable);
    assert_int_equal(f->retry_after_ms, 250);
    assert_int_equal(client_call(c, "unknown", NULL, &r, &e), ERR_UNSUPPORTED);
    assert_int_equal(f->retry_after_ms, -1);
    client_free(c);
}

static void test_two_halves(void **state)
{
    int wake[2];
    assert_int_equal(pipe(wake), 0);
    struct client *c = open_client(*state, NULL, wake[0]);
    struct error e;
    uint64_t slow, other;
    json_t *r = NULL;
    assert_ok(client_start(c, "silent", NULL, &slow, &e), &e);
    assert_int_equal(client_await(c, slow, 1, &r, &e), ERR_TIMEOUT);
    assert_ok(client_start(c, "echo", json_pack("[i]", 7), &other, &e), &e);
    assert_ok(client_await(c, other, 5000, &r, &e), &e);
    json_decref(r);
    assert_int_equal(write(wake[1], "x", 1), 1);
    assert_int_equal(client_await(c, slow, 5000, &r, &e), ERR_CANCELLED);
    assert_int_equal(client_poll(c, 5000, &e), ERR_CANCELLED);
    client_forget(c, slow);
    for (int i = 0; i < CLIENT_MAX_CALLS; i++)
        assert_ok(client_start(c, "silent", NULL, &slow, &e), &e);
    assert_int_equal(client_start(c, "silent", NULL, &slow, &e), ERR_LIMIT);
    client_free(c);
    close(wake[0]);
    close(wake[1]);
}

/* After such a line the connection cannot be trusted and says so, also to later calls. */
static void test_broken_peers(void **state)
{
    for (size_t i = 0; i < sizeof bad_lines / sizeof *bad_lines; i++) {
        struct client *c = open_client(*state, NULL, 0);
        struct error e;
        assert_int_equal(client_call(c, "break", json_integer((json_int_t)i), NULL, &e),
                         ERR_FORMAT);
        assert_int_equal(client_call(c, "echo", NULL, NULL, &e), ERR_FORMAT);
        client_free(c);
    }
    struct client *c = open_client(*state, NULL, 0);
    struct error e;
    assert_int_equal(client_call(c, "hangup", NULL, NULL, &e), ERR_CLOSED);
    assert_int_equal(client_poll(c, 100, &e), ERR_CLOSED);
    client_free(c);
}

static void test_paths(void **state)
{
    (void)state;
    char path[CLIENT_PATH_BYTES], tall[200];
    struct error e;
    memset(tall, 'p', sizeof tall - 1);
    tall[0] = '/';
    tall[sizeof tall - 1] = 0;
    assert_ok(client_socket_path("/x/y.sock", path, &e), &e);
    assert_string_equal(path, "/x/y.sock");
    setenv("AGENTD_SOCKET", "/env.sock", 1);
    assert_ok(client_socket_path(NULL, path, &e), &e);
    assert_string_equal(path, "/env.sock");
    unsetenv("AGENTD_SOCKET");
    setenv("XDG_RUNTIME_DIR", "/run/mine", 1);
    assert_ok(client_socket_path(NULL, path, &e), &e);
    assert_string_equal(path, "/run/mine/agentd/agentd.sock");
    assert_int_equal(client_socket_path(tall, path, &e), ERR_LIMIT);
    setenv("XDG_RUNTIME_DIR", tall, 1);
    assert_int_equal(client_socket_path(NULL, path, &e), ERR_LIMIT);
    unsetenv("XDG_RUNTIME_DIR");
    if (access("/run/user", F_OK)) {
        setenv("XDG_STATE_HOME", "relative/is/ignored", 1);
        setenv("HOME", "/home/me", 1);
        assert_ok(client_socket_path(NULL, path, &e), &e);
        assert_string_equal(path, "/home/me/.local/state/agentd/agentd.sock");
        setenv("XDG_STATE_HOME", "/state", 1);
        assert_ok(client_socket_path(NULL, path, &e), &e);
        assert_string_equal(path, "/state/agentd/agentd.sock");
    }
    struct client *c = NULL;
    struct client_options o = {.socket_path = "/nowhere/agentd.sock"};
    assert_int_equal(client_open(&c, &o, &e), ERR_CLOSED);
    assert_non_null(strstr(e.msg, "/nowhere/agentd.sock"));
    assert_null(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_call),
        cmocka_unit_test(test_long_lines),
        cmocka_unit_test(test_notifications_in_order),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_two_halves),
        cmocka_unit_test(test_broken_peers),
        cmocka_unit_test(test_paths),
    };
    return !!cmocka_run_group_tests(tests, setup, teardown);
}
