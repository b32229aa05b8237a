/* A daemon with a budget for KV rows: a session that comes back has index planes and tip, and
 * its main rows come out of the packs as they are selected. Bit-equal to one that never
 * stopped; and what is damaged is found late and never gets into a text. */
#include "tests/support/test.h"

#include "sessions/store.h"
#include "tests/support/daemon.h"
#include "tests/support/store_harm.h"

#define MODEL "tests/golden/a_tiny/model"
#define MAX_PLACES 256

/* ---- what readers see ------------------------------------------------------------- */

struct reader {
    size_t n_deltas, n_bytes[2]; /* of the item in work: reasoning, answer */
    char item[2][64];
};

/* Deltas go on where the one before ended: nothing is said twice, nothing left out. */
static void on_notify(void *user, const char *method, const json_t *params)
{
    struct reader *r = user;
    if (strcmp(method, "session/delta") != 0)
        return;
    int i = strcmp(text_of(params, "kind"), "assistant") == 0;
    if (strcmp(r->item[i], text_of(params, "itemId")) != 0) {
        snprintf(r->item[i], sizeof r->item[i], "%s", text_of(params, "itemId"));
        r->n_bytes[i] = 0;
    }
    assert_int_equal(int_of(params, "offset"), r->n_bytes[i]);
    r->n_bytes[i] += json_string_length(json_object_get(params, "text"));
    r->n_deltas++;
}

/* ---- the world -------------------------------------------------------------------- */

/* Two sessions with the same first turn. `stays` never stops; `id` does. */
struct world {
    struct daemon_fixture d;
    struct client *c;
    char stays[27], id[27];
    char expected[4096]; /* what the second turn says */
    char budget[24];
    uint64_t length; /* of `id` then, tokens */
    struct harm_place places[MAX_PLACES];
    size_t n_places;
    struct reader reader;
};

static json_t *answer_of(struct client *c, const char *id)
{
    json_t *a = daemon_wait(c, id), *l = json_object_get(a, "ledger");
    assert_string_equal(text_of(a, "state"), "idle");
    assert_string_not_equal(text_of(a, "reason"), "failed");
    assert_int_equal(int_of(l, "prompt_tokens"),
                     int_of(l, "resident") + int_of(l, "restored") + int_of(l, "recomputed") +
                         int_of(l, "relost") + int_of(l, "prefilled"));
    return a;
}

static void first_turn(struct world *w, char id[27])
{
    static char text[900];
    for (size_t i = 0; i + 1 < sizeof text; i++)
        text[i] = (char)("the quick brown fox jumps over it. "[i % 35] ^ (i % 97 == 0 ? 1 : 0));
    daemon_session(&w->d, w->c,
                   "{\"tools\": [], \"maxTokens\": 60, \"temperature\": 0, "
                   "\"logitBias\": {\"1\": -100}}",
                   id);
    daemon_prompt(w->c, id, text);
    json_decref(answer_of(w->c, id));
}

static json_int_t minimum(struct client *c)
{
    json_auto_t *s = daemon_call(c, "model/status", NULL);
    const json_t *t;
    size_t i;
    json_array_foreach(json_object_get(s, "tiers"), i, t)
        if (!strcmp(text_of(t, "name"), "kv"))
            return int_of(t, "minimumBytes");
    fail_msg("no kv tier");
    return 0;
}

/* Where the main rows of the saved blocks are, while nobody has the store open. */
static void find_places(struct world *w)
{
    char db[160], packs[160], state[160];
    struct store *st;
    struct error e;
    snprintf(db, sizeof db, "%s/agentd.db", w->d.store);
    snprintf(packs, sizeof packs, "%s/packs", w->d.store);
    snprintf(state, sizeof state, "%s/state", w->d.store);
    const struct store_options o = {.db_path = db,
                                    .packs_dir = packs,
                                    .state_dir = state,
                                    .block_tokens = 64,
                                    .no_direct_io = true};
    assert_ok(store_open(&st, &o, &e), &e);
    w->n_places = harm_places(st, 0, w->length, w->places, MAX_PLACES);
    store_close(st);
}

static void harm_all(struct world *w)
{
    for (size_t i = 0; i < w->n_places; i++)
        harm_flip(&w->places[i]);
}

static void start(struct world *w)
{
    w->d.extra[0] = "--kv-resident";
    w->d.extra[1] = w->budget;
    daemon_start(&w->d, NULL);
    w->reader = (struct reader){0};
    w->c = daemon_connect(&w->d, on_notify, &w->reader);
}

static json_int_t session_figure(const struct world *w, const char *key)
{
    json_auto_t *s = daemon_call(w->c, "session/get", json_pack("{s:s}", "id", w->id));
    return int_of(s, key);
}

static int setup(void **state)
{
    static struct world world;
    struct world *w = &world;
    *w = (struct world){0};
    daemon_make(&w->d, "");
    w->d.model = MODEL;
    daemon_start(&w->d, NULL);
    w->c = daemon_connect(&w->d, NULL, NULL);
    first_turn(w, w->stays);
    first_turn(w, w->id);
    daemon_prompt(w->c, w->stays, "and now?");
    json_t *a = answer_of(w->c, w->stays);
    snprintf(w->expected, sizeof w->expected, "%s", text_of(a, "text"));
    assert_int_equal(int_of(json_object_get(a, "ledger"), "restored"), 0);
    json_decref(a);
    daemon_wait_saved(w->c);
    w->length = (uint64_t)session_figure(w, "tokens");
    snprintf(w->budget, sizeof w->budget, "%lld", (long long)minimum(w->c));
    client_free(w->c);
    assert_int_equal(daemon_stop(&w->d), 0);
    find_places(w);
    start(w);
    *state = w;
    return 0;
}

static int teardown(void **state)
{
    struct world *w = *state;
    client_free(w->c);
    daemon_remove(&w->d);
    return 0;
}

static json_t *resume_of(const struct world *w)
{
    json_auto_t *s = daemon_call(w->c, "session/get", json_pack("{s:s}", "id", w->id));
    return json_incref(json_object_get(s, "resume"));
}

static void attach(struct world *w)
{
    json_decref(daemon_call(w->c, "session/attach",
                            json_pack("{s:s, s:i}", "id", w->id, "fromSeq", 0)));
}

/* The second turn says what it says in the session that never stopped. */
static void second_turn(struct world *w)
{
    json_auto_t *a = answer_of(w->c, w->id);
    if (strcmp(text_of(a, "text"), w->expected) != 0) {
        daemon_show_log(&w->d);
        fail_msg("said\n%s\nwant\n%s", text_of(a, "text"), w->expected);
    }
    daemon_verify(w->c, w->id);
}

static void wait_deltas(struct world *w, size_t n)
{
    while (w->reader.n_deltas < n)
        assert_int_equal(client_poll(w->c, 20000, NULL), OK);
}

static void restart(struct world *w, bool by_kill)
{
    client_free(w->c);
    if (by_kill)
        daemon_kill(&w->d);
    else
        assert_int_equal(daemon_stop(&w->d), 0);
    start(w);
}

/* ---- tests ------------------------------------------------------------------------ */

static void test_rows_come_late(void **state)
{
    struct world *w = *state;
    attach(w);
    daemon_prompt(w->c, w->id, "and now?");
    second_turn(w);
    json_t *r = resume_of(w);
    assert_string_equal(text_of(r, "mode"), "exact");
    assert_true(int_of(r, "late") > int_of(r, "restored") / 2);
    assert_int_equal(int_of(r, "late") % 64, 0);
    assert_int_equal(int_of(r, "extents_damaged"), 0);
    json_int_t brought = int_of(r, "bytes_read");
    json_decref(r);
    /* Again, after it has saved; and the same session with all rows brought. */
    daemon_wait_saved(w->c);
    restart(w, false);
    daemon_prompt(w->c, w->id, "once more");
    json_decref(answer_of(w->c, w->id));
    daemon_verify(w->c, w->id);
    daemon_wait_saved(w->c);
    client_free(w->c);
    assert_int_equal(daemon_stop(&w->d), 0);
    w->d.extra[0] = NULL;
    daemon_start(&w->d, NULL);
    w->c = daemon_connect(&w->d, NULL, NULL);
    daemon_prompt(w->c, w->id, "and all of it");
    json_decref(answer_of(w->c, w->id));
    daemon_verify(w->c, w->id);
    r = resume_of(w);
    assert_int_equal(int_of(r, "late"), 0);
    assert_true(int_of(r, "bytes_read") > brought);
    json_decref(r);
}

static void check_recovered(struct world *w)
{
    json_t *r = resume_of(w);
    assert_true(int_of(r, "extents_damaged") > 0);
    assert_true(int_of(r, "relost") > 0);
    json_decref(r);
    /* What was computed again is saved again. */
    daemon_wait_saved(w->c);
    json_int_t length = session_figure(w, "tokens");
    restart(w, true);
    daemon_prompt(w->c, w->id, "once more");
    json_auto_t *a = answer_of(w->c, w->id);
    assert_int_equal(int_of(json_object_get(a, "ledger"), "restored"), length);
    daemon_verify(w->c, w->id);
}

/* The first step that needs damaged rows meets them: the turn goes on from what verifies. */
static void test_damage_found_in_the_prompt(void **state)
{
    struct world *w = *state;
    attach(w);
    harm_all(w);
    daemon_prompt(w->c, w->id, "and now?");
    second_turn(w);
    check_recovered(w);
}

/* The rows go bad while an answer is being written: nothing is said twice, or otherwise. */
static void test_damage_found_in_a_run(void **state)
{
    struct world *w = *state;
    attach(w);
    daemon_prompt(w->c, w->id, "and now?");
    wait_deltas(w, 4);
    harm_all(w);
    second_turn(w);
    assert_true(w->reader.n_deltas > 4);
    check_recovered(w);
}

/* A cancelled turn leaves a session that goes on, whether rows were missing or not. */
static void test_cancel(void **state)
{
    struct world *w = *state;
    attach(w);
    for (int i = 0; i < 6; i++) {
        daemon_prompt(w->c, w->id, "never mind");
        nap(i * 7);
        if (i == 4)
            harm_all(w);
        json_decref(daemon_call(w->c, "session/cancel", json_pack("{s:s}", "id", w->id)));
        json_decref(daemon_wait(w->c, w->id));
        daemon_wait_saved(w->c);
        if (i % 2)
            restart(w, i == 3);
    }
    daemon_prompt(w->c, w->id, "and now?");
    json_decref(answer_of(w->c, w->id));
    daemon_verify(w->c, w->id);
}

/* Forks, rewinds, state commits and a deletion while rows are behind. */
static void test_forks_and_saves(void **state)
{
    struct world *w = *state;
    daemon_prompt(w->c, w->id, "and now?");
    second_turn(w);
    daemon_wait_saved(w->c);
    json_decref(daemon_call(w->c, "session/fork",
                            json_pack("{s:s, s:s}", "id", w->id, "name", "a-fork")));
    daemon_prompt(w->c, w->id, "goes on");
    json_decref(answer_of(w->c, w->id));
    daemon_wait_saved(w->c);
    assert_int_equal(session_figure(w, "statePosition"), session_figure(w, "tokens"));
    restart(w, false);
    daemon_prompt(w->c, "a-fork", "goes on");
    json_decref(answer_of(w->c, "a-fork"));
    daemon_verify(w->c, "a-fork");
    daemon_wait_saved(w->c);
    restart(w, false);
    daemon_prompt(w->c, w->id, "and is removed");
    daemon_wait_saved(w->c);
    json_decref(daemon_call(w->c, "session/cancel", json_pack("{s:s}", "id", w->id)));
    json_decref(daemon_wait(w->c, w->id));
    json_decref(
        daemon_call(w->c, "session/delete", json_pack("{s:s, s:b}", "id", w->id, "purge", 1)));
    daemon_prompt(w->c, "a-fork", "and stays");
    json_decref(answer_of(w->c, "a-fork"));
    daemon_verify(w->c, "a-fork");
}

/* Killed in the middle of a run whose rows are behind, sound or damaged. */
static void test_kill(void **state)
{
    struct world *w = *state;
    attach(w);
    daemon_prompt(w->c, w->id, "and now?");
    wait_deltas(w, 3);
    restart(w, true);
    attach(w);
    wait_deltas(w, 3);
    harm_all(w);
    restart(w, true);
    second_turn(w);
}

#define T(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(test_rows_come_late),        T(test_damage_found_in_the_prompt),
        T(test_damage_found_in_a_run), T(test_cancel),
        T(test_forks_and_saves),       T(test_kill),
    };
    return !!cmocka_run_group_tests(tests, NULL, NULL);
}
