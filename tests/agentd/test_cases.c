/* Faults that others had in public and that no other test is about: docs/cases.md. */
#include "tests/support/test.h"

#include <stdbool.h>

#include "agentd/rpc.h"
#include "agentd/verbs.h"
#include "base/auto.h"
#include "tests/support/agentctl.h"
#include "tests/support/daemon.h"

#define EOS "<｜end▁of▁sentence｜>"
#define SAY(text) "{\"text\":\"ok</think>" text EOS "\"}\n"
#define INVOKE(name) "<｜DSML｜ invoke name=\\\"" name "\\\">\\n</｜DSML｜ invoke>\\n"
#define CALL(invokes)                                                                          \
    "{\"text\":\"ok</think>\\n\\n<｜DSML｜ calls>\\n" invokes "</｜DSML｜ calls>" EOS "\"}\n"
#define N_CLIENTS 16

/* ---- calls ------------------------------------------------------------------------ */

struct calls {
    json_t *order;   /* ids of calls as they first came */
    json_t *results; /* callId -> number of results */
    json_t *deltas;  /* all text that was streamed */
    bool idle;
};

static void on_notify(void *user, const char *method, const json_t *params)
{
    struct calls *c = user;
    const json_t *item = json_object_get(params, "item");
    const char *kind = text_of(item, "kind"), *id = text_of(item, "callId");

    if (!strcmp(method, "session/delta"))
        json_array_append(c->deltas, json_object_get(params, "text"));
    if (strcmp(method, "session/event") != 0)
        return;
    c->idle = c->idle || !strcmp(text_of(params, "state"), "idle");
    json_t *n = json_object_get(c->results, id);
    if (!strcmp(kind, "tool_call") && !n) {
        json_array_append_new(c->order, json_string(id));
        json_object_set_new(c->results, id, json_integer(0));
    } else if (!strcmp(kind, "tool_result") && !strcmp(text_of(item, "status"), "done")) {
        assert_non_null(n); /* a result of a call that was told before */
        json_object_set_new(c->results, id, json_integer(json_integer_value(n) + 1));
    }
}

/* Three parallel calls of the same tool, in two steps and again in a second turn: each has an
 * id of its own, for ever, and one result under it. Nothing of their markup is streamed. */
static void
test_codex_7517_ollama_7881_litellm_33678_agno_8880_fastagent_26_rapid_mlx_1373_calls(
    void **state)
{
    (void)state;
    struct daemon_fixture d;
    struct calls c = {json_array(), json_object(), json_array(), false};
    char id[27];
    daemon_make(&d, CALL(INVOKE("list_dir") INVOKE("list_dir") INVOKE("list_dir"))
                        CALL(INVOKE("list_dir") INVOKE("todo")) SAY("one")
                            CALL(INVOKE("list_dir") INVOKE("list_dir") INVOKE("list_dir"))
                                SAY("two"));
    daemon_start(&d, NULL);
    struct client *client = daemon_connect(&d, on_notify, &c);
    daemon_session(&d, client, "{\"approve\":\"auto\"}", id);
    json_decref(daemon_call(client, "session/attach", json_pack("{s:s}", "id", id)));
    for (int turn = 0; turn < 2; turn++) {
        c.idle = false;
        daemon_prompt(client, id, "look");
        json_auto_t *answer = daemon_wait(client, id);
        assert_string_equal(text_of(answer, "reason"), "end");
        assert_string_equal(text_of(answer, "text"), turn ? "two" : "one");
        while (!c.idle)
            (void)!client_poll(client, 20, NULL);
    }
    assert_int_equal(json_array_size(c.order), 8);
    assert_int_equal(json_object_size(c.results), 8); /* no id twice: fastagent #26 */
    const char *key;
    json_t *n;
    size_t i;
    json_object_foreach(c.results, key, n) {
        assert_true(strlen(key) > 26); /* of the turn, and of the place in it */
        assert_int_equal(json_integer_value(n), 1);
    }
    json_array_foreach(c.deltas, i, n)
        assert_null(strstr(json_string_value(n), "DSML")); /* Rapid-MLX #1373 */
    client_free(client);
    json_decref(c.order);
    json_decref(c.results);
    json_decref(c.deltas);
    daemon_remove(&d);
}

/* ---- many at once ----------------------------------------------------------------- */

/* Sixteen processes with a session each on one daemon, twice: nobody hears of a lock, nobody
 * ends with 0 and nothing said. */
static void test_codex_31184_46269_opencode_21215_33320_19521_sixteen_clients(void **state)
{
    (void)state;
    struct daemon_fixture d;
    struct agentctl_run runs[N_CLIENTS];
    char names[N_CLIENTS][16];
    daemon_make(&d, CALL(INVOKE("list_dir")) SAY("first") SAY("second"));
    daemon_start(&d, NULL);
    setenv("AGENTD_SOCKET", d.socket, 1);
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < N_CLIENTS; i++) {
            snprintf(names[i], sizeof names[i], "client-%d", i);
            const char *begin[] = {"run", "-n", names[i], "-C", d.work, "hello", NULL};
            const char *go_on[] = {"send", names[i], "more", NULL};
            runs[i] = agentctl_start(round ? go_on : begin);
        }
        for (int i = 0; i < N_CLIENTS; i++) {
            const struct agentctl_ran *r = agentctl_finish(&runs[i]);
            if (r->code != EXIT_DONE)
                fail_msg("%s: exit code %d: %s", names[i], r->code, r->err);
            assert_string_equal(r->out, round ? "second\n" : "first\n");
            assert_lacks(r->err, "locked");
            assert_lacks(r->err, "busy");
        }
    }
    assert_int_equal(AGENTCTL("verify", names[N_CLIENTS - 1])->code, EXIT_DONE);
    daemon_remove(&d);
}

/* ---- forks ------------------------------------------------------------------------ */

static size_t n_sessions(struct client *c)
{
    json_auto_t *list = daemon_call(c, "session/list", json_object());
    return json_array_size(json_object_get(list, "sessions"));
}

/* A fork leaves both in the list; one of nothing, or of a place that is not there, is an error
 * and makes nothing. */
static void test_opencode_33763_oh_my_pi_11491_forks_are_no_phantoms(void **state)
{
    (void)state;
    struct daemon_fixture d;
    char id[27];
    daemon_make(&d, SAY("one"));
    daemon_start(&d, NULL);
    struct client *c = daemon_connect(&d, NULL, NULL);
    daemon_session(&d, c, NULL, id);
    daemon_prompt(c, id, "hello");
    json_decref(daemon_wait(c, id));
    json_decref(daemon_call(c, "session/fork", json_pack("{s:s, s:s}", "id", id, "name", "b")));
    assert_int_equal(n_sessions(c), 2);
    json_auto_t *first = daemon_call(c, "session/get", json_pack("{s:s}", "id", id));
    json_auto_t *fork = daemon_call(c, "session/get", json_pack("{s:s}", "id", "b"));
    assert_string_equal(text_of(fork, "parent"), id);
    assert_true(json_equal(json_object_get(first, "tokens"), json_object_get(fork, "tokens")));
    assert_int_equal(daemon_refused(c, "session/fork", json_pack("{s:s}", "id", "nobody")),
                     RPC_OURS);
    assert_int_not_equal(
        daemon_refused(c, "session/fork", json_pack("{s:s, s:i}", "id", id, "atSeq", 9999)), 0);
    assert_int_not_equal(
        daemon_refused(c, "session/fork", json_pack("{s:s, s:s}", "id", "../x", "name", "c")),
        0);
    assert_int_equal(n_sessions(c), 2);
    client_free(c);
    daemon_remove(&d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(
            test_codex_7517_ollama_7881_litellm_33678_agno_8880_fastagent_26_rapid_mlx_1373_calls),
        cmocka_unit_test(test_codex_31184_46269_opencode_21215_33320_19521_sixteen_clients),
        cmocka_unit_test(test_opencode_33763_oh_my_pi_11491_forks_are_no_phantoms),
    };
    return !!cmocka_run_group_tests(tests, NULL, NULL);
}
