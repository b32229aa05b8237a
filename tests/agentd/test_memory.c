/* More sessions than the memory for sequences admits: each turn gets to its end, by what idle
 * sessions and waiting turns give up, and nothing that was saved is computed again. The budget
 * for KV rows is the smallest there is, of one sequence. */
#include "tests/support/test.h"

#include <stdbool.h>
#include <time.h>

#include "tests/support/daemon.h"

#define MODEL "tests/golden/a_tiny/model"
#define N_SESSIONS 6

#define CALL(command)                                                                            \
    "ok</think>\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"run\">\n<｜DSML｜ parameter " \
    "name=\"command\" string=\"true\">" command                                                  \
    "</｜DSML｜ parameter>\n</｜DSML｜ invoke>\n</｜DSML｜ calls>"

/* The smallest budget, as the daemon tells it. */
static void start(struct daemon_fixture *d, char *budget, size_t cap)
{
    const json_t *tier;
    size_t i;
    daemon_make(d, "");
    d->model = MODEL;
    d->extra[0] = "--kv-resident";
    d->extra[1] = "64M";
    daemon_start(d, NULL);
    struct client *c = daemon_connect(d, NULL, NULL);
    json_auto_t *status = daemon_call(c, "model/status", NULL);
    json_array_foreach(json_object_get(status, "tiers"), i, tier)
        if (!strcmp(text_of(tier, "name"), "kv"))
            snprintf(budget, cap, "%lld", (long long)int_of(tier, "minimumBytes"));
    client_free(c);
    assert_int_equal(daemon_stop(d), 0);
    assert_true(budget[0] != '\0');
    d->extra[1] = budget;
    daemon_start(d, NULL);
}

static void check_balanced(const json_t *answer)
{
    const json_t *l = json_object_get(answer, "ledger");
    if (int_of(l, "prompt_tokens") != int_of(l, "resident") + int_of(l, "restored") +
                                          int_of(l, "recomputed") + int_of(l, "relost") +
                                          int_of(l, "prefilled"))
        fail_msg("%s", json_dumps(answer, 0));
    assert_int_equal(int_of(l, "relost"), 0);
}

/* How often the daemon has said this so far. */
static int count_log(const struct daemon_fixture *d, const char *part)
{
    char line[512];
    int n = 0;
    FILE *f = fopen(d->log, "re");
    assert_non_null(f);
    while (fgets(line, sizeof line, f))
        n += strstr(line, part) != NULL;
    fclose(f);
    return n;
}

static void prompt(struct client *c, const char *id, const char *const *runs)
{
    json_t *forced = json_array();
    for (; *runs; runs++)
        json_array_append_new(forced, json_pack("{s:s}", "text", *runs));
    json_decref(daemon_call(c, "session/prompt",
                            json_pack("{s:s, s:[{s:s, s:s}], s:o}", "id", id, "content", "type",
                                      "text", "text", "hello, all of you", "forced", forced)));
}

static void test_all_turns_make_progress(void **state)
{
    (void)state;
    struct daemon_fixture d;
    char budget[32] = "", ids[N_SESSIONS][27];
    start(&d, budget, sizeof budget);
    struct client *c = daemon_connect(&d, NULL, NULL);
    for (int i = 0; i < N_SESSIONS; i++)
        daemon_session(&d, c, "{\"approve\":\"auto\",\"tools\":[\"run\"],\"maxTokens\":400}",
                       ids[i]);
    for (int round = getenv("AGENTD_SLOW") ? 0 : 1; round < 2; round++) {
        for (int i = 0; i < N_SESSIONS; i++)
            prompt(c, ids[i],
                   (const char *const[]){CALL("sleep 0.2; seq 1 40"), CALL("seq 1 3"),
                                         "ok</think>done", NULL});
        for (int i = 0; i < N_SESSIONS; i++) {
            json_auto_t *answer = daemon_wait(c, ids[i]);
            if (strcmp(text_of(answer, "reason"), "end") != 0)
                daemon_show_log(&d);
            assert_string_equal(text_of(answer, "reason"), "end");
            assert_string_equal(text_of(answer, "text"), "done");
            check_balanced(answer);
        }
    }
    for (int i = 0; i < N_SESSIONS; i += 3)
        daemon_verify(c, ids[i]);
    /* Both ways: one that could do without has left, and one that found none has waited. */
    fprintf(stderr, "left %d, waited %d\n", count_log(&d, "leaves memory for"),
            count_log(&d, "waits for memory"));
    assert_true(count_log(&d, "leaves memory for") > 0);
    assert_true(count_log(&d, "waits for memory") > 0);
    client_free(c);
    assert_int_equal(daemon_stop(&d), 0);
    daemon_remove(&d);
}

/* What waits can be stopped; and it goes on after a kill. */
static void test_cancelled_and_killed_while_it_waits(void **state)
{
    (void)state;
    struct daemon_fixture d;
    char budget[32] = "", ids[3][27];
    static const char *const runs[] = {CALL("sleep 0.3; seq 1 40"), "ok</think>done", NULL};
    start(&d, budget, sizeof budget);
    struct client *c = daemon_connect(&d, NULL, NULL);
    for (int i = 0; i < 3; i++)
        daemon_session(&d, c, "{\"approve\":\"auto\",\"tools\":[\"run\"]}", ids[i]);
    for (int i = 0; i < 3; i++)
        prompt(c, ids[i], runs);
    json_decref(daemon_call(c, "session/cancel", json_pack("{s:s}", "id", ids[1])));
    json_auto_t *answer = daemon_wait(c, ids[1]);
    assert_string_equal(text_of(answer, "reason"), "cancelled");
    check_balanced(answer);
    client_free(c);
    daemon_kill(&d);
    daemon_start(&d, NULL);
    c = daemon_connect(&d, NULL, NULL);
    for (int i = 0; i < 3; i += 2) {
        json_auto_t *other = daemon_wait(c, ids[i]);
        assert_string_equal(text_of(other, "reason"), "end");
        check_balanced(other);
        daemon_verify(c, ids[i]);
    }
    prompt(c, ids[1], runs);
    json_auto_t *last = daemon_wait(c, ids[1]);
    assert_string_equal(text_of(last, "reason"), "end");
    daemon_verify(c, ids[1]);
    client_free(c);
    assert_int_equal(daemon_stop(&d), 0);
    daemon_remove(&d);
}

/* Many that wait are stopped at once: the end of one wakes no other that is at its end, too. */
static void test_all_that_wait_are_cancelled(void **state)
{
    (void)state;
    struct daemon_fixture d;
    char budget[32] = "", ids[8][27];
    const int n = sizeof ids / sizeof ids[0];
    static const char *const runs[] = {CALL("sleep 0.1; seq 1 40"), "ok</think>done", NULL};
    start(&d, budget, sizeof budget);
    struct client *c = daemon_connect(&d, NULL, NULL);
    for (int i = 0; i < n; i++)
        daemon_session(&d, c, "{\"approve\":\"auto\",\"tools\":[\"run\"]}", ids[i]);
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < n; i++)
            prompt(c, ids[i], runs);
        for (int i = n - 1; i > 0; i--)
            json_decref(daemon_call(c, "session/cancel", json_pack("{s:s}", "id", ids[i])));
        for (int i = 0; i < n; i++) {
            json_auto_t *answer = daemon_wait(c, ids[i]);
            assert_string_equal(text_of(answer, "state"), "idle");
            check_balanced(answer);
        }
    }
    assert_true(count_log(&d, "waits for memory") > 0);
    client_free(c);
    assert_int_equal(daemon_stop(&d), 0);
    daemon_remove(&d);
}

/* A session whose tape begins anew holds its memory until that is done: who waits hears of it.
 */
static void test_a_cut_gives_memory_back(void **state)
{
    (void)state;
    struct daemon_fixture d;
    char budget[32] = "", ids[2][27];
    static const char *const runs[] = {"ok</think>a, b, c, d, e, f, g, h and so on", NULL};
    start(&d, budget, sizeof budget);
    struct client *c = daemon_connect(&d, NULL, NULL);
    for (int i = 0; i < 2; i++)
        daemon_session(&d, c, "{\"tools\":[]}", ids[i]);
    for (int round = 0; round < 4; round++) {
        prompt(c, ids[0], runs);
        json_decref(daemon_wait(c, ids[0]));
        json_decref(daemon_call(
            c, "session/compact",
            json_pack("{s:s, s:[{s:s}]}", "id", ids[0], "forced", "text", "ok</think>sum")));
        prompt(c, ids[1], runs);
        json_auto_t *answer = daemon_wait(c, ids[1]);
        assert_string_equal(text_of(answer, "reason"), "end");
        json_auto_t *other = daemon_wait(c, ids[0]);
        assert_string_equal(text_of(other, "reason"), "end");
    }
    client_free(c);
    assert_int_equal(daemon_stop(&d), 0);
    daemon_remove(&d);
}

static void wait_state(struct client *c, const char *id, const char *state)
{
    for (int i = 0; i < 2000; i++) {
        json_auto_t *s = daemon_call(c, "session/get", json_pack("{s:s}", "id", id));
        if (!strcmp(text_of(s, "state"), state))
            return;
        nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
    }
    fail_msg("never in state %s", state);
}

/* Nor does a tool that has written much and runs on hold the memory of its session. */
static void test_a_running_tool_holds_no_memory(void **state)
{
    (void)state;
    struct daemon_fixture d;
    char budget[32] = "", ids[2][27];
    start(&d, budget, sizeof budget);
    struct client *c = daemon_connect(&d, NULL, NULL);
    for (int i = 0; i < 2; i++)
        daemon_session(&d, c, "{\"approve\":\"auto\",\"tools\":[\"run\"]}", ids[i]);
    prompt(c, ids[0],
           (const char *const[]){CALL("seq 1 150; sleep 5"), "ok</think>done", NULL});
    wait_state(c, ids[0], "tool");
    nanosleep(&(struct timespec){.tv_sec = 1}, NULL); /* what it wrote is computed ahead */
    prompt(c, ids[1], (const char *const[]){"ok</think>done", NULL});
    json_auto_t *answer = daemon_wait(c, ids[1]);
    assert_string_equal(text_of(answer, "reason"), "end");
    wait_state(c, ids[0], "tool");
    json_auto_t *other = daemon_wait(c, ids[0]);
    assert_string_equal(text_of(other, "reason"), "end");
    check_balanced(other);
    for (int i = 0; i < 2; i++)
        daemon_verify(c, ids[i]);
    client_free(c);
    assert_int_equal(daemon_stop(&d), 0);
    daemon_remove(&d);
}

/* After a kill all come back at once, one of them to a call that waits for an approval: what it
 * brought into memory is not kept from the others for as long. */
static void test_who_waits_for_an_approval_can_do_without(void **state)
{
    (void)state;
    struct daemon_fixture d;
    char budget[32] = "", ids[3][27];
    static const char *const runs[] = {CALL("sleep 20"), "ok</think>done", NULL};
    start(&d, budget, sizeof budget);
    struct client *c = daemon_connect(&d, NULL, NULL);
    for (int i = 0; i < 3; i++) {
        daemon_session(&d, c,
                       i == 1 ? "{\"approve\":\"ask\",\"tools\":[\"run\"]}"
                              : "{\"approve\":\"auto\",\"tools\":[\"run\"]}",
                       ids[i]);
        prompt(c, ids[i], runs);
        wait_state(c, ids[i], i == 1 ? "requires_action" : "tool");
    }
    client_free(c);
    daemon_kill(&d);
    daemon_start(&d, NULL);
    c = daemon_connect(&d, NULL, NULL);
    for (int i = 0; i < 3; i += 2) {
        json_auto_t *answer = daemon_wait(c, ids[i]);
        assert_string_equal(text_of(answer, "reason"), "end");
    }
    json_decref(daemon_call(c, "session/cancel", json_pack("{s:s}", "id", ids[1])));
    json_decref(daemon_wait(c, ids[1]));
    client_free(c);
    assert_int_equal(daemon_stop(&d), 0);
    daemon_remove(&d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_turns_make_progress),
        cmocka_unit_test(test_cancelled_and_killed_while_it_waits),
        cmocka_unit_test(test_all_that_wait_are_cancelled),
        cmocka_unit_test(test_a_cut_gives_memory_back),
        cmocka_unit_test(test_a_running_tool_holds_no_memory),
        cmocka_unit_test(test_who_waits_for_an_approval_can_do_without),
    };
    return !!cmocka_run_group_tests(tests, NULL, NULL);
}
