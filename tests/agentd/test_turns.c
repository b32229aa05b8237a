/* Turns of a real daemon with the scripted engine: tool loops, limits, cancelling, approvals,
 * readers. Crashes are in test_recovery.c. */
#include "tests/support/test.h"

#include <fcntl.h>
#include <stdbool.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "tests/support/daemon.h"

#define EOS "<｜end▁of▁sentence｜>"
#define SAY(text) "{\"text\":\"ok</think>" text EOS "\"}\n"
#define CALLS(invokes) "\\n\\n<｜DSML｜ calls>\\n" invokes "</｜DSML｜ calls>" EOS
#define INVOKE(name, params)                                                                   \
    "<｜DSML｜ invoke name=\\\"" name "\\\">\\n" params "</｜DSML｜ invoke>\\n"
#define PARAM(name, value)                                                                     \
    "<｜DSML｜ parameter name=\\\"" name "\\\" string=\\\"true\\\">" value                     \
    "</｜DSML｜ parameter>\\n"
#define RUN(command) INVOKE("run", PARAM("command", command))
#define CALL(invokes) "{\"text\":\"ok</think>" CALLS(invokes) "\"}\n"

static const char AUTO_RUN[] = "{\"approve\":\"auto\",\"tools\":[\"run\",\"list_dir\"]}";

/* ---- a reader that keeps what it sees --------------------------------------------- */

struct reader {
    struct client *client;
    json_t *events; /* params of session/event, in order */
    json_t *states; /* names from session/state */
    json_t *others; /* {method, params} of the rest but deltas */
    json_t *deltas; /* itemId -> text put together */
    json_int_t live;
};

static void on_notify(void *user, const char *method, const json_t *params)
{
    struct reader *r = user;
    if (!strcmp(method, "session/event")) {
        json_array_append_new(r->events, json_deep_copy(params));
    } else if (!strcmp(method, "session/state")) {
        json_array_append(r->states, json_object_get(params, "state"));
    } else if (!strcmp(method, "session/live")) {
        r->live = int_of(params, "seq");
    } else if (!strcmp(method, "session/delta")) {
        const char *id = text_of(params, "itemId");
        const char *have = text_of(r->deltas, id), *more = text_of(params, "text");
        assert_int_equal(int_of(params, "offset"), strlen(have));
        char *all = malloc(strlen(have) + strlen(more) + 1);
        memcpy(all, have, strlen(have));
        memcpy(all + strlen(have), more, strlen(more) + 1);
        json_object_set_new(r->deltas, id, json_string(all));
        free(all);
    } else if (strcmp(method, "session/progress") != 0) {
        json_array_append_new(r->others, json_pack("{s:s, s:o}", "method", method, "params",
                                                   json_deep_copy(params)));
    }
}

static void reader_open(struct reader *r, const struct daemon_fixture *d, const char *id,
                        json_int_t from)
{
    *r = (struct reader){.events = json_array(),
                         .states = json_array(),
                         .others = json_array(),
                         .deltas = json_object(),
                         .live = -1};
    r->client = daemon_connect(d, on_notify, r);
    json_decref(daemon_call(r->client, "session/attach",
                            json_pack("{s:s, s:I}", "id", id, "fromSeq", from)));
}

static void reader_close(struct reader *r)
{
    client_free(r->client);
    json_decref(r->events);
    json_decref(r->states);
    json_decref(r->others);
    json_decref(r->deltas);
}

/* Until an event of type state says `state`. */
static void reader_until(struct reader *r, const char *state)
{
    for (int i = 0; i < 4000; i++) {
        size_t k;
        json_t *ev;
        json_array_foreach(r->events, k, ev)
            if (!strcmp(text_of(ev, "state"), state))
                return;
        (void)!client_poll(r->client, 20, NULL);
    }
    fail_msg("no state %s", state);
}

static void reader_until_state(struct reader *r, const char *state)
{
    for (int i = 0; i < 4000; i++) {
        size_t k;
        json_t *s;
        json_array_foreach(r->states, k, s)
            if (!strcmp(json_string_value(s), state))
                return;
        (void)!client_poll(r->client, 20, NULL);
    }
    fail_msg("never in state %s", state);
}

static const json_t *find_item(const struct reader *r, const char *kind, int nth)
{
    size_t k;
    json_t *ev;
    json_array_foreach(r->events, k, ev) {
        const json_t *item = json_object_get(ev, "item");
        if (!strcmp(text_of(item, "kind"), kind) && nth-- == 0)
            return item;
    }
    return NULL;
}

static void check_gapless(const json_t *events, json_int_t first)
{
    size_t k;
    json_t *ev;
    json_array_foreach(events, k, ev)
        assert_int_equal(int_of(ev, "seq"), first + (json_int_t)k);
}

static void check_balanced(const json_t *answer)
{
    const json_t *l = json_object_get(answer, "ledger");
    assert_int_equal(int_of(l, "prompt_tokens"),
                     int_of(l, "resident") + int_of(l, "restored") + int_of(l, "recomputed") +
                         int_of(l, "relost") + int_of(l, "prefilled"));
    assert_int_equal(int_of(l, "relost"), 0);
}

static json_t *wait_reason(struct client *c, const char *id, const char *reason)
{
    json_t *answer = daemon_wait(c, id);
    assert_string_equal(text_of(answer, "state"), "idle");
    assert_string_equal(text_of(answer, "reason"), reason);
    check_balanced(answer);
    return answer;
}

static void write_file(const char *folder, const char *name, const char *text)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "we");
    assert_non_null(f);
    assert_true(fputs(text, f) >= 0);
    assert_int_equal(fclose(f), 0);
}

static bool exists(const char *folder, const char *name)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return access(path, F_OK) == 0;
}

/* ---- the loop --------------------------------------------------------------------- */

static void test_tool_loop_and_two_readers(void **state)
{
    (void)state;
    struct daemon_fixture d;
    struct reader a, b;
    char id[27];
    daemon_make(&d, CALL(INVOKE("list_dir", "") RUN("echo $((6*7))")) SAY("done"));
    write_file(d.work, "note.txt", "hello");
    daemon_start(&d, NULL);
    struct client *c = daemon_connect(&d, NULL, NULL);
    daemon_session(&d, c, AUTO_RUN, id);
    reader_open(&a, &d, id, 0);
    reader_open(&b, &d, id, 0);
    daemon_prompt(c, id, "look");
    json_t *answer = wait_reason(c, id, "end");
    assert_string_equal(text_of(answer, "text"), "done");
    assert_int_equal(int_of(json_object_get(answer, "ledger"), "steps"), 2);
    reader_until(&a, "idle");
    reader_until(&b, "idle");
    check_gapless(a.events, 1);
    assert_true(json_equal(a.events, b.events));
    assert_string_equal(text_of(find_item(&a, "user", 0), "text"), "look");
    assert_string_equal(text_of(find_item(&a, "tool_call", 0), "name"), "list_dir");
    const json_t *listing = NULL, *echo = NULL;
    for (int i = 0; i < 2; i++) {
        const json_t *r = find_item(&a, "tool_result", i);
        if (!strcmp(text_of(r, "name"), "run"))
            echo = r;
        else
            listing = r;
    }
    assert_non_null(strstr(text_of(listing, "text"), "note.txt"));
    assert_string_equal(text_of(echo, "text"), "42\n");
    /* Deltas put together are the item. */
    const json_t *said = find_item(&a, "assistant", 0);
    assert_string_equal(text_of(a.deltas, text_of(said, "id")), text_of(said, "text"));
    /* A reader that comes later sees the same, then the marker. */
    struct reader late;
    reader_open(&late, &d, id, 0);
    while (late.live < 0)
        (void)!client_poll(late.client, 20, NULL);
    assert_true(json_equal(a.events, late.events));
    assert_int_equal(late.live, (json_int_t)json_array_size(a.events));
    json_decref(answer);
    reader_close(&a);
    reader_close(&b);
    reader_close(&late);
    client_free(c);
    assert_int_equal(daemon_stop(&d), 0);
    daemon_remove(&d);
}

static void test_results_for_the_model_not_errors(void **state)
{
    (void)state;
    struct daemon_fixture d;
    struct reader r;
    char id[27];
    daemon_make(&d, CALL(INVOKE("no_such_tool", "") INVOKE("list_dir", PARAM("depth", "many"))
                             RUN("exit 3")) SAY("fine"));
    daemon_start(&d, NULL);
    struct client *c = daemon_connect(&d, NULL, NULL);
    daemon_session(&d, c, AUTO_RUN, id);
    reader_open(&r, &d, id, 0);
    daemon_prompt(c, id, "x");
    json_decref(wait_reason(c, id, "end"));
    reader_until(&r, "idle");
    int seen = 0;
    for (int i = 0; i < 3; i++) {
        const json_t *item = find_item(&r, "tool_result", i);
        assert_non_null(item);
        assert_true(json_is_true(json_object_get(item, "isError")));
        const char *name = text_of(item, "name"), *status = text_of(item, "status");
        if (!strcmp(name, "run"))
            assert_string_equal(status, "failed");
        else
            assert_string_equal(status, "invalid");
        seen++;
    }
    assert_int_equal(seen, 3);
    reader_close(&r);
    client_free(c);
    daemon_remove(&d);
}

static void test_two_turns_compute_only_the_new(void **state)
{
    (void)state;
    struct daemon_fixture d;
    char id[27];
    daemon_make(&d, SAY("one") SAY("two"));
    daemon_start(&d, NULL);
    struct client *c = daemon_connect(&d, NULL, NULL);
    daemon_session(&d, c, AUTO_RUN, id);
    daemon_prompt(c, id, "first");
    json_t *one = wait_reason(c, id, "end");
    daemon_prompt(c, id, "second");
    json_t *two = wait_reason(c, id, "end");
    const json_t *l1 = json_object_get(one, "ledger"), *l2 = json_object_get(two, "ledger");
    assert_string_equal(text_of(two, "text"), "two");
    assert_int_equal(int_of(l2, "resident"),
                     int_of(l1, "prompt_tokens") + int_of(l1, "decoded"));
    assert_int_equal(int_of(l2, "recomputed"), 0);
    assert_true(int_of(l2, "prefilled") < 20);
    json_decref(one);
    json_decref(two);
    client_free(c);
    daemon_remove(&d);
}

/* ---- limits ----------------------------------------------------------------------- */

static void one_turn(const char *script, const char *params, const char *reason,
                     struct reader *keep, struct daemon_fixture *d)
{
    char id[27];
    daemon_make(d, script);
    daemon_start(d, NULL);
    struct client *c = daemon_connect(d, NULL, NULL);
    daemon_session(d, c, params, id);
    reader_open(keep, d, id, 0);
    daemon_prompt(c, id, "go");
    json_decref(wait_reason(c, id, reason));
    reader_until(keep, "idle");
    client_free(c);
}

static void test_token_limit_runs_no_call(void **state)
{
    (void)state;
    struct daemon_fixture d;
    struct reader r;
    one_turn(CALL(RUN("touch ran")), "{\"approve\":\"auto\",\"maxTokens\":60}", "length", &r,
             &d);
    assert_false(exists(d.work, "ran"));
    assert_null(find_item(&r, "tool_result", 0));
    reader_close(&r);
    daemon_remove(&d);
}

static void test_step_limit(void **state)
{
    (void)state;
    struct daemon_fixture d;
    struct reader r;
    one_turn(CALL(RUN("touch one")) CALL(RUN("touch two")) SAY("never"),
             "{\"approve\":\"auto\",\"maxSteps\":2}", "length", &r, &d);
    assert_true(exists(d.work, "one"));
    assert_false(exists(d.work, "two"));
    reader_close(&r);
    daemon_remove(&d);
}

static void test_pi_9637_6158_prime_agent_1326_qwenpaw_6116_repeated_success_is_stopped(
    void **state)
{
    (void)state;
    struct daemon_fixture d;
    struct reader r;
#define SAME CALL(RUN("echo x >> ran"))
    one_turn(SAME SAME SAME SAME SAME SAY("never"), AUTO_RUN, "loop", &r, &d);
    assert_non_null(find_item(&r, "note", 0));
    char path[256], line[8];
    snprintf(path, sizeof path, "%s/ran", d.work);
    FILE *f = fopen(path, "re");
    assert_non_null(f);
    int n = 0;
    while (fgets(line, sizeof line, f))
        n++;
    fclose(f);
    assert_int_equal(n, 4);
    reader_close(&r);
    daemon_remove(&d);
}

static void test_opensquilla_985_leaked_markup_is_no_end(void **state)
{
    (void)state;
    struct daemon_fixture d;
    struct reader r;
    one_turn("{\"text\":\"ok</think>\\n\\n<｜DSML｜ calls>\\n" EOS "\"}\n", AUTO_RUN, "failed",
             &r, &d);
    assert_null(find_item(&r, "tool_call", 0));
    reader_close(&r);
    daemon_remove(&d);
}

/* ---- receipts --------------------------------------------------------------------- */

static json_t *prompt_with_message(const char *id, const char *message)
{
    return json_pack("{s:s, s:s, s:[{s:s, s:s}]}", "id", id, "clientMessageId", message,
                     "content", "type", "text", "text", "again");
}

static void test_repeated_message_gives_the_first_receipt(void **state)
{
    (void)state;
    struct daemon_fixture d;
    char id[27];
    daemon_make(&d, "{\"text\":\"ok</think>one" EOS "\",\"prefill_ms\":200}\n" SAY("two"));
    daemon_start(&d, NULL);
    struct client *c = daemon_connect(&d, NULL, NULL);
    daemon_session(&d, c, AUTO_RUN, id);
    json_t *first = daemon_call(c, "session/prompt", prompt_with_message(id, "m1"));
    json_t *busy = daemon_call(c, "session/prompt", prompt_with_message(id, "m1"));
    assert_true(json_equal(first, busy));
    json_decref(wait_reason(c, id, "end"));
    json_t *after = daemon_call(c, "session/prompt", prompt_with_message(id, "m1"));
    assert_true(json_equal(first, after));
    json_t *answer = wait_reason(c, id, "end");
    assert_string_equal(text_of(answer, "text"), "one");
    daemon_kill(&d);
    client_free(c);
    daemon_start(&d, NULL);
    c = daemon_connect(&d, NULL, NULL);
    json_t *restarted = daemon_call(c, "session/prompt", prompt_with_message(id, "m1"));
    assert_true(json_equal(first, restarted));
    json_decref(first);
    json_decref(busy);
    json_decref(after);
    json_decref(restarted);
    json_decref(answer);
    client_free(c);
    daemon_remove(&d);
}

/* ---- cancelling ------------------------------------------------------------------- */

/* Cancels in the given public state; then the session takes another prompt and answers it. */
static void cancel_in(const char *script, const char *params, const char *when)
{
    struct daemon_fixture d;
    struct reader r;
    char id[27];
    daemon_make(&d, script);
    daemon_start(&d, NULL);
    struct client *c = daemon_connect(&d, NULL, NULL);
    daemon_session(&d, c, params, id);
    reader_open(&r, &d, id, 0);
    daemon_prompt(c, id, "go");
    reader_until_state(&r, when);
    while (!strcmp(when, "generating") && json_object_size(r.deltas) == 0)
        (void)!client_poll(r.client, 20, NULL);
    struct timespec t0, t1;
    clock_gettime(CLOCK_MONOTONIC, &t0);
    json_t *said = daemon_call(c, "session/cancel", json_pack("{s:s}", "id", id));
    assert_true(json_is_true(json_object_get(said, "cancelled")));
    json_decref(said);
    json_decref(wait_reason(c, id, "cancelled"));
    clock_gettime(CLOCK_MONOTONIC, &t1);
    assert_true(t1.tv_sec - t0.tv_sec < 5);
    reader_until(&r, "idle");
    check_gapless(r.events, 1);
    /* Nothing to cancel now; and the next prompt works, also after a restart. */
    said = daemon_call(c, "session/cancel", json_pack("{s:s}", "id", id));
    assert_true(json_is_false(json_object_get(said, "cancelled")));
    json_decref(said);
    daemon_prompt(c, id, "and now");
    json_t *answer = wait_reason(c, id, "end");
    assert_string_equal(text_of(answer, "text"), "after");
    json_decref(answer);
    reader_close(&r);
    client_free(c);
    daemon_remove(&d);
}

#define SLOW_PREFILL "{\"text\":\"ok</think>x" EOS "\",\"prefill_ms\":1500}\n"
#define SLOW_DECODE "{\"text\":\"thinking slowly about it</think>x" EOS "\",\"token_ms\":50}\n"
#define STALLED "{\"text\":\"x</think>x" EOS "\",\"stall_ms\":20000}\n"

static void test_cancel_in_every_state(void **state)
{
    (void)state;
    /* A run that never began has no line of its own: the next run takes it. */
    cancel_in(SLOW_DECODE SAY("after"), AUTO_RUN, "generating");
    cancel_in(CALL(RUN("sleep 30")) SAY("after"), AUTO_RUN, "tool");
    cancel_in(CALL(RUN("trap '' TERM; sleep 30")) SAY("after"), AUTO_RUN, "tool");
    cancel_in(CALL(RUN("touch never")) SAY("after"), "{\"tools\":[\"run\"]}",
              "requires_action");
}

/* What a cancelled prefill left is computed by the next turn: for the first time, so it counts
 * as prefilled; after a restart as recomputed, like all of the tape behind the last state. */
static void cancel_in_prefill(bool restart)
{
    struct daemon_fixture d;
    struct reader r;
    char id[27];
    daemon_make(&d, SLOW_PREFILL SLOW_PREFILL);
    daemon_start(&d, NULL);
    struct client *c = daemon_connect(&d, NULL, NULL);
    daemon_session(&d, c, AUTO_RUN, id);
    reader_open(&r, &d, id, 0);
    daemon_prompt(c, id, "go");
    reader_until_state(&r, "prefill");
    json_decref(daemon_call(c, "session/cancel", json_pack("{s:s}", "id", id)));
    json_auto_t *cut = wait_reason(c, id, "cancelled");
    json_auto_t *info = daemon_call(c, "session/get", json_pack("{s:s}", "id", id));
    json_int_t computed = int_of(json_object_get(cut, "ledger"), "prompt_tokens");
    json_int_t tape = int_of(info, "tokens");
    assert_in_range(computed, 0, tape - 1);
    assert_int_equal(int_of(json_object_get(cut, "ledger"), "prefilled"), computed);
    reader_close(&r);
    if (restart) {
        client_free(c);
        assert_int_equal(daemon_stop(&d), 0);
        daemon_start(&d, NULL);
        c = daemon_connect(&d, NULL, NULL);
    }
    daemon_prompt(c, id, "on");
    json_auto_t *a = wait_reason(c, id, "end");
    const json_t *l = json_object_get(a, "ledger");
    assert_int_equal(int_of(l, "resident"), restart ? 0 : computed);
    assert_int_equal(int_of(l, "restored"), restart ? computed : 0);
    assert_int_equal(int_of(l, "recomputed"), restart ? tape - computed : 0);
    assert_int_equal(int_of(l, "relost"), 0);
    assert_true(int_of(l, "prefilled") > (restart ? 0 : tape - computed));
    assert_int_equal(int_of(l, "prompt_tokens"),
                     computed + int_of(l, "recomputed") + int_of(l, "prefilled"));
    client_free(c);
    daemon_remove(&d);
}

static void test_cancel_in_prefill(void **state)
{
    (void)state;
    cancel_in_prefill(false);
    cancel_in_prefill(true);
}

static void test_cancel_while_stalled(void **state)
{
    (void)state;
    struct daemon_fixture d;
    struct reader r;
    char id[27];
    daemon_make(&d, STALLED);
    daemon_start(&d, NULL);
    struct client *c = daemon_connect(&d, NULL, NULL);
    daemon_session(&d, c, AUTO_RUN, id);
    reader_open(&r, &d, id, 0);
    daemon_prompt(c, id, "go");
    reader_until_state(&r, "generating");
    json_decref(daemon_call(c, "session/cancel", json_pack("{s:s}", "id", id)));
    json_decref(wait_reason(c, id, "cancelled"));
    reader_close(&r);
    client_free(c);
    daemon_remove(&d);
}

/* ---- approvals and clients' tools ------------------------------------------------- */

static const json_t *other(struct reader *r, const char *method)
{
    for (int i = 0; i < 4000; i++) {
        size_t k;
        json_t *o;
        json_array_foreach(r->others, k, o)
            if (!strcmp(text_of(o, "method"), method))
                return json_object_get(o, "params");
        (void)!client_poll(r->client, 20, NULL);
    }
    fail_msg("no %s", method);
    return NULL;
}

static void test_approval(void **state)
{
    (void)state;
    struct daemon_fixture d;
    struct reader r;
    char id[27];
    daemon_make(&d, CALL(RUN("touch one")) CALL(RUN("touch two; touch three"))
                        CALL(RUN("touch three; touch two; touch three")) SAY("fine"));
    daemon_start(&d, NULL);
    struct client *c = daemon_connect(&d, NULL, NULL);
    daemon_session(&d, c, "{\"tools\":[\"run\"]}", id);
    reader_open(&r, &d, id, 0);
    daemon_prompt(c, id, "go");
    json_t *answer = daemon_wait(c, id);
    assert_string_equal(text_of(answer, "reason"), "requires_action");
    json_decref(answer);
    assert_false(exists(d.work, "one"));
    const char *approval = text_of(other(&r, "approval/requested"), "approvalId");
    json_t *list = daemon_call(c, "approval/list", NULL);
    assert_int_equal(json_array_size(json_object_get(list, "approvals")), 1);
    json_decref(list);
    json_decref(
        daemon_call(c, "approval/resolve",
                    json_pack("{s:s, s:s}", "approvalId", approval, "outcome", "reject")));
    assert_int_equal(
        daemon_refused(c, "approval/resolve",
                       json_pack("{s:s, s:s}", "approvalId", approval, "outcome", "once")),
        -32011);
    /* The second call asks again; approved for the session, the third one does not ask: it runs
     * the same commands. */
    json_array_clear(r.others);
    answer = daemon_wait(c, id);
    json_decref(answer);
    approval = text_of(other(&r, "approval/requested"), "approvalId");
    json_decref(
        daemon_call(c, "approval/resolve",
                    json_pack("{s:s, s:s}", "approvalId", approval, "outcome", "session")));
    json_decref(wait_reason(c, id, "end"));
    assert_false(exists(d.work, "one"));
    assert_true(exists(d.work, "two"));
    assert_true(exists(d.work, "three"));
    reader_close(&r);
    client_free(c);
    daemon_remove(&d);
}

static void test_client_tool(void **state)
{
    (void)state;
    struct daemon_fixture d;
    struct reader r;
    char id[27];
    daemon_make(&d, CALL(INVOKE("ask_user", PARAM("question", "why?"))) SAY("fine"));
    daemon_start(&d, NULL);
    struct client *c = daemon_connect(&d, NULL, NULL);
    daemon_session(
        &d, c,
        "{\"tools\":[],\"clientTools\":[{\"name\":\"ask_user\",\"description\":\"d\","
        "\"parameters\":{\"type\":\"object\",\"properties\":{\"question\":{\"type\":"
        "\"string\"}}}}]}",
        id);
    reader_open(&r, &d, id, 0);
    daemon_prompt(c, id, "go");
    json_decref(daemon_wait(c, id));
    reader_until_state(&r, "requires_action");
    const json_t *call = find_item(&r, "tool_call", 0);
    assert_string_equal(text_of(call, "name"), "ask_user");
    assert_true(json_is_true(json_object_get(call, "client")));
    json_decref(daemon_call(c, "tool/result",
                            json_pack("{s:s, s:s, s:s}", "id", id, "callId",
                                      text_of(call, "callId"), "content", "because")));
    json_decref(wait_reason(c, id, "end"));
    reader_until(&r, "idle");
    assert_string_equal(text_of(find_item(&r, "tool_result", 0), "text"), "because");
    reader_close(&r);
    client_free(c);
    daemon_remove(&d);
}

/* ---- readers that stop reading ---------------------------------------------------- */

/* Appends a constant; how far. */
static size_t put(char *at, const char *text)
{
    memcpy(at, text, strlen(text));
    return strlen(text);
}

static int raw_connect(const struct daemon_fixture *d)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(strlen(d->socket) < sizeof a.sun_path);
    memcpy(a.sun_path, d->socket, strlen(d->socket) + 1);
    assert_int_equal(connect(fd, (const struct sockaddr *)&a, sizeof a), 0);
    return fd;
}

static void raw_send(int fd, const char *line)
{
    assert_int_equal(write(fd, line, strlen(line)), strlen(line));
}

/* Reads what comes until `want` lines that hold `mark` were seen; counts session/event lines
 * and checks that their seq has no gap. */
static void raw_drain(int fd, const char *mark, json_int_t *events, int *gaps)
{
    FILE *f = fdopen(dup(fd), "r");
    char *line = NULL;
    size_t cap = 0;
    bool seen = false;
    while (!seen && getline(&line, &cap, f) > 0) {
        json_auto_t *m = json_loads(line, 0, NULL);
        const json_t *p = json_object_get(m, "params");
        const char *method = text_of(m, "method");
        if (!strcmp(method, "session/event"))
            assert_int_equal(int_of(p, "seq"), ++*events);
        *gaps += !strcmp(method, "gap");
        seen = strstr(line, mark) != NULL;
    }
    assert_true(seen);
    free(line);
    fclose(f);
}

static void test_a_reader_that_stops_blocks_nobody(void **state)
{
    (void)state;
    struct daemon_fixture d;
    char id[27], line[256];
    /* 12 steps whose results are 30 kB each, and many thousand deltas. */
    char *script = malloc(1 << 21), *at = script;
    for (int i = 0; i < 12; i++) {
        at += put(at, "{\"text\":\"");
        for (int k = 0; k < 3000; k++)
            *at++ = (char)('a' + k % 26);
        at += put(at, "</think>");
        at += put(at, CALLS(RUN("head -c 30000 /dev/zero | tr '\\\\0' z")));
        at += put(at, "\"}\n");
    }
    at += put(at, SAY("done"));
    *at = '\0';
    daemon_make(&d, script);
    free(script);
    daemon_start(&d, NULL);
    struct client *c = daemon_connect(&d, NULL, NULL);
    daemon_session(&d, c, AUTO_RUN, id);
    int fd = raw_connect(&d), small = 4096;
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
    snprintf(line, sizeof line,
             "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"session/attach\",\"params\":{\"id\":"
             "\"%s\",\"fromSeq\":0}}\n",
             id);
    raw_send(fd, line);
    daemon_prompt(c, id, "go");
    json_decref(wait_reason(c, id, "loop"));
    json_int_t events = 0;
    int gaps = 0;
    raw_drain(fd, "\"method\":\"gap\"", &events, &gaps);
    assert_true(events > 12);
    assert_int_equal(gaps, 1);
    close(fd);
    client_free(c);
    daemon_remove(&d);
}

/* ---- silence ---------------------------------------------------------------------- */

struct pulse {
    int n;
    char phase[32];
};

static void on_pulse(void *user, const char *method, const json_t *params)
{
    struct pulse *p = user;
    if (strcmp(method, "session/progress") != 0)
        return;
    p->n++;
    snprintf(p->phase, sizeof p->phase, "%s", text_of(params, "phase"));
}

/* The model's thread is in one long step and calls nobody back: a timer tells that the daemon
 * lives, to those who came before and to those who come now. */
static void test_antirez_ds4_222_a_stalled_model_is_not_silent(void **state)
{
    (void)state;
    struct daemon_fixture d;
    struct pulse p = {0};
    char id[27];
    daemon_make(&d, "{\"text\":\"ok</think>x" EOS "\",\"stall_ms\":60000}\n");
    daemon_start(&d, NULL);
    struct client *c = daemon_connect(&d, on_pulse, &p);
    daemon_session(&d, c, NULL, id);
    daemon_prompt(c, id, "go");
    json_decref(daemon_call(c, "session/attach", json_pack("{s:s}", "id", id)));
    for (int i = 0; i < 1000 && strcmp(p.phase, "generating") != 0; i++)
        (void)!client_poll(c, 20, NULL);
    assert_string_equal(p.phase, "generating");
    client_free(c);
    daemon_remove(&d);
}

/* ---- odd lines -------------------------------------------------------------------- */

static void test_odd_lines(void **state)
{
    (void)state;
    struct daemon_fixture d;
    daemon_make(&d, SAY("x"));
    daemon_start(&d, NULL);
    int fd = raw_connect(&d);
    raw_send(fd, "nonsense\n\n[]\n{\"jsonrpc\":\"2.0\",\"id\":5,\"method\":\"no/such\"}\n");
    char *big = malloc(17 << 20);
    memset(big, 'x', 17 << 20);
    big[(17 << 20) - 1] = '\n';
    for (size_t sent = 0; sent < 17u << 20;) {
        ssize_t n = write(fd, big + sent, (17u << 20) - sent);
        assert_true(n > 0);
        sent += (size_t)n;
    }
    free(big);
    raw_send(fd, "{\"jsonrpc\":\"2.0\",\"id\":6,\"method\":\"model/status\"}\n");
    static const int codes[] = {-32700, -32600, -32601, -32600, 0};
    FILE *f = fdopen(fd, "r");
    char *line = NULL;
    size_t cap = 0;
    for (size_t i = 0; i < sizeof codes / sizeof *codes; i++) {
        assert_true(getline(&line, &cap, f) > 0);
        json_auto_t *m = json_loads(line, 0, NULL);
        assert_int_equal(int_of(json_object_get(m, "error"), "code"), codes[i]);
    }
    free(line);
    fclose(f);
    struct client *c = daemon_connect(&d, NULL, NULL);
    char id[27];
    assert_int_equal(daemon_refused(c, "session/get", json_pack("{s:s}", "id", "../../etc")),
                     -32010);
    assert_int_equal(daemon_refused(c, "session/get", json_object()), -32602);
    assert_int_equal(daemon_refused(c, "session/new", json_pack("{s:s}", "cwd", "rel")),
                     -32602);
    daemon_session(&d, c, NULL, id);
    assert_int_equal(
        daemon_refused(c, "session/prompt", json_pack("{s:s, s:[]}", "id", id, "content")),
        -32602);
    assert_int_equal(daemon_refused(c, "session/wait",
                                    json_pack("{s:s, s:s}", "id", id, "timeoutMs", "soon")),
                     -32602);
    client_free(c);
    assert_int_equal(daemon_stop(&d), 0);
    daemon_remove(&d);
}

static void test_hermes_73721_second_daemon_leaves_the_first_alone(void **state)
{
    (void)state;
    struct daemon_fixture d, other_one;
    daemon_make(&d, SAY("x"));
    daemon_start(&d, NULL);
    daemon_make(&other_one, SAY("x"));
    snprintf(other_one.socket, sizeof other_one.socket, "%s", d.socket);
    struct client *c = daemon_connect(&d, NULL, NULL);
    json_t *before = daemon_call(c, "daemon/status", NULL);
    pid_t pid = fork();
    if (pid == 0) {
        const char *build = getenv("AGENTD_BUILD");
        char binary[256];
        snprintf(binary, sizeof binary, "%s/agentd", build ? build : "build");
        dup2(open("/dev/null", O_WRONLY | O_CLOEXEC), STDERR_FILENO);
        execl(binary, "agentd", "serve", "--engine", other_one.script, "--socket", d.socket,
              "--store", other_one.store, (char *)NULL);
        _exit(127);
    }
    int status = 0;
    other_one.pid = pid;
    status = daemon_wait_death(&other_one);
    assert_int_equal(status >> 8, 5);
    json_t *after = daemon_call(c, "daemon/status", NULL);
    assert_int_equal(int_of(before, "pid"), int_of(after, "pid"));
    json_decref(before);
    json_decref(after);
    client_free(c);
    /* A dead socket is replaced. */
    daemon_kill(&d);
    daemon_start(&d, NULL);
    daemon_remove(&d);
    daemon_remove(&other_one);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tool_loop_and_two_readers),
        cmocka_unit_test(test_results_for_the_model_not_errors),
        cmocka_unit_test(test_two_turns_compute_only_the_new),
        cmocka_unit_test(test_token_limit_runs_no_call),
        cmocka_unit_test(test_step_limit),
        cmocka_unit_test(
            test_pi_9637_6158_prime_agent_1326_qwenpaw_6116_repeated_success_is_stopped),
        cmocka_unit_test(test_opensquilla_985_leaked_markup_is_no_end),
        cmocka_unit_test(test_repeated_message_gives_the_first_receipt),
        cmocka_unit_test(test_cancel_in_every_state),
        cmocka_unit_test(test_cancel_in_prefill),
        cmocka_unit_test(test_cancel_while_stalled),
        cmocka_unit_test(test_approval),
        cmocka_unit_test(test_client_tool),
        cmocka_unit_test(test_a_reader_that_stops_blocks_nobody),
        cmocka_unit_test(test_antirez_ds4_222_a_stalled_model_is_not_silent),
        cmocka_unit_test(test_odd_lines),
        cmocka_unit_test(test_hermes_73721_second_daemon_leaves_the_first_alone),
    };
    return !!cmocka_run_group_tests(tests, NULL, NULL);
}
