/* Compaction in the middle of a turn: results that do not fit come behind a summary, once, and
 * the tool loop goes on; at every barrier of it the daemon is killed. What the model says is
 * forced: a run that makes a call, the summary, the next runs. The context is of 8,192 tokens,
 * one a byte. */
#include "tests/support/test.h"

#include <stdbool.h>
#include <time.h>

#include "agentd/verbs.h"
#include "sessions/session.h"
#include "sessions/store.h"
#include "sessions/tape.h"
#include "tests/support/daemon.h"

#define CALL(command)                                                                            \
    "ok</think>\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"run\">\n<｜DSML｜ parameter " \
    "name=\"command\" string=\"true\">" command                                                  \
    "</｜DSML｜ parameter>\n</｜DSML｜ invoke>\n</｜DSML｜ calls>"
/* One line in a file for each time that its body runs, and so many bytes of one letter. */
#define WRITE(n, letter)                                                                       \
    CALL("echo x >> " letter "; head -c " n " /dev/zero | tr '\\0' " letter)
#define SAY(text) "ok</think>" text

static const char AUTO_RUN[] = "{\"approve\":\"auto\",\"tools\":[\"run\"]}";

static void make(struct daemon_fixture *d, const char *context)
{
    daemon_make(d, "{\"text\":\"unused\"}\n");
    d->extra[0] = "--context";
    d->extra[1] = context;
}

static json_t *forced_prompt(const char *id, const char *message, const char *const *runs)
{
    json_t *forced = json_array();
    for (; *runs; runs++)
        json_array_append_new(forced, json_pack("{s:s}", "text", *runs));
    return json_pack("{s:s, s:s, s:[{s:s, s:s}], s:o}", "id", id, "clientMessageId", message,
                     "content", "type", "text", "text", "go", "forced", forced);
}

static void prompt(struct client *c, const char *id, const char *message,
                   const char *const *runs)
{
    json_decref(daemon_call(c, "session/prompt", forced_prompt(id, message, runs)));
}

/* ---- what there is on the tape, and in the log ------------------------------------ */

/* How many items of a kind have this in their text; and that seqs have no gap. */
static int count_items(const json_t *list, const char *kind, const char *part)
{
    const json_t *ev;
    size_t i;
    int n = 0;
    json_array_foreach(list, i, ev) {
        const json_t *item = json_object_get(ev, "item");
        assert_int_equal(int_of(ev, "seq"), i + 1);
        n += !strcmp(text_of(item, "kind"), kind) && strstr(text_of(item, "text"), part);
    }
    return n;
}

/* How often the model has read this, as bytes. */
static int count_on_tape(struct store *st, const char *id, const char *text)
{
    AUTO(tape) struct tape t = {0};
    struct error e;
    size_t n = strlen(text);
    int found = 0;
    assert_ok(tape_load(st, id, &t, &e), &e);
    for (uint64_t i = 0; i + n <= t.view.n_ids; i++) {
        size_t k = 0;
        while (k < n && t.ids[i + k] == (uint8_t)text[k])
            k++;
        found += k == n;
    }
    return found;
}

static void letters(char *out, char letter, size_t n)
{
    memset(out, letter, n);
    out[n] = '\0';
}

static void check_balanced(const json_t *answer)
{
    const json_t *l = json_object_get(answer, "ledger");
    assert_int_equal(int_of(l, "prompt_tokens"),
                     int_of(l, "resident") + int_of(l, "restored") + int_of(l, "recomputed") +
                         int_of(l, "relost") + int_of(l, "prefilled"));
    assert_int_equal(int_of(l, "relost"), 0);
}

static void check_verified(struct client *c, const char *id)
{
    /* The opening is that of the tape before: its rows are restored, and no digest is. */
    assert_in_range(daemon_verify(c, id), 0, 1);
}

static void check_end(const struct daemon_fixture *d, struct client *c, const char *id,
                      const char *reason, const char *text)
{
    json_auto_t *answer = daemon_wait(c, id);
    if (strcmp(text_of(answer, "reason"), reason) || strcmp(text_of(answer, "text"), text)) {
        daemon_show_log(d);
        json_auto_t *all = daemon_events(d, id);
        json_dumpf(all, stderr, JSON_INDENT(1));
        fail_msg("%s", json_dumps(answer, 0));
    }
    assert_string_equal(text_of(answer, "text"), text);
    check_balanced(answer);
}

/* ---- a turn that is compacted ------------------------------------------------------ */

static const char *const runs[] = {
    WRITE("2000", "a"), WRITE("2000", "b"), SAY("a and b are done"),
    WRITE("1000", "c"), SAY("done"),        NULL};

/* The state after `runs`, wherever the daemon was killed meanwhile: the result of b was held
 * back once, is there once behind the summary, and so is the run that asked for it. */
static void check_session(struct daemon_fixture *d, struct client *c, const char *id)
{
    char kept[27] = "", part[600];
    json_auto_t *all = daemon_events(d, id);
    json_auto_t *list = daemon_call(c, "session/list", json_object());
    const json_t *s;
    size_t i;
    json_array_foreach(json_object_get(list, "sessions"), i, s)
        if (strcmp(text_of(s, "id"), id) != 0)
            snprintf(kept, sizeof kept, "%s", text_of(s, "id"));
    assert_int_equal(json_array_size(json_object_get(list, "sessions")), 2);
    assert_int_equal(count_items(all, "note", "compacted: "), 1);
    assert_int_equal(count_items(all, "note", "Write a summary"), 1);
    assert_int_equal(count_items(all, "note", "a and b are done"), 1);
    assert_int_equal(count_items(all, "note", "were cut"), 0);
    assert_int_equal(count_items(all, "tool_result", ""), 3);
    assert_int_equal(count_items(all, "assistant", "done"), 1);
    check_verified(c, id);
    check_verified(c, kept);
    for (i = 0; i < 3; i++)
        assert_int_equal(daemon_lines(d, (const char *[]){"a", "b", "c"}[i]), 1);
    client_free(c);
    assert_int_equal(daemon_stop(d), 0);
    struct store *st = daemon_open_store(d);
    letters(part, 'a', 500);
    assert_int_equal(count_on_tape(st, id, part), 0);
    assert_int_equal(count_on_tape(st, kept, part), 2000 - 500 + 1);
    letters(part, 'b', 500);
    assert_int_equal(count_on_tape(st, id, part), 2000 - 500 + 1);
    assert_int_equal(count_on_tape(st, kept, part), 0);
    assert_int_equal(count_on_tape(st, kept, "[held back"), 1);
    assert_int_equal(count_on_tape(st, id, "[held back"), 0);
    assert_int_equal(count_on_tape(st, id, "echo x >> b"), 1);
    assert_int_equal(count_on_tape(st, id, "echo x >> a"), 0);
    assert_int_equal(count_on_tape(st, id, "a and b are done"), 1);
    letters(part, 'c', 500);
    assert_int_equal(count_on_tape(st, id, part), 1000 - 500 + 1);
    store_close(st);
}

static void test_the_loop_goes_on_behind_a_summary(void **state)
{
    (void)state;
    struct daemon_fixture d;
    char id[27];
    make(&d, "8192");
    daemon_start(&d, NULL);
    struct client *c = daemon_connect(&d, NULL, NULL);
    daemon_session(&d, c, AUTO_RUN, id);
    prompt(c, id, "m", runs);
    check_end(&d, c, id, "end", "done");
    check_session(&d, c, id);
    /* And it is a session like any other. */
    daemon_start(&d, NULL);
    c = daemon_connect(&d, NULL, NULL);
    prompt(c, id, "n", (const char *const[]){SAY("more"), NULL});
    check_end(&d, c, id, "end", "more");
    client_free(c);
    daemon_remove(&d);
}

/* ---- killed ------------------------------------------------------------------------ */

/* A call was cut: its result says so, is short, and everything fits without a summary. */
static bool has_interrupted(const struct daemon_fixture *d, const char *id)
{
    json_auto_t *all = daemon_events(d, id);
    return count_items(all, "tool_result", "[interrupted") > 0;
}

static void check_interrupted(struct daemon_fixture *d, struct client *c, const char *id)
{
    json_auto_t *answer = daemon_wait(c, id);
    assert_string_equal(text_of(answer, "reason"), "end");
    check_balanced(answer);
    check_verified(c, id);
    for (int i = 0; i < 3; i++)
        assert_in_range(daemon_lines(d, (const char *[]){"a", "b", "c"}[i]), 0, 1);
    client_free(c);
}

static bool crash(const char *fault)
{
    struct daemon_fixture d;
    char id[27];
    fprintf(stderr, "%s\n", fault);
    make(&d, "8192");
    daemon_start(&d, NULL);
    struct client *c = daemon_connect(&d, NULL, NULL);
    daemon_session(&d, c, AUTO_RUN, id);
    client_free(c);
    daemon_stop(&d);
    daemon_start(&d, fault);
    c = daemon_connect(&d, NULL, NULL);
    (void)!client_call(c, "session/prompt", forced_prompt(id, "m", runs), NULL, NULL);
    bool struck =
        client_call(c, "session/wait", json_pack("{s:s}", "id", id), NULL, NULL) != OK;
    client_free(c);
    if (struck)
        daemon_wait_death(&d);
    else
        daemon_kill(&d);
    daemon_start(&d, NULL);
    c = daemon_connect(&d, NULL, NULL);
    prompt(c, id, "m", runs); /* the first receipt, if there was one */
    json_decref(daemon_wait(c, id));
    if (has_interrupted(&d, id)) {
        check_interrupted(&d, c, id);
    } else {
        check_end(&d, c, id, "end", "done");
        check_session(&d, c, id);
    }
    daemon_remove(&d);
    return struck;
}

static const char *const points[] = {"turn.compact",   "turn.summary", "cut.begin",
                                     "cut.done",       "turn.results", "turn.commit",
                                     "turn.committed", "turn.step",    "turn.state"};

static void test_killed_at_each_barrier(void **state)
{
    (void)state;
    const int most = getenv("AGENTD_SLOW") ? 100 : 8;
    char fault[64];
    for (size_t i = 0; i < sizeof points / sizeof *points; i++)
        for (int n = 1; n <= most; n++) {
            /* What comes before the compaction is the matter of test_recovery. */
            if (!getenv("AGENTD_SLOW") && i >= 5 && (n < 5 || n % 2 || i > 6))
                continue;
            snprintf(fault, sizeof fault, "crash:%s:%d", points[i], n);
            if (!crash(fault)) {
                assert_true(n > 1); /* every point is reached */
                break;
            }
        }
}

/* Between the barriers as well: at any fault point of the program. */
static void test_killed_anywhere(void **state)
{
    (void)state;
    const int step = getenv("AGENTD_SLOW") ? 7 : 521;
    int struck = 0;
    char fault[64];
    for (int n = 250; n < 10000; n += step) {
        snprintf(fault, sizeof fault, "crash:*:%d", n);
        if (!crash(fault))
            break;
        struck++;
    }
    assert_true(struck > 0);
}

/* ---- what is no summary ------------------------------------------------------------ */

static const char *result_of(const json_t *list, const char *suffix)
{
    const json_t *ev;
    const char *found = "";
    size_t i;
    json_array_foreach(list, i, ev) {
        const json_t *item = json_object_get(ev, "item");
        const char *id = text_of(item, "id");
        size_t n = strlen(id), m = strlen(suffix);
        if (n > m && !strcmp(id + n - m, suffix))
            found = text_of(item, "text");
    }
    return found;
}

static int count_errors(const json_t *list, const char *part)
{
    const json_t *ev;
    size_t i;
    int n = 0;
    json_array_foreach(list, i, ev)
        n += strstr(text_of(json_object_get(ev, "error"), "message"), part) != NULL;
    return n;
}

/* The second result is cut then, the turn goes on to its end, and no second summary is asked
 * for before the same step. */
static void refused_summary(const char *summary, const char *says)
{
    struct daemon_fixture d;
    char id[27], part[600];
    const char *const all_runs[] = {WRITE("2000", "a"), WRITE("3000", "b"), summary,
                                    SAY("done"), NULL};
    make(&d, "8192");
    daemon_start(&d, NULL);
    struct client *c = daemon_connect(&d, NULL, NULL);
    daemon_session(&d, c, AUTO_RUN, id);
    prompt(c, id, "m", all_runs);
    check_end(&d, c, id, "end", "done");
    json_auto_t *all = daemon_events(&d, id);
    assert_int_equal(count_errors(all, says), 1);
    assert_int_equal(count_items(all, "note", "Write a summary"), 1);
    assert_int_equal(count_items(all, "note", "compacted: "), 0);
    assert_int_equal(count_items(all, "note", "results were cut"), 1);
    assert_int_equal(strlen(result_of(all, ".1.c0.r")), 3000); /* in the log it is whole */
    check_verified(c, id);
    client_free(c);
    assert_int_equal(daemon_stop(&d), 0);
    struct store *st = daemon_open_store(&d);
    assert_int_equal(count_on_tape(st, id, "bytes left out: the context has no room"), 1);
    letters(part, 'b', 400);
    assert_true(count_on_tape(st, id, part) > 0); /* as much of it as there is room for */
    assert_int_equal(daemon_lines(&d, "b"), 1);
    store_close(st);
    daemon_remove(&d);
}

static void test_a_summary_that_is_none_leads_to_cut_results(void **state)
{
    (void)state;
    refused_summary(SAY(""), "the summary is empty");
    refused_summary(WRITE("1", "x"), "called a tool instead");
    refused_summary("only thinking", "the summary is empty");
}

/* One that takes more room than what it stands for leaves none for results. */
static void test_a_summary_must_be_shorter(void **state)
{
    (void)state;
    struct daemon_fixture d;
    char id[27], longer[4400];
    letters(longer, 's', sizeof longer - 1);
    memcpy(longer, "ok</think>", 10);
    make(&d, "8192");
    daemon_start(&d, NULL);
    struct client *c = daemon_connect(&d, NULL, NULL);
    daemon_session(&d, c, AUTO_RUN, id);
    prompt(c, id, "m",
           (const char *const[]){WRITE("2000", "a"), WRITE("3000", "b"), longer, SAY("done"),
                                 NULL});
    check_end(&d, c, id, "length", "");
    json_auto_t *all = daemon_events(&d, id);
    assert_int_equal(count_errors(all, "longer than what it stands for"), 1);
    assert_int_equal(count_items(all, "note", "compacted: "), 0);
    check_verified(c, id);
    client_free(c);
    daemon_remove(&d);
}

static const char CLIENT_TOOL[] =
    "{\"tools\":[],\"clientTools\":[{\"name\":\"big\",\"description\":\"\",\"parameters\":{"
    "\"type\":\"object\"}}]}";
#define CALL_CLIENT                                                                            \
    "ok</think>\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"big\">\n</｜DSML｜ invoke>" \
    "\n</｜DSML｜ calls>"
#define ROOM_LEFT 300

static void answer_call(struct client *c, const char *id, const json_t *waits, const char *text)
{
    char call[64];
    snprintf(call, sizeof call, "%s.0.c0", text_of(waits, "turnId"));
    json_decref(
        daemon_call(c, "tool/result",
                    json_pack("{s:s, s:s, s:s}", "id", id, "callId", call, "content", text)));
}

/* One result larger than the context: cut without a summary, for there is nothing to gain. */
static void test_a_result_larger_than_the_context_is_cut(void **state)
{
    (void)state;
    struct daemon_fixture d;
    char id[27];
    make(&d, "8192");
    daemon_start(&d, NULL);
    struct client *c = daemon_connect(&d, NULL, NULL);
    daemon_session(&d, c, CLIENT_TOOL, id);
    prompt(c, id, "m", (const char *const[]){CALL_CLIENT, SAY("done"), NULL});
    json_auto_t *waits = daemon_wait(c, id);
    assert_string_equal(text_of(waits, "reason"), "requires_action");
    char *text = malloc(4000001);
    assert_non_null(text);
    for (int i = 0; i < 1000000; i++)
        memcpy(text + 4 * i, "\xf0\x9f\x8c\xb1", 4);
    text[4000000] = '\0';
    answer_call(c, id, waits, text);
    check_end(&d, c, id, "end", "done");
    json_auto_t *all = daemon_events(&d, id);
    assert_int_equal(count_items(all, "note", "Write a summary"), 0);
    assert_int_equal(count_items(all, "note", "results were cut"), 1);
    json_auto_t *now = daemon_call(c, "session/get", json_pack("{s:s}", "id", id));
    assert_in_range(int_of(now, "tokens"), 4096, 6200); /* what there is room for is used */
    check_verified(c, id);
    free(text);
    client_free(c);
    daemon_remove(&d);
}

/* Not even the line that says what is left out has room, nor the request for a summary: the
 * turn ends, and says why. */
static void test_without_any_room_the_turn_ends_with_length(void **state)
{
    (void)state;
    struct daemon_fixture d;
    char id[27], text[700];
    make(&d, "2048");
    daemon_start(&d, NULL);
    struct client *c = daemon_connect(&d, NULL, NULL);
    daemon_session(&d, c, CLIENT_TOOL, id);
    json_t *params = forced_prompt(id, "m", (const char *const[]){CALL_CLIENT, NULL});
    letters(text, 't', ROOM_LEFT);
    json_object_set_new(params, "content",
                        json_pack("[{s:s, s:s}]", "type", "text", "text", text));
    json_decref(daemon_call(c, "session/prompt", params));
    json_auto_t *waits = daemon_wait(c, id);
    assert_string_equal(text_of(waits, "reason"), "requires_action");
    answer_call(c, id, waits, "x");
    check_end(&d, c, id, "length", "");
    json_auto_t *all = daemon_events(&d, id);
    assert_int_equal(count_errors(all, "context: "), 1);
    assert_int_equal(count_items(all, "tool_result", "x"), 1);
    check_verified(c, id);
    client_free(c);
    daemon_remove(&d);
}

/* Every step overflows: a summary before each, and the turn gets to its end. */
static void test_many_summaries_in_one_turn(void **state)
{
    (void)state;
    struct daemon_fixture d;
    char id[27], sums[8][64];
    const char *forced[30];
    int n = 0;
    forced[n++] = WRITE("2000", "a");
    for (int i = 0; i < 8; i++) {
        snprintf(sums[i], sizeof sums[i], SAY("summary %d"), i);
        forced[n++] = i % 2 ? WRITE("2000", "a") : WRITE("2000", "b");
        forced[n++] = sums[i];
    }
    forced[n++] = SAY("done");
    forced[n] = NULL;
    make(&d, "8192");
    daemon_start(&d, NULL);
    struct client *c = daemon_connect(&d, NULL, NULL);
    daemon_session(&d, c, AUTO_RUN, id);
    prompt(c, id, "m", forced);
    check_end(&d, c, id, "end", "done");
    json_auto_t *all = daemon_events(&d, id);
    assert_int_equal(count_items(all, "note", "compacted: "), 8);
    assert_int_equal(count_items(all, "tool_result", ""), 9);
    assert_int_equal(count_items(all, "note", "results were cut"), 0);
    assert_int_equal(daemon_lines(&d, "a"), 5);
    assert_int_equal(daemon_lines(&d, "b"), 4);
    check_verified(c, id);
    client_free(c);
    daemon_remove(&d);
}

/* A model that forgets with each summary what it has done, and does it again (the script begins
 * anew with the tape): the loop guard counts over summaries, and stops it. */
static void test_forgetful_model_is_stopped(void **state)
{
    (void)state;
    struct daemon_fixture d;
    char id[27];
    daemon_make(&d, "{\"text\":\"ok</think>\\n\\n<｜DSML｜ calls>\\n<｜DSML｜ invoke "
                    "name=\\\"run\\\">\\n<｜DSML｜ parameter name=\\\"command\\\" "
                    "string=\\\"true\\\">head -c 5000 /dev/zero | tr '\\\\0' z</｜DSML｜ "
                    "parameter>\\n</｜DSML｜ invoke>\\n</｜DSML｜ calls>\"}\n"
                    "{\"text\":\"ok</think>sum\"}\n");
    d.extra[0] = "--context";
    d.extra[1] = "8192";
    daemon_start(&d, NULL);
    struct client *c = daemon_connect(&d, NULL, NULL);
    daemon_session(&d, c, AUTO_RUN, id);
    char filler[1500];
    letters(filler, 'f', sizeof filler - 1);
    daemon_prompt(c, id, filler);
    check_end(&d, c, id, "loop", "");
    json_auto_t *all = daemon_events(&d, id);
    assert_true(count_items(all, "note", "compacted: ") >= 1);
    client_free(c);
    daemon_remove(&d);
}

/* ---- while the summary is written --------------------------------------------------- */

static void until_item(struct client *c, json_t *list, const char *kind, const char *part)
{
    while (!count_items(list, kind, part))
        assert_int_equal(client_poll(c, 5000, NULL), OK);
}

static const char slow_script[] =
    "{\"text\":\"ok</think>\\n\\n<｜DSML｜ calls>\\n<｜DSML｜ invoke name=\\\"run\\\">\\n"
    "<｜DSML｜ parameter name=\\\"command\\\" string=\\\"true\\\">echo x >> b; head -c 4000 "
    "/dev/zero | tr '\\\\0' b</｜DSML｜ parameter>\\n</｜DSML｜ invoke>\\n</｜DSML｜ "
    "calls>\"}\n"
    "{\"text\":\"ok</think>sum\",\"prefill_ms\":400,\"token_ms\":20}\n"
    "{\"text\":\"ok</think>after\"}\n";

static void keep_events(void *user, const char *method, const json_t *params)
{
    if (!strcmp(method, "session/event"))
        json_array_append_new(user, json_deep_copy(params));
}

/* Stopped while the summary is asked for (phase 0: its prefill, 1: its run), by two clients at
 * once: idle, and the result that was held back reaches the model with the next prompt, once.
 */
static void stop_in(int phase)
{
    struct daemon_fixture d;
    char id[27], filler[1500];
    daemon_make(&d, slow_script);
    d.extra[0] = "--context";
    d.extra[1] = "8192";
    daemon_start(&d, NULL);
    json_auto_t *seen = json_array();
    struct client *c = daemon_connect(&d, keep_events, seen),
                  *other = daemon_connect(&d, NULL, NULL);
    daemon_session(&d, c, AUTO_RUN, id);
    json_decref(
        daemon_call(c, "session/attach", json_pack("{s:s, s:i}", "id", id, "fromSeq", 0)));
    letters(filler, 'f', sizeof filler - 1);
    daemon_prompt(other, id, filler);
    until_item(c, seen, "note", "Write a summary");
    for (int i = 0; phase == 1 && i < 2000; i++) {
        json_auto_t *s = daemon_call(other, "session/get", json_pack("{s:s}", "id", id));
        if (!strcmp(text_of(s, "state"), "generating"))
            break;
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    json_decref(daemon_call(other, "session/cancel", json_pack("{s:s}", "id", id)));
    (void)!client_call(c, "session/cancel", json_pack("{s:s}", "id", id), NULL, NULL);
    json_auto_t *answer = daemon_wait(other, id);
    assert_string_equal(text_of(answer, "reason"), "cancelled");
    check_balanced(answer);
    daemon_prompt(other, id, "and now?");
    for (;;) { /* the session may be summarised first, as before any prompt */
        json_auto_t *w = daemon_wait(other, id);
        json_auto_t *s = daemon_call(other, "session/get", json_pack("{s:s}", "id", id));
        assert_string_equal(text_of(w, "reason"), "end");
        if (!strcmp(text_of(s, "state"), "idle") && !json_object_get(s, "queued"))
            break;
    }
    check_verified(other, id);
    client_free(c);
    client_free(other);
    assert_int_equal(daemon_stop(&d), 0);
    assert_int_equal(daemon_lines(&d, "b"), 1);
    daemon_remove(&d);
}

static void test_cancelled_in_the_prefill_of_the_request(void **state)
{
    (void)state;
    stop_in(0);
}

static void test_cancelled_in_the_run_of_the_summary(void **state)
{
    (void)state;
    stop_in(1);
}

/* Text that comes while the summary is written follows the results behind it, once; also when
 * the daemon is killed in between. */
static void steered(bool killed)
{
    struct daemon_fixture d;
    char id[27];
    make(&d, "8192");
    daemon_start(&d, killed ? "crash:cut.begin:1" : NULL);
    json_auto_t *seen = json_array();
    struct client *c = daemon_connect(&d, keep_events, seen),
                  *other = daemon_connect(&d, NULL, NULL);
    daemon_session(&d, c, AUTO_RUN, id);
    json_decref(
        daemon_call(c, "session/attach", json_pack("{s:s, s:i}", "id", id, "fromSeq", 0)));
    prompt(other, id, "m",
           (const char *const[]){
               WRITE("2000", "a"), WRITE("2000", "b"),
               SAY("a is done, and b, and this is long enough for somebody to say something"),
               CALL("sleep 1; echo c >> c"), SAY("done"), NULL});
    until_item(c, seen, "note", "Write a summary");
    /* On a busy machine the daemon may be dead before it is asked. */
    bool told = client_call(other, "session/steer",
                            json_pack("{s:s, s:s, s:[{s:s, s:s}]}", "id", id, "clientMessageId",
                                      "s", "content", "type", "text", "text", "STEERED"),
                            NULL, NULL) == OK;
    assert_true(told || killed);
    if (killed) {
        client_free(c);
        client_free(other);
        daemon_wait_death(&d);
        daemon_start(&d, NULL);
        c = daemon_connect(&d, NULL, NULL);
        other = daemon_connect(&d, NULL, NULL);
    }
    check_end(&d, other, id, "end", "done");
    json_auto_t *all = daemon_events(&d, id);
    int said = count_items(all, "user", "STEERED"); /* pending, delivered */
    assert_true(said == 2 || (!told && said == 0));
    client_free(c);
    client_free(other);
    assert_int_equal(daemon_stop(&d), 0);
    struct store *st = daemon_open_store(&d);
    assert_int_equal(count_on_tape(st, id, "STEERED"), said / 2);
    assert_int_equal(count_on_tape(st, id, "echo x >> b"), 1);
    store_close(st);
    daemon_remove(&d);
}

static void test_steered_while_it_is_summarised(void **state)
{
    (void)state;
    steered(false);
    steered(true);
}

/* ---- a model ----------------------------------------------------------------------- */

/* The same on a checkpoint: what was restored, carried over and computed ahead is what a
 * process that never stopped computes, row by row. */
static void test_a_tiny_model(void **state)
{
    (void)state;
    struct daemon_fixture d;
    char id[27];
    make(&d, "3900");
    d.model = "tests/golden/a_tiny/model";
    daemon_start(&d, NULL);
    struct client *c = daemon_connect(&d, NULL, NULL);
    daemon_session(&d, c, AUTO_RUN, id);
    prompt(c, id, "m",
           (const char *const[]){CALL("seq 1 300"), CALL("seq 401 600"),
                                 SAY("the numbers from 1 to 600"), CALL("seq 601 610"),
                                 SAY("done"), NULL});
    check_end(&d, c, id, "end", "done");
    json_auto_t *all = daemon_events(&d, id);
    assert_int_equal(count_items(all, "note", "compacted: "), 1);
    assert_int_equal(count_items(all, "tool_result", "\n600\n"), 1);
    check_verified(c, id);
    /* What the model says by itself goes on from there, and again after a kill. */
    client_free(c);
    daemon_kill(&d);
    daemon_start(&d, NULL);
    c = daemon_connect(&d, NULL, NULL);
    prompt(c, id, "n", (const char *const[]){SAY("more"), NULL});
    check_end(&d, c, id, "end", "more");
    check_verified(c, id);
    client_free(c);
    daemon_remove(&d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_loop_goes_on_behind_a_summary),
        cmocka_unit_test(test_killed_at_each_barrier),
        cmocka_unit_test(test_killed_anywhere),
        cmocka_unit_test(test_a_summary_that_is_none_leads_to_cut_results),
        cmocka_unit_test(test_a_summary_must_be_shorter),
        cmocka_unit_test(test_a_result_larger_than_the_context_is_cut),
        cmocka_unit_test(test_without_any_room_the_turn_ends_with_length),
        cmocka_unit_test(test_many_summaries_in_one_turn),
        cmocka_unit_test(test_forgetful_model_is_stopped),
        cmocka_unit_test(test_cancelled_in_the_prefill_of_the_request),
        cmocka_unit_test(test_cancelled_in_the_run_of_the_summary),
        cmocka_unit_test(test_steered_while_it_is_summarised),
        cmocka_unit_test(test_a_tiny_model),
    };
    return !!cmocka_run_group_tests(tests, NULL, NULL);
}
