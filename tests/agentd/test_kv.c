/* The room of model state, seen through the daemon: a quota under which sessions are used in
 * turn, pins, dropping; and that a run of gc does not hold up the commits of a turn. */
#include "tests/support/test.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agentd/verbs.h"
#include "tests/support/agentctl.h"
#include "tests/support/daemon.h"

#define EOS "<｜end▁of▁sentence｜>"
#define SAY(text) "{\"text\":\"ok</think>" text EOS "\"}\n"
#define N_SESSIONS 10
#define ROUNDS 3

static json_int_t figure(struct client *c, const char *id, const char *key)
{
    json_auto_t *s = daemon_call(c, "session/get", json_pack("{s:s}", "id", id));
    return int_of(s, key);
}

/* What kv/stats says about one session; NULL: nothing. */
static json_t *space_of(struct client *c, const char *id)
{
    json_auto_t *stats = daemon_call(c, "kv/stats", NULL);
    json_t *s, *found = NULL;
    size_t i;
    json_array_foreach(json_object_get(stats, "sessions"), i, s)
        if (strcmp(json_string_value(json_object_get(s, "id")), id) == 0)
            found = json_incref(s);
    return found;
}

static char *long_text(size_t n)
{
    char *s = malloc(n + 1);
    for (size_t i = 0; i < n; i++)
        s[i] = i % 7 == 6 ? ' ' : (char)('a' + i * 11 % 26);
    s[n] = 0;
    return s;
}

/* A turn; returns its answer after its identity was checked. */
static json_t *turn(struct client *c, const char *id, const char *text)
{
    daemon_prompt(c, id, text);
    json_t *a = daemon_wait(c, id);
    const json_t *l = json_object_get(a, "ledger");
    assert_string_equal(json_string_value(json_object_get(a, "reason")), "end");
    assert_int_equal(int_of(l, "prompt_tokens"),
                     int_of(l, "resident") + int_of(l, "restored") + int_of(l, "recomputed") +
                         int_of(l, "relost") + int_of(l, "prefilled"));
    return a;
}

static void one_resident(struct daemon_fixture *d, const char *quota)
{
    d->extra[0] = "--resident";
    d->extra[1] = "1";
    d->extra[2] = quota ? "--kv-quota" : NULL;
    d->extra[3] = quota;
    d->extra[4] = NULL;
}

/* Ten in turn in room for three: nobody's turn fails, and what a resume has to compute again
 * although it was saved is exactly what is not there any more. */
static void test_quota_of_three(void **state)
{
    (void)state;
    struct daemon_fixture d;
    char ids[N_SESSIONS][27], quota[32];
    char *text = long_text(3000);
    json_int_t lost = 0, whole = 0;
    daemon_make(&d, SAY("a") SAY("b") SAY("c") SAY("d"));
    one_resident(&d, NULL);
    daemon_start(&d, NULL);
    struct client *c = daemon_connect(&d, NULL, NULL);
    daemon_session(&d, c, NULL, ids[0]);
    json_decref(turn(c, ids[0], text));
    daemon_wait_saved(c);
    json_auto_t *one = space_of(c, ids[0]);
    client_free(c);
    daemon_stop(&d);
    snprintf(quota, sizeof quota, "%lld", 3 * (long long)int_of(one, "heldBytes") * 5 / 4);
    one_resident(&d, quota);
    daemon_start(&d, NULL);
    c = daemon_connect(&d, NULL, NULL);
    for (int i = 1; i < N_SESSIONS; i++)
        daemon_session(&d, c, NULL, ids[i]);
    for (int round = 0; round < ROUNDS; round++)
        for (int i = 0; i < N_SESSIONS; i++) {
            json_int_t tape = figure(c, ids[i], "tokens");
            json_int_t saved = figure(c, ids[i], "statePosition");
            json_auto_t *space = space_of(c, ids[i]);
            text[0] = (char)('0' + i); /* nothing is shared */
            json_auto_t *a = turn(c, ids[i], round ? "and now?" : text);
            const json_t *l = json_object_get(a, "ledger");
            if (tape && !int_of(l, "resident")) {
                assert_int_equal(int_of(l, "restored") + int_of(l, "relost") +
                                     int_of(l, "recomputed"),
                                 tape);
                assert_int_equal(int_of(l, "relost"), saved - int_of(l, "restored"));
                assert_int_equal(int_of(l, "recomputed"), tape - saved);
                assert_true(int_of(l, "restored") <= (space ? int_of(space, "tokens") : 0));
                lost += int_of(l, "relost");
                whole += int_of(l, "relost") == 0;
            }
            daemon_wait_saved(c);
            json_auto_t *stats = daemon_call(c, "kv/stats", NULL);
            assert_true(int_of(stats, "usedBytes") <= int_of(stats, "quotaBytes"));
        }
    print_message("%d turns of %d sessions under a quota of %s bytes: %lld tokens relost, "
                  "%lld resumes without a loss\n",
                  ROUNDS * N_SESSIONS, N_SESSIONS, quota, (long long)lost, (long long)whole);
    assert_true(lost > 0);
    client_free(c);
    daemon_remove(&d);
    free(text);
}

/* A quota that nothing fits in: turns go on, and say once that nothing is saved. */
static void test_mooncake_2475_quota_of_nothing(void **state)
{
    (void)state;
    struct daemon_fixture d;
    char id[27];
    daemon_make(&d, SAY("a") SAY("b"));
    one_resident(&d, "1");
    daemon_start(&d, NULL);
    struct client *c = daemon_connect(&d, NULL, NULL);
    daemon_session(&d, c, NULL, id);
    for (int i = 0; i < 3; i++)
        json_decref(turn(c, id, "hello"));
    daemon_wait_saved(c);
    assert_int_equal(figure(c, id, "statePosition"), 0);
    client_free(c);
    daemon_kill(&d);
    daemon_start(&d, NULL);
    c = daemon_connect(&d, NULL, NULL);
    json_auto_t *a = turn(c, id, "still there?");
    assert_int_equal(int_of(json_object_get(a, "ledger"), "relost"), 0);
    client_free(c);
    daemon_remove(&d);
}

static void test_verbs(void **state)
{
    (void)state;
    struct daemon_fixture d;
    char id[27];
    daemon_make(&d, SAY("a") SAY("b"));
    daemon_start(&d, NULL);
    setenv("AGENTD_SOCKET", d.socket, 1);
    struct client *c = daemon_connect(&d, NULL, NULL);
    daemon_session(&d, c, "{\"name\":\"one\"}", id);
    json_decref(turn(c, id, "hello"));
    daemon_wait_saved(c);
    const struct agentctl_ran *r = AGENTCTL("kv", "stats");
    assert_int_equal(r->code, EXIT_DONE);
    assert_has(r->out, "one");
    assert_has(r->out, "bytes on disk");
    r = AGENTCTL("kv", "pin", "one");
    assert_int_equal(r->code, EXIT_DONE);
    assert_has(AGENTCTL("kv", "stats")->out, "pinned");
    assert_int_equal(AGENTCTL("kv", "pin", "one", "--off")->code, EXIT_DONE);
    assert_null(strstr(AGENTCTL("kv", "stats")->out, "pinned"));
    r = AGENTCTL("kv", "drop", "one", "--json");
    assert_int_equal(r->code, EXIT_DONE);
    json_auto_t *dropped = json_loads(r->out, 0, NULL);
    assert_true(int_of(dropped, "bytes") > 0);
    assert_int_equal(figure(c, id, "statePosition"), 0);
    json_auto_t *a = turn(c, id, "and now?");
    assert_int_equal(int_of(json_object_get(a, "ledger"), "restored"), 0);
    assert_int_equal(AGENTCTL("kv", "pin", "nobody")->code, EXIT_NOTFOUND);
    assert_int_equal(AGENTCTL("kv", "stats", "one")->code, EXIT_USAGE);
    assert_int_equal(AGENTCTL("kv", "pin")->code, EXIT_USAGE);
    assert_int_equal(AGENTCTL("kv", "eat")->code, EXIT_USAGE);
    client_free(c);
    daemon_remove(&d);
}

/* A fork where no tip is any more, inside a block: its rows come back, the windows are
 * replayed, and nothing else is computed again. */
static void test_fork_inside_a_block(void **state)
{
    (void)state;
    struct daemon_fixture d;
    char id[27], fork[27], *text = long_text(1500);
    daemon_make(&d, SAY("a") SAY("b") SAY("c") SAY("d"));
    one_resident(&d, NULL);
    d.extra[2] = "--block-tokens";
    d.extra[3] = "64";
    d.extra[4] = NULL;
    daemon_start(&d, NULL);
    struct client *c = daemon_connect(&d, NULL, NULL);
    daemon_session(&d, c, NULL, id);
    json_decref(turn(c, id, text));
    json_int_t seq = figure(c, id, "lastSeq"), length = figure(c, id, "tokens");
    for (int i = 0; i < 3; i++) {
        json_decref(turn(c, id, text));
        daemon_wait_saved(c);
    }
    assert_true(length % 64 != 0);
    json_auto_t *before = daemon_call(c, "kv/stats", NULL);
    json_auto_t *f =
        daemon_call(c, "session/fork", json_pack("{s:s, s:I}", "id", id, "atSeq", seq));
    snprintf(fork, sizeof fork, "%s", json_string_value(json_object_get(f, "id")));
    json_auto_t *after = daemon_call(c, "kv/stats", NULL);
    assert_int_equal(int_of(after, "liveBytes"), int_of(before, "liveBytes"));
    json_auto_t *a = turn(c, fork, "go on");
    const json_t *r = json_object_get(a, "resume");
    assert_string_equal(json_string_value(json_object_get(r, "mode")), "deep");
    assert_int_equal(int_of(r, "restored"), length);
    assert_int_equal(int_of(r, "recomputed") + int_of(r, "relost"), 0);
    assert_true(int_of(r, "replayed") > 0);
    print_message("fork at token %lld of blocks of 64: %lld restored, 0 recomputed, %lld "
                  "replayed\n",
                  (long long)length, (long long)int_of(r, "restored"),
                  (long long)int_of(r, "replayed"));
    client_free(c);
    daemon_remove(&d);
    free(text);
}

static void await(struct client *c, uint64_t call)
{
    json_t *answer = NULL;
    struct error e;
    assert_ok(client_await(c, call, 60000, &answer, &e), &e);
    client_forget(c, call);
    json_decref(answer);
}

static uint64_t begin(struct client *c, const char *method)
{
    uint64_t call;
    struct error e;
    assert_ok(client_start(c, method, json_object(), &call, &e), &e);
    return call;
}

/* Runs of gc and of fsck under way, evictions for room, sessions that come back from disk and
 * go on, all at once; and every turn ends well. (For the thread sanitizer, too.) */
static void test_lmcache_1981_omlx_1070_all_at_once(void **state)
{
    (void)state;
    enum { N = 4 };
    struct daemon_fixture d;
    char ids[N][27], *text = long_text(1500);
    int rounds = getenv("AGENTD_SLOW") ? 40 : 4;
    daemon_make(&d, SAY("a") SAY("b") SAY("c"));
    one_resident(&d, "1M");
    d.extra[4] = "--block-tokens";
    d.extra[5] = "64";
    d.extra[6] = NULL;
    daemon_start(&d, NULL);
    struct client *c = daemon_connect(&d, NULL, NULL), *keeper = daemon_connect(&d, NULL, NULL);
    for (int i = 0; i < N; i++)
        daemon_session(&d, c, NULL, ids[i]);
    json_int_t relost = 0, restored = 0;
    for (int round = 0; round < rounds; round++) {
        uint64_t gc = begin(keeper, "kv/gc"), fsck = begin(keeper, "store/fsck");
        for (int i = 0; i < N; i++) {
            text[0] = (char)('0' + i);
            daemon_prompt(c, ids[i], round ? "and now?" : text);
        }
        for (int i = 0; i < N; i++) {
            json_auto_t *a = daemon_wait(c, ids[i]);
            const json_t *l = json_object_get(a, "ledger");
            assert_string_equal(json_string_value(json_object_get(a, "reason")), "end");
            assert_int_equal(int_of(l, "prompt_tokens"),
                             int_of(l, "resident") + int_of(l, "restored") +
                                 int_of(l, "recomputed") + int_of(l, "relost") +
                                 int_of(l, "prefilled"));
            relost += int_of(l, "relost");
            restored += int_of(l, "restored");
        }
        await(keeper, gc);
        await(keeper, fsck);
    }
    daemon_wait_saved(c);
    print_message("%d turns with gc and fsck under way: %lld tokens restored, %lld relost\n",
                  rounds * N, (long long)restored, (long long)relost);
    assert_true(restored > 0);
    json_auto_t *whole = daemon_call(c, "store/fsck", NULL);
    if (int_of(whole, "found"))
        fail_msg("fsck: %s", json_dumps(whole, JSON_INDENT(1)));
    client_free(c);
    client_free(keeper);
    daemon_remove(&d);
    free(text);
}

/* Everything goes: sessions, text, outputs of tools, the key. */
static void test_namespace_drop(void **state)
{
    (void)state;
    struct daemon_fixture d;
    char id[27], name[32], path[256];
    daemon_make(&d, SAY("a") SAY("b"));
    daemon_start(&d, NULL);
    setenv("AGENTD_SOCKET", d.socket, 1);
    struct client *c = daemon_connect(&d, NULL, NULL);
    daemon_session(&d, c, "{\"name\":\"one\"}", id);
    json_decref(turn(c, id, "hello"));
    daemon_wait_saved(c);
    snprintf(path, sizeof path, "%s/spill/%s", d.store, id);
    assert_int_equal(mkdir(path, 0700), 0);
    snprintf(path, sizeof path, "%s/spill/%s/call-1", d.store, id);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs("output", f);
    fclose(f);
    snprintf(name, sizeof name, "uid-%u", (unsigned)getuid());
    assert_int_equal(AGENTCTL("namespace", "drop", "somebody-else")->code, EXIT_NOTFOUND);
    assert_int_equal(AGENTCTL("namespace", "grow", name)->code, EXIT_USAGE);
    assert_int_equal(AGENTCTL("show", "one")->code, EXIT_DONE);
    const struct agentctl_ran *r = AGENTCTL("namespace", "drop", name);
    assert_int_equal(r->code, EXIT_DONE);
    assert_has(r->out, "sessions: 1");
    assert_int_equal(AGENTCTL("show", "one")->code, EXIT_NOTFOUND);
    assert_int_equal(access(path, F_OK), -1);
    /* And it begins again. */
    daemon_session(&d, c, "{\"name\":\"one\"}", id);
    json_decref(turn(c, id, "hello"));
    daemon_wait_saved(c);
    assert_int_equal(AGENTCTL("fsck")->code, EXIT_DONE);
    client_free(c);
    daemon_kill(&d);
    daemon_start(&d, NULL);
    c = daemon_connect(&d, NULL, NULL);
    json_auto_t *a = turn(c, id, "again");
    assert_true(int_of(json_object_get(a, "ledger"), "restored") > 0);
    client_free(c);
    daemon_remove(&d);
}

/* fsck from the command line: 0 for a whole store, 8 for damage, mended or not. */
static void test_fsck(void **state)
{
    (void)state;
    struct daemon_fixture d;
    char id[27], path[256];
    daemon_make(&d, SAY("a") SAY("b"));
    daemon_start(&d, NULL);
    setenv("AGENTD_SOCKET", d.socket, 1);
    struct client *c = daemon_connect(&d, NULL, NULL);
    daemon_session(&d, c, "{\"name\":\"one\"}", id);
    json_decref(turn(c, id, "hello"));
    daemon_wait_saved(c);
    const struct agentctl_ran *r = AGENTCTL("fsck");
    assert_int_equal(r->code, EXIT_DONE);
    assert_has(r->out, ": whole\n");
    snprintf(path, sizeof path, "%s/packs/00000001.pack", d.store);
    int fd = open(path, O_RDWR);
    assert_true(fd >= 0);
    assert_int_equal(pwrite(fd, "x", 1, 2 * 4096 + 5), 1);
    close(fd);
    r = AGENTCTL("fsck", "--json");
    assert_int_equal(r->code, EXIT_CORRUPT);
    json_auto_t *found = json_loads(r->out, 0, NULL);
    assert_int_equal(int_of(found, "found"), 1);
    assert_int_equal(int_of(found, "repaired"), 0);
    r = AGENTCTL("fsck", "--repair");
    assert_int_equal(r->code, EXIT_CORRUPT);
    assert_has(r->out, "1 found, 1 repaired");
    assert_int_equal(AGENTCTL("fsck")->code, EXIT_DONE);
    client_free(c);
    daemon_remove(&d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_quota_of_three),
        cmocka_unit_test(test_mooncake_2475_quota_of_nothing),
        cmocka_unit_test(test_verbs),
        cmocka_unit_test(test_fsck),
        cmocka_unit_test(test_fork_inside_a_block),
        cmocka_unit_test(test_lmcache_1981_omlx_1070_all_at_once),
        cmocka_unit_test(test_namespace_drop),
    };
    return !!cmocka_run_group_tests(tests, NULL, NULL);
}
