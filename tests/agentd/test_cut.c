/* Rewind and compaction: the session goes on from another place, everything it had stays
 * reachable, and what the store says survives SIGKILL. */
#include "tests/support/test.h"

#include "agentd/verbs.h"
#include "tests/support/agentctl.h"
#include "tests/support/daemon.h"

#define EOS "<｜end▁of▁sentence｜>"
#define SAY(text) "{\"text\":\"ok</think>" text EOS "\"}\n"
#define CALL(command)                                                                          \
    "{\"text\":\"ok</think>\\n\\n<｜DSML｜ calls>\\n<｜DSML｜ invoke name=\\\"run\\\">\\n" \
    "<｜DSML｜ parameter name=\\\"command\\\" string=\\\"true\\\">" command                    \
    "</｜DSML｜ parameter>\\n</｜DSML｜ invoke>\\n</｜DSML｜ calls>" EOS "\"}\n"

static const char AUTO_RUN[] = "{\"approve\":\"auto\",\"tools\":[\"run\"]}";

/* A turn; the last event of the session then. */
static json_int_t turn(struct client *c, const char *id, const char *say, const char *answer)
{
    daemon_prompt(c, id, say);
    json_auto_t *w = daemon_wait(c, id);
    assert_string_equal(text_of(w, "reason"), "end");
    assert_string_equal(text_of(w, "text"), answer);
    json_auto_t *s = daemon_call(c, "session/get", json_pack("{s:s}", "id", id));
    return int_of(s, "lastSeq");
}

static json_t *get(struct client *c, const char *id)
{
    return daemon_call(c, "session/get", json_pack("{s:s}", "id", id));
}

struct walk {
    json_int_t last;
    bool live, cut;
    char users[512], notes[512];
};

static void on_notify(void *user, const char *method, const json_t *params)
{
    struct walk *w = user;
    const json_t *item = json_object_get(params, "item");
    w->live = w->live || !strcmp(method, "session/live");
    w->cut = w->cut || !strcmp(method, "session/cut");
    if (strcmp(method, "session/event") != 0)
        return;
    if (!w->cut)
        assert_int_equal(int_of(params, "seq"), w->last + 1);
    w->last = int_of(params, "seq");
    char *to = !strcmp(text_of(item, "kind"), "user")   ? w->users
               : !strcmp(text_of(item, "kind"), "note") ? w->notes
                                                        : NULL;
    if (!to)
        return;
    size_t n = strlen(to);
    snprintf(to + n, sizeof w->users - n, "%.100s|", text_of(item, "text"));
}

/* Every event from the first to the newest, without a gap. */
static void walk(const struct daemon_fixture *d, const char *id, struct walk *w)
{
    *w = (struct walk){0};
    struct client *c = daemon_connect(d, on_notify, w);
    json_decref(
        daemon_call(c, "session/attach", json_pack("{s:s, s:i}", "id", id, "fromSeq", 0)));
    while (!w->live)
        assert_int_equal(client_poll(c, 5000, NULL), OK);
    client_free(c);
}

static void check_verify(struct client *c, const char *id)
{
    json_auto_t *v = daemon_call(c, "session/verify", json_pack("{s:s}", "id", id));
    assert_true(json_is_true(json_object_get(v, "equal")));
}

/* ---- rewind ----------------------------------------------------------------------- */

static void test_rewind_goes_on_and_keeps_the_rest(void **state)
{
    (void)state;
    struct daemon_fixture d;
    struct walk w, reader = {0};
    char id[27];
    daemon_make(&d, SAY("one") SAY("two") SAY("other"));
    daemon_start(&d, NULL);
    struct client *c = daemon_connect(&d, NULL, NULL);
    struct client *watching = daemon_connect(&d, on_notify, &reader);
    daemon_session(&d, c, AUTO_RUN, id);
    json_decref(daemon_call(watching, "session/attach",
                            json_pack("{s:s, s:i}", "id", id, "fromSeq", 0)));
    json_int_t first = turn(c, id, "first", "one");
    json_auto_t *then = get(c, id);
    json_int_t second = turn(c, id, "second", "two");
    json_auto_t *r =
        daemon_call(c, "session/rewind", json_pack("{s:s, s:I}", "id", id, "toSeq", first));
    const char *kept = text_of(json_object_get(r, "kept"), "id");
    assert_int_equal(int_of(r, "seq"), first);
    assert_int_equal(int_of(r, "tokens"), int_of(then, "tokens"));
    /* Only what is new is computed. */
    daemon_prompt(c, id, "third");
    json_auto_t *answer = daemon_wait(c, id);
    const json_t *ledger = json_object_get(answer, "ledger");
    assert_int_equal(int_of(ledger, "restored"), int_of(then, "tokens"));
    assert_int_equal(int_of(ledger, "recomputed"), 0);
    walk(&d, id, &w);
    assert_string_equal(w.users, "first|third|");
    walk(&d, kept, &w);
    assert_string_equal(w.users, "first|second|");
    assert_int_equal(w.last, second);
    check_verify(c, id);
    check_verify(c, kept);
    /* A reader that was ahead was told, and has the events that follow. */
    while (!strstr(reader.users, "third"))
        assert_int_equal(client_poll(watching, 5000, NULL), OK);
    assert_true(reader.cut);
    /* And after a kill it is the same. */
    daemon_kill(&d);
    client_free(c);
    client_free(watching);
    daemon_start(&d, NULL);
    c = daemon_connect(&d, NULL, NULL);
    walk(&d, id, &w);
    assert_string_equal(w.users, "first|third|");
    check_verify(c, kept);
    client_free(c);
    daemon_remove(&d);
}

static void test_ds4_1036_393_rewind_to_nothing_and_into_a_turn(void **state)
{
    (void)state;
    struct daemon_fixture d;
    struct walk w;
    char id[27];
    daemon_make(&d, CALL("echo x") SAY("one") SAY("again"));
    daemon_start(&d, NULL);
    struct client *c = daemon_connect(&d, NULL, NULL);
    daemon_session(&d, c, AUTO_RUN, id);
    json_int_t last = turn(c, id, "first", "one");
    assert_int_equal(daemon_refused(c, "session/rewind",
                                    json_pack("{s:s, s:I}", "id", id, "toSeq", last + 1)),
                     -32010);
    /* Into the turn: wherever it is, the session answers its next prompt. */
    for (json_int_t seq = last - 1; seq >= 0; seq--) {
        json_decref(
            daemon_call(c, "session/rewind", json_pack("{s:s, s:I}", "id", id, "toSeq", seq)));
        daemon_prompt(c, id, "next");
        json_auto_t *answer = daemon_wait(c, id);
        assert_string_equal(text_of(answer, "state"), "idle");
        assert_string_not_equal(text_of(answer, "reason"), "failed");
        check_verify(c, id);
    }
    walk(&d, id, &w);
    assert_string_equal(w.users, "next|");
    client_free(c);
    daemon_remove(&d);
}

/* ---- compaction ------------------------------------------------------------------- */

#define LONG "0123456789 0123456789 0123456789 0123456789 0123456789 0123456789 0123456789"

/* anthropics/claude-code #92849: compact twice, then walk. #40027: without what was kept. */
static void test_claude_code_92849_40027_compact_twice_then_walk(void **state)
{
    (void)state;
    struct daemon_fixture d;
    struct walk w;
    char id[27];
    /* The script begins anew with the tape: its lines are the runs of a sequence. */
    daemon_make(&d, SAY(LONG) SAY("sum"));
    daemon_start(&d, NULL);
    struct client *c = daemon_connect(&d, NULL, NULL);
    daemon_session(&d, c, AUTO_RUN, id);
    json_int_t first = turn(c, id, "first", LONG);
    json_auto_t *before = get(c, id);
    for (int i = 0; i < 2; i++) {
        json_auto_t *r = daemon_call(c, "session/compact", json_pack("{s:s}", "id", id));
        json_auto_t *done =
            daemon_call(c, "session/wait",
                        json_pack("{s:s, s:s}", "id", id, "turnId", text_of(r, "turnId")));
        assert_string_equal(text_of(done, "reason"), "end");
        assert_string_equal(text_of(done, "text"), "sum");
        json_auto_t *now = get(c, id);
        assert_int_equal(int_of(now, "tokens"), 0);
        if (i == 0)
            (void)turn(c, id, "second", LONG);
    }
    (void)turn(c, id, "third", LONG);
    json_auto_t *after = get(c, id);
    assert_true(int_of(after, "tokens") < int_of(before, "tokens") + 200);
    walk(&d, id, &w);
    assert_string_equal(w.users, "first|second|third|");
    assert_non_null(strstr(w.notes, "compacted: "));
    check_verify(c, id);
    /* A place from before is still there to fork from. */
    json_auto_t *fork =
        daemon_call(c, "session/fork", json_pack("{s:s, s:I}", "id", id, "atSeq", first));
    json_auto_t *old = get(c, text_of(fork, "id"));
    assert_int_equal(int_of(old, "tokens"), int_of(before, "tokens"));
    check_verify(c, text_of(fork, "id"));
    /* What was kept is deleted, and the daemon killed: the session goes on. */
    json_auto_t *list = daemon_call(c, "session/list", json_object());
    const json_t *s;
    size_t i;
    json_array_foreach(json_object_get(list, "sessions"), i, s)
        if (strcmp(text_of(s, "id"), id) != 0)
            json_decref(
                daemon_call(c, "session/delete", json_pack("{s:s}", "id", text_of(s, "id"))));
    daemon_kill(&d);
    client_free(c);
    daemon_start(&d, NULL);
    c = daemon_connect(&d, NULL, NULL);
    walk(&d, id, &w);
    assert_string_equal(w.users, "first|second|third|");
    check_verify(c, id);
    assert_int_equal(
        daemon_refused(c, "session/fork", json_pack("{s:s, s:I}", "id", id, "atSeq", first)),
        -32010);
    client_free(c);
    daemon_remove(&d);
}

/* openclaw/openclaw #113701: a history of tool results alone shrinks as well. */
static void test_openclaw_113701_only_tool_results(void **state)
{
    (void)state;
    struct daemon_fixture d;
    char id[27];
    daemon_make(&d, CALL("seq 1 200") CALL("seq 1 201") SAY("x") SAY("numbers"));
    daemon_start(&d, NULL);
    struct client *c = daemon_connect(&d, NULL, NULL);
    daemon_session(&d, c, AUTO_RUN, id);
    (void)turn(c, id, "go", "x");
    json_auto_t *r = daemon_call(c, "session/compact", json_pack("{s:s}", "id", id));
    json_auto_t *done = daemon_wait(c, id);
    assert_string_equal(text_of(done, "text"), "numbers");
    json_auto_t *now = get(c, id);
    assert_int_equal(int_of(now, "tokens"), 0);
    client_free(c);
    daemon_remove(&d);
}

/* A summary that is no summary: the session is as it was, and says so. */
static void test_summary_must_be_smaller(void **state)
{
    (void)state;
    struct daemon_fixture d;
    char id[27];
    daemon_make(&d, SAY("a") SAY(LONG LONG LONG LONG LONG LONG LONG LONG LONG LONG) SAY("b"));
    daemon_start(&d, NULL);
    struct client *c = daemon_connect(&d, NULL, NULL);
    daemon_session(&d, c, "{\"approve\":\"auto\",\"tools\":[]}", id);
    assert_int_equal(daemon_refused(c, "session/compact", json_pack("{s:s}", "id", id)),
                     -32011);
    (void)turn(c, id, "go", "a");
    json_auto_t *before = get(c, id);
    json_decref(daemon_call(c, "session/compact", json_pack("{s:s}", "id", id)));
    json_decref(daemon_wait(c, id));
    json_auto_t *now = get(c, id);
    assert_true(int_of(now, "tokens") > int_of(before, "tokens"));
    (void)turn(c, id, "on", "b");
    client_free(c);
    daemon_remove(&d);
}

/* CommandCodeAI/command-code #891: room for the answer is reserved before it is decided that a
 * prompt fits. The scripted engine has room for 2^20 tokens, one a byte. */
static void test_command_code_891_room_for_the_answer_is_reserved(void **state)
{
    (void)state;
    struct daemon_fixture d;
    struct walk w;
    char id[27];
    char *long_text = malloc(700001);
    assert_non_null(long_text);
    memset(long_text, 'x', 700000);
    long_text[700000] = '\0';
    daemon_make(&d, SAY("one") SAY("sum"));
    daemon_start(&d, NULL);
    struct client *c = daemon_connect(&d, NULL, NULL);
    daemon_session(&d, c, "{\"tools\":[],\"maxTokens\":200000}", id);
    (void)turn(c, id, long_text, "one");
    json_auto_t *before = get(c, id);
    assert_true(int_of(before, "tokens") > 700000);
    daemon_prompt(c, id, long_text); /* 1.4 million with the first one */
    for (;;) {
        json_auto_t *done = daemon_wait(c, id);
        json_auto_t *now = get(c, id);
        assert_string_equal(text_of(done, "reason"), "end");
        if (!strcmp(text_of(now, "state"), "idle") && !json_object_get(now, "queued"))
            break;
    }
    json_auto_t *after = get(c, id);
    assert_true(int_of(after, "tokens") > 700000 && int_of(after, "tokens") < 701000);
    walk(&d, id, &w);
    assert_non_null(strstr(w.notes, "compacted: 700"));
    free(long_text);
    client_free(c);
    daemon_remove(&d);
}

/* ---- the command line ------------------------------------------------------------- */

static void test_agentctl(void **state)
{
    (void)state;
    struct daemon_fixture d;
    daemon_make(&d, SAY(LONG) SAY("two") SAY("short") SAY("more"));
    daemon_start(&d, NULL);
    setenv("AGENTD_SOCKET", d.socket, 1);
    assert_int_equal(AGENTCTL("run", "-n", "a", "-C", d.work, "--tools", "", "hi")->code,
                     EXIT_DONE);
    assert_int_equal(AGENTCTL("send", "a", "hi")->code, EXIT_DONE);
    assert_int_equal(AGENTCTL("rewind", "a", "7")->code, EXIT_USAGE);
    assert_int_equal(AGENTCTL("rewind", "a", "~3")->code, EXIT_NOTFOUND);
    const struct agentctl_ran *r = AGENTCTL("rewind", "a", "~1");
    assert_int_equal(r->code, EXIT_DONE);
    assert_has(r->out, "kept as a.1");
    r = AGENTCTL("compact", "a");
    assert_int_equal(r->code, EXIT_DONE);
    assert_has(r->out, "tokens are now this:");
    r = AGENTCTL("log", "--graph");
    assert_has(r->out, "* a  0 tokens");
    assert_has(r->out, "|\\* a.1");
    assert_has(r->out, "|\\* a.2");
    assert_int_equal(AGENTCTL("rewind", "a", "~2")->code, EXIT_DONE);
    daemon_remove(&d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rewind_goes_on_and_keeps_the_rest),
        cmocka_unit_test(test_ds4_1036_393_rewind_to_nothing_and_into_a_turn),
        cmocka_unit_test(test_claude_code_92849_40027_compact_twice_then_walk),
        cmocka_unit_test(test_openclaw_113701_only_tool_results),
        cmocka_unit_test(test_summary_must_be_smaller),
        cmocka_unit_test(test_command_code_891_room_for_the_answer_is_reserved),
        cmocka_unit_test(test_agentctl),
    };
    return !!cmocka_run_group_tests(tests, NULL, NULL);
}
