#include "tests/support/test.h"

#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "engine/engine.h"
#include "engine/script_state.h"
#include "engine/tokenizer.h"
#include "tests/support/engine_contract.h"

/* ---- opening -------------------------------------------------------------------- */

static void write_file(const char *path, const char *text)
{
    FILE *f = fopen(path, "we");
    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, strlen(text), f), strlen(text));
    assert_int_equal(fclose(f), 0);
}

static enum err try_script(struct engine **out, const char *text, struct error *e)
{
    char path[] = "/tmp/script-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    write_file(path, text);
    enum err rc = engine_open_script(out, path, NULL, e);
    unlink(path);
    return rc;
}

static struct engine *open_script(const char *text)
{
    struct engine *m = NULL;
    struct error e;
    assert_ok(try_script(&m, text, &e), &e);
    return m;
}

static void test_bad_scripts(void **state)
{
    (void)state;
    static const char *const bad[] = {
        "{}",
        "[]",
        "{\"text\":\"a\"",
        "{\"text\":\"a\",\"ids\":[1]}",
        "{\"text\":1}",
        "{\"ids\":[1,-1]}",
        "{\"ids\":[1,99999]}",
        "{\"ids\":[1.0]}",
        "{\"ids\":\"a\"}",
        "{\"text\":\"a\",\"tokens_ms\":1}",
        "{\"text\":\"a\",\"token_ms\":-1}",
        "{\"text\":\"a\",\"token_ms\":1e3}",
        "{\"text\":\"a\",\"crash\":\"now\"}",
        "{\"text\":\"a\",\"text\":\"b\"}",
        "{\"text\":\"\xff\"}",
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char text[128];
        struct engine *m = NULL;
        struct error e;
        snprintf(text, sizeof text, "{\"text\":\"fine\"}\n\n%s\n", bad[i]);
        if (try_script(&m, text, &e) != ERR_FORMAT || m || !strstr(e.msg, "line 3"))
            fail_msg("%s: %s", bad[i], m ? "accepted" : e.msg);
    }
    struct engine *m = NULL;
    struct error e;
    assert_int_equal(engine_open_script(&m, "/nowhere/script", NULL, &e), ERR_NOTFOUND);
    m = open_script(""); /* no line: every run is EOS alone */
    engine_free(m);
}

/* ---- running -------------------------------------------------------------------- */

struct ran {
    uint32_t ids[4096];
    size_t n;
    enum end_reason reason;
};

static void finish(struct engine *m, struct ran *out)
{
    memset(out, 0, sizeof *out);
    while (engine_has_work(m)) {
        struct engine_event ev[8];
        struct error e;
        size_t n;
        assert_ok(engine_step(m, ev, 8, &n, &e), &e);
        for (size_t i = 0; i < n; i++) {
            for (uint32_t k = 0; k < ev[i].n_ids; k++)
                out->ids[out->n++] = ev[i].ids[k];
            if (ev[i].kind == ENGINE_DONE)
                out->reason = ev[i].reason;
        }
    }
}

static struct seq *new_seq(struct engine *m)
{
    struct seq *s = NULL;
    struct error e;
    assert_ok(seq_new(m, NULL, &s, &e), &e);
    return s;
}

static void input(struct engine *m, struct seq *s, const char *text)
{
    uint32_t ids[1024];
    size_t n = strlen(text);
    struct error e;
    struct ran r;
    for (size_t i = 0; i < n; i++)
        ids[i] = (unsigned char)text[i];
    assert_ok(seq_input(s, ids, n, PREFILL_CED, &e), &e);
    finish(m, &r);
    assert_int_equal(r.reason, END_SEGMENT);
}

static void queue_run(struct seq *s, uint64_t max_tokens)
{
    struct generate_options g = {.max_tokens = max_tokens};
    struct error e;
    assert_ok(seq_generate(s, &g, &e), &e);
}

/* The bytes that a run stands for, its EOS left out. */
static const char *run_text(struct engine *m, struct seq *s, struct ran *r)
{
    static char text[4096];
    size_t len = 0;
    queue_run(s, 4096);
    finish(m, r);
    assert_int_equal(r->reason, END_EOS);
    for (size_t i = 0; i + 1 < r->n; i++) {
        size_t n;
        const uint8_t *b = tokenizer_bytes(engine_describe(m)->tokenizer, r->ids[i], &n);
        memcpy(text + len, b, n);
        len += n;
    }
    text[len] = 0;
    return text;
}

static void test_lines_in_order(void **state)
{
    (void)state;
    struct engine *m = open_script("{\"text\":\"one\"}\n"
                                   "{\"ids\":[116,119,111]}\n"
                                   "{\"text\":\"</think>three<｜end▁of▁sentence｜>cut\"}\n");
    const struct tokenizer *t = engine_describe(m)->tokenizer;
    struct seq *s = new_seq(m), *other = new_seq(m);
    struct ran r;
    input(m, s, "a");
    input(m, other, "b");
    assert_string_equal(run_text(m, s, &r), "one");
    assert_int_equal(r.ids[r.n - 1], tokenizer_added(t, "<｜end▁of▁sentence｜>"));
    assert_string_equal(run_text(m, s, &r), "two");
    assert_string_equal(run_text(m, other, &r), "one");
    input(m, s, "more");
    assert_string_equal(run_text(m, s, &r), "</think>three");
    assert_int_equal(r.ids[0], tokenizer_added(t, "</think>"));
    assert_int_equal(r.n, 7);
    assert_string_equal(run_text(m, s, &r), "");
    assert_int_equal(r.n, 1);
    engine_free(m);
}

static void test_limits_and_given(void **state)
{
    (void)state;
    struct engine *m = open_script("{\"text\":\"abcdef\"}\n{\"text\":\"second\"}\n");
    struct seq *s = new_seq(m);
    struct ran r;
    struct error e;
    input(m, s, "x");
    queue_run(s, 2);
    finish(m, &r);
    assert_int_equal(r.reason, END_LENGTH);
    assert_int_equal(r.n, 2);
    assert_int_equal(seq_position(s), 3);
    /* the run goes on where it was cut; a given id counts for the line whatever it is */
    const uint32_t given[] = {'?'};
    struct generate_options g = {
        .max_tokens = 3, .given = given, .n_given = 1, .resumes = true};
    assert_ok(seq_generate(s, &g, &e), &e);
    finish(m, &r);
    assert_int_equal(r.reason, END_LENGTH);
    assert_int_equal(r.n, 2);
    assert_int_equal(r.ids[0], 'd');
    /* a forced run uses up a line */
    struct seq *f = new_seq(m);
    input(m, f, "x");
    g = (struct generate_options){
        .max_tokens = 9, .given = given, .n_given = 1, .end_with_given = true};
    assert_ok(seq_generate(f, &g, &e), &e);
    finish(m, &r);
    assert_int_equal(r.reason, END_SEGMENT);
    assert_int_equal(r.n, 0);
    assert_string_equal(run_text(m, f, &r), "second");
    engine_free(m);
}

static void test_contract(void **state)
{
    (void)state;
    struct engine *m =
        open_script("{\"text\":\"the first answer\"}\n"
                    "{\"text\":\"a second one, which is longer than the limit\"}\n"
                    "{\"ids\":[0]}\n{\"text\":\"\"}\n");
    struct engine_contract c = {.m = m,
                                .first_id = 1,
                                .n_ids = 250,
                                .input_tokens = 301,
                                .run_tokens = 30,
                                .n_turns = 5};
    contract_all(&c);
    engine_free(m);
}

/* ---- state that is not what it should be ---------------------------------------- */

struct kept {
    uint8_t kv[2048 * SCRIPT_KV_BYTES], index[1024 * SCRIPT_INDEX_BYTES], tip[4096];
    uint64_t n;
    struct seq_digest digest;
};

static void keep(struct engine *m, struct seq *s, struct kept *k)
{
    struct error e;
    k->n = seq_position(s);
    assert_true(k->n <= 2048 && engine_describe(m)->layout->tip_bytes <= sizeof k->tip);
    k->digest = seq_digest(s);
    assert_ok(seq_export_rows(s, 0, 0, k->n, k->kv, &e), &e);
    assert_ok(seq_export_rows(s, 1, 0, k->n / 2, k->index, &e), &e);
    assert_ok(seq_export_tip(s, k->tip, &e), &e);
}

static struct seq *begin(struct engine *m, const struct kept *k)
{
    struct seq *s = new_seq(m);
    struct state_regions r;
    struct error e;
    assert_ok(seq_import_begin(s, k->n, &r, &e), &e);
    memcpy(r.plane[0], k->kv, k->n * SCRIPT_KV_BYTES);
    memcpy(r.plane[1], k->index, k->n / 2 * SCRIPT_INDEX_BYTES);
    return s;
}

static enum err import_tip(struct engine *m, struct seq *s, const struct kept *k)
{
    return seq_import_tip(s, k->tip, engine_describe(m)->layout->tip_bytes, &k->digest, NULL);
}

/* The digest after one more input segment. */
static struct seq_digest next_digest(struct engine *m, struct seq *s)
{
    input(m, s, "and then");
    struct seq_digest d = seq_digest(s);
    return d;
}

static void test_wrong_state_shows(void **state)
{
    (void)state;
    struct engine *m = open_script("{\"text\":\"answer\"}\n");
    struct kept *good = calloc(1, sizeof *good), *bad = calloc(1, sizeof *bad);
    assert_true(good && bad);
    struct seq *s = new_seq(m);
    struct ran r;
    for (int i = 0; i < 40; i++)
        input(m, s, "some words of input");
    run_text(m, s, &r);
    keep(m, s, good);
    assert_int_equal(good->n % 2, 1); /* the unfinished index row is in the tip */
    struct seq_digest want = next_digest(m, s);
    s = begin(m, good);
    assert_int_equal(import_tip(m, s, good), OK);
    struct seq_digest same = next_digest(m, s);
    assert_memory_equal(same.d, want.d, sizeof want.d);
    /* every byte of the tip */
    uint64_t tip_bytes = engine_describe(m)->layout->tip_bytes;
    s = begin(m, good);
    for (uint64_t i = 0; i < tip_bytes; i++) {
        *bad = *good;
        bad->tip[i] ^= 1;
        assert_int_equal(import_tip(m, s, bad), ERR_FORMAT);
        assert_int_equal(seq_position(s), 0);
    }
    assert_int_equal(import_tip(m, s, good), OK); /* the import was still open */
    /* rows anywhere, of both planes; the order of rows */
    for (int i = 0; i < 6; i++) {
        *bad = *good;
        if (i < 2)
            bad->kv[i * 700 * SCRIPT_KV_BYTES] ^= 0x80;
        else if (i < 4)
            bad->index[(i - 2) * 350 * SCRIPT_INDEX_BYTES + 31] ^= 1;
        else if (i == 4)
            memset(bad->index + 100 * SCRIPT_INDEX_BYTES, 0, SCRIPT_INDEX_BYTES);
        else
            memcpy(bad->kv + 20 * SCRIPT_KV_BYTES, good->kv, 19 * SCRIPT_KV_BYTES);
        s = begin(m, bad);
        assert_int_equal(import_tip(m, s, bad), OK);
        struct seq_digest d = next_digest(m, s);
        assert_memory_not_equal(d.d, want.d, sizeof d.d);
    }
    engine_free(m);
    free(good);
    free(bad);
}

/* Segment borders are part of the state: the same ids in other segments give other digests. */
static void test_borders_count(void **state)
{
    (void)state;
    struct engine *m = open_script("");
    struct seq *a = new_seq(m), *b = new_seq(m);
    input(m, a, "some");
    input(m, a, "thing");
    input(m, b, "something");
    struct seq_digest x = next_digest(m, a), y = next_digest(m, b);
    assert_memory_not_equal(x.d, y.d, sizeof x.d);
    engine_free(m);
}

static struct seq_digest rebuilt_digest(struct engine *m, const struct kept *k,
                                        const struct tape_view *v, enum resume_mode mode)
{
    struct seq *s = begin(m, k);
    struct error e;
    struct ran r;
    uint64_t n;
    assert_ok(seq_rebuild(s, v, mode, NULL, &n, &e), &e);
    assert_int_equal(n, SCRIPT_WINDOW);
    finish(m, &r);
    assert_int_equal(r.reason, END_SEGMENT);
    return next_digest(m, s);
}

/* A replay resume is marked in all that follows; deep behind it gives the same. */
static void test_replay_is_marked(void **state)
{
    (void)state;
    struct engine *m = open_script("");
    struct kept *k = calloc(1, sizeof *k);
    assert_non_null(k);
    struct seq *s = new_seq(m);
    uint32_t ids[200];
    struct ran r;
    struct error e;
    for (uint32_t i = 0; i < 200; i++)
        ids[i] = i;
    assert_ok(seq_input(s, ids, 200, PREFILL_CED, &e), &e);
    finish(m, &r);
    keep(m, s, k);
    struct segment seg = {0, 200, SEGMENT_INPUT, PREFILL_CED};
    struct replay_mark mark = {200, 200 - SCRIPT_WINDOW};
    struct tape_view v = {.ids = ids, .n_ids = 200, .segments = &seg, .n_segments = 1};
    struct seq_digest never = next_digest(m, s);
    struct seq_digest deep = rebuilt_digest(m, k, &v, RESUME_DEEP);
    struct seq_digest replay = rebuilt_digest(m, k, &v, RESUME_REPLAY);
    v.marks = &mark;
    v.n_marks = 1;
    struct seq_digest deep_after = rebuilt_digest(m, k, &v, RESUME_DEEP);
    struct seq_digest replay_marked = rebuilt_digest(m, k, &v, RESUME_REPLAY);
    assert_memory_equal(deep.d, never.d, sizeof never.d);
    assert_memory_not_equal(replay.d, never.d, sizeof never.d);
    assert_memory_equal(deep_after.d, replay.d, sizeof never.d);
    assert_memory_equal(replay_marked.d, replay.d, sizeof never.d);
    engine_free(m);
    free(k);
}

/* ---- pace and crashes ----------------------------------------------------------- */

static void *interrupt_soon(void *m)
{
    struct timespec t = {0, 20000000};
    nanosleep(&t, NULL);
    engine_interrupt(m);
    return NULL;
}

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void test_stall_is_cancelled(void **state)
{
    (void)state;
    struct engine *m = open_script("{\"text\":\"late\",\"stall_ms\":600000}\n");
    struct seq *s = new_seq(m), *quick = new_seq(m);
    struct engine_event ev[8];
    struct error e;
    struct ran r;
    size_t n = 0;
    input(m, s, "x");
    queue_run(s, 9);
    double t0 = seconds();
    /* a sequence that stalls holds up nobody else */
    const uint32_t id = 7;
    assert_ok(seq_input(quick, &id, 1, PREFILL_CED, &e), &e);
    assert_ok(engine_step(m, ev, 8, &n, &e), &e);
    assert_int_equal(n, 1);
    assert_ptr_equal(ev[0].seq, quick);
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, interrupt_soon, m), 0);
    assert_ok(engine_step(m, ev, 8, &n, &e), &e);
    assert_int_equal(n, 0);
    seq_cancel(s);
    finish(m, &r);
    assert_int_equal(r.reason, END_CANCELLED);
    assert_int_equal(r.n, 0);
    assert_int_equal(seq_position(s), 1);
    assert_true(seconds() - t0 < 5);
    pthread_join(thread, NULL);
    /* nothing was computed: the next run is still the first line's */
    queue_run(s, 1);
    seq_cancel(s);
    finish(m, &r);
    assert_int_equal(r.reason, END_CANCELLED);
    engine_free(m);
}

static void test_delays(void **state)
{
    (void)state;
    struct engine *m =
        open_script("{\"text\":\"abcd\",\"prefill_ms\":60,\"token_ms\":10,\"stall_ms\":30}\n");
    struct seq *s = new_seq(m);
    struct ran r;
    struct error e;
    uint32_t ids[300] = {0};
    double t0 = seconds();
    assert_ok(seq_input(s, ids, 300, PREFILL_CED, &e), &e);
    finish(m, &r);
    double t1 = seconds();
    queue_run(s, 99);
    finish(m, &r);
    assert_true(t1 - t0 >= 0.050); /* shares are rounded down, five chunks */
    assert_true(seconds() - t1 >= 0.030 + 5 * 0.010);
    engine_free(m);
}

/* What a process that runs a crashing line gives out before it dies. */
static void crash_child(const char *script, const char *want)
{
    int p[2];
    char got[16] = "";
    int status;
    assert_int_equal(pipe(p), 0);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (!pid) {
        struct engine *m = open_script(script);
        struct seq *s = new_seq(m);
        struct engine_event ev[8];
        size_t n;
        input(m, s, "x");
        queue_run(s, 99);
        while (engine_has_work(m) && !engine_step(m, ev, 8, &n, NULL))
            for (size_t i = 0; i < n; i++) {
                char c = ev[i].kind == ENGINE_DONE ? '!' : (char)ev[i].ids[0];
                if (ev[i].kind == ENGINE_TOKENS && ev[i].ids[0] > 255)
                    c = '.';
                if (write(p[1], &c, 1) != 1)
                    _exit(2);
            }
        _exit(0);
    }
    close(p[1]);
    size_t len = 0;
    for (ssize_t n; len < sizeof got - 1 && (n = read(p[0], got + len, 15 - len)) > 0;)
        len += (size_t)n;
    close(p[0]);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    assert_string_equal(got, want);
}

static void test_crashes(void **state)
{
    (void)state;
    crash_child("{\"text\":\"ab\",\"crash\":\"before\"}\n", "");
    crash_child("{\"text\":\"ab\",\"crash\":\"after\"}\n", "ab.");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bad_scripts),
        cmocka_unit_test(test_lines_in_order),
        cmocka_unit_test(test_limits_and_given),
        cmocka_unit_test(test_contract),
        cmocka_unit_test(test_wrong_state_shows),
        cmocka_unit_test(test_borders_count),
        cmocka_unit_test(test_replay_is_marked),
        cmocka_unit_test(test_stall_is_cancelled),
        cmocka_unit_test(test_delays),
        cmocka_unit_test(test_crashes),
    };
    return !!cmocka_run_group_tests(tests, NULL, NULL);
}
