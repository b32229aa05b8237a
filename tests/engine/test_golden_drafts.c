/* Draft layers against golden case a_tiny in mode math: after each of 300 decode steps the same
 * guesses, with the same confidence. */
#include <math.h>

#include "engine/draft.h"
#include "tests/support/drive.h"
#include "tests/support/golden_model.h"
#include "tests/support/test.h"

#define CASE GOLDEN "a_tiny/"
#define N_PREFILL 45
#define N_DECODE 300
#define N_LAYERS 8
#define N_DRAFTS 2
#define BLOCK 3
#define VOCAB 512
#define WINDOW 32
#define HEAD_DIM 64

struct fixture {
    struct engine *engine;
    struct seq *s;
    struct golden *g;
    double worst_confidence, worst_logit;
};

static void check_step(struct fixture *f, uint32_t step)
{
    const int64_t *want = golden_i64(f->g, "spec_ids", NULL) + (size_t)step * (1 + BLOCK);
    const float *confidence = golden_f32(f->g, "spec_conf", NULL) + (size_t)step * BLOCK;
    const struct sampling greedy = {.top_p = 1};
    struct draft d;
    struct error e = {0};
    assert_ok(draft_propose(model_of(f->engine), seq_of(f->s), (uint32_t)want[0], &greedy,
                            BLOCK, &d, &e),
              &e);
    assert_int_equal(d.n, BLOCK);
    for (uint32_t i = 0; i < BLOCK; i++) {
        if (d.ids[i] != want[1 + i])
            fail_msg("step %u: draft %u is %u, want %d", step, i, d.ids[i], (int)want[1 + i]);
        f->worst_confidence =
            fmax(f->worst_confidence, fabs((double)d.confidence[i] - (double)confidence[i]));
    }
    if (step % 25)
        return;
    const float *logits =
        golden_f32(f->g, "spec_logits_every25", NULL) + (size_t)(step / 25) * BLOCK * VOCAB;
    for (size_t i = 0; i < (size_t)BLOCK * VOCAB; i++)
        f->worst_logit = fmax(f->worst_logit, fabs((double)d.logits[i] - (double)logits[i]));
}

/* The windows are recorded in mode official only, where two right implementations drift apart:
 * the direction of every key has to fit. */
static void check_windows(struct fixture *f)
{
    const float *want = golden_f32(f->g, "final.mtp_window_kv", NULL);
    int64_t positions[WINDOW];
    float keys[WINDOW * HEAD_DIM];
    for (uint32_t i = 0; i < N_DRAFTS; i++) {
        engine_read_window(f->s, N_LAYERS + i, positions, keys);
        for (int64_t slot = 0; slot < WINDOW; slot++) {
            double xy = 0, xx = 0, yy = 0;
            assert_true(positions[slot] >= 0 && positions[slot] % WINDOW == slot);
            for (size_t k = 0; k < HEAD_DIM; k++) {
                double x = (double)keys[(size_t)slot * HEAD_DIM + k];
                double y = (double)want[((size_t)i * WINDOW + (size_t)slot) * HEAD_DIM + k];
                xy += x * y, xx += x * x, yy += y * y;
            }
            if (xy < 0.99 * sqrt(xx * yy))
                fail_msg("mtp.%u, slot %d: cos %g", i, (int)slot, xy / sqrt(xx * yy));
        }
    }
}

static void run(const char *backend, uint32_t chunk)
{
    struct golden_run how = {backend, PRECISION_MATH, chunk, false};
    size_t n = 0;
    uint32_t *ids = golden_ids(CASE "inputs.json", &n);
    struct fixture f = {.engine = golden_model(CASE "model", &how),
                        .g = golden_open(CASE "expected_math.safetensors")};
    f.s = drive_seq(f.engine);
    drive_input(f.engine, f.s, ids, N_PREFILL, PREFILL_FULL);
    for (uint32_t step = 0; step < N_DECODE; step++) {
        drive_forced(f.engine, f.s, ids + N_PREFILL + step, 1);
        check_step(&f, step);
    }
    if (getenv("AGENTD_SHOW"))
        printf("confidence within %g, logits within %g\n", f.worst_confidence, f.worst_logit);
    assert_true(f.worst_confidence <= 1e-4 && f.worst_logit <= 1e-4);
    golden_close(f.g);
    engine_free(f.engine);
    free(ids);
}

static void test_windows(void **state)
{
    struct golden_run how = {"cpu", PRECISION_OFFICIAL, 0, false};
    size_t n = 0;
    uint32_t *ids = golden_ids(CASE "inputs.json", &n);
    struct fixture f = {.engine = golden_model(CASE "model", &how),
                        .g = golden_open(CASE "expected.safetensors")};
    (void)state;
    f.s = drive_seq(f.engine);
    drive_input(f.engine, f.s, ids, N_PREFILL, PREFILL_FULL);
    drive_forced(f.engine, f.s, ids + N_PREFILL, N_DECODE);
    check_windows(&f);
    golden_close(f.g);
    engine_free(f.engine);
    free(ids);
}

static void test_ref(void **state)
{
    (void)state;
    run("ref", 0);
}

static void test_cpu(void **state)
{
    (void)state;
    run("cpu", 7);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ref),
        cmocka_unit_test(test_cpu),
        cmocka_unit_test(test_windows),
    };
    return !!cmocka_run_group_tests(tests, NULL, NULL);
}
