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

static const char *text_of(const json_t *o, const char *key)
{
    const char *s = json_string_value(json_object_get(o, key));
    return s ? s : "";
}

static json_int_t int_of(const json_t *o, const char *key)
{
    return json_integer_value(json_object_get(o, key));
}

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

static void keep(void *user, const char *method, const json_t *params)
{
    json_t *list = user;
    if (!strcmp(method, "session/event"))
        json_array_append_new(list, json_deep_copy(params));
    else if (!strcmp(method, "session/live"))
        json_array_append_new(list, json_null());
}

static json_t *events(const struct daemon_fixture *d, const char *id)
{
    json_t *list = json_array();
    struct client *c = daemon_connect(d, keep, list);
    json_decref(
        daemon_call(c, "session/attach", json_pack("{s:s, s:i}", "id", id, "fromSeq", 0)));
    while (!json_array_size(list) ||
           !json_is_null(json_array_get(list, json_array_size(list) - 1)))
        assert_int_equal(client_poll(c, 5000, NULL), OK);
    json_array_remove(list, json_array_size(list) - 1);
    client_free(c);
    return list;
}

/* How many items of a kind have this in their text; and that seqs have no gap. */
static int count_items(const json_t *list, const char *kind, const char *part)
{
    const json_t *ev;
    size_t i;
    int n = 0;
    json_array_foreach(list, i, ev)
    {
        const json_t *item = json_object_get(ev, "item");
        assert_int_equal(int_of(ev, "seq"), i + 1);
        n += !strcmp(text_of(item, "kind"), kind) && strstr(text_of(item, "text"), part);
    }
    return n;
}

/* The store of a daemon that has ended. */
static struct store *open_store(const struct daemon_fixture *d)
{
    char db[200], packs[200], state[200];
    struct store *st = NULL;
    struct error e;
    snprintf(db, sizeof db, "%s/agentd.db", d->store);
    snprintf(packs, sizeof packs, "%s/packs", d->store);
    snprintf(state, sizeof state, "%s/state", d->store);
    const struct store_options o = {.db_path = db,
                                    .packs_dir = packs,
                                    .state_dir = state,
                                    .block_tokens = 64,
                                    .no_direct_io = true};
    assert_ok(store_open(&st, &o, &e), &e);
    return st;
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

static int lines_of(const struct daemon_fixture *d, const char *name)
{
    char path[256], line[64];
    int n = 0;
    snprintf(path, sizeof path, "%s/%s", d->work, name);
    FILE *f = fopen(path, "re");
    while (f && fgets(line, sizeof line, f))
        n++;
    if (f)
        fclose(f);
    return n;
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
    json_auto_t *v = daemon_call(c, "session/verify", json_pack("{s:s}", "id", id));
    if (!json_is_true(json_object_get(v, "equal")))
        fail_msg("verify: %s", json_dumps(v, 0));
    /* The opening is that of the tape before: its rows are restored, and no digest is. */
    assert_in_range(int_of(v, "segmentsWithoutDigest"), 0, 1);
}

static void check_end(const struct daemon_fixture *d, struct client *c, const char *id,
                      const char *reason, const char *text)
{
    json_auto_t *answer = daemon_wait(c, id);
    if (strcmp(text_of(answer, "reason"), reason) || strcmp(text_of(answer, "text"), text)) {
        daemon_show_log(d);
        json_auto_t *all = events(d, id);
        fail_msg("%s\n%s", json_dumps(answer, 0), json_dumps(all, JSON_INDENT(1)));
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
    json_auto_t *all = events(d, id);
    json_auto_t *list = daemon_call(c, "session/list", json_object());
    const json_t *s;
    size_t i;
    json_array_foreach(json_object_get(list, "sessions"), i,
                       s) if (strcmp(text_of(s, "id"), id) != 0)
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
        assert_int_equal(lines_of(d, (const char *[]){"a", "b", "c"}[i]), 1);
    client_free(c);
    assert_int_equal(daemon_stop(d), 0);
    struct store *st = open_store(d);
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
    json_auto_t *all = events(d, id);
    return count_items(all, "tool_result", "[interrupted") > 0;
}

static void check_interrupted(struct daemon_fixture *d, struct client *c, const char *id)
{
    json_auto_t *answer = daemon_wait(c, id);
    assert_string_equal(text_of(answer, "reason"), "end");
    check_balanced(answer);
    check_verified(c, id);
    for (int i = 0; i < 3; i++)
        assert_in_range(lines_of(d, (const char *[]){"a", "b", "c"}[i]), 0, 1);
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
            if (!getenv("AGENTD_SLOW") && i >= 5 && (n < 5 || i > 6))
                continue;
            snprintf(fault, sizeof fault, "crash:%s:%d", points[i], n);
            if (!crash(fault)) {
                assert_true(n > 1); /* every point is reached */
                break;
            }
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_loop_goes_on_behind_a_summary),
        cmocka_unit_test(test_killed_at_each_barrier),
    };
    return !!cmocka_run_group_tests(tests, NULL, NULL);
}
