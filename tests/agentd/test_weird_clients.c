/* Clients that do things in an order nobody meant: each gets an answer that says what is wrong,
 * and the daemon and the session go on. */
#include "tests/support/test.h"

#include <stdbool.h>
#include <time.h>

#include "tests/support/daemon.h"

#define CALL(command)                                                                            \
    "ok</think>\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"run\">\n<｜DSML｜ parameter " \
    "name=\"command\" string=\"true\">" command                                                  \
    "</｜DSML｜ parameter>\n</｜DSML｜ invoke>\n</｜DSML｜ calls>"
#define ASK                                                                                      \
    "ok</think>\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"ask\">\n</｜DSML｜ invoke>\n" \
    "</｜DSML｜ calls>"
#define SAY(text) "ok</think>" text

static const char SLOW[] =
    "{\"text\":\"ok</think>one\",\"prefill_ms\":300}\n{\"text\":\"ok</think>two\"}\n";
static const char CLIENT_TOOL[] =
    "{\"tools\":[],\"clientTools\":[{\"name\":\"ask\",\"description\":\"\",\"parameters\":{"
    "\"type\":\"object\"}}]}";

static struct daemon_fixture d;
static struct client *c, *other;

static void open_daemon(const char *script)
{
    daemon_make(&d, script);
    daemon_start(&d, NULL);
    c = daemon_connect(&d, NULL, NULL);
    other = daemon_connect(&d, NULL, NULL);
}

static void close_daemon(void)
{
    client_free(c);
    client_free(other);
    assert_int_equal(daemon_stop(&d), 0);
    daemon_remove(&d);
}

static json_t *content(const char *id, const char *text)
{
    return json_pack("{s:s, s:[{s:s, s:s}]}", "id", id, "content", "type", "text", "text",
                     text);
}

static json_t *prompt(const char *id, const char *const *runs)
{
    json_t *p = content(id, "go"), *forced = json_array();
    for (; *runs; runs++)
        json_array_append_new(forced, json_pack("{s:s}", "text", *runs));
    json_object_set_new(p, "forced", forced);
    return daemon_call(c, "session/prompt", p);
}
#define PROMPT(id, ...) prompt(id, (const char *const[]){__VA_ARGS__, NULL})

static void check_end(const char *id, const char *reason)
{
    json_auto_t *answer = daemon_wait(c, id);
    if (strcmp(text_of(answer, "reason"), reason) != 0) {
        daemon_show_log(&d);
        fail_msg("%s", json_dumps(answer, 0));
    }
}

static void until_state(const char *id, const char *state)
{
    for (int i = 0; i < 3000; i++) {
        json_auto_t *s = daemon_call(other, "session/get", json_pack("{s:s}", "id", id));
        if (!strcmp(text_of(s, "state"), state))
            return;
        nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
    }
    fail_msg("never %s", state);
}

static bool is_alive(void)
{
    json_auto_t *s = daemon_call(other, "daemon/status", NULL);
    return s != NULL;
}

/* ---- calls of others --------------------------------------------------------------- */

/* A result or an approval goes to the call that it names, of the session that it names. */
static void test_ids_of_other_sessions(void **state)
{
    (void)state;
    char a[27], b[27], call[80];
    open_daemon(SLOW);
    daemon_session(&d, c, CLIENT_TOOL, a);
    daemon_session(&d, c, CLIENT_TOOL, b);
    json_auto_t *turn = PROMPT(a, ASK, SAY("done"));
    check_end(a, "requires_action");
    snprintf(call, sizeof call, "%s.0.c0", text_of(turn, "turnId"));
    json_t *result = json_pack("{s:s, s:s, s:s}", "id", b, "callId", call, "content", "x");
    assert_int_not_equal(daemon_refused(other, "tool/result", result), 0);
    /* A call that a client answers is no approval. */
    assert_int_not_equal(
        daemon_refused(other, "approval/resolve",
                       json_pack("{s:s, s:s}", "approvalId", call, "outcome", "once")),
        0);
    result = json_pack("{s:s, s:s, s:s}", "id", a, "callId", call, "content", "x");
    json_decref(daemon_call(other, "tool/result", json_deep_copy(result)));
    check_end(a, "end");
    /* Once more, and for the same call behind the turn. */
    assert_int_not_equal(daemon_refused(c, "tool/result", result), 0);
    close_daemon();
}

static void test_approvals_out_of_order(void **state)
{
    (void)state;
    char id[27], first[80], second[80];
    open_daemon(SLOW);
    daemon_session(&d, c, "{\"approve\":\"ask\",\"tools\":[\"run\"]}", id);
    json_auto_t *turn = PROMPT(id, CALL("echo 1"), CALL("echo 2"), SAY("done"));
    snprintf(first, sizeof first, "%s.0.c0", text_of(turn, "turnId"));
    snprintf(second, sizeof second, "%s.1.c0", text_of(turn, "turnId"));
    check_end(id, "requires_action");
    /* One that is not due yet, an outcome that there is not, a result in place of an answer. */
    assert_int_not_equal(
        daemon_refused(c, "approval/resolve",
                       json_pack("{s:s, s:s}", "approvalId", second, "outcome", "once")),
        0);
    assert_int_not_equal(
        daemon_refused(c, "approval/resolve",
                       json_pack("{s:s, s:s}", "approvalId", first, "outcome", "always")),
        0);
    assert_int_not_equal(
        daemon_refused(c, "tool/result",
                       json_pack("{s:s, s:s, s:s}", "id", id, "callId", first, "content", "x")),
        0);
    json_decref(daemon_call(c, "approval/resolve",
                            json_pack("{s:s, s:s}", "approvalId", first, "outcome", "once")));
    assert_int_not_equal(
        daemon_refused(other, "approval/resolve",
                       json_pack("{s:s, s:s}", "approvalId", first, "outcome", "reject")),
        0);
    check_end(id, "requires_action");
    json_decref(daemon_call(other, "session/cancel", json_pack("{s:s}", "id", id)));
    check_end(id, "cancelled");
    assert_int_not_equal(
        daemon_refused(c, "approval/resolve",
                       json_pack("{s:s, s:s}", "approvalId", second, "outcome", "once")),
        0);
    json_decref(PROMPT(id, SAY("on")));
    check_end(id, "end");
    close_daemon();
}

/* ---- at once ----------------------------------------------------------------------- */

/* Two clients cancel, both are answered, whatever the turn is doing. */
static void test_two_cancel_at_once(void **state)
{
    (void)state;
    char id[27];
    open_daemon(SLOW);
    daemon_session(&d, c, "{\"approve\":\"auto\",\"tools\":[\"run\"]}", id);
    static const char *const states[] = {"prefill", "tool"};
    for (int i = 0; i < 2; i++) {
        if (i)
            json_decref(PROMPT(id, CALL("sleep 30"), SAY("never")));
        else
            daemon_prompt(c, id, "go");
        until_state(id, states[i]);
        json_decref(daemon_call(c, "session/cancel", json_pack("{s:s}", "id", id)));
        (void)!client_call(other, "session/cancel", json_pack("{s:s}", "id", id), NULL, NULL);
        check_end(id, "cancelled");
    }
    json_decref(PROMPT(id, SAY("on")));
    check_end(id, "end");
    close_daemon();
}

/* Fork, rewind, rename, compact and delete in every state, while somebody steers. */
static void test_everything_while_a_turn_is_in_work(void **state)
{
    (void)state;
    char id[27];
    static const char *const states[] = {"prefill", "tool", "requires_action"};
    open_daemon(SLOW);
    for (size_t i = 0; i < 3; i++) {
        daemon_session(&d, c,
                       i == 2 ? "{\"approve\":\"ask\",\"tools\":[\"run\"]}"
                              : "{\"approve\":\"auto\",\"tools\":[\"run\"]}",
                       id);
        if (i)
            json_decref(PROMPT(id, CALL("sleep 1"), SAY("done")));
        else
            daemon_prompt(c, id, "go");
        until_state(id, states[i]);
        json_auto_t *fork = daemon_call(other, "session/fork", json_pack("{s:s}", "id", id));
        assert_int_not_equal(daemon_refused(other, "session/rewind",
                                            json_pack("{s:s, s:i}", "id", id, "toSeq", 1)),
                             0);
        json_decref(daemon_call(other, "session/steer", content(id, "and that")));
        assert_int_not_equal(
            daemon_refused(other, "session/delete", json_pack("{s:s}", "id", id)), 0);
        json_t *compact = json_pack("{s:s, s:[{s:s}]}", "id", id, "forced", "text", SAY("sum"));
        json_decref(daemon_call(other, "session/compact", compact)); /* queued */
        json_decref(PROMPT(text_of(fork, "id"), SAY("the fork")));
        check_end(text_of(fork, "id"), "end");
        json_decref(daemon_call(other, "session/cancel", json_pack("{s:s}", "id", id)));
        json_auto_t *answer = daemon_wait(c, id); /* the first may have ended meanwhile */
        assert_string_equal(text_of(answer, "state"), "idle");
        if (i)
            assert_string_equal(text_of(answer, "reason"), "cancelled");
        for (int k = 0; k < 500; k++) { /* its state may be on its way to the disk */
            if (!daemon_refused(other, "session/delete", json_pack("{s:s}", "id", id)))
                break;
            nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
        }
        assert_int_not_equal(daemon_refused(c, "session/steer", content(id, "too late")), 0);
        assert_int_not_equal(daemon_refused(c, "session/get", json_pack("{s:s}", "id", id)), 0);
    }
    close_daemon();
}

/* A fork in each moment of a compaction is a session that answers. */
static void test_fork_while_it_is_compacted(void **state)
{
    (void)state;
    char id[27], text[200];
    open_daemon(SLOW);
    daemon_session(&d, c, "{\"tools\":[]}", id);
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    json_decref(PROMPT(id, text));
    check_end(id, "end");
    for (int i = 0; i < 6; i++) {
        json_t *compact = json_pack("{s:s, s:[{s:s}]}", "id", id, "forced", "text", SAY("sum"));
        json_decref(daemon_call(c, "session/compact", compact));
        if (i)
            nanosleep(&(struct timespec){.tv_nsec = 1500000L * i}, NULL);
        json_auto_t *fork = daemon_call(other, "session/fork", json_pack("{s:s}", "id", id));
        json_decref(PROMPT(text_of(fork, "id"), SAY("the fork")));
        check_end(text_of(fork, "id"), "end");
        check_end(id, "end");
        json_decref(PROMPT(id, SAY("a text that is longer than its summary, by a good deal")));
        check_end(id, "end");
    }
    close_daemon();
}

/* ---- what is out of range ----------------------------------------------------------- */

static void test_cursors_out_of_range(void **state)
{
    (void)state;
    char id[27];
    open_daemon(SLOW);
    daemon_session(&d, c, "{\"tools\":[]}", id);
    json_decref(PROMPT(id, SAY("one")));
    check_end(id, "end");
    static const json_int_t seqs[] = {-1, 1000, INT64_MAX};
    for (size_t i = 0; i < 3; i++)
        for (int fork = 0; fork < 3; fork++) {
            const char *method = fork == 2   ? "session/attach"
                                 : fork == 1 ? "session/fork"
                                             : "session/rewind";
            const char *key = fork == 2 ? "fromSeq" : fork == 1 ? "atSeq" : "toSeq";
            json_t *p = json_pack("{s:s, s:I}", "id", id, key, seqs[i]);
            int code = daemon_refused(other, method, p);
            if (fork < 2 || seqs[i] < 0)
                assert_int_not_equal(code, 0);
            assert_true(is_alive());
        }
    /* A reader from behind the end hears what comes. */
    json_decref(PROMPT(id, SAY("two")));
    check_end(id, "end");
    assert_true(is_alive());
    close_daemon();
}

static void test_prompt_of_ten_megabytes(void **state)
{
    (void)state;
    char id[27], *text = malloc(10000001);
    assert_non_null(text);
    memset(text, 'x', 10000000);
    text[10000000] = '\0';
    open_daemon(SLOW);
    daemon_session(&d, c, "{\"tools\":[]}", id);
    assert_int_not_equal(daemon_refused(c, "session/prompt", content(id, text)), 0);
    json_decref(PROMPT(id, SAY("one")));
    check_end(id, "end");
    daemon_prompt(c, id, "go"); /* and as a text for a turn, and behind one */
    (void)daemon_refused(other, "session/steer", content(id, text));
    (void)daemon_refused(other, "session/prompt", content(id, text));
    for (int i = 0; i < 100; i++) {
        json_auto_t *w = daemon_wait(c, id);
        json_auto_t *s = daemon_call(c, "session/get", json_pack("{s:s}", "id", id));
        if (!strcmp(text_of(s, "state"), "idle") && !json_object_get(s, "queued"))
            break;
    }
    json_decref(PROMPT(id, SAY("on")));
    check_end(id, "end");
    free(text);
    close_daemon();
}

/* Right behind a turn, while its state is still being saved: the deletion waits for that, one
 * of two is done, the other finds nothing. */
static void test_two_delete_behind_a_turn(void **state)
{
    (void)state;
    open_daemon(SLOW);
    for (int i = 0; i < 40; i++) {
        char id[27];
        struct error e;
        json_t *done = NULL;
        uint64_t call = 0;
        daemon_session(&d, c, "{\"tools\":[]}", id);
        json_decref(PROMPT(id, SAY("one")));
        check_end(id, "end");
        assert_ok(client_start(other, "session/delete",
                               json_pack("{s:s, s:b}", "id", id, "purge", i % 2), &call, &e),
                  &e);
        enum err mine =
            client_call(c, "session/delete", json_pack("{s:s}", "id", id), NULL, &e);
        enum err theirs = client_await(other, call, 20000, &done, &e);
        json_decref(done);
        assert_true((mine == OK) != (theirs == OK));
        assert_int_equal(mine + theirs, ERR_NOTFOUND);
    }
    close_daemon();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ids_of_other_sessions),
        cmocka_unit_test(test_approvals_out_of_order),
        cmocka_unit_test(test_two_cancel_at_once),
        cmocka_unit_test(test_everything_while_a_turn_is_in_work),
        cmocka_unit_test(test_fork_while_it_is_compacted),
        cmocka_unit_test(test_cursors_out_of_range),
        cmocka_unit_test(test_prompt_of_ten_megabytes),
        cmocka_unit_test(test_two_delete_behind_a_turn),
    };
    return !!cmocka_run_group_tests(tests, NULL, NULL);
}
