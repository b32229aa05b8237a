/* Sampling through a live daemon: stop strings in the stream, bias, logprobs; and draft layers,
 * with which a tool loop is id by id what it is without, killed in between too. */
#include "tests/support/test.h"

#include <math.h>
#include <stdlib.h>

#include "base/buf.h"
#include "sessions/session.h"
#include "sessions/store.h"
#include "sessions/tape.h"
#include "tests/support/daemon.h"

#define A_TINY "tests/golden/a_tiny/model" /* 2 draft layers, blocks of 3 */
#define EOS "<｜end▁of▁sentence｜>"

/* ---- a reader --------------------------------------------------------------------- */

struct reader {
    struct client *client;
    json_t *items;     /* of session/event, in order */
    struct buf answer; /* deltas of the answer, put together */
    bool idle;
};

static void on_notify(void *user, const char *method, const json_t *params)
{
    struct reader *r = user;
    const json_t *item = json_object_get(params, "item");
    struct error e;
    if (!strcmp(method, "session/event") && item)
        json_array_append_new(r->items, json_deep_copy(item));
    if (!strcmp(method, "session/event") && !strcmp(text_of(params, "state"), "idle"))
        r->idle = true;
    if (!strcmp(method, "session/delta") && !strcmp(text_of(params, "kind"), "assistant"))
        assert_ok(buf_add_str(&r->answer, text_of(params, "text"), &e), &e);
}

static void reader_open(struct reader *r, const struct daemon_fixture *d, const char *id)
{
    *r = (struct reader){.items = json_array(), .answer = BUF_INIT(1 << 20)};
    r->client = daemon_connect(d, on_notify, r);
    json_decref(daemon_call(r->client, "session/attach",
                            json_pack("{s:s, s:i}", "id", id, "fromSeq", 0)));
}

static void reader_close(struct reader *r)
{
    client_free(r->client);
    json_decref(r->items);
    buf_fini(&r->answer);
}

static void reader_until_idle(struct reader *r)
{
    for (int i = 0; i < 4000 && !r->idle; i++)
        (void)!client_poll(r->client, 20, NULL);
    assert_true(r->idle);
}

static const json_t *last_item(const struct reader *r, const char *kind)
{
    for (size_t i = json_array_size(r->items); i-- > 0;)
        if (!strcmp(text_of(json_array_get(r->items, i), "kind"), kind))
            return json_array_get(r->items, i);
    fail_msg("no item of kind %s", kind);
    return NULL;
}

static void assert_verifies(struct client *c, const char *id)
{
    json_auto_t *v = daemon_call(c, "session/verify", json_pack("{s:s}", "id", id));
    if (!json_is_true(json_object_get(v, "equal")))
        fail_msg("verify: %s", json_dumps(v, 0));
}

/* ---- stop strings ----------------------------------------------------------------- */

static void test_stop(void **state)
{
    struct daemon_fixture d;
    struct reader r;
    char id[27];
    (void)state;
    /* "STOP" in thinking is no stop; "ST" at the end of the second answer is said after all. */
    daemon_make(&d, "{\"text\":\"STOP</think>One two, STAR, ST"
                    "OP three" EOS "\"}\n"
                    "{\"text\":\"x</think>and on ST" EOS "\"}\n");
    daemon_start(&d, NULL);
    struct client *c = daemon_connect(&d, NULL, NULL);
    daemon_session(&d, c, "{\"tools\":[],\"stop\":[\"STOP\",\"never\"]}", id);
    reader_open(&r, &d, id);
    daemon_prompt(c, id, "go");
    json_auto_t *a = daemon_wait(c, id), *b = NULL;
    assert_string_equal(text_of(a, "reason"), "end");
    assert_string_equal(text_of(a, "text"), "One two, STAR, ");
    assert_string_equal(text_of(a, "stop"), "STOP");
    reader_until_idle(&r);
    assert_string_equal(buf_str(&r.answer), "One two, STAR, "); /* never half of it */
    assert_string_equal(text_of(last_item(&r, "assistant"), "stop"), "STOP");
    buf_clear(&r.answer);
    r.idle = false;
    daemon_prompt(c, id, "and?");
    b = daemon_wait(c, id);
    assert_string_equal(text_of(b, "text"), "and on ST");
    assert_null(json_object_get(b, "stop"));
    reader_until_idle(&r);
    assert_string_equal(buf_str(&r.answer), "and on ST");
    assert_verifies(c, id);
    reader_close(&r);
    client_free(c);
    daemon_remove(&d);
}

/* A stop that a crash has not let end its run ends it after the restart. */
static void test_stop_after_a_crash(void **state)
{
    struct daemon_fixture d;
    char id[27];
    (void)state;
    daemon_make(&d, "{\"text\":\"x</think>One, STOP two" EOS "\"}\n");
    daemon_start(&d, "crash:turn.step:1");
    struct client *c = daemon_connect(&d, NULL, NULL);
    daemon_session(&d, c, "{\"tools\":[],\"stop\":[\"STOP\"]}", id);
    daemon_prompt(c, id, "go");
    (void)daemon_wait_death(&d);
    client_free(c);
    daemon_start(&d, NULL);
    c = daemon_connect(&d, NULL, NULL);
    json_auto_t *a = daemon_wait(c, id);
    assert_string_equal(text_of(a, "text"), "One, ");
    assert_string_equal(text_of(a, "reason"), "end");
    assert_string_equal(text_of(a, "stop"), "STOP");
    assert_verifies(c, id);
    client_free(c);
    daemon_remove(&d);
}

/* ---- bias, logprobs --------------------------------------------------------------- */

static void test_bias_and_logprobs(void **state)
{
    struct daemon_fixture d;
    struct reader r;
    char id[27];
    (void)state;
    daemon_make(&d, "");
    d.model = A_TINY;
    daemon_start(&d, NULL);
    struct client *c = daemon_connect(&d, NULL, NULL);
    daemon_session(&d, c,
                   "{\"tools\":[],\"thinkingMode\":\"chat\",\"maxTokens\":20,\"seed\":3,"
                   "\"topK\":5,\"minP\":0.01,\"topLogprobs\":4,\"logitBias\":{\"77\":100}}",
                   id);
    reader_open(&r, &d, id);
    daemon_prompt(c, id, "go");
    json_auto_t *a = daemon_wait(c, id);
    assert_string_equal(text_of(a, "reason"), "length");
    reader_until_idle(&r);
    const json_t *list = json_object_get(last_item(&r, "assistant"), "logprobs");
    assert_int_equal(json_array_size(list), 20);
    for (size_t i = 0; i < 20; i++) {
        const json_t *t = json_array_get(list, i), *top = json_object_get(t, "top");
        double sum = 0, before = 0;
        assert_int_equal(int_of(t, "id"),
                         77); /* what bias chose; its probability is the model's */
        assert_int_equal(json_array_size(top), 4);
        for (size_t k = 0; k < 4; k++) {
            double p = json_number_value(json_object_get(json_array_get(top, k), "logprob"));
            assert_true(p <= before);
            sum += exp(before = p);
        }
        assert_true(sum > 0 && sum <= 1 + 1e-6);
        assert_true(json_number_value(json_object_get(t, "logprob")) <=
                    json_number_value(json_object_get(json_array_get(top, 0), "logprob")));
    }
    assert_verifies(c, id);
    reader_close(&r);
    client_free(c);
    daemon_remove(&d);
}

/* ---- a tool loop, with and without drafts ------------------------------------------- */

/* What a session left. */
struct left {
    uint32_t *ids;
    uint64_t n;
    json_t *answer; /* session/wait */
    size_t n_calls;
};

static void left_fini(struct left *l)
{
    free(l->ids);
    json_decref(l->answer);
}

static void read_tape(const struct daemon_fixture *d, const char *id, struct left *out)
{
    char db[200], packs[200], dir[200];
    struct store *st = NULL;
    struct error e;
    AUTO(tape) struct tape t = {0};
    snprintf(db, sizeof db, "%s/agentd.db", d->store);
    snprintf(packs, sizeof packs, "%s/packs", d->store);
    snprintf(dir, sizeof dir, "%s/state", d->store);
    const struct store_options o = {
        .db_path = db, .packs_dir = packs, .state_dir = dir, .no_direct_io = true};
    assert_ok(store_open(&st, &o, &e), &e);
    assert_ok(tape_load(st, id, &t, &e), &e);
    store_close(st);
    out->n = t.view.n_ids;
    out->ids = malloc((size_t)out->n * sizeof *out->ids + 1);
    memcpy(out->ids, t.ids, (size_t)out->n * sizeof *out->ids);
}

/* Random weights call nothing by themselves: the first run is a recorded call, the ones behind
 * its result are the model's. */
#define FIRST_CALL                                                                             \
    "\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"look\">\n<｜DSML｜ parameter "        \
    "name=\"where\" "                                                                          \
    "string=\"true\">here</｜DSML｜ parameter>\n</｜DSML｜ invoke>\n</｜DSML｜ calls>"

static json_t *session_parameters(double temperature)
{
    return json_pack("{s:[], s:[{s:s, s:{s:s, s:{s:{s:s}}}}], s:s, s:i, s:i, s:f, s:i}",
                     "tools", "clientTools", "name", "look", "parameters", "type", "object",
                     "properties", "where", "type", "string", "thinkingMode", "chat",
                     "maxTokens", 220, "seed", 21, "temperature", temperature, "topK", 40);
}

static void prompt(struct client *c, const char *id)
{
    json_t *params = json_pack("{s:s, s:[{s:s, s:s}], s:[{s:s}]}", "id", id, "content", "type",
                               "text", "text", "look around", "forced", "text", FIRST_CALL);
    json_decref(daemon_call(c, "session/prompt", params));
}

/* Answers what waits. */
static void answer_calls(struct client *c, const struct reader *r, const char *id)
{
    size_t i;
    json_t *item;
    json_array_foreach(r->items, i, item) {
        json_t *params = json_pack("{s:s, s:s, s:s}", "id", id, "callId",
                                   text_of(item, "callId"), "content", "nothing there");
        if (!strcmp(text_of(item, "kind"), "tool_call") &&
            !strcmp(text_of(item, "status"), "waiting"))
            (void)daemon_refused(c, "tool/result", params); /* some are answered already */
        else
            json_decref(params);
    }
}

static void restart(struct daemon_fixture *d, struct client **c)
{
    client_free(*c);
    daemon_kill(d);
    daemon_start(d, NULL);
    *c = daemon_connect(d, NULL, NULL);
}

/* One prompt to its end. kill: SIGKILL while a call waits, and in the run behind it. */
static void converse(const char *drafts, double temperature, bool kill, struct left *out)
{
    struct daemon_fixture d;
    struct reader r;
    char id[27];
    *out = (struct left){0};
    daemon_make(&d, "");
    d.model = A_TINY;
    if (drafts) {
        d.extra[0] = "--draft";
        d.extra[1] = drafts;
    }
    daemon_start(&d, NULL);
    struct client *c = daemon_connect(&d, NULL, NULL);
    json_auto_t *params = session_parameters(temperature);
    AUTO_FREE char *extra = json_dumps(params, 0);
    daemon_session(&d, c, extra, id);
    prompt(c, id);
    for (int round = 0; round < 8; round++) {
        json_decref(out->answer);
        out->answer = daemon_wait(c, id);
        if (strcmp(text_of(out->answer, "state"), "requires_action") != 0)
            break;
        if (kill) {
            restart(&d, &c);
            json_decref(daemon_wait(c, id));
        }
        reader_open(&r, &d, id);
        for (int i = 0; i < 10; i++)
            (void)!client_poll(r.client, 20, NULL);
        size_t k;
        json_t *item;
        out->n_calls = 0;
        json_array_foreach(r.items, k, item)
            out->n_calls += !strcmp(text_of(item, "kind"), "tool_call");
        answer_calls(c, &r, id);
        for (int i = 0; kill && i < 4000 && !r.answer.len; i++) /* until the model speaks */
            (void)!client_poll(r.client, 20, NULL);
        reader_close(&r);
        if (kill)
            restart(&d, &c);
    }
    assert_string_equal(text_of(out->answer, "state"), "idle");
    assert_verifies(c, id);
    client_free(c);
    daemon_kill(&d);
    read_tape(&d, id, out);
    daemon_remove(&d);
}

static void compare(double temperature)
{
    struct left plain, drafted, killed;
    converse(NULL, temperature, false, &plain);
    converse("3", temperature, false, &drafted);
    converse("2", temperature, true, &killed);
    const json_t *none = json_object_get(plain.answer, "ledger");
    const json_t *some = json_object_get(drafted.answer, "ledger");
    assert_int_equal(int_of(none, "drafts_proposed"), 0);
    assert_true(int_of(some, "drafts_proposed") > 0);
    assert_in_range(int_of(some, "drafts_accepted"), 0, int_of(some, "drafts_proposed"));
    if (getenv("AGENTD_SHOW"))
        printf("temperature %g: %s %zu calls, tape %d, %d of %d drafts accepted\n", temperature,
               text_of(plain.answer, "reason"), plain.n_calls, (int)plain.n,
               (int)int_of(some, "drafts_accepted"), (int)int_of(some, "drafts_proposed"));
    assert_true(plain.n_calls > 0);
    const struct left *others[] = {&drafted, &killed};
    for (int i = 0; i < 2; i++) {
        assert_int_equal(others[i]->n, plain.n);
        assert_memory_equal(others[i]->ids, plain.ids, (size_t)plain.n * sizeof *plain.ids);
        assert_string_equal(text_of(others[i]->answer, "text"), text_of(plain.answer, "text"));
        assert_string_equal(text_of(others[i]->answer, "reason"),
                            text_of(plain.answer, "reason"));
    }
    left_fini(&plain);
    left_fini(&drafted);
    left_fini(&killed);
}

static void test_drafts_greedy(void **state)
{
    (void)state;
    compare(0);
}

static void test_drafts_sampled(void **state)
{
    (void)state;
    compare(1);
}

/* ---- what is refused -------------------------------------------------------------- */

static void test_refused(void **state)
{
    static const char *const bad[] = {"{\"topK\":-1}",
                                      "{\"minP\":1.5}",
                                      "{\"stop\":\"x\"}",
                                      "{\"stop\":[\"\"]}",
                                      "{\"stop\":[1]}",
                                      "{\"topLogprobs\":21}",
                                      "{\"logitBias\":[1]}",
                                      "{\"logitBias\":{\"x\":1}}",
                                      "{\"logitBias\":{\"01\":1}}",
                                      "{\"logitBias\":{\"1\":101}}",
                                      "{\"logitBias\":{\"1\":1,\"999999\":1}}",
                                      "{\"logitBias\":{\"1\":\"a\"}}"};
    struct daemon_fixture d;
    (void)state;
    daemon_make(&d, "");
    daemon_start(&d, NULL);
    struct client *c = daemon_connect(&d, NULL, NULL);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        json_t *params = json_loads(bad[i], 0, NULL);
        json_object_set_new(params, "cwd", json_string(d.work));
        if (daemon_refused(c, "session/new", params) != -32602)
            fail_msg("taken: %s", bad[i]);
    }
    client_free(c);
    daemon_remove(&d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stop),
        cmocka_unit_test(test_stop_after_a_crash),
        cmocka_unit_test(test_bias_and_logprobs),
        cmocka_unit_test(test_drafts_greedy),
        cmocka_unit_test(test_drafts_sampled),
        cmocka_unit_test(test_refused),
    };
    return !!cmocka_run_group_tests(tests, NULL, NULL);
}
