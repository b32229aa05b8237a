/* The whole engine on the CUDA backend: the library is found, loaded and refused as it should
 * be, and the same .cu files, compiled for the host, compute golden case a_tiny. */
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

#include "kernels/cuda.h"
#include "tests/support/drive.h"
#include "tests/support/fenced.h"
#include "tests/support/golden_model.h"
#include "tests/support/test.h"

#define CASE GOLDEN "a_tiny/"
#define VOCAB 512

static void run_golden(enum precision precision, const char *expected, size_t n_decode,
                       double max)
{
    size_t n = 0;
    uint32_t *ids = golden_ids(CASE "inputs.json", &n);
    struct golden_run run = {"emulated", precision, 16, false};
    struct engine *m = golden_model(CASE "model", &run);
    struct golden *g = golden_open(expected);
    struct record r;
    assert_string_equal(engine_describe(m)->layout->numerics, "cuda-emulated/1");
    record_init(&r, m, false);
    struct seq *s = drive_seq(m);
    drive_input(m, s, ids, 45, PREFILL_FULL);
    drive_forced(m, s, ids + 45, n_decode);
    float *got = gather_logits(&r, 0, 45 + n_decode);
    assert_close("prefill_logits", got, golden_f32(g, "prefill_logits", NULL), 45, VOCAB, max);
    assert_close("decode_logits", got + (size_t)45 * VOCAB,
                 golden_f32(g, "decode_logits", NULL), n_decode, VOCAB, max);
    free(got);
    record_fini(&r);
    golden_close(g);
    engine_free(m);
    free(ids);
}

static void test_golden(void **state)
{
    (void)state;
    bool slow = getenv("AGENTD_SLOW") != NULL;
    run_golden(PRECISION_MATH, CASE "expected_math.safetensors", slow ? 300 : 3, 1e-4);
    run_golden(PRECISION_FP32KVQ, CASE "expected_fp32kvq.safetensors", slow ? 300 : 2, 1e-3);
}

/* ---- what cannot be used is refused, with what is missing -----------------------------------
 */

static void refused(const char *library, int device, enum err want, const char *text)
{
    struct error e = {0};
    struct engine *m = NULL;
    struct engine_options o = {
        .backend = "cuda", .cuda_library = library, .device = device, .no_weight_digest = true};
    enum err rc = engine_open_model(&m, CASE "model", &o, &e);
    if (rc != want || !strstr(e.msg, text))
        fail_msg("error %d, want %d: %s", rc, want, e.msg);
    assert_null(m);
}

static void test_refused(void **state)
{
    (void)state;
    refused("/nonexistent/library.so", 0, ERR_UNSUPPORTED, "/nonexistent/library.so");
    refused("libsqlite3.so.0", 0, ERR_INVAL, "libsqlite3.so.0 has no k_cuda_open");
    refused(emulated_library(), 1, ERR_INVAL, "device 1, there are 1");
    setenv("AGENTD_EMULATED_DEVICE_BYTES", "1000000", 1);
    refused(emulated_library(), 0, ERR_LIMIT, "cuda-emulated/1: cannot run here: needs");
    unsetenv("AGENTD_EMULATED_DEVICE_BYTES");
}

static void generate(struct engine *m, struct seq *s, uint32_t *ids, size_t n)
{
    struct generate_options g = {.sampling = {.top_p = 1}, .max_tokens = n};
    struct error e = {0};
    size_t got = 0;
    assert_ok(seq_generate(s, &g, &e), &e);
    (void)drive_run(m, ids, n, &got);
    assert_int_equal(got, n);
}

/* State that left the device and came back is the same state. */
static void goes_on_elsewhere(struct engine *m, struct seq *s)
{
    struct drive_state before, after;
    uint32_t ids[2][2];
    drive_export(m, s, &before);
    struct seq *other = drive_import(m, &before);
    drive_export(m, other, &after);
    drive_assert_planes(&before, &after);
    drive_assert_tip(&before, &after);
    generate(m, s, ids[0], 2);
    generate(m, other, ids[1], 2);
    assert_memory_equal(ids[0], ids[1], sizeof(ids[0]));
    drive_state_free(&before);
    drive_state_free(&after);
}

/* Less memory than the experts take: they share what there is, and the results stay. */
static void test_little_memory(void **state)
{
    (void)state;
    size_t n = 0;
    uint32_t *ids = golden_ids(CASE "inputs.json", &n), out[2][4];
    struct engine_tier t[2][ENGINE_MAX_TIERS];
    for (int i = 0; i < 2; i++) {
        struct engine_options o = {.chunk_tokens = 8, .no_weight_digest = true};
        backend_option(&o, "emulated");
        o.engram_device = i ? 2000 : 0; /* of Engram rows, too */
        if (i)
            setenv("AGENTD_EMULATED_DEVICE_BYTES", "8000000", 1);
        struct engine *m = drive_open(CASE "model", &o);
        unsetenv("AGENTD_EMULATED_DEVICE_BYTES");
        struct seq *s = drive_seq(m);
        drive_input(m, s, ids, 9, PREFILL_CED);
        generate(m, s, out[i], 4);
        goes_on_elsewhere(m, s);
        assert_int_equal(engine_tiers(m, t[i]) > 1, 1);
        engine_free(m);
    }
    assert_true(t[1][0].budget_bytes < t[0][0].budget_bytes);
    assert_true(t[1][0].resident_bytes <= t[1][0].budget_bytes);
    assert_true(t[1][0].misses * t[1][0].minimum_bytes > t[1][0].budget_bytes); /* evicted */
    assert_int_equal(t[0][0].misses * t[0][0].minimum_bytes, t[0][0].resident_bytes);
    assert_memory_equal(out[0], out[1], sizeof(out[0]));
    free(ids);
}

/* What is drawn on the device, with guesses that are drawn there and without, is the same. */
static void test_draws(void **state)
{
    (void)state;
    size_t n = 0, got = 0;
    uint64_t n_guessed = 0, n_right = 0;
    uint32_t *ids = golden_ids(CASE "inputs.json", &n), out[2][8];
    for (uint32_t drafts = 0; drafts <= 2; drafts += 2) {
        struct engine_options o = {
            .chunk_tokens = 16, .draft_tokens = drafts, .no_weight_digest = true};
        struct generate_options g = {
            .sampling = {.seed = 5, .temperature = 0.7f, .top_p = 0.9f}, .max_tokens = 8};
        struct error e = {0};
        backend_option(&o, "emulated");
        struct engine *m = drive_open(CASE "model", &o);
        struct seq *s = drive_seq(m);
        drive_input(m, s, ids, 9, PREFILL_CED);
        assert_ok(seq_generate(s, &g, &e), &e);
        (void)drive_run(m, out[drafts / 2], 8, &got);
        assert_int_equal(got, 8);
        engine_draft_counts(m, &n_guessed, &n_right);
        engine_free(m);
    }
    assert_true(n_guessed > 4);
    assert_memory_equal(out[0], out[1], sizeof(out[0]));
    free(ids);
}

struct use {
    struct engine *m;
    const uint32_t *prompt; /* [9] */
    uint32_t out[3];
};

static void *use(void *arg)
{
    struct use *x = arg;
    struct seq *s = drive_seq(x->m);
    drive_input(x->m, s, x->prompt, 9, PREFILL_CED);
    generate(x->m, s, x->out, 3);
    return NULL;
}

/* One thread opens a model and another one uses it, as in agentd, on whatever device. */
static void test_second_device(void **state)
{
    (void)state;
    size_t n = 0;
    uint32_t *ids = golden_ids(CASE "inputs.json", &n);
    struct use x[2] = {{.prompt = ids}, {.prompt = ids}};
    setenv("AGENTD_EMULATED_DEVICES", "2", 1);
    for (int device = 0; device < 2; device++) {
        struct engine_options o = {
            .chunk_tokens = 16, .device = device, .no_weight_digest = true};
        pthread_t thread;
        backend_option(&o, "emulated");
        x[device].m = drive_open(CASE "model", &o);
        assert_int_equal(pthread_create(&thread, NULL, use, &x[device]), 0);
        pthread_join(thread, NULL);
        engine_free(x[device].m);
    }
    unsetenv("AGENTD_EMULATED_DEVICES");
    assert_memory_equal(x[0].out, x[1].out, sizeof(x[0].out));
    free(ids);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden), cmocka_unit_test(test_refused),
        cmocka_unit_test(test_little_memory), cmocka_unit_test(test_draws),
        cmocka_unit_test(test_second_device)};
    return !!cmocka_run_group_tests(tests, NULL, NULL);
}
