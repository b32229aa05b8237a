/* 200 steps of a tool loop, 400 calls: every token of the tape is computed once, whoever runs
 * the tools. */
#include "tests/support/test.h"

#include <stdbool.h>
#include <unistd.h>

#include "tests/support/daemon.h"

#define EOS "<｜end▁of▁sentence｜>"
#define N_STEPS 200

static json_int_t ledger_of(const json_t *answer, const char *key)
{
    return int_of(json_object_get(answer, "ledger"), key);
}

/* Two calls a step, all different, then an answer. */
static char *make_script(const char *tool, const char *key)
{
    size_t cap = (size_t)N_STEPS * 1024, n = 0;
    char *out = malloc(cap);
    assert_non_null(out);
    for (int i = 0; i < N_STEPS; i++) {
        n += (size_t)snprintf(out + n, cap - n,
                              "{\"text\":\"ok</think>\\n\\n<｜DSML｜ calls>\\n");
        for (int k = 0; k < 2; k++)
            n += (size_t)snprintf(
                out + n, cap - n,
                "<｜DSML｜ invoke name=\\\"%s\\\">\\n<｜DSML｜ parameter name=\\\"%s\\\" "
                "string=\\\"true\\\">%d.%d</｜DSML｜ parameter>\\n</｜DSML｜ invoke>\\n",
                tool, key, i, k);
        n += (size_t)snprintf(out + n, cap - n, "</｜DSML｜ calls>" EOS "\"}\n");
    }
    snprintf(out + n, cap - n, "{\"text\":\"ok</think>done" EOS "\"}\n");
    return out;
}

/* ---- a client's tool -------------------------------------------------------------- */

struct worker {
    json_t *due; /* callIds to answer */
    char reason[24];
};

static void on_notify(void *user, const char *method, const json_t *params)
{
    struct worker *w = user;
    const json_t *item = json_object_get(params, "item");

    if (!strcmp(method, "session/event") && !strcmp(text_of(item, "kind"), "tool_call"))
        json_array_append(w->due, json_object_get(item, "callId"));
    if (!strcmp(method, "session/event") && !strcmp(text_of(params, "state"), "idle"))
        snprintf(w->reason, sizeof(w->reason), "%s", text_of(params, "reason"));
}

static void work(struct client *c, struct worker *w, const char *id)
{
    while (!w->reason[0]) {
        if (json_array_size(w->due) == 0) {
            (void)!client_poll(c, 50, NULL);
            continue;
        }
        json_t *call = json_incref(json_array_get(w->due, 0));
        json_array_remove(w->due, 0);
        json_decref(daemon_call(c, "tool/result",
                                json_pack("{s:s, s:O, s:s}", "id", id, "callId", call,
                                          "content", "what the client found out")));
        json_decref(call);
    }
}

/* Computed once: all of the tape is in memory, and nothing was computed but new tokens. */
static void check(struct client *c, const char *id, bool verify)
{
    json_t *a = daemon_wait(c, id);
    json_t *got = daemon_call(c, "session/get", json_pack("{s:s}", "id", id));
    assert_string_equal(text_of(a, "reason"), "end");
    assert_string_equal(text_of(a, "text"), "done");
    assert_int_equal(ledger_of(a, "steps"), N_STEPS + 1);
    assert_int_equal(ledger_of(a, "recomputed"), 0);
    assert_int_equal(ledger_of(a, "relost"), 0);
    assert_int_equal(ledger_of(a, "replayed"), 0);
    assert_int_equal(ledger_of(a, "prefilled") + ledger_of(a, "decoded"),
                     int_of(got, "tokens"));
    json_decref(a);
    json_decref(got);
    if (!verify)
        return;
    json_t *v = daemon_call(c, "session/verify", json_pack("{s:s}", "id", id));
    assert_true(json_is_true(json_object_get(v, "equal")));
    json_decref(v);
}

static void test_llama_cpp_21903_22746_antirez_ds4_62_client_tools(void **state)
{
    (void)state;
    struct daemon_fixture d;
    struct worker w = {.due = json_array()};
    char id[27], *script = make_script("look", "where");
    daemon_make(&d, script);
    free(script);
    daemon_start(&d, NULL);
    struct client *c = daemon_connect(&d, on_notify, &w);
    daemon_session(&d, c,
                   "{\"tools\":[],\"maxSteps\":300,\"maxTokens\":1000000,\"clientTools\":[{"
                   "\"name\":\"look\",\"description\":\"looks\",\"parameters\":{\"type\":"
                   "\"object\",\"properties\":{\"where\":{\"type\":\"string\"}}}}]}",
                   id);
    json_decref(daemon_call(c, "session/attach", json_pack("{s:s}", "id", id)));
    daemon_prompt(c, id, "look everywhere");
    work(c, &w, id);
    assert_string_equal(w.reason, "end");
    check(c, id, true);
    json_decref(w.due);
    client_free(c);
    daemon_remove(&d);
}

/* The daemon's own, as processes: 400 of them. */
static void test_llama_cpp_21903_22746_daemon_tools(void **state)
{
    (void)state;
    struct daemon_fixture d;
    char id[27], *script;
    if (!getenv("AGENTD_SLOW"))
        skip();
    script = make_script("run", "command");
    daemon_make(&d, script);
    free(script);
    daemon_start(&d, NULL);
    struct client *c = daemon_connect(&d, NULL, NULL);
    daemon_session(&d, c,
                   "{\"tools\":[\"run\"],\"approve\":\"auto\",\"maxSteps\":300,\"maxTokens\":"
                   "1000000}",
                   id);
    daemon_prompt(c, id, "run everything"); /* "0.0" is no command: exit status 127 each */
    for (int i = 0; i < 60; i++) {
        json_auto_t *a = NULL;
        if (client_call(c, "session/wait",
                        json_pack("{s:s, s:i}", "id", id, "timeoutMs", 15000), &a, NULL) == OK)
            break;
    }
    check(c, id, true);
    client_free(c);
    daemon_remove(&d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_llama_cpp_21903_22746_antirez_ds4_62_client_tools),
        cmocka_unit_test(test_llama_cpp_21903_22746_daemon_tools),
    };
    return !!cmocka_run_group_tests(tests, NULL, NULL);
}
