/* Prompts to a busy session: queued in order, withdrawn, found again after SIGKILL; and text
 * that steers the turn in work. */
#include "tests/support/test.h"

#include <time.h>

#include "agentd/verbs.h"
#include "tests/support/agentctl.h"
#include "tests/support/daemon.h"

#define EOS "<｜end▁of▁sentence｜>"
#define SAY(text) "{\"text\":\"ok</think>" text EOS "\"}\n"
#define SLOW(text) "{\"text\":\"ok</think>" text EOS "\",\"prefill_ms\":300}\n"
#define CALL(command)                                                                          \
    "{\"text\":\"ok</think>\\n\\n<｜DSML｜ calls>\\n<｜DSML｜ invoke name=\\\"run\\\">\\n" \
    "<｜DSML｜ parameter name=\\\"command\\\" string=\\\"true\\\">" command                    \
    "</｜DSML｜ parameter>\\n</｜DSML｜ invoke>\\n</｜DSML｜ calls>" EOS "\"}\n"

static const char AUTO_RUN[] = "{\"approve\":\"auto\",\"tools\":[\"run\"]}";

static json_t *content(const char *id, const char *text)
{
    return json_pack("{s:s, s:[{s:s, s:s}]}", "id", id, "content", "type", "text", "text",
                     text);
}

static json_t *prompt(struct client *c, const char *id, const char *text)
{
    return daemon_call(c, "session/prompt", content(id, text));
}

/* The answer of session/wait for one turn. */
static json_t *wait_turn(struct client *c, const char *id, const json_t *receipt)
{
    return daemon_call(c, "session/wait",
                       json_pack("{s:s, s:s, s:i}", "id", id, "turnId",
                                 text_of(receipt, "turnId"), "timeoutMs", 15000));
}

static void until_state(struct client *c, const char *id, const char *state)
{
    for (int i = 0; i < 3000; i++) {
        json_t *s = daemon_call(c, "session/get", json_pack("{s:s}", "id", id));
        bool there = !strcmp(text_of(s, "state"), state);
        json_decref(s);
        if (there)
            return;
        nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
    }
    fail_msg("never %s", state);
}

/* Items of a kind and status (NULL: without one), their texts joined by "|". */
static void items(const json_t *list, const char *kind, const char *status, char *out,
                  size_t cap)
{
    const json_t *ev;
    size_t i, n = 0;
    out[0] = '\0';
    json_array_foreach(list, i, ev) {
        const json_t *item = json_object_get(ev, "item");
        if (strcmp(text_of(item, "kind"), kind) != 0 ||
            strcmp(text_of(item, "status"), status ? status : "") != 0)
            continue;
        n += (size_t)snprintf(out + n, cap - n, "%s%s", n ? "|" : "", text_of(item, "text"));
    }
}

/* ---- the queue -------------------------------------------------------------------- */

static void test_second_prompt_waits_its_turn(void **state)
{
    (void)state;
    struct daemon_fixture d;
    char id[27], seen[256];
    daemon_make(&d, SLOW("one") SAY("two") SAY("three"));
    daemon_start(&d, NULL);
    struct client *c = daemon_connect(&d, NULL, NULL);
    daemon_session(&d, c, AUTO_RUN, id);
    json_t *r[3] = {prompt(c, id, "first"), prompt(c, id, "second"), prompt(c, id, "third")};
    assert_null(json_object_get(r[0], "queued"));
    assert_int_equal(json_integer_value(json_object_get(r[1], "queued")), 1);
    assert_int_equal(json_integer_value(json_object_get(r[2], "queued")), 2);
    static const char *const said[] = {"one", "two", "three"};
    for (int i = 2; i >= 0; i--) { /* the last first: the others have ended by then */
        json_t *answer = wait_turn(c, id, r[i]);
        assert_string_equal(text_of(answer, "text"), said[i]);
        assert_string_equal(text_of(answer, "reason"), "end");
        assert_string_equal(text_of(answer, "turnId"), text_of(r[i], "turnId"));
        json_decref(answer);
        json_decref(r[i]);
    }
    json_t *all = daemon_events(&d, id);
    items(all, "user", NULL, seen, sizeof seen);
    assert_string_equal(seen, "first|second|third");
    items(all, "note", "queued", seen, sizeof seen);
    assert_string_equal(seen, "second|third");
    json_decref(all);
    client_free(c);
    assert_int_equal(daemon_stop(&d), 0);
    daemon_remove(&d);
}

static void test_queue_has_a_cap_and_repeats_receipts(void **state)
{
    (void)state;
    struct daemon_fixture d;
    char id[27], text[16];
    daemon_make(&d, "{\"text\":\"late\",\"stall_ms\":600000}\n");
    daemon_start(&d, NULL);
    struct client *c = daemon_connect(&d, NULL, NULL);
    daemon_session(&d, c, AUTO_RUN, id);
    json_decref(prompt(c, id, "first"));
    json_t *p = content(id, "m");
    json_object_set_new(p, "clientMessageId", json_string("m1"));
    json_t *one = daemon_call(c, "session/prompt", json_incref(p));
    json_t *again = daemon_call(c, "session/prompt", p);
    assert_string_equal(text_of(one, "turnId"), text_of(again, "turnId"));
    for (int i = 1; i < 16; i++) {
        snprintf(text, sizeof text, "p%d", i);
        json_decref(prompt(c, id, text));
    }
    assert_int_equal(daemon_refused(c, "session/prompt", content(id, "one too many")), -32012);
    json_t *s = daemon_call(c, "session/get", json_pack("{s:s}", "id", id));
    assert_int_equal(json_integer_value(json_object_get(s, "queued")), 16);
    json_decref(s);
    /* One of them is withdrawn, the turn in work goes on. */
    json_decref(
        daemon_call(c, "session/cancel",
                    json_pack("{s:s, s:s}", "id", id, "turnId", text_of(one, "turnId"))));
    json_t *answer = wait_turn(c, id, one);
    assert_string_equal(text_of(answer, "reason"), "cancelled");
    json_decref(answer);
    until_state(c, id, "generating");
    /* Cancel without a turn leads to idle: nothing of the queue begins. */
    json_decref(daemon_call(c, "session/cancel", json_pack("{s:s}", "id", id)));
    answer = daemon_wait(c, id);
    assert_string_equal(text_of(answer, "reason"), "cancelled");
    json_decref(answer);
    s = daemon_call(c, "session/get", json_pack("{s:s}", "id", id));
    assert_null(json_object_get(s, "queued"));
    assert_string_equal(text_of(s, "state"), "idle");
    json_decref(s);
    assert_int_equal(
        daemon_refused(c, "session/wait", json_pack("{s:s, s:s}", "id", id, "turnId", "none")),
        -32010);
    json_decref(one);
    json_decref(again);
    client_free(c);
    daemon_remove(&d);
}

/* Killed with a turn in work and two behind it: they come in order, each once. */
static void test_queue_survives_sigkill(void **state)
{
    (void)state;
    struct daemon_fixture d;
    char id[27], seen[256];
    daemon_make(&d, SLOW("one") SLOW("two") SAY("three"));
    daemon_start(&d, NULL);
    struct client *c = daemon_connect(&d, NULL, NULL);
    daemon_session(&d, c, AUTO_RUN, id);
    json_decref(prompt(c, id, "first"));
    json_t *second = prompt(c, id, "second"), *third = prompt(c, id, "third");
    daemon_kill(&d);
    client_free(c);
    daemon_start(&d, NULL);
    c = daemon_connect(&d, NULL, NULL);
    json_t *answer = wait_turn(c, id, second);
    assert_string_equal(text_of(answer, "text"), "two");
    json_decref(answer);
    daemon_kill(&d); /* between the second and the third, or in the third */
    client_free(c);
    daemon_start(&d, NULL);
    c = daemon_connect(&d, NULL, NULL);
    answer = wait_turn(c, id, third);
    assert_string_equal(text_of(answer, "text"), "three");
    json_t *all = daemon_events(&d, id);
    items(all, "user", NULL, seen, sizeof seen);
    assert_string_equal(seen, "first|second|third");
    items(all, "assistant", NULL, seen, sizeof seen);
    assert_string_equal(seen, "one|two|three");
    json_decref(all);
    json_decref(answer);
    json_decref(second);
    json_decref(third);
    client_free(c);
    daemon_remove(&d);
}

/* A cancelled turn's open results belong to it, not to a prompt that waited behind it. */
static void test_results_of_a_cancelled_turn_before_a_queued_prompt(void **state)
{
    (void)state;
    struct daemon_fixture d;
    char id[27];
    daemon_make(&d, CALL("sleep 600") SAY("two"));
    daemon_start(&d, NULL);
    struct client *c = daemon_connect(&d, NULL, NULL);
    daemon_session(&d, c, AUTO_RUN, id);
    json_t *first = prompt(c, id, "first"), *second = prompt(c, id, "second");
    until_state(c, id, "tool");
    json_decref(
        daemon_call(c, "session/cancel",
                    json_pack("{s:s, s:s}", "id", id, "turnId", text_of(first, "turnId"))));
    json_t *answer = wait_turn(c, id, second);
    assert_string_equal(text_of(answer, "text"), "two");
    /* The result went in: with it the prompt is longer than its own ten tokens. */
    const json_t *ledger = json_object_get(answer, "ledger");
    assert_true(json_integer_value(json_object_get(ledger, "prefilled")) > 30);
    json_decref(answer);
    json_decref(first);
    json_decref(second);
    client_free(c);
    daemon_remove(&d);
}

/* ---- steering --------------------------------------------------------------------- */

static void test_steer_comes_with_the_results(void **state)
{
    (void)state;
    struct daemon_fixture d;
    char id[27], seen[256];
    daemon_make(&d, CALL("while ! test -e go; do sleep 0.02; done") SAY("done"));
    daemon_start(&d, NULL);
    struct client *c = daemon_connect(&d, NULL, NULL);
    daemon_session(&d, c, AUTO_RUN, id);
    json_t *turn = prompt(c, id, "first");
    until_state(c, id, "tool");
    json_t *r = daemon_call(c, "session/steer", content(id, "rather this"));
    assert_true(json_is_true(json_object_get(r, "steered")));
    assert_string_equal(text_of(r, "turnId"), text_of(turn, "turnId"));
    char path[256];
    snprintf(path, sizeof path, "%s/go", d.work);
    fclose(fopen(path, "we"));
    json_t *answer = daemon_wait(c, id);
    assert_string_equal(text_of(answer, "text"), "done");
    assert_int_equal(
        json_integer_value(json_object_get(json_object_get(answer, "ledger"), "steps")), 2);
    json_t *all = daemon_events(&d, id);
    items(all, "user", "pending", seen, sizeof seen);
    assert_string_equal(seen, "rather this");
    items(all, "user", "delivered", seen, sizeof seen);
    assert_string_equal(seen, "rather this");
    json_decref(all);
    json_decref(answer);
    json_decref(r);
    json_decref(turn);
    client_free(c);
    daemon_remove(&d);
}

/* A run without calls goes on with the text, in the same turn; killed in between, too. */
static void steer_at_the_end(bool killed)
{
    struct daemon_fixture d;
    char id[27], seen[256];
    daemon_make(&d, SLOW("one") SAY("two"));
    daemon_start(&d, NULL);
    struct client *c = daemon_connect(&d, NULL, NULL);
    daemon_session(&d, c, AUTO_RUN, id);
    json_t *turn = prompt(c, id, "first");
    until_state(c, id, "prefill");
    json_decref(daemon_call(c, "session/steer", content(id, "and that")));
    json_decref(daemon_call(c, "session/steer", content(id, "and this")));
    if (killed) {
        daemon_kill(&d);
        client_free(c);
        daemon_start(&d, NULL);
        c = daemon_connect(&d, NULL, NULL);
    }
    json_t *answer = wait_turn(c, id, turn);
    assert_string_equal(text_of(answer, "text"), "two");
    assert_string_equal(text_of(answer, "reason"), "end");
    json_t *all = daemon_events(&d, id);
    items(all, "user", "delivered", seen, sizeof seen);
    assert_string_equal(seen, "and that|and this");
    items(all, "assistant", NULL, seen, sizeof seen);
    assert_string_equal(seen, "one|two");
    json_decref(all);
    json_decref(answer);
    json_decref(turn);
    json_t *equal = daemon_call(c, "session/verify", json_pack("{s:s}", "id", id));
    assert_true(json_is_true(json_object_get(equal, "equal")));
    json_decref(equal);
    client_free(c);
    daemon_remove(&d);
}

static void test_steer_instead_of_the_end(void **state)
{
    (void)state;
    steer_at_the_end(false);
}

/* Sent again while the turn works, after a SIGKILL, when the turn is over: once on the tape,
 * and always the same receipt. */
static void test_steer_repeated_gets_the_first_receipt(void **state)
{
    (void)state;
    struct daemon_fixture d;
    char id[27], seen[256];
    daemon_make(&d, SLOW("one") SLOW("two") SAY("three"));
    daemon_start(&d, NULL);
    struct client *c = daemon_connect(&d, NULL, NULL);
    daemon_session(&d, c, AUTO_RUN, id);
    json_t *turn = prompt(c, id, "first"), *message = content(id, "and that");
    json_object_set_new(message, "clientMessageId", json_string("m-1"));
    until_state(c, id, "prefill");
    json_t *receipt = daemon_call(c, "session/steer", json_deep_copy(message));
    assert_true(json_is_true(json_object_get(receipt, "steered")));
    json_t *again = daemon_call(c, "session/steer", json_deep_copy(message));
    assert_true(json_equal(receipt, again));
    json_decref(again);
    client_free(c);
    daemon_kill(&d);
    daemon_start(&d, NULL);
    c = daemon_connect(&d, NULL, NULL);
    again = daemon_call(c, "session/steer", json_deep_copy(message));
    assert_true(json_equal(receipt, again));
    json_decref(again);
    json_decref(wait_turn(c, id, turn));
    again = daemon_call(c, "session/steer", json_deep_copy(message));
    assert_true(json_equal(receipt, again));
    json_decref(again);
    json_t *all = daemon_events(&d, id);
    items(all, "user", "delivered", seen, sizeof seen);
    assert_string_equal(seen, "and that");
    json_decref(all);
    /* One that becomes a prompt, for lack of a turn, is that prompt for ever. */
    json_object_set_new(message, "clientMessageId", json_string("m-2"));
    json_decref(receipt);
    receipt = daemon_call(c, "session/steer", json_deep_copy(message));
    assert_null(json_object_get(receipt, "steered"));
    json_decref(wait_turn(c, id, receipt));
    again = daemon_call(c, "session/steer", json_deep_copy(message));
    assert_true(json_equal(receipt, again));
    json_object_set_new(message, "clientMessageId", json_string(""));
    assert_int_equal(daemon_refused(c, "session/steer", message), -32602);
    json_decref(again);
    json_decref(receipt);
    json_decref(turn);
    client_free(c);
    daemon_remove(&d);
}

/* Names of texts are a session's own: a fork takes one that its parent had, as a prompt and as
 * steering, once as well. */
static void test_steer_of_a_fork_has_its_own_names(void **state)
{
    (void)state;
    struct daemon_fixture d;
    char id[27], fork[27], seen[256];
    daemon_make(&d, SLOW("one") SLOW("two") SLOW("three") SAY("four"));
    daemon_start(&d, NULL);
    struct client *c = daemon_connect(&d, NULL, NULL);
    daemon_session(&d, c, AUTO_RUN, id);
    json_auto_t *turn = prompt(c, id, "first"), *message = content(id, "and that");
    json_object_set_new(message, "clientMessageId", json_string("m-1"));
    until_state(c, id, "prefill");
    json_auto_t *receipt = daemon_call(c, "session/steer", json_deep_copy(message));
    json_decref(wait_turn(c, id, turn));
    json_auto_t *f = daemon_call(c, "session/fork", json_pack("{s:s}", "id", id));
    snprintf(fork, sizeof fork, "%s", text_of(f, "id"));
    json_object_set_new(message, "id", json_string(fork));
    /* Without a turn it is a prompt; with one, and another name of the parent's, steering. */
    json_auto_t *asked = daemon_call(c, "session/steer", json_deep_copy(message));
    assert_null(json_object_get(asked, "steered"));
    assert_string_not_equal(text_of(asked, "turnId"), text_of(turn, "turnId"));
    until_state(c, fork, "prefill");
    json_auto_t *more = json_deep_copy(message);
    json_object_set_new(more, "clientMessageId", json_string("m-2"));
    json_auto_t *steered = daemon_call(c, "session/steer", json_deep_copy(more));
    assert_true(json_is_true(json_object_get(steered, "steered")));
    assert_string_equal(text_of(steered, "turnId"), text_of(asked, "turnId"));
    json_decref(wait_turn(c, fork, asked));
    json_auto_t *again = daemon_call(c, "session/steer", json_deep_copy(more));
    assert_true(json_equal(steered, again));
    /* And the fork's fork, of the middle of it, has none of both. */
    json_auto_t *g = daemon_call(c, "session/fork", json_pack("{s:s}", "id", fork));
    json_object_set_new(more, "id", json_string(text_of(g, "id")));
    json_auto_t *third = daemon_call(c, "session/steer", json_deep_copy(more));
    assert_string_not_equal(text_of(third, "turnId"), text_of(asked, "turnId"));
    json_decref(wait_turn(c, text_of(g, "id"), third));
    json_auto_t *all = daemon_events(&d, fork);
    items(all, "user", "delivered", seen, sizeof seen);
    assert_string_equal(seen, "and that|and that"); /* the parent's, and its own */
    client_free(c);
    daemon_remove(&d);
}

static void test_steer_survives_sigkill(void **state)
{
    (void)state;
    steer_at_the_end(true);
}

/* Killed when the run is on the tape and the text is not: the commit of the results is the
 * fourth (prompt, text, end of run, results). */
static void test_steer_due_after_sigkill(void **state)
{
    (void)state;
    struct daemon_fixture d;
    char id[27], seen[256];
    daemon_make(&d, SLOW("one") SAY("two"));
    daemon_start(&d, "crash:turn.results:1");
    struct client *c = daemon_connect(&d, NULL, NULL);
    daemon_session(&d, c, AUTO_RUN, id);
    json_t *turn = prompt(c, id, "first");
    until_state(c, id, "prefill");
    json_decref(daemon_call(c, "session/steer", content(id, "and that")));
    (void)daemon_wait_death(&d);
    client_free(c);
    daemon_start(&d, NULL);
    c = daemon_connect(&d, NULL, NULL);
    json_t *answer = wait_turn(c, id, turn);
    assert_string_equal(text_of(answer, "text"), "two");
    json_t *all = daemon_events(&d, id);
    items(all, "user", "delivered", seen, sizeof seen);
    assert_string_equal(seen, "and that");
    json_decref(all);
    json_decref(answer);
    json_decref(turn);
    client_free(c);
    daemon_remove(&d);
}

static void test_steer_is_not_delivered_by_a_cancelled_turn(void **state)
{
    (void)state;
    struct daemon_fixture d;
    char id[27], seen[256];
    daemon_make(&d, "{\"text\":\"late\",\"stall_ms\":600000}\n" SAY("two"));
    daemon_start(&d, NULL);
    struct client *c = daemon_connect(&d, NULL, NULL);
    daemon_session(&d, c, AUTO_RUN, id);
    json_decref(prompt(c, id, "first"));
    until_state(c, id, "generating");
    json_decref(daemon_call(c, "session/steer", content(id, "never")));
    json_decref(daemon_call(c, "session/cancel", json_pack("{s:s}", "id", id)));
    json_decref(daemon_wait(c, id));
    json_t *all = daemon_events(&d, id);
    items(all, "user", "undelivered", seen, sizeof seen);
    assert_string_equal(seen, "never");
    items(all, "user", "delivered", seen, sizeof seen);
    assert_string_equal(seen, "");
    json_decref(all);
    client_free(c);
    daemon_remove(&d);
}

/* ---- the command line ------------------------------------------------------------- */

static void test_agentctl(void **state)
{
    (void)state;
    struct daemon_fixture d;
    daemon_make(&d, SLOW("one") SAY("two") SAY("three"));
    daemon_start(&d, NULL);
    setenv("AGENTD_SOCKET", d.socket, 1);
    assert_int_equal(
        AGENTCTL("run", "-d", "-n", "a", "-C", d.work, "--tools", "", "first")->code,
        EXIT_DONE);
    const struct agentctl_ran *r = AGENTCTL("send", "a", "second");
    assert_int_equal(r->code, EXIT_DONE);
    assert_string_equal(r->out, "two\n");
    assert_has(r->err, "number 1 in its queue");
    r = AGENTCTL("steer", "a", "third");
    assert_int_equal(r->code, EXIT_DONE);
    assert_has(r->err, "a prompt of its own");
    r = AGENTCTL("wait", "a");
    assert_string_equal(r->out, "three\n");
    daemon_remove(&d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_second_prompt_waits_its_turn),
        cmocka_unit_test(test_queue_has_a_cap_and_repeats_receipts),
        cmocka_unit_test(test_queue_survives_sigkill),
        cmocka_unit_test(test_results_of_a_cancelled_turn_before_a_queued_prompt),
        cmocka_unit_test(test_steer_comes_with_the_results),
        cmocka_unit_test(test_steer_instead_of_the_end),
        cmocka_unit_test(test_steer_repeated_gets_the_first_receipt),
        cmocka_unit_test(test_steer_of_a_fork_has_its_own_names),
        cmocka_unit_test(test_steer_survives_sigkill),
        cmocka_unit_test(test_steer_due_after_sigkill),
        cmocka_unit_test(test_steer_is_not_delivered_by_a_cancelled_turn),
        cmocka_unit_test(test_agentctl),
    };
    return !!cmocka_run_group_tests(tests, NULL, NULL);
}
