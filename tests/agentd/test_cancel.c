/* A second client cancels, whatever the first one's turn is doing: the session is idle within
 * one chunk, what was computed is kept and never computed again, and the next prompt works. */
#include "tests/support/test.h"

#include <stdbool.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "tests/support/daemon.h"

#define EOS "<｜end▁of▁sentence｜>"
#define SAY(text) "{\"text\":\"ok</think>" text EOS "\"}\n"
#define INVOKE(name, params)                                                                   \
    "<｜DSML｜ invoke name=\\\"" name "\\\">\\n" params "</｜DSML｜ invoke>\\n"
#define RUN(command)                                                                           \
    INVOKE("run", "<｜DSML｜ parameter name=\\\"command\\\" string=\\\"true\\\">" command      \
                  "</｜DSML｜ parameter>\\n")
#define CALL(invokes)                                                                          \
    "{\"text\":\"ok</think>\\n\\n<｜DSML｜ calls>\\n" invokes "</｜DSML｜ calls>" EOS "\"}\n"
#define SLOW_PREFILL "{\"text\":\"ok</think>x" EOS "\",\"prefill_ms\":30000}\n"
#define SLOW_DECODE                                                                            \
    "{\"text\":\"thinking slowly about every word of it</think>x" EOS "\",\"token_ms\":120}\n"
#define STALLED "{\"text\":\"x</think>x" EOS "\",\"stall_ms\":30000}\n"
#define AFTER SAY("after") SAY("after")

#define AUTO_RUN "{\"approve\":\"auto\",\"tools\":[\"run\"]}"
#define ASK_RUN "{\"approve\":\"ask\",\"tools\":[\"run\"]}"
#define CLIENT_TOOL                                                                            \
    "{\"tools\":[],\"clientTools\":[{\"name\":\"look\",\"description\":\"looks\","             \
    "\"parameters\":{\"type\":\"object\"}}]}"

#define CHUNK 64        /* of the scripted engine */
#define AT_ONCE_MS 8000 /* what is stopped would take 30 s */

static json_int_t ledger_of(const json_t *answer, const char *key)
{
    return int_of(json_object_get(answer, "ledger"), key);
}

static uint64_t now_ms(void)
{
    return clock_mono_ns(clock_real()) / 1000000;
}

/* ---- the stage -------------------------------------------------------------------- */

struct stage {
    struct daemon_fixture d;
    struct client *first, *second; /* who prompts and reads; who cancels */
    char id[27];
    char state[24];        /* as the first one last heard */
    json_int_t done;       /* of the newest session/progress in phase prefill */
    size_t n_text;         /* bytes of deltas */
    bool asked;            /* approval/requested */
    json_int_t n_requests; /* prompts so far */
};

static void on_notify(void *user, const char *method, const json_t *params)
{
    struct stage *s = user;

    if (!strcmp(method, "session/state"))
        snprintf(s->state, sizeof(s->state), "%s", text_of(params, "state"));
    if (!strcmp(method, "session/progress") && !strcmp(text_of(params, "phase"), "prefill"))
        s->done = int_of(params, "done");
    if (!strcmp(method, "session/delta"))
        s->n_text += strlen(text_of(params, "text"));
    s->asked = s->asked || !strcmp(method, "approval/requested");
}

static void connect_both(struct stage *s)
{
    s->first = daemon_connect(&s->d, on_notify, s);
    s->second = daemon_connect(&s->d, NULL, NULL);
}

static void stage_open(struct stage *s, const char *script, const char *session)
{
    *s = (struct stage){0};
    daemon_make(&s->d, script);
    daemon_start(&s->d, NULL);
    connect_both(s);
    daemon_session(&s->d, s->first, session, s->id);
    json_decref(daemon_call(s->first, "session/attach", json_pack("{s:s}", "id", s->id)));
}

static void stage_close(struct stage *s)
{
    client_free(s->first);
    client_free(s->second);
    daemon_remove(&s->d);
}

static void wait_state(struct stage *s, const char *state)
{
    for (uint64_t from = now_ms(); strcmp(s->state, state) != 0;) {
        (void)!client_poll(s->first, 20, NULL);
        if (now_ms() - from > 20000)
            fail_msg("state %s does not come, it is %s", state, s->state);
    }
}

/* The second client cancels; the answer that the first one's turn gets. */
static json_t *cancel(struct stage *s)
{
    uint64_t from = now_ms();
    json_t *said = daemon_call(s->second, "session/cancel", json_pack("{s:s}", "id", s->id));
    if (!json_is_true(json_object_get(said, "cancelled")))
        fail_msg("there was nothing to cancel");
    json_decref(said);
    json_t *a = daemon_wait(s->second, s->id);
    assert_string_equal(text_of(a, "state"), "idle");
    assert_string_equal(text_of(a, "reason"), "cancelled");
    if (now_ms() - from > AT_ONCE_MS)
        fail_msg("idle after %llu ms", (unsigned long long)(now_ms() - from));
    said = daemon_call(s->second, "session/cancel", json_pack("{s:s}", "id", s->id));
    assert_true(json_is_false(json_object_get(said, "cancelled")));
    json_decref(said);
    return a;
}

/* Tokens in the sequence when a turn ended. */
static json_int_t computed(const json_t *answer)
{
    return ledger_of(answer, "prompt_tokens") + ledger_of(answer, "decoded");
}

/* Of what the cut turn left, nothing was computed again in the next one. */
static void check_kept(const struct stage *s, const json_t *cut, const json_t *next)
{
    if (ledger_of(next, "recomputed") || ledger_of(next, "relost") ||
        ledger_of(next, "resident") != computed(cut)) {
        daemon_show_log(&s->d);
        fail_msg("cut: %s\nnext: %s", json_dumps(cut, 0), json_dumps(next, 0));
    }
}

/* The next prompt: nothing of what was computed is computed again. Takes the cut answer. */
static void check_after(struct stage *s, json_t *cut)
{
    daemon_prompt(s->first, s->id, "and now");
    json_t *a = daemon_wait(s->first, s->id);
    assert_string_equal(text_of(a, "reason"), "end");
    assert_string_equal(text_of(a, "text"), "after");
    check_kept(s, cut, a);
    json_decref(a);
    json_decref(cut);
    json_t *v = daemon_call(s->second, "session/verify", json_pack("{s:s}", "id", s->id));
    if (!json_is_true(json_object_get(v, "equal")))
        fail_msg("verify: %s", json_dumps(v, 0));
    json_decref(v);
}

/* The same where the next run stalls as well: it is cancelled, too. */
static void check_after_stall(struct stage *s, json_t *cut)
{
    s->state[0] = '\0';
    daemon_prompt(s->first, s->id, "and now");
    wait_state(s, "generating");
    json_t *again = cancel(s);
    check_kept(s, cut, again);
    json_decref(again);
    json_decref(cut);
}

/* ---- each state ------------------------------------------------------------------- */

static void test_antirez_ds4_333_in_prefill(void **state)
{
    (void)state;
    struct stage s;
    stage_open(&s, SLOW_PREFILL SAY("after"), AUTO_RUN);
    daemon_prompt(s.first, s.id, "go");
    while (s.done < 2 * CHUNK)
        (void)!client_poll(s.first, 20, NULL);
    json_int_t seen = s.done;
    json_t *cut = cancel(&s);
    assert_in_range(ledger_of(cut, "prefilled"), seen, seen + CHUNK);
    assert_int_equal(computed(cut), ledger_of(cut, "prefilled"));
    /* What is left of that prompt is computed with the next one. Its run never was: line 1. */
    json_decref(cut);
    stage_close(&s);

    stage_open(&s, "{\"text\":\"ok</think>after" EOS "\",\"prefill_ms\":4000}\n", AUTO_RUN);
    daemon_prompt(s.first, s.id, "go");
    while (s.done < CHUNK)
        (void)!client_poll(s.first, 20, NULL);
    check_after(&s, cancel(&s));
    stage_close(&s);
}

static void test_claude_code_21726_openclaw_84430_in_thinking(void **state)
{
    (void)state;
    struct stage s;
    stage_open(&s, SLOW_DECODE AFTER, AUTO_RUN);
    daemon_prompt(s.first, s.id, "go");
    while (s.n_text < 3)
        (void)!client_poll(s.first, 20, NULL);
    size_t seen = s.n_text;
    json_t *cut = cancel(&s);
    /* A byte is a token. One was in work; another may have come before the cancel did. */
    assert_in_range(ledger_of(cut, "decoded"), seen, seen + 3);
    check_after(&s, cut);
    stage_close(&s);
}

static void test_llama_cpp_24496_while_the_model_stalls(void **state)
{
    (void)state;
    struct stage s;
    stage_open(&s, STALLED, AUTO_RUN);
    daemon_prompt(s.first, s.id, "go");
    wait_state(&s, "generating");
    check_after_stall(&s, cancel(&s));
    stage_close(&s);
}

static void in_tool(const char *script, const char *session, const char *when)
{
    struct stage s;
    stage_open(&s, script, session);
    daemon_prompt(s.first, s.id, "go");
    wait_state(&s, when);
    check_after(&s, cancel(&s));
    stage_close(&s);
}

static void test_tool(void **state)
{
    (void)state;
    in_tool(CALL(RUN("sleep 30")) AFTER, AUTO_RUN, "tool");
    in_tool(CALL(RUN("trap '' TERM; sleep 30")) AFTER, AUTO_RUN, "tool");
    in_tool(CALL(RUN("true") RUN("seq 1 500; sleep 30") RUN("setsid sleep 30")) AFTER, AUTO_RUN,
            "tool");
}

static void test_requires_action(void **state)
{
    (void)state;
    in_tool(CALL(RUN("touch never")) AFTER, ASK_RUN, "requires_action");
    in_tool(CALL(INVOKE("look", "")) AFTER, CLIENT_TOOL, "requires_action");
    in_tool(CALL(INVOKE("look", "") INVOKE("look", "")) AFTER, CLIENT_TOOL, "requires_action");
}

/* Prompts that wait behind a turn are withdrawn with it. */
static void test_queued(void **state)
{
    (void)state;
    struct stage s;
    stage_open(&s, CALL(RUN("sleep 30")) AFTER, AUTO_RUN);
    daemon_prompt(s.first, s.id, "go");
    wait_state(&s, "tool");
    daemon_prompt(s.first, s.id, "this one waits");
    daemon_prompt(s.first, s.id, "and this one");
    json_decref(cancel(&s)); /* the answer is of the newest turn, which never began */
    daemon_prompt(s.first, s.id, "and now");
    json_t *a = daemon_wait(s.first, s.id);
    assert_string_equal(text_of(a, "text"), "after");
    assert_int_equal(ledger_of(a, "recomputed"), 0);
    assert_true(ledger_of(a, "resident") > 1000);
    json_decref(a);
    stage_close(&s);
}

/* At once behind the receipt: the turn may be anywhere on its way to its first token; then with
 * the state on SSD, so that it has to come back first. */
static void test_colibri_956_before_the_first_frame(void **state)
{
    (void)state;
    struct stage s;
    stage_open(&s, SAY("one") STALLED AFTER, AUTO_RUN);
    daemon_prompt(s.first, s.id, "first");
    json_decref(daemon_wait(s.first, s.id));
    for (int i = 0; i < 6; i++) {
        if (i == 3) {
            client_free(s.first);
            client_free(s.second);
            assert_int_equal(daemon_stop(&s.d), 0);
            daemon_start(&s.d, NULL);
            connect_both(&s);
        }
        daemon_prompt(s.first, s.id, "go");
        json_decref(cancel(&s));
    }
    stage_close(&s);
}

/* A turn that a restart goes on with. */
static void test_after_sigkill(void **state)
{
    (void)state;
    struct stage s;
    stage_open(&s, CALL(RUN("sleep 30")) STALLED, AUTO_RUN);
    daemon_prompt(s.first, s.id, "go");
    wait_state(&s, "tool");
    client_free(s.first);
    client_free(s.second);
    daemon_kill(&s.d);
    daemon_start(&s.d, NULL);
    connect_both(&s);
    json_decref(daemon_call(s.first, "session/attach", json_pack("{s:s}", "id", s.id)));
    for (uint64_t from = now_ms(); now_ms() - from < 20000;) { /* interrupted, then line 2 */
        json_auto_t *got = daemon_call(s.second, "session/get", json_pack("{s:s}", "id", s.id));
        if (!strcmp(text_of(got, "state"), "generating"))
            break;
    }
    check_after_stall(&s, cancel(&s));
    stage_close(&s);
}

/* While the session writes its own summary. */
static void test_compaction(void **state)
{
    (void)state;
    struct stage s;
    stage_open(&s, SAY("one") STALLED, AUTO_RUN);
    daemon_prompt(s.first, s.id, "first");
    json_decref(daemon_wait(s.first, s.id));
    json_decref(daemon_call(s.first, "session/compact", json_pack("{s:s}", "id", s.id)));
    wait_state(&s, "generating");
    check_after_stall(&s, cancel(&s));
    stage_close(&s);
}

/* At any moment of a tool loop, commits included. */
static void test_any_moment(void **state)
{
    (void)state;
    int n = getenv("AGENTD_SLOW") ? 200 : 12, n_cut = 0;
    for (int i = 0; i < n; i++) {
        struct stage s;
        const struct timespec t = {0, (i * 7919 % 97) * 1000000L};
        stage_open(&s, CALL(RUN("echo a; sleep 0.02")) CALL(RUN("echo b") RUN("echo c")) AFTER,
                   AUTO_RUN);
        daemon_prompt(s.first, s.id, "go");
        nanosleep(&t, NULL);
        json_decref(daemon_call(s.second, "session/cancel", json_pack("{s:s}", "id", s.id)));
        json_t *cut = daemon_wait(s.second, s.id);
        assert_string_equal(text_of(cut, "state"), "idle");
        bool was_cut = !strcmp(text_of(cut, "reason"), "cancelled");
        n_cut += was_cut;
        daemon_prompt(s.first, s.id, "and now");
        json_t *a = daemon_wait(s.first, s.id);
        assert_string_equal(text_of(a, "reason"), "end");
        check_kept(&s, cut, a);
        json_decref(a);
        json_decref(cut);
        stage_close(&s);
    }
    assert_true(n_cut > 0);
}

/* ---- a real checkpoint ------------------------------------------------------------ */

/* Drafts, chunks of a real model, and input that is computed while a tool runs. */
static void test_llama_cpp_20_on_a_checkpoint(void **state)
{
    (void)state;
    static const char call[] =
        "ok</think>\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"run\">\n<｜DSML｜ parameter "
        "name=\"command\" string=\"true\">seq 1 200; sleep 30</｜DSML｜ parameter>\n</｜DSML｜ "
        "invoke>\n</｜DSML｜ calls>";
    struct stage s = {0};
    daemon_make(&s.d, "");
    s.d.model = "tests/golden/a_tiny/model";
    s.d.extra[0] = "--draft";
    s.d.extra[1] = "3";
    daemon_start(&s.d, NULL);
    connect_both(&s);
    daemon_session(&s.d, s.first, "{\"approve\":\"auto\",\"tools\":[\"run\"],\"seed\":3}",
                   s.id);
    json_decref(daemon_call(s.first, "session/attach", json_pack("{s:s}", "id", s.id)));
    json_int_t at = 0;
    static const char *const states[] = {"prefill", "generating", "tool"};
    for (int i = 0; i < 3; i++) {
        json_t *p = json_pack("{s:s, s:[{s:s, s:s}]}", "id", s.id, "content", "type", "text",
                              "text", "go on");
        if (i == 2)
            json_object_set_new(p, "forced", json_pack("[{s:s}]", "text", call));
        s.state[0] = '\0';
        json_decref(daemon_call(s.first, "session/prompt", p));
        wait_state(&s, states[i]);
        json_t *said = daemon_call(s.second, "session/cancel", json_pack("{s:s}", "id", s.id));
        json_decref(said);
        json_t *cut = daemon_wait(s.second, s.id);
        assert_string_equal(text_of(cut, "state"), "idle");
        assert_int_equal(ledger_of(cut, "recomputed"), 0);
        assert_int_equal(ledger_of(cut, "relost"), 0);
        assert_int_equal(ledger_of(cut, "resident"), at);
        at = computed(cut);
        json_decref(cut);
    }
    json_t *v = daemon_call(s.second, "session/verify", json_pack("{s:s}", "id", s.id));
    if (!json_is_true(json_object_get(v, "equal")))
        fail_msg("verify: %s", json_dumps(v, 0));
    json_decref(v);
    stage_close(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_antirez_ds4_333_in_prefill),
        cmocka_unit_test(test_claude_code_21726_openclaw_84430_in_thinking),
        cmocka_unit_test(test_llama_cpp_24496_while_the_model_stalls),
        cmocka_unit_test(test_tool),
        cmocka_unit_test(test_requires_action),
        cmocka_unit_test(test_queued),
        cmocka_unit_test(test_colibri_956_before_the_first_frame),
        cmocka_unit_test(test_after_sigkill),
        cmocka_unit_test(test_compaction),
        cmocka_unit_test(test_any_moment),
        cmocka_unit_test(test_llama_cpp_20_on_a_checkpoint),
    };
    return !!cmocka_run_group_tests(tests, NULL, NULL);
}
