/* Runs that are killed at random moments and started again, and their journal. */
#include "tests/support/test.h"

#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/encode.h"
#include "base/fs.h"
#include "base/hash.h"
#include "base/spawn.h"
#include "evals/journal.h"
#include "tests/support/build_folder.h"
#include "tests/support/daemon.h"

#define A_TINY "tests/golden/a_tiny/model"

static int n_kills(int fast, int slow)
{
    return getenv("AGENTD_SLOW") ? slow : fast;
}

/* ---- the journal ------------------------------------------------------------------------ */

static enum err count(void *user, const json_t *record, struct error *e)
{
    (void)e;
    assert_int_equal(json_integer_value(json_object_get(record, "n")), *(int *)user);
    ++*(int *)user;
    return OK;
}

static void crc_is_castagnolis(void **state)
{
    (void)state;
    assert_int_equal(journal_crc("123456789", 9), 0xe3069283); /* RFC 3720's check value */
}

/* Cut after every byte: what was whole is kept, the rest is dropped, and it goes on. */
static void torn_tails_are_dropped(void **state)
{
    (void)state;
    char dir[TEMPDIR_BYTES], path[200];
    struct error e = {0};
    AUTO(buf) struct buf whole = BUF_INIT(1 << 20);
    tempdir_make(dir);
    snprintf(path, sizeof path, "%s/j", dir);
    AUTO(journal) struct journal j = JOURNAL_INIT;
    int n = 0;
    assert_ok(journal_open(&j, path, count, &n, &e), &e);
    size_t ends[4] = {0};
    for (int i = 0; i < 3; i++) {
        assert_ok(journal_append(&j, json_pack("{s:i, s:s}", "n", i, "t", "a\n\xc3\xa9"), &e),
                  &e);
        buf_clear(&whole);
        assert_ok(fs_read_file(path, &whole, &e), &e);
        ends[i + 1] = whole.len;
    }
    struct journal second;
    n = 0;
    assert_int_equal(journal_open(&second, path, count, &n, &e), ERR_BUSY);
    journal_fini(&second);
    journal_fini(&j);
    for (size_t cut = 0; cut <= whole.len; cut++) {
        int want = 0;
        while (want < 3 && ends[want + 1] <= cut)
            want++;
        assert_ok(fs_write_atomic(path, whole.data, cut, 0600, &e), &e);
        n = 0;
        assert_ok(journal_open(&j, path, count, &n, &e), &e);
        assert_int_equal(n, want);
        assert_int_equal(j.dropped, ends[want] != cut);
        assert_ok(journal_append(&j, json_pack("{s:i}", "n", want), &e), &e);
        journal_fini(&j);
        n = 0;
        assert_ok(journal_read(path, count, &n, &e), &e);
        assert_int_equal(n, want + 1);
    }
    for (size_t at = 0; at < ends[2]; at++) { /* a flip in what has something behind it */
        whole.data[at] ^= 1;
        assert_ok(fs_write_atomic(path, whole.data, whole.len, 0600, &e), &e);
        n = 0;
        assert_int_equal(journal_open(&j, path, count, &n, &e), ERR_CORRUPT);
        journal_fini(&j);
        whole.data[at] ^= 1;
    }
    tempdir_remove(dir);
}

/* ---- a run ------------------------------------------------------------------------------ */

struct bench {
    struct daemon_fixture d;
    char dir[200];
};

/* Starts agentd-evals; kills it after `us` (0: never). Its exit code, or -SIGKILL. */
static int evals(const struct bench *b, const char *const *args, uint64_t us)
{
    const char *argv[16] = {"agentd-evals"};
    int n = 1, status = 0;
    for (; *args; args++)
        argv[n++] = *args;
    struct error e = {0};
    AUTO_FD int log = open(b->d.log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    const struct spawn_fd fds[] = {{log, 1}, {log, 2}};
    const struct spawn_options o = {.argv = argv, .fds = fds, .n_fds = 2};
    struct spawn child = SPAWN_INIT;
    assert_ok(spawn_start(&o, &child, &e), &e);
    if (us) {
        const struct timespec t = {(time_t)(us / 1000000), (long)(us % 1000000) * 1000};
        nanosleep(&t, NULL);
        assert_ok(spawn_signal(&child, SIGKILL, &e), &e);
    }
    assert_ok(spawn_wait(&child, 50000, &status, &e), &e);
    spawn_fini(&child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

static int run(const struct bench *b, uint64_t us)
{
    const char *const args[] = {"run", b->dir, "--socket", b->d.socket, "-q", NULL};
    return evals(b, args, us);
}

static void bench_make(struct bench *b)
{
    daemon_make(&b->d, "");
    b->d.model = A_TINY;
    daemon_start(&b->d, NULL);
    snprintf(b->dir, sizeof b->dir, "%s/run", b->d.dir);
    const char *const args[] = {"gen", "needle-session", "-m", A_TINY,       "-o", b->dir, "-l",
                                "1K",  "--questions",    "3",  "--contexts", "2",  NULL};
    if (evals(b, args, 0))
        daemon_show_log(&b->d);
}

/* What is acknowledged, and that nothing was begun after that. */
static enum err note(void *user, const json_t *record, struct error *e)
{
    json_t *done = user;
    const char *id = json_string_value(json_object_get(record, "id"));
    const char *begun = json_string_value(json_object_get(record, "begin"));
    (void)e;
    if (begun)
        assert_null(json_object_get(done, begun));
    if (id) {
        assert_null(json_object_get(done, id));
        json_object_set_new(done, id, json_deep_copy(record));
    }
    return OK;
}

/* id -> record; acknowledged answers of before are still there, the same. */
static json_t *acknowledged(const struct bench *b, const json_t *before)
{
    char path[256];
    struct error e = {0};
    json_t *done = json_object();
    const char *id;
    json_t *record;
    snprintf(path, sizeof path, "%s/run.jsonl", b->dir);
    enum err rc = journal_read(path, note, done, &e);
    if (rc != ERR_NOTFOUND)
        assert_ok(rc, &e);
    json_object_foreach((json_t *)(uintptr_t)before, id, record)
        assert_true(json_equal(record, json_object_get(done, id)));
    return done;
}

static void read_results(const struct bench *b, struct buf *out)
{
    char path[256];
    struct error e = {0};
    snprintf(path, sizeof path, "%s/results.json", b->dir);
    assert_ok(fs_read_file(path, out, &e), &e);
}

static void forget_run(const struct bench *b)
{
    static const char *const files[] = {"run.jsonl", "timings.jsonl", "answers.jsonl",
                                        "scores.jsonl", "results.json"};
    char path[256];
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        snprintf(path, sizeof path, "%s/%s", b->dir, files[i]);
        unlink(path);
    }
}

static uint64_t now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
}

static void a_killed_run_ends_the_same(void **state)
{
    (void)state;
    struct bench b;
    AUTO(buf) struct buf whole = BUF_INIT(1 << 20), answers = BUF_INIT(1 << 20);
    const int n = n_kills(6, 100);
    int n_killed = 0, n_rounds = 0, n_begun = 0;
    uint64_t seed = 7;
    bench_make(&b);
    uint64_t t0 = now_us();
    if (run(&b, 0))
        daemon_show_log(&b.d);
    const uint64_t took = now_us() - t0;
    read_results(&b, &whole);
    json_auto_t *first = acknowledged(&b, NULL);
    assert_int_equal(json_object_size(first), 6);
    while (n_killed < n) {
        json_t *done = NULL;
        forget_run(&b);
        for (bool over = false; !over;) {
            seed = seed * UINT64_C(6364136223846793005) + 1442695040888963407u;
            const bool kills = n_killed < n;
            const int code = run(&b, kills ? 1 + (seed >> 33) % (took / 2) : 0);
            over = code != -SIGKILL;
            if (over && code != 0) {
                daemon_show_log(&b.d);
                fail_msg("the run ended with %d", code);
            }
            n_killed += !over;
            json_t *now = acknowledged(&b, done);
            n_begun += !over && json_object_size(now) > 0 && json_object_size(now) < 6;
            json_decref(done);
            done = now;
        }
        AUTO(buf) struct buf results = BUF_INIT(1 << 20);
        read_results(&b, &results);
        assert_int_equal(results.len, whole.len);
        assert_memory_equal(results.data, whole.data, whole.len);
        assert_true(json_equal(done, first));
        json_decref(done);
        n_rounds++;
    }
    struct client *c = daemon_connect(&b.d, NULL, NULL);
    const json_t *served = json_object_get(client_server(c), "model");
    json_auto_t *results = json_loadb((const char *)whole.data, whole.len, 0, NULL);
    const json_t *scored = json_object_get(results, "model"); /* whose answers they are */
    static const char *const of_model[] = {"fingerprint", "numerics"};
    for (size_t i = 0; i < 2; i++)
        assert_string_equal(json_string_value(json_object_get(scored, of_model[i])),
                            json_string_value(json_object_get(served, of_model[i])));
    json_auto_t *list = daemon_call(c, "session/list", json_object());
    /* What a round that was forgotten here left behind is all there may be. */
    assert_in_range(json_array_size(json_object_get(list, "sessions")), 0, 4 * n_rounds);
    client_free(c);
    fprintf(stderr,
            "%d kills in %d rounds of %llu ms, %d of them between the first answer and the "
            "last: the same results.json\n",
            n_killed, n_rounds, (unsigned long long)took / 1000, n_begun);
    assert_true(n_begun > 0);
    daemon_remove(&b.d);
}

/* What a run may not do silently. */
static void other_keys_and_no_daemon(void **state)
{
    (void)state;
    struct bench b;
    bench_make(&b);
    const char *const thinking[] = {"run", b.dir, "--socket", b.d.socket, "--thinking", NULL};
    const char *const dry[] = {"run", b.dir, "--dry-run", NULL};
    assert_int_equal(evals(&b, dry, 0), 0);
    assert_int_equal(run(&b, 0), 0);
    assert_int_equal(run(&b, 0), 0); /* nothing is left to ask */
    assert_int_equal(evals(&b, thinking, 0), 11);
    assert_int_equal(daemon_stop(&b.d), 0);
    assert_int_equal(run(&b, 0), 3);
    assert_int_equal(evals(&b, dry, 0), 0);
    daemon_remove(&b.d);
}

/* Replaces the digest of contexts.jsonl in suite.json by that of these bytes. */
static void suite_takes(const struct bench *b, const void *contexts, size_t n)
{
    char path[256];
    uint8_t digest[HASH_BYTES];
    struct error e = {0};
    AUTO(buf) struct buf text = BUF_INIT(1 << 16);
    snprintf(path, sizeof path, "%s/suite.json", b->dir);
    assert_ok(fs_read_file(path, &text, &e), &e);
    char *old = strstr((char *)text.data, "\"contexts\": \"");
    assert_non_null(old);
    char hex[HEX_CHARS(HASH_BYTES)];
    hash_bytes(NULL, contexts, n, digest);
    hex_encode(digest, sizeof digest, hex);
    memcpy(old + strlen("\"contexts\": \""), hex, strlen(hex));
    assert_ok(fs_write_atomic(path, text.data, text.len, 0600, &e), &e);
}

/* A suite that lost a context is not asked; one that was written without it: its samples were
 * never asked, and that is said. */
static void a_context_that_is_missing(void **state)
{
    (void)state;
    struct bench b;
    struct error e = {0};
    char path[256];
    AUTO(buf) struct buf contexts = BUF_INIT(1 << 20);
    bench_make(&b);
    snprintf(path, sizeof path, "%s/contexts.jsonl", b.dir);
    assert_ok(fs_read_file(path, &contexts, &e), &e);
    const uint8_t *end = memchr(contexts.data, '\n', contexts.len);
    assert_non_null(end);
    size_t first = (size_t)(end + 1 - contexts.data);
    assert_ok(fs_write_atomic(path, contexts.data, first, 0600, &e), &e);
    assert_int_equal(run(&b, 0), 11);
    suite_takes(&b, contexts.data, first);
    assert_int_equal(run(&b, 0), 8);
    assert_int_equal(daemon_stop(&b.d), 0);
    daemon_remove(&b.d);
}

int main(void)
{
    if (build_folder_use())
        return 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(crc_is_castagnolis),
        cmocka_unit_test(torn_tails_are_dropped),
        cmocka_unit_test(a_killed_run_ends_the_same),
        cmocka_unit_test(other_keys_and_no_daemon),
        cmocka_unit_test(a_context_that_is_missing),
    };
    return !!cmocka_run_group_tests(tests, NULL, NULL);
}
