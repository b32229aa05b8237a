/* Golden case a_tiny end to end: every layer kind, 45 tokens of prompt, 300 decode steps. */
#include <math.h>

#include "tests/support/drive.h"
#include "tests/support/golden_model.h"
#include "tests/support/test.h"

#define CASE GOLDEN "a_tiny/"
#define N_PREFILL 45
#define N_DECODE 300
#define N_LAYERS 8
#define VOCAB 512

struct fixture {
    struct engine *m;
    struct seq *s;
    struct record r;
    struct golden *g;
};

static void setup(struct fixture *f, const struct golden_run *run, const char *expected)
{
    size_t n = 0;
    uint32_t *ids = golden_ids(CASE "inputs.json", &n);
    assert_true(n >= N_PREFILL + N_DECODE);
    f->m = golden_model(CASE "model", run);
    f->g = golden_open(expected);
    record_init(&f->r, f->m, true);
    f->s = drive_seq(f->m);
    drive_input(f->m, f->s, ids, N_PREFILL, PREFILL_FULL);
    drive_forced(f->m, f->s, ids + N_PREFILL, N_DECODE);
    assert_int_equal(f->r.error.code, OK);
    free(ids);
}

static void teardown(struct fixture *f)
{
    record_fini(&f->r);
    golden_close(f->g);
    engine_free(f->m);
}

/* Logits of prompt and decode. same, share, max as in assert_mostly. */
static void check_logits(struct fixture *f, double same, double share, double max)
{
    float *got = gather_logits(&f->r, 0, N_PREFILL + N_DECODE);
    assert_mostly("prefill_logits", got, golden_f32(f->g, "prefill_logits", NULL), N_PREFILL,
                  VOCAB, same, share, max);
    assert_mostly("decode_logits", got + (size_t)N_PREFILL * VOCAB,
                  golden_f32(f->g, "decode_logits", NULL), N_DECODE, VOCAB, same, share, max);
    const int64_t *best = golden_i64(f->g, "prefill_argmax", NULL);
    for (int i = 0; i < N_PREFILL; i++)
        for (int k = 0; k < VOCAB; k++)
            assert_true(got[i * VOCAB + k] <= got[i * VOCAB + best[i]]);
    free(got);
}

/* Share of all selections that differ. */
static double differing_selections(struct fixture *f)
{
    static const uint32_t SOURCES[] = {2, 4, 6};
    size_t differing = 0;
    for (int i = 0; i < 3; i++) {
        char name[64];
        int32_t *got = gather(&f->r, "topk_rows", SOURCES[i], 1, N_PREFILL + N_DECODE - 1);
        snprintf(name, sizeof(name), "L%u.topk_rows", SOURCES[i]);
        size_t width = golden_shape(f->g, name).dim[1];
        differing += count_selections(got, 24, golden_i64(f->g, name, NULL) + width, width,
                                      N_PREFILL - 1);
        snprintf(name, sizeof(name), "decode.L%u.topk_rows", SOURCES[i]);
        differing += count_selections(got + (size_t)(N_PREFILL - 1) * 24, 24,
                                      golden_i64(f->g, name, NULL), 24, N_DECODE);
        free(got);
    }
    return (double)differing / (3 * (N_PREFILL + N_DECODE - 1));
}

/* Share of all routes that differ. */
static double differing_routes(struct fixture *f)
{
    size_t differing = 0;
    const int64_t *decode = golden_i64(f->g, "decode.route_idx", NULL);
    for (uint32_t l = 0; l < N_LAYERS; l++) {
        char name[64];
        snprintf(name, sizeof(name), "L%u.route_idx", l);
        const int64_t *prefill = golden_i64(f->g, name, NULL);
        int32_t *got = gather(&f->r, "route_idx", l, 0, N_PREFILL + N_DECODE);
        for (size_t i = 0; i < N_PREFILL + N_DECODE; i++) {
            const int64_t *want =
                i < N_PREFILL ? prefill + 2 * i : decode + ((i - N_PREFILL) * N_LAYERS + l) * 2;
            differing += got[2 * i] != want[0] || got[2 * i + 1] != want[1];
        }
        free(got);
    }
    return (double)differing / (N_LAYERS * (N_PREFILL + N_DECODE));
}

static void check_planes(struct fixture *f, double same, double share, double max)
{
    static const char *const NAMES[] = {"final.L2.compress_kv32", "final.L2.index_k32",
                                        "final.L4.compress_kv32", "final.L4.index_k32"};
    for (uint32_t i = 0; i < 4; i++) {
        size_t n = 0;
        float *got = read_plane(f->m, f->s, i, &n);
        assert_int_equal(n, golden_shape(f->g, NAMES[i]).dim[0]);
        assert_mostly(NAMES[i], got, golden_f32(f->g, NAMES[i], NULL), n,
                      engine_plane_width(f->m, i), same, share, max);
        free(got);
    }
}

static void check_layers(struct fixture *f, double max)
{
    static const char *const NAMES[] = {"hc_in32", "attn_out32", "ffn_out32", "hc_out32",
                                        "pre_out32"};
    size_t compared = 0;
    for (uint32_t l = 0; l < N_LAYERS; l++)
        for (int k = 0; k < 5; k++) {
            char name[64];
            snprintf(name, sizeof(name), "L%u.%s", l, NAMES[k]);
            if (!golden_has(f->g, name))
                continue; /* hc_in is stored only where it is not the hc_out before */
            size_t n = 0;
            const float *want = golden_f32(f->g, name, &n);
            float *got = gather(&f->r, NAMES[k], l, 0, N_PREFILL);
            assert_close(name, got, want, N_PREFILL, n / N_PREFILL, max);
            free(got);
            compared++;
        }
    assert_true(compared >= 4 * N_LAYERS);
}

/* Inputs of the draft layers: means of the streams that enter layers 5, 6 and 7. */
static void check_main_hidden(struct fixture *f, double max)
{
    size_t n = 0;
    const float *want = golden_f32(f->g, "main_hidden_prefill32", &n);
    size_t d = n / N_PREFILL / 3;
    for (uint32_t t = 0; t < 3; t++) {
        float *x = gather(&f->r, "hc_in32", 5 + t, 0, N_PREFILL);
        for (size_t i = 0; i < N_PREFILL; i++)
            for (size_t k = 0; k < d; k++) {
                const float *p = x + i * 4 * d + k;
                double mean =
                    ((double)p[0] + (double)p[d] + (double)p[2 * d] + (double)p[3 * d]) / 4;
                assert_true(fabs(mean - (double)want[(i * 3 + t) * d + k]) <= max);
            }
        free(x);
    }
}

static void check_engram_rows(struct fixture *f)
{
    const int64_t *want = golden_i64(f->g, "engram_rows", NULL);
    for (uint32_t at = 0; at < 2; at++) {
        const struct record_tensor *t = record_find(&f->r, "engram_rows", at ? 3 : 1);
        assert_non_null(t);
        assert_int_equal(t->width, 6);
        for (size_t i = 0; i < N_PREFILL; i++) {
            const uint64_t *got = record_row(t, i);
            for (size_t k = 0; k < 6; k++)
                assert_int_equal(got[k], want[(i * 2 + at) * 6 + k]);
        }
    }
}

static void run_math(const char *backend, uint32_t chunk)
{
    struct golden_run run = {backend, PRECISION_MATH, chunk, true};
    struct fixture f;
    setup(&f, &run, CASE "expected_math.safetensors");
    check_engram_rows(&f);
    check_layers(&f, 1e-4);
    check_main_hidden(&f, 1e-4);
    check_logits(&f, 1e-4, 0, 1e-4);
    check_planes(&f, 2e-5, 0, 2e-5);
    assert_true(differing_selections(&f) <= 0);
    assert_true(differing_routes(&f) <= 0);
    teardown(&f);
}

/* An FP8 flip of a window key moves logits by 1e-4 or so. No row of the caches flips here, in
 * any numerics class. */
static void run_fp32kvq(const char *backend)
{
    struct golden_run run = {backend, PRECISION_FP32KVQ, 0, true};
    struct fixture f;
    setup(&f, &run, CASE "expected_fp32kvq.safetensors");
    check_engram_rows(&f);
    check_logits(&f, 1e-3, 0, 1e-3);
    check_planes(&f, 1e-5, 0, 1e-5);
    assert_true(differing_selections(&f) <= 0);
    assert_true(differing_routes(&f) <= 0);
    teardown(&f);
}

static void test_fenced(void **state)
{
    (void)state;
    run_math("fenced", 7);
    run_fp32kvq("fenced-ref");
}

static void test_math_ref(void **state)
{
    (void)state;
    run_math("ref", 0);
}

static void test_math_cpu(void **state)
{
    (void)state;
    run_math("cpu", 0);
}

/* Decode token by token, as a model that talks does. */
static void test_math_single_steps(void **state)
{
    (void)state;
    run_math("cpu", 1);
}

static void test_fp32kvq_ref(void **state)
{
    (void)state;
    run_fp32kvq("ref");
}

static void test_fp32kvq_cpu(void **state)
{
    (void)state;
    run_fp32kvq("cpu");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_math_ref),    cmocka_unit_test(test_fenced),
        cmocka_unit_test(test_math_cpu),    cmocka_unit_test(test_math_single_steps),
        cmocka_unit_test(test_fp32kvq_ref), cmocka_unit_test(test_fp32kvq_cpu),
    };
    return !!cmocka_run_group_tests(tests, NULL, NULL);
}
