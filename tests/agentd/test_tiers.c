/* A daemon whose model does not fit in memory: budgets on its command line, counters in its
 * status, and a disk that fails under a turn. */
#include "tests/support/test.h"

#include <stdbool.h>

#include "tests/support/daemon.h"

#define MODEL "tests/golden/a_tiny/model"

static json_int_t figure(const json_t *status, const char *tier, const char *key)
{
    const json_t *t;
    size_t i;
    json_array_foreach(json_object_get(status, "tiers"), i, t) {
        if (!strcmp(json_string_value(json_object_get(t, "name")), tier))
            return json_integer_value(json_object_get(t, key));
    }
    fail_msg("no tier %s in the status", tier);
    return 0;
}

static void start(struct daemon_fixture *d, const char *fault)
{
    static const char *const EXTRA[] = {
        "--expert-ram", "300K", "--engram-ram", "4K", "--kv-resident", "256K", NULL};
    daemon_make(d, "");
    d->model = MODEL;
    /* With a fault, experts alone: a row that was read ahead in vain is simply read again. */
    memcpy(d->extra, EXTRA, fault ? 2 * sizeof(*EXTRA) : sizeof(EXTRA));
    daemon_start(d, fault);
}

static void session(const struct daemon_fixture *d, struct client *c, char id[27])
{
    daemon_session(d, c, "{\"tools\": [], \"maxTokens\": 12, \"temperature\": 0}", id);
}

static const char *reason_of(const json_t *answer)
{
    const char *s = json_string_value(json_object_get(answer, "reason"));
    return s ? s : "";
}

static void test_status(void **state)
{
    struct daemon_fixture d;
    char id[27];
    (void)state;
    start(&d, NULL);
    struct client *c = daemon_connect(&d, NULL, NULL);
    session(&d, c, id);
    daemon_prompt(c, id, "hello, with too little memory");
    json_t *answer = daemon_wait(c, id);
    assert_string_not_equal(reason_of(answer), "failed");
    json_decref(answer);
    json_t *status = daemon_call(c, "model/status", NULL);
    assert_int_equal(figure(status, "experts", "budgetBytes"), 300 << 10);
    assert_int_equal(figure(status, "engram", "budgetBytes"), 4 << 10);
    assert_int_equal(figure(status, "kv", "budgetBytes"), 256 << 10);
    assert_true(figure(status, "experts", "misses") > 0);
    assert_true(figure(status, "experts", "residentBytes") <= 300 << 10);
    assert_true(figure(status, "experts", "readBytes") > 0);
    assert_true(figure(status, "engram", "hits") > 0);
    assert_true(figure(status, "kv", "residentBytes") > 0);
    json_decref(status);
    /* The process that verifies a tape opens the model the same way. */
    json_t *v = daemon_call(c, "session/verify", json_pack("{s:s}", "id", id));
    assert_true(json_is_true(json_object_get(v, "equal")));
    json_decref(v);
    client_free(c);
    assert_int_equal(daemon_stop(&d), 0);
    daemon_remove(&d);
}

struct log {
    char text[16384]; /* events as JSON, one after the other */
    bool live;
};

static void on_notify(void *user, const char *method, const json_t *params)
{
    struct log *l = user;
    size_t n = strlen(l->text);
    l->live = l->live || !strcmp(method, "session/live");
    if (!strcmp(method, "session/event"))
        (void)json_dumpb(params, l->text + n, sizeof(l->text) - 1 - n, JSON_ENCODE_ANY);
}

/* The events of the session so far hold `says` somewhere. */
static void expect_event(const struct daemon_fixture *d, const char *id, const char *says)
{
    static struct log l;
    memset(&l, 0, sizeof(l));
    struct client *c = daemon_connect(d, on_notify, &l);
    json_decref(
        daemon_call(c, "session/attach", json_pack("{s:s, s:i}", "id", id, "fromSeq", 0)));
    while (!l.live)
        assert_int_equal(client_poll(c, 5000, NULL), OK);
    if (!strstr(l.text, says))
        fail_msg("%s, want %s", l.text, says);
    client_free(c);
}

/* The turn that meets it fails and says which tensor; the session goes on with the next one. */
static void test_read_error(void **state)
{
    struct daemon_fixture d;
    char id[27];
    (void)state;
    start(&d, "fail:tier.read:1");
    struct client *c = daemon_connect(&d, NULL, NULL);
    session(&d, c, id);
    daemon_prompt(c, id, "hello");
    json_t *answer = daemon_wait(c, id);
    assert_string_equal(reason_of(answer), "failed");
    json_decref(answer);
    expect_event(&d, id, "tensor layers.0.ffn.experts.");
    expect_event(&d, id, "Input/output error");
    daemon_prompt(c, id, "and again");
    answer = daemon_wait(c, id);
    assert_string_not_equal(reason_of(answer), "failed");
    json_decref(answer);
    json_t *v = daemon_call(c, "session/verify", json_pack("{s:s}", "id", id));
    assert_true(json_is_true(json_object_get(v, "equal")));
    json_decref(v);
    client_free(c);
    assert_int_equal(daemon_stop(&d), 0);
    daemon_remove(&d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_status),
        cmocka_unit_test(test_read_error),
    };
    return !!cmocka_run_group_tests(tests, NULL, NULL);
}
