/* agentd score as a command: a cut changes no bit of what is written, the dump has the golden
 * names and values, and wrong command lines say what is wrong by their exit code. */
#include <sys/wait.h>

#include "agentd/verbs.h"
#include "base/fs.h"
#include "base/spawn.h"
#include "tests/support/build_folder.h"
#include "tests/support/golden.h"
#include "tests/support/golden_model.h"
#include "tests/support/tempdir.h"
#include "tests/support/test.h"

#define MODEL GOLDEN "c_replay/model"
#define SEGMENTS "20,10,32,7,33,9,100,40,5,12"
#define MAX_ARGS 32

static char dir[TEMPDIR_BYTES], ids_path[128], out_path[128], dump_path[128];

static int setup(void **state)
{
    AUTO(buf) struct buf text = BUF_INIT(1 << 20);
    struct error e = {0};
    size_t n = 0;
    uint32_t *ids = golden_ids(GOLDEN "f_segments/inputs.json", &n);
    (void)state;
    tempdir_make(dir);
    snprintf(ids_path, sizeof(ids_path), "%s/ids", dir);
    snprintf(out_path, sizeof(out_path), "%s/logits", dir);
    snprintf(dump_path, sizeof(dump_path), "%s/dump.safetensors", dir);
    for (size_t i = 0; i < n; i++)
        assert_ok(buf_printf(&text, &e, "%s%u", i ? "\n" : "", ids[i]), &e);
    assert_ok(fs_write_atomic(ids_path, text.data, text.len, 0600, &e), &e);
    free(ids);
    return build_folder_use();
}

static int teardown(void **state)
{
    (void)state;
    tempdir_remove(dir);
    return 0;
}

/* Runs `agentd score` with the usual options and these (NULL ends); its exit code. */
static int score(const char *const *more)
{
    const char *argv[MAX_ARGS] = {"agentd", "score", "--ids", ids_path, "-o", out_path};
    struct spawn child = SPAWN_INIT;
    struct error e = {0};
    size_t n = 6;
    int status = -1;
    for (; *more; more++) {
        assert_true(n + 1 < MAX_ARGS);
        argv[n++] = *more;
    }
    struct spawn_options o = {.argv = argv, .die_with_parent = true};
    assert_ok(spawn_start(&o, &child, &e), &e);
    assert_ok(spawn_wait(&child, 60000, &status, &e), &e);
    spawn_fini(&child);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}
#define SCORE(...) score((const char *const[]){__VA_ARGS__, NULL})

static void read_out(struct buf *out)
{
    struct error e = {0};
    buf_clear(out);
    assert_ok(fs_read_file(out_path, out, &e), &e);
}

static void test_cut(void **state)
{
    static const char *const CUTS[] = {"1", "15", "62", "101", "150", "190", "256", "268"};
    static const char *const KINDS[] = {"exact", "deep", "cold"};
    AUTO(buf) struct buf plain = BUF_INIT(1 << 24), cut = BUF_INIT(1 << 24);
    (void)state;
    assert_int_equal(SCORE("-m", MODEL, "--segments", SEGMENTS), EXIT_DONE);
    read_out(&plain);
    /* 267 positions are not all: the inputs of 33 and 100 give their last 32 rows. */
    assert_int_equal(plain.len, (268 - 1 - 68) * 512 * sizeof(float));
    for (int i = 0; i < 8; i++) {
        const char *kind = KINDS[i % 3];
        assert_int_equal(SCORE("-m", MODEL, "--segments", SEGMENTS, "--cut", CUTS[i],
                               "--resume", kind, "--chunk", "13", "--threads", "1"),
                         EXIT_DONE);
        read_out(&cut);
        assert_int_equal(cut.len, plain.len);
        if (memcmp(cut.data, plain.data, plain.len) != 0)
            fail_msg("cut at %s, %s: other logits", CUTS[i], kind);
    }
    assert_int_equal(
        SCORE("-m", MODEL, "--segments", SEGMENTS, "--cut", "150", "--resume", "replay"),
        EXIT_DONE);
    read_out(&cut);
    assert_int_equal(cut.len, plain.len);
    assert_memory_not_equal(cut.data, plain.data, plain.len);
}

static void same_f32(struct golden *got, struct golden *want, const char *name)
{
    size_t n = 0, m = 0;
    const float *a = golden_f32(got, name, &n), *b = golden_f32(want, name, &m);
    assert_int_equal(n, m);
    assert_close(name, a, b, 1, n, 1e-4);
}

static void same_int(struct golden *got, struct golden *want, const char *name)
{
    size_t n = 0, m = 0;
    const int64_t *a = golden_i64(got, name, &n), *b = golden_i64(want, name, &m);
    assert_int_equal(n, m);
    assert_memory_equal(a, b, n * sizeof(*a));
}

static void test_dump(void **state)
{
    static const char *const FLOATS[] = {"input_logits",       "generated_logits",
                                         "seg4.window_kv32",   "final.L2.compress_kv32",
                                         "final.L2.index_k32", "final.L4.compress_kv32",
                                         "final.L4.index_k32", "final.window_kv32"};
    static const char *const INTS[] = {"seg6.window_pos",
                                       "final.window_pos",
                                       "window_lo",
                                       "dec_lo",
                                       "generated.L2.topk_rows",
                                       "generated.L4.topk_rows",
                                       "generated.L6.topk_rows"};
    (void)state;
    assert_int_equal(
        SCORE("-m", MODEL, "--segments", SEGMENTS, "--precision", "math", "--dump", dump_path),
        EXIT_DONE);
    struct golden *got = golden_open(dump_path);
    struct golden *want = golden_open(GOLDEN "f_segments/expected_math.safetensors");
    for (size_t i = 0; i < sizeof(FLOATS) / sizeof(*FLOATS); i++)
        same_f32(got, want, FLOATS[i]);
    for (size_t i = 0; i < sizeof(INTS) / sizeof(*INTS); i++)
        same_int(got, want, INTS[i]);
    assert_true(golden_has(got, "L7.hc_out32") && golden_has(got, "engram_rows"));
    golden_close(got);
    golden_close(want);
}

static void test_wrong_command_lines(void **state)
{
    (void)state;
    assert_int_equal(SCORE("-m", "/nonexistent"), EXIT_NOTFOUND);
    assert_int_equal(SCORE("-m", MODEL, "--segments", "20,,3"), EXIT_USAGE);
    assert_int_equal(SCORE("-m", MODEL, "--segments", "20,"), EXIT_USAGE);
    assert_int_equal(SCORE("-m", MODEL, "--segments", "269"), EXIT_USAGE);
    assert_int_equal(SCORE("-m", MODEL, "--segments", "20", "--prefill", "20"), EXIT_USAGE);
    assert_int_equal(SCORE("-m", MODEL, "--mode", "fast"), EXIT_USAGE);
    assert_int_equal(SCORE("-m", MODEL, "--mode", "ced,full"), EXIT_USAGE);
    assert_int_equal(SCORE("-m", MODEL, "--cut", "5"), EXIT_USAGE);
    assert_int_equal(SCORE("-m", MODEL, "--cut", "269", "--resume", "exact"), EXIT_USAGE);
    assert_int_equal(SCORE("-m", MODEL, "--cut", "5", "--resume", "warm"), EXIT_USAGE);
    assert_int_equal(SCORE("-m", MODEL, "--precision", "official"), EXIT_DONE);
    assert_int_equal(
        SCORE("-m", MODEL, "--backend", "cuda", "--cuda-library", "/nonexistent.so"),
        EXIT_MODEL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cut),
        cmocka_unit_test(test_dump),
        cmocka_unit_test(test_wrong_command_lines),
    };
    return !!cmocka_run_group_tests(tests, setup, teardown);
}
