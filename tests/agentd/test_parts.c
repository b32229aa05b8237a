/* Small parts of the daemon on their own: the table of turn phases, the loop guard, the ledger,
 * names, session parameters, where the socket may be, and text that is not UTF-8. */
#include "tests/support/test.h"

#include <errno.h>
#include <stdbool.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "agentd/listen.h"
#include "agentd/names.h"
#include "agentd/session_config.h"
#include "agentd/turn_internal.h"
#include "tests/support/tempdir.h"

/* ---- the turn machine ---------------------------------------------------------------------
 */

static void test_every_phase_leads_to_the_end(void **state)
{
    (void)state;
    for (int from = 0; from < TURN_OVER; from++) {
        assert_true(from == TURN_END || turn_may_move((enum turn_phase)from, TURN_END));
        assert_false(turn_may_move((enum turn_phase)from, TURN_ACCEPT));
    }
    for (int to = 0; to < TURN_PHASES; to++)
        assert_false(turn_may_move(TURN_OVER, (enum turn_phase)to));
    /* Tool results go tool -> prefill -> generating, and never past their commit. */
    assert_true(turn_may_move(TURN_TOOLS, TURN_RESULTS));
    assert_true(turn_may_move(TURN_RESULTS, TURN_FEED));
    assert_true(turn_may_move(TURN_FEED, TURN_RUN));
    assert_false(turn_may_move(TURN_TOOLS, TURN_FEED));
    assert_false(turn_may_move(TURN_TOOLS, TURN_RUN));
    /* A run's end passes its commit before anything else. */
    assert_false(turn_may_move(TURN_RUN, TURN_TOOLS));
    assert_false(turn_may_move(TURN_RUN, TURN_OVER));
}

static void test_loop_guard(void **state)
{
    (void)state;
    struct loop_guard g = {.n = 0};
    assert_int_equal(loop_guard_count(&g, "run", "{\"a\":1}"), 1);
    assert_int_equal(loop_guard_count(&g, "run", "{\"a\":1}"), 2);
    assert_int_equal(loop_guard_count(&g, "run", "{\"a\":2}"), 1);
    assert_int_equal(loop_guard_count(&g, "run", "{\"a\":1}"), 1);
    assert_int_equal(loop_guard_count(&g, "runx", ""), 1);
    assert_int_equal(loop_guard_count(&g, "run", "x"), 1); /* fields, not their concatenation */
}

/* ---- ledger -------------------------------------------------------------------------------
 */

static void test_sglang_20678_cline_4346_vercel_ai_17531_ledger(void **state)
{
    (void)state;
    struct ledger l = {.prompt_tokens = 15,
                       .resident = 1,
                       .restored = 2,
                       .recomputed = 3,
                       .relost = 4,
                       .prefilled = 5,
                       .decoded = 6,
                       .reasoning = 7,
                       .replayed = 8,
                       .bytes_read = 9,
                       .bytes_written = 10,
                       .steps = 11};
    struct ledger back = {0}, sum = {0};
    for (size_t i = 0; i < LEDGER_STAGES; i++)
        l.ns[i] = 1000000 * (i + 1);
    assert_true(ledger_is_balanced(&l));
    json_t *j = ledger_json(&l);
    ledger_from_json(&back, j);
    assert_memory_equal(&l, &back, sizeof l);
    json_decref(j);
    ledger_add(&sum, &l);
    ledger_add(&sum, &l);
    assert_int_equal(sum.restored, 4);
    assert_int_equal(sum.ns[STAGE_TOOL], 2 * l.ns[STAGE_TOOL]);
    l.prefilled++;
    assert_false(ledger_is_balanced(&l));
}

/* ---- names --------------------------------------------------------------------------------
 */

static void test_names_are_slugs(void **state)
{
    (void)state;
    char name[64];
    for (uint64_t draw = 0; draw < 5000; draw++) {
        name_make(draw * 2654435761u, (unsigned)(draw % 3), name, sizeof name);
        size_t n = strlen(name);
        assert_in_range(n, 5, 40);
        assert_int_equal(strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789-"), n);
    }
}

/* ---- session parameters -------------------------------------------------------------------
 */

static enum err config(const char *params, char **text)
{
    struct error e;
    json_auto_t *p = json_loads(params, 0, NULL);
    assert_non_null(p);
    return session_config_from_params(p, 42, 300, false, text, &e);
}

static void test_session_parameters(void **state)
{
    (void)state;
    static const char *const bad[] = {
        "{\"approve\":\"maybe\"}",
        "{\"thinkingMode\":1}",
        "{\"effort\":101}",
        "{\"mode\":\"fast\"}",
        "{\"maxSteps\":0}",
        "{\"maxTokens\":1.5}",
        "{\"temperature\":-1}",
        "{\"topP\":0}",
        "{\"seed\":-1}",
        "{\"tools\":[\"no_such_tool\"]}",
        "{\"tools\":[7]}",
        "{\"tools\":\"run\"}",
        "{\"clientTools\":[{}]}",
        "{\"clientTools\":[{\"name\":\"a b\",\"parameters\":{}}]}",
        "{\"clientTools\":[{\"name\":\"run\",\"parameters\":{}}]}", /* taken by the daemon's */
        "{\"clientTools\":[{\"name\":\"x\",\"parameters\":{}},"
        "{\"name\":\"x\",\"parameters\":{}}]}",
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char *text = NULL;
        if (config(bad[i], &text) == OK)
            fail_msg("taken: %s", bad[i]);
        assert_null(text);
    }
    char *text = NULL;
    assert_int_equal(config("{\"tools\":[\"run\",\"grep\",\"run\"],\"system\":\"s\",\"effort\":"
                            "\"max\",\"approve\":\"auto\",\"clientTools\":[{\"name\":\"ask\","
                            "\"parameters\":{\"type\":\"object\"}}],\"unknown\":1}",
                            &text),
                     OK);
    struct session_config *c = NULL;
    struct error e;
    assert_ok(session_config_load(text, &c, &e), &e);
    assert_int_equal(c->effort, 100);
    assert_int_equal(c->sampling.seed, 21);
    assert_string_equal(c->system, "s");
    assert_true(session_config_has_tool(c, "run"));
    assert_false(session_config_has_tool(c, "list_dir"));
    assert_null(session_config_client_tool(c, "run"));
    assert_non_null(session_config_client_tool(c, "ask"));
    const json_t *functions = json_object_get(c->json, "functions");
    assert_int_equal(json_array_size(functions), 3); /* sorted, doubles removed */
    session_config_free(c);
    free(text);
    assert_int_equal(session_config_load("{}", &c, &e), ERR_CORRUPT);
    assert_int_equal(session_config_load("", &c, &e), ERR_CORRUPT);
}

/* ---- the socket ---------------------------------------------------------------------------
 */

static enum err try_listen(const char *path, struct listen *l)
{
    struct error e = {0};
    *l = (struct listen)LISTEN_INIT;
    enum err rc = listen_open(l, path, &e);
    if (rc)
        assert_true(e.msg[0] != '\0');
    return rc;
}

/* A socket file whose owner is gone. */
static void leave_dead_socket(const char *path)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(strlen(path) < sizeof a.sun_path);
    memcpy(a.sun_path, path, strlen(path) + 1);
    assert_int_equal(bind(fd, (const struct sockaddr *)&a, sizeof a), 0);
    close(fd);
}

static void test_spexcode_30_socket_placement(void **state)
{
    (void)state;
    char dir[TEMPDIR_BYTES], path[256], longer[300];
    struct listen l, second;
    struct stat st;
    tempdir_make(dir);
    snprintf(path, sizeof path, "%s/state/agentd/sock", dir); /* a new user has neither */
    assert_int_equal(try_listen(path, &l), OK);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    snprintf(longer, sizeof longer, "%s/state/agentd", dir);
    assert_int_equal(stat(longer, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0700);
    /* A live one is left alone, and keeps its file. */
    assert_int_equal(try_listen(path, &second), ERR_CONFLICT);
    listen_close(&second);
    assert_int_equal(access(path, F_OK), 0);
    listen_close(&l);
    assert_int_equal(access(path, F_OK), -1);
    /* A dead one is replaced; what is no socket is not. */
    leave_dead_socket(path);
    assert_int_equal(try_listen(path, &l), OK);
    listen_close(&l);
    FILE *f = fopen(path, "we");
    assert_non_null(f);
    fclose(f);
    assert_int_equal(try_listen(path, &l), ERR_CONFLICT);
    assert_int_equal(access(path, F_OK), 0);
    /* Folders that others can write to, and paths that no socket can have. */
    assert_int_equal(try_listen("/tmp/agentd-test.sock", &l), ERR_DENIED);
    snprintf(longer, sizeof longer, "%s/%0200d", dir, 1);
    assert_int_equal(try_listen(longer, &l), ERR_LIMIT);
    assert_int_equal(try_listen("", &l), ERR_LIMIT);
    assert_int_equal(try_listen("sock", &l), ERR_INVAL);
    tempdir_remove(dir);
}

/* A socket that replaced ours is not ours to remove. */
static void test_only_our_own_socket_is_removed(void **state)
{
    (void)state;
    char dir[TEMPDIR_BYTES], path[256];
    struct listen l;
    tempdir_make(dir);
    snprintf(path, sizeof path, "%s/sock", dir);
    assert_int_equal(try_listen(path, &l), OK);
    assert_int_equal(unlink(path), 0);
    leave_dead_socket(path);
    listen_close(&l);
    assert_int_equal(access(path, F_OK), 0);
    tempdir_remove(dir);
}

/* ---- text ---------------------------------------------------------------------------------
 */

static void check_text(const void *bytes, size_t n, const char *want, bool exact)
{
    json_t *item = events_item("i", "user", bytes, n);
    assert_string_equal(json_string_value(json_object_get(item, "text")), want);
    assert_int_equal(json_object_get(item, "bytesB64") != NULL, !exact);
    char *dumped = json_dumps(item, 0);
    json_t *again = json_loads(dumped, JSON_REJECT_DUPLICATES, NULL); /* strict: no NUL */
    assert_non_null(again);
    json_decref(again);
    free(dumped);
    json_decref(item);
}

static void test_text_of_any_bytes(void **state)
{
    (void)state;
    check_text("", 0, "", true);
    check_text("plain \xc3\xa9 \xf0\x9f\x98\x80", 13, "plain \xc3\xa9 \xf0\x9f\x98\x80", true);
    check_text("a\0b", 3,
               "a\xef\xbf\xbd"
               "b",
               false);
    check_text("\xff\xfe", 2, "\xef\xbf\xbd\xef\xbf\xbd", false);
    check_text("\xed\xa0\x80", 3, "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd", false);
    check_text("\xe2\x82", 2, "\xef\xbf\xbd\xef\xbf\xbd", false);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_phase_leads_to_the_end),
        cmocka_unit_test(test_loop_guard),
        cmocka_unit_test(test_sglang_20678_cline_4346_vercel_ai_17531_ledger),
        cmocka_unit_test(test_names_are_slugs),
        cmocka_unit_test(test_session_parameters),
        cmocka_unit_test(test_spexcode_30_socket_placement),
        cmocka_unit_test(test_only_our_own_socket_is_removed),
        cmocka_unit_test(test_text_of_any_bytes),
    };
    return !!cmocka_run_group_tests(tests, NULL, NULL);
}
