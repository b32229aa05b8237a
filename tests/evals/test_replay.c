/* replay on the demo checkpoint: a sweep of idle timeouts, kills, and traces that are none. */
#include "tests/support/test.h"

#include <fcntl.h>
#include <math.h>
#include <stdbool.h>
#include <sys/wait.h>

#include "base/fs.h"
#include "base/json.h"
#include "base/spawn.h"
#include "evals/arm.h"
#include "tests/support/build_folder.h"
#include "tests/support/tempdir.h"

#define DEMO "examples/demo-model/checkpoint"

struct bench {
    char dir[TEMPDIR_BYTES], log[160], trace[160], out[160];
};

static void bench_make(struct bench *b)
{
    tempdir_make(b->dir);
    snprintf(b->log, sizeof b->log, "%s/log", b->dir);
    snprintf(b->trace, sizeof b->trace, "%s/trace.csv", b->dir);
    snprintf(b->out, sizeof b->out, "%s/out", b->dir);
}

/* Runs `agentd-evals replay TRACE -m DEMO ...`; its exit code. */
static int replay(const struct bench *b, const char *const *more)
{
    const char *argv[32] = {"agentd-evals", "replay", b->trace, "-m",    DEMO,
                            "--work",       b->dir,   "-q",     "--out", b->out};
    int n = 10, status = 0;
    struct error e = {0};
    for (; *more; more++)
        argv[n++] = *more;
    AUTO_FD int fd = open(b->log, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    const struct spawn_fd fds[] = {{fd, 1}, {fd, 2}};
    const struct spawn_options o = {.argv = argv, .fds = fds, .n_fds = 2};
    struct spawn child = SPAWN_INIT;
    assert_ok(spawn_start(&o, &child, &e), &e);
    assert_ok(spawn_wait(&child, 58000, &status, &e), &e);
    spawn_fini(&child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

static void write_trace(const struct bench *b, const char *text)
{
    struct error e = {0};
    assert_ok(fs_write_atomic(b->trace, text, strlen(text), 0600, &e), &e);
}

static json_t *arms(const struct bench *b)
{
    static const struct json_limits limits = {.max_bytes = 1 << 24, .max_depth = 16};
    char path[200];
    struct error e = {0};
    json_t *j = NULL;
    AUTO(buf) struct buf text = BUF_INIT(1 << 24);
    snprintf(path, sizeof path, "%s/replay.json", b->out);
    assert_ok(fs_read_file(path, &text, &e), &e);
    assert_ok(json_parse(buf_str(&text), text.len, &limits, &j, &e), &e);
    return j;
}

static void expect(const struct bench *b, int code, int want)
{
    AUTO(buf) struct buf text = BUF_INIT(1 << 20);
    struct error e = {0};
    assert_ok(fs_read_file(b->log, &text, &e), &e);
    if (code != want)
        fail_msg("exit %d, want %d\n%s", code, want, buf_str(&text));
}

static double number(const json_t *o, const char *field)
{
    return json_number_value(json_object_get(o, field));
}

/* Waits of 10 s, 10 min, 10 s, 10 min: two of four rounds find nothing past a minute. */
static const char four_waits[] =
    "session_id,round_idx,prefix_len,input_len,output_len,tool_wait_after_ms\n"
    "7,0,0,300,20,10000\n7,1,320,40,20,600000\n7,2,380,40,20,10000\n"
    "7,3,440,40,20,600000\n7,4,500,40,20,0\n";

static void a_sweep_counts_what_was_forgotten(void **state)
{
    (void)state;
    struct bench b;
    const char *const more[] = {"--idle-timeouts", "1m,never", "--verify", NULL};
    bench_make(&b);
    write_trace(&b, four_waits);
    expect(&b, replay(&b, more), 0);
    json_auto_t *all = arms(&b);
    const json_t *list = json_object_get(all, "arms");
    assert_int_equal(json_array_size(list), 4);
    char fingerprint[ARM_FINGERPRINT_CHARS];
    struct error e = {0};
    assert_ok(arm_fingerprint(DEMO, &(struct engine_options){.n_threads = 1}, fingerprint, &e),
              &e);
    for (size_t i = 0; i < 4; i++) {
        const json_t *a = json_array_get(list, i);
        assert_string_equal(json_string_value(json_object_get(a, "fingerprint")), fingerprint);
        const bool lost = i == 1; /* the cache that forgets, with a timeout that passes */
        assert_int_equal((int)number(a, "rounds"), 5);
        assert_int_equal((int)number(a, "suspended"), i < 2 ? 2 : 0);
        assert_int_equal((int)number(a, "hits"), lost ? 2 : 4);
        assert_int_equal((int)number(a, "unequal"), 0);
        assert_int_equal((int)number(a, "verified"), 1);
        assert_int_equal((int)number(a, "lost"), 0);
        if (lost)
            assert_true(number(a, "amplification") > 1.5);
        else
            assert_true(number(a, "amplification") <= 1 && number(a, "relost") <= 0);
        /* Only the store's own suspended rounds come back from SSD. */
        assert_int_equal(number(a, "restored") > 0, i == 0);
    }
    tempdir_remove(b.dir);
}

static const json_t *counted_arm(const json_t *all, int64_t timeout_ms, const char *store)
{
    size_t i;
    json_t *a;
    json_array_foreach(json_object_get(json_object_get(all, "counted"), "arms"), i, a)
        if (json_integer_value(json_object_get(a, "timeout_ms")) == timeout_ms &&
            !strcmp(json_string_value(json_object_get(a, "store")), store))
            return a;
    fail_msg("no arm of %lld ms, %s", (long long)timeout_ms, store);
    return NULL;
}

/* Rounds 2 and 4 come after ten minutes: 380 and 500 tokens again, for 160 new ones. */
static void a_trace_is_counted_without_a_daemon(void **state)
{
    (void)state;
    struct bench b;
    const char *const more[] = {"--simulate", NULL};
    bench_make(&b);
    write_trace(&b, four_waits);
    expect(&b, replay(&b, more), 0);
    json_auto_t *all = arms(&b);
    assert_int_equal(json_array_size(json_object_get(all, "arms")), 0);
    const json_t *a = counted_arm(all, 60000, "forgets");
    assert_int_equal((int)number(a, "suspended"), 2);
    assert_true(fabs(number(a, "hit_rate") - 0.5) < 1e-12);
    assert_true(fabs(number(a, "amplification") - (160 + 880) / 160.0) < 1e-12);
    assert_int_equal((int)number(a, "relost"), 880);
    a = counted_arm(all, 60000, "keeps");
    assert_true(fabs(number(a, "amplification") - 1) < 1e-12);
    assert_int_equal((int)number(a, "restored"), 880);
    assert_int_equal((int)number(counted_arm(all, 900000, "forgets"), "suspended"), 0);
    tempdir_remove(b.dir);
}

/* Published over 4,265 sessions: 85.4, 94, 98.6, 100 % and 18.9, 7.4, 1.8, 1.0 times. */
static void the_published_sweep_in_shape(void **state)
{
    (void)state;
    static const struct {
        int64_t timeout_ms;
        double hit_rate, least, most;
    } want[] = {{60000, 0.854, 15, 20},
                {300000, 0.94, 6.5, 8.5},
                {3600000, 0.986, 1.5, 3},
                {-1, 1, 1, 1}};
    struct bench b;
    const char *const more[] = {"--simulate", NULL};
    bench_make(&b);
    snprintf(b.trace, sizeof b.trace, "synth");
    expect(&b, replay(&b, more), 0);
    json_auto_t *all = arms(&b);
    assert_int_equal((int)number(json_object_get(all, "counted"), "sessions"), 4265);
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        const json_t *a = counted_arm(all, want[i].timeout_ms, "forgets");
        assert_true(fabs(number(a, "hit_rate") - want[i].hit_rate) < 0.006);
        assert_true(number(a, "amplification") >= want[i].least &&
                    number(a, "amplification") <= want[i].most);
    }
    tempdir_remove(b.dir);
}

static void kills_lose_nothing(void **state)
{
    (void)state;
    struct bench b;
    const char *kills = getenv("AGENTD_SLOW") ? "200" : "8";
    const char *const more[] = {"--kills", kills, "--verify", NULL};
    bench_make(&b);
    write_trace(&b, four_waits);
    expect(&b, replay(&b, more), 0);
    json_auto_t *all = arms(&b);
    const json_t *a = json_array_get(json_object_get(all, "arms"), 0);
    assert_int_equal((int)number(a, "kills"), atoll(kills));
    assert_true(number(a, "struck") > 0);
    assert_int_equal((int)number(a, "acknowledged"), 5);
    assert_int_equal((int)number(a, "lost"), 0);
    assert_int_equal((int)number(a, "relost"), 0);
    assert_int_equal((int)number(a, "unequal"), 0);
    tempdir_remove(b.dir);
}

static void wrong_traces_and_options(void **state)
{
    (void)state;
    struct bench b;
    const char *const none[] = {NULL};
    const char *const unit[] = {"--idle-timeouts", "5", NULL};
    const char *const both[] = {"--kills", "1", "--socket", "/nonexistent", NULL};
    bench_make(&b);
    expect(&b, replay(&b, none), 4);
    write_trace(&b, "session_id,round_idx\n1,2\n");
    expect(&b, replay(&b, none), 8);
    write_trace(&b, four_waits);
    expect(&b, replay(&b, unit), 2);
    expect(&b, replay(&b, both), 2);
    tempdir_remove(b.dir);
}

int main(void)
{
    if (build_folder_use())
        return 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_sweep_counts_what_was_forgotten),
        cmocka_unit_test(a_trace_is_counted_without_a_daemon),
        cmocka_unit_test(the_published_sweep_in_shape),
        cmocka_unit_test(kills_lose_nothing),
        cmocka_unit_test(wrong_traces_and_options),
    };
    return !!cmocka_run_group_tests(tests, NULL, NULL);
}
