/* What a session costs when it comes back: the ledger after kills, clean ends, eviction,
 * damage; recorded mode; state commits inside a long segment. */
#include "tests/support/test.h"

#include <dirent.h>
#include <signal.h>
#include <stdbool.h>
#include <unistd.h>

#include "tests/support/daemon.h"

#define EOS "<｜end▁of▁sentence｜>"
#define SAY(text) "{\"text\":\"ok</think>" text EOS "\"}\n"

static json_int_t ledger_of(const json_t *answer, const char *key)
{
    return int_of(json_object_get(answer, "ledger"), key);
}

static json_t *answer_of(struct client *c, const char *id)
{
    json_t *a = daemon_wait(c, id);
    assert_string_equal(text_of(a, "state"), "idle");
    assert_int_equal(ledger_of(a, "prompt_tokens"),
                     ledger_of(a, "resident") + ledger_of(a, "restored") +
                         ledger_of(a, "recomputed") + ledger_of(a, "relost") +
                         ledger_of(a, "prefilled"));
    return a;
}

static json_int_t session_figure(struct client *c, const char *id, const char *key)
{
    json_auto_t *s = daemon_call(c, "session/get", json_pack("{s:s}", "id", id));
    return int_of(s, key);
}

/* ---- kills and ends --------------------------------------------------------------- */

static void test_claude_code_86244_93490_ds4_673_idle_session_comes_back_from_ssd(void **state)
{
    (void)state;
    struct daemon_fixture d;
    char id[27];
    daemon_make(&d, SAY("one") SAY("two"));
    daemon_start(&d, NULL);
    struct client *c = daemon_connect(&d, NULL, NULL);
    daemon_session(&d, c, NULL, id);
    daemon_prompt(c, id, "first");
    json_decref(answer_of(c, id));
    daemon_wait_saved(c);
    json_int_t length = session_figure(c, id, "tokens");
    assert_int_equal(session_figure(c, id, "statePosition"), length);
    client_free(c);
    daemon_kill(&d);
    daemon_start(&d, NULL);
    c = daemon_connect(&d, NULL, NULL);
    daemon_prompt(c, id, "second");
    json_t *a = answer_of(c, id);
    assert_string_equal(text_of(a, "text"), "two");
    assert_int_equal(ledger_of(a, "restored"), length);
    assert_int_equal(ledger_of(a, "recomputed"), 0);
    assert_int_equal(ledger_of(a, "relost"), 0);
    assert_true(ledger_of(a, "bytes_read") > 0);
    assert_string_equal(text_of(json_object_get(a, "resume"), "mode"), "exact");
    daemon_verify(c, id);
    json_decref(a);
    client_free(c);
    daemon_remove(&d);
}

/* The state is saved, and the run goes on at the next start. */
static void end_in_a_run(int signal)
{
    struct daemon_fixture d;
    char id[27];
    daemon_make(&d, "{\"text\":\"a slow thought that takes its time</think>and an answer" EOS
                    "\",\"token_ms\":20}\n");
    daemon_start(&d, NULL);
    struct client *c = daemon_connect(&d, NULL, NULL);
    daemon_session(&d, c, NULL, id);
    daemon_prompt(c, id, "go");
    nap(400);
    client_free(c);
    kill(d.pid, signal);
    assert_int_equal(daemon_wait_death(&d), 0);
    daemon_start(&d, NULL);
    c = daemon_connect(&d, NULL, NULL);
    json_t *a = answer_of(c, id);
    assert_string_equal(text_of(a, "reason"), "end");
    assert_string_equal(text_of(a, "text"), "and an answer");
    assert_true(ledger_of(a, "restored") > 1000);
    assert_int_equal(ledger_of(a, "relost"), 0);
    assert_in_range(ledger_of(a, "recomputed"), 0, 1); /* a sampled id that was not computed */
    daemon_verify(c, id);
    json_decref(a);
    client_free(c);
    daemon_remove(&d);
}

static void test_ds4_1053_lmcache_1175_clean_end_in_a_run(void **state)
{
    (void)state;
    end_in_a_run(SIGTERM);
    end_in_a_run(SIGHUP); /* its terminal was closed */
}

/* Killed inside a long prompt: what was saved midway is not computed again. */
static void test_state_inside_a_long_segment(void **state)
{
    (void)state;
    struct daemon_fixture d;
    char id[27];
    daemon_make(&d, "{\"text\":\"ok</think>one" EOS "\",\"prefill_ms\":3000}\n");
    d.extra[0] = "--save-every";
    d.extra[1] = "512";
    daemon_start(&d, NULL);
    struct client *c = daemon_connect(&d, NULL, NULL);
    daemon_session(&d, c, "{\"tools\":[]}", id);
    char *text = malloc(20001);
    memset(text, 'x', 20000);
    text[20000] = '\0';
    daemon_prompt(c, id, text);
    free(text);
    nap(1500);
    json_int_t saved = session_figure(c, id, "statePosition");
    assert_in_range(saved, 512, 19000);
    client_free(c);
    daemon_kill(&d);
    daemon_start(&d, NULL);
    c = daemon_connect(&d, NULL, NULL);
    json_t *a = answer_of(c, id);
    assert_string_equal(text_of(a, "text"), "one");
    assert_true(ledger_of(a, "restored") >= saved);
    assert_int_equal(ledger_of(a, "relost"), 0);
    assert_int_equal(ledger_of(a, "restored") + ledger_of(a, "recomputed"),
                     ledger_of(a, "prompt_tokens"));
    daemon_verify(c, id);
    json_decref(a);
    client_free(c);
    daemon_remove(&d);
}

/* ---- memory ----------------------------------------------------------------------- */

static void test_ds4_1069_765_dirge_506_eviction(void **state)
{
    (void)state;
    struct daemon_fixture d;
    char ids[3][27];
    daemon_make(&d, SAY("one") SAY("two"));
    d.extra[0] = "--resident";
    d.extra[1] = "1";
    daemon_start(&d, NULL);
    struct client *c = daemon_connect(&d, NULL, NULL);
    for (int i = 0; i < 3; i++) {
        daemon_session(&d, c, NULL, ids[i]);
        daemon_prompt(c, ids[i], "first");
        json_decref(answer_of(c, ids[i]));
    }
    daemon_wait_saved(c);
    json_auto_t *s = daemon_call(c, "daemon/status", NULL);
    assert_int_equal(int_of(s, "sessionsResident"), 1);
    for (int i = 0; i < 3; i++) {
        json_int_t length = session_figure(c, ids[i], "tokens");
        daemon_prompt(c, ids[i], "second");
        json_t *a = answer_of(c, ids[i]);
        assert_string_equal(text_of(a, "text"), "two");
        assert_int_equal(ledger_of(a, "restored") + ledger_of(a, "resident"), length);
        json_decref(a);
        daemon_wait_saved(c);
    }
    client_free(c);
    daemon_remove(&d);
}

/* A disk that takes no state: said once, the session goes on, and a restart computes it again.
 */
static void test_state_that_cannot_be_saved(void **state)
{
    (void)state;
    struct daemon_fixture d;
    char id[27], line[512];
    int said = 0;
    daemon_make(&d, SAY("one") SAY("two") SAY("three"));
    d.extra[0] = "--save-every";
    d.extra[1] = "64";
    daemon_start(&d, "fail-from:turn.state:1");
    struct client *c = daemon_connect(&d, NULL, NULL);
    daemon_session(&d, c, NULL, id);
    for (int i = 0; i < 2; i++) {
        daemon_prompt(c, id, "next");
        json_decref(answer_of(c, id));
        daemon_wait_saved(c);
    }
    json_int_t length = session_figure(c, id, "tokens");
    assert_int_equal(session_figure(c, id, "statePosition"), 0);
    client_free(c);
    daemon_kill(&d);
    FILE *f = fopen(d.log, "re");
    while (f && fgets(line, sizeof line, f))
        said += strstr(line, "is not saved") != NULL;
    if (f)
        fclose(f);
    assert_int_equal(said, 1);
    daemon_start(&d, NULL);
    c = daemon_connect(&d, NULL, NULL);
    daemon_prompt(c, id, "third");
    json_auto_t *a = answer_of(c, id);
    assert_string_equal(text_of(a, "text"), "three");
    assert_int_equal(ledger_of(a, "recomputed"), length);
    daemon_verify(c, id);
    client_free(c);
    daemon_remove(&d);
}

/* ---- damage ----------------------------------------------------------------------- */

/* Calls fn for each pack file. */
static void each_pack(const struct daemon_fixture *d, void (*fn)(const char *path))
{
    char folder[256], path[600];
    snprintf(folder, sizeof folder, "%s/packs", d->store);
    DIR *dir = opendir(folder);
    assert_non_null(dir);
    for (struct dirent *e; (e = readdir(dir));)
        if (strstr(e->d_name, ".pack")) {
            snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
            fn(path);
        }
    closedir(dir);
}

static void remove_pack(const char *path)
{
    assert_int_equal(unlink(path), 0);
}

/* One flipped bit in the middle. */
static void damage_pack(const char *path)
{
    FILE *f = fopen(path, "r+e");
    assert_non_null(f);
    assert_int_equal(fseek(f, 0, SEEK_END), 0);
    long at =
        ftell(f) / 2 / 4096 * 4096 + 40; /* in an extent's header or rows, not in padding */
    assert_int_equal(fseek(f, at, SEEK_SET), 0);
    int byte = fgetc(f);
    assert_int_equal(fseek(f, at, SEEK_SET), 0);
    assert_int_equal(fputc(byte ^ 0x10, f), byte ^ 0x10);
    assert_int_equal(fclose(f), 0);
}

static void come_back_after(void (*harm)(const char *path))
{
    struct daemon_fixture d;
    char id[27];
    daemon_make(&d, SAY("one") SAY("two") SAY("three"));
    daemon_start(&d, NULL);
    struct client *c = daemon_connect(&d, NULL, NULL);
    daemon_session(&d, c, NULL, id);
    daemon_prompt(c, id, "first");
    json_decref(answer_of(c, id));
    daemon_wait_saved(c);
    json_int_t length = session_figure(c, id, "tokens");
    client_free(c);
    assert_int_equal(daemon_stop(&d), 0);
    each_pack(&d, harm);
    daemon_start(&d, NULL);
    c = daemon_connect(&d, NULL, NULL);
    daemon_prompt(c, id, "second");
    json_t *a = answer_of(c, id);
    assert_string_equal(text_of(a, "text"), "two");
    assert_true(ledger_of(a, "relost") > 0);
    assert_int_equal(
        ledger_of(a, "restored") + ledger_of(a, "relost") + ledger_of(a, "recomputed"), length);
    daemon_verify(c, id);
    json_decref(a);
    /* And it is saved again. */
    daemon_wait_saved(c);
    length = session_figure(c, id, "tokens");
    client_free(c);
    daemon_kill(&d);
    daemon_start(&d, NULL);
    c = daemon_connect(&d, NULL, NULL);
    daemon_prompt(c, id, "third");
    a = answer_of(c, id);
    assert_string_equal(text_of(a, "text"), "three");
    assert_int_equal(ledger_of(a, "restored"), length);
    json_decref(a);
    daemon_verify(c, id);
    client_free(c);
    daemon_remove(&d);
}

static void test_miaai_lab_57_damage_is_computed_again(void **state)
{
    (void)state;
    come_back_after(remove_pack);
    come_back_after(damage_pack);
}

/* ---- forks ------------------------------------------------------------------------ */

static void test_fork_at_an_event(void **state)
{
    (void)state;
    struct daemon_fixture d;
    char id[27], fork_id[27];
    daemon_make(&d, SAY("one") SAY("two") SAY("three"));
    daemon_start(&d, NULL);
    struct client *c = daemon_connect(&d, NULL, NULL);
    daemon_session(&d, c, NULL, id);
    daemon_prompt(c, id, "first");
    json_decref(answer_of(c, id));
    json_int_t seq = session_figure(c, id, "lastSeq"), length = session_figure(c, id, "tokens");
    daemon_prompt(c, id, "second");
    json_decref(answer_of(c, id));
    daemon_wait_saved(c);
    json_t *f =
        daemon_call(c, "session/fork",
                    json_pack("{s:s, s:I, s:s}", "id", id, "atSeq", seq, "name", "a-fork"));
    snprintf(fork_id, sizeof fork_id, "%s", text_of(f, "id"));
    json_decref(f);
    assert_int_equal(session_figure(c, fork_id, "tokens"), length);
    daemon_prompt(c, "a-fork", "another second");
    json_t *a = answer_of(c, fork_id);
    assert_string_equal(text_of(a, "text"), "two");
    assert_int_equal(
        ledger_of(a, "restored") + ledger_of(a, "recomputed") + ledger_of(a, "relost"), length);
    assert_int_equal(ledger_of(a, "relost"), 0);
    daemon_verify(c, fork_id);
    daemon_verify(c, id);
    json_decref(a);
    assert_int_equal(
        daemon_refused(c, "session/fork", json_pack("{s:s, s:i}", "id", id, "atSeq", 9999)),
        -32010);
    /* The fork lives on without its parent. */
    json_decref(daemon_call(c, "session/delete", json_pack("{s:s}", "id", id)));
    assert_int_equal(daemon_refused(c, "session/get", json_pack("{s:s}", "id", id)), -32010);
    daemon_prompt(c, fork_id, "third");
    a = answer_of(c, fork_id);
    assert_string_equal(text_of(a, "text"), "three");
    json_decref(a);
    client_free(c);
    daemon_remove(&d);
}

/* A fork can leave at any event, between a call and its result, too: then the fork's next input
 * says that the result is unknown, and the model is not left with a call without one. */
static void test_fork_at_every_event(void **state)
{
    (void)state;
    struct daemon_fixture d;
    char id[27], fork_id[27];
    daemon_make(&d, "{\"text\":\"ok</think>\\n\\n<｜DSML｜ calls>\\n<｜DSML｜ invoke "
                    "name=\\\"list_dir\\\">\\n</｜DSML｜ invoke>\\n</｜DSML｜ calls>" EOS
                    "\"}\n" SAY("two") SAY("three"));
    daemon_start(&d, NULL);
    struct client *c = daemon_connect(&d, NULL, NULL);
    daemon_session(&d, c, NULL, id);
    daemon_prompt(c, id, "first");
    json_decref(answer_of(c, id));
    daemon_wait_saved(c);
    json_int_t last = session_figure(c, id, "lastSeq"), most = 0, least = INT32_MAX;
    for (json_int_t seq = 1; seq <= last; seq++) {
        json_t *f =
            daemon_call(c, "session/fork", json_pack("{s:s, s:I}", "id", id, "atSeq", seq));
        snprintf(fork_id, sizeof fork_id, "%s", text_of(f, "id"));
        json_decref(f);
        daemon_prompt(c, fork_id, "x");
        json_t *a = answer_of(c, fork_id);
        assert_string_equal(text_of(a, "reason"), "end");
        assert_int_equal(ledger_of(a, "relost"), 0);
        json_int_t prefilled = ledger_of(a, "prefilled");
        if (ledger_of(a, "steps") == 1) { /* forks from the first run's end on */
            most = prefilled > most ? prefilled : most;
            least = prefilled < least ? prefilled : least;
        }
        json_decref(a);
        daemon_verify(c, fork_id);
    }
    assert_true(most > least + 80); /* the sentence about the unknown result */
    client_free(c);
    daemon_remove(&d);
}

/* ---- recorded mode ---------------------------------------------------------------- */

#define FORCED_RUN(command)                                                                      \
    "ok</think>\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"run\">\n<｜DSML｜ parameter " \
    "name=\"command\" string=\"true\">" command                                                  \
    "</｜DSML｜ parameter>\n</｜DSML｜ invoke>\n</｜DSML｜ calls>"

static void force(struct client *c, const char *id, const char *const *runs)
{
    json_t *list = json_array();
    for (; *runs; runs++)
        json_array_append_new(list, json_pack("{s:s}", "text", *runs));
    json_decref(daemon_call(c, "session/prompt",
                            json_pack("{s:s, s:[{s:s, s:s}], s:o}", "id", id, "content", "type",
                                      "text", "text", "replay this", "forced", list)));
}

/* Killed in the middle of the second call; the third entry makes it again. */
static void test_recorded_mode_with_a_kill(void **state)
{
    (void)state;
    static const char *const runs[] = {
        FORCED_RUN("echo one >> log"), FORCED_RUN("echo two >> log; sleep 20"),
        FORCED_RUN("echo two >> log"), FORCED_RUN("cat log"),
        "ok</think>All done.",         NULL};
    struct daemon_fixture d;
    char id[27], line[64], path[256];
    daemon_make(&d, SAY("the script says something else"));
    daemon_start(&d, NULL);
    struct client *c = daemon_connect(&d, NULL, NULL);
    daemon_session(&d, c, "{\"approve\":\"auto\",\"tools\":[\"run\"]}", id);
    force(c, id, runs);
    snprintf(path, sizeof path, "%s/log", d.work);
    for (int n = 0, tries = 0; n < 2 && tries < 1000; tries++) {
        FILE *f = fopen(path, "re");
        for (n = 0; f && fgets(line, sizeof line, f);)
            n++;
        if (f)
            fclose(f);
        nap(10);
    }
    daemon_wait_saved(c);
    json_int_t length = session_figure(c, id, "tokens");
    json_int_t saved = session_figure(c, id, "statePosition");
    client_free(c);
    daemon_kill(&d);
    daemon_start(&d, NULL);
    c = daemon_connect(&d, NULL, NULL);
    json_t *a = answer_of(c, id);
    assert_string_equal(text_of(a, "reason"), "end");
    assert_string_equal(text_of(a, "text"), "All done.");
    assert_int_equal(ledger_of(a, "steps"), 5);
    assert_int_equal(ledger_of(a, "relost"), 0);
    assert_int_equal(ledger_of(a, "restored"), saved);
    assert_int_equal(ledger_of(a, "recomputed"), length - saved);
    daemon_verify(c, id);
    json_decref(a);
    client_free(c);
    daemon_remove(&d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_claude_code_86244_93490_ds4_673_idle_session_comes_back_from_ssd),
        cmocka_unit_test(test_ds4_1053_lmcache_1175_clean_end_in_a_run),
        cmocka_unit_test(test_state_inside_a_long_segment),
        cmocka_unit_test(test_ds4_1069_765_dirge_506_eviction),
        cmocka_unit_test(test_state_that_cannot_be_saved),
        cmocka_unit_test(test_miaai_lab_57_damage_is_computed_again),
        cmocka_unit_test(test_fork_at_an_event),
        cmocka_unit_test(test_fork_at_every_event),
        cmocka_unit_test(test_recorded_mode_with_a_kill),
    };
    return !!cmocka_run_group_tests(tests, NULL, NULL);
}
