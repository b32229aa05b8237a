/* Precision mode official against the golden vectors of the released reference's roundings:
 * layer by layer on recorded inputs of a_tiny (sharp), then a_tiny, b_long and c_replay end to
 * end (the mode is chaotic: two right implementations drift apart as far as noise.json says).
 */
#include <math.h>

#include "engine/forward_engram.h"
#include "engine/seq.h"
#include "tests/support/drive.h"
#include "tests/support/golden_model.h"
#include "tests/support/test.h"

#define N_LAYERS 8
#define VOCAB 512
#define DIM 128
#define STREAM 512 /* hc * hidden_size */
#define HC 4

/* ---- layer by layer -----------------------------------------------------------------------
 */

#define TINY GOLDEN "a_tiny/"
#define N 45

struct fixture {
    struct engine *engine;
    struct model *m;
    struct seq *s;
    struct run run;
    struct batch batch;
    struct golden *g;
    struct record r;
    uint32_t *ids;
    uint32_t history[CONFIG_MAX_NGRAM];
};

static void setup(struct fixture *f, const char *backend)
{
    struct golden_run how = {backend, PRECISION_OFFICIAL, 0, true};
    struct error e = {0};
    size_t n = 0;
    *f = (struct fixture){.ids = golden_ids(TINY "inputs.json", &n)};
    f->engine = golden_model(TINY "model", &how);
    f->m = model_of(f->engine);
    f->s = drive_seq(f->engine);
    f->g = golden_open(TINY "expected.safetensors");
    record_init(&f->r, f->engine, true);
    for (size_t i = 0; i < CONFIG_MAX_NGRAM; i++)
        f->history[i] = ENGRAM_DEAD;
    struct kv *kv = &seq_of(f->s)->kv;
    assert_ok(kv_reserve(kv, N, &e), &e);
    f->run = (struct run){.seq = f->s, .kv = kv, .ids = f->ids, .history = f->history, .n = N};
    f->batch = batch_of(&f->run, 1);
    assert_ok(forward_begin(f->m, &f->batch, &e), &e);
}

static void teardown(struct fixture *f)
{
    record_fini(&f->r);
    golden_close(f->g);
    engine_free(f->engine);
    free(f->ids);
}

static bool has(struct fixture *f, uint32_t layer, const char *name)
{
    char full[64];
    snprintf(full, sizeof(full), "L%u.%s", layer, name);
    return golden_has(f->g, full);
}

static const float *golden(struct fixture *f, uint32_t layer, const char *name)
{
    char full[64];
    snprintf(full, sizeof(full), "L%u.%s", layer, name);
    return golden_f32(f->g, full, NULL);
}

static const float *stream_in(struct fixture *f, uint32_t layer)
{
    return has(f, layer, "hc_in") ? golden(f, layer, "hc_in") : golden(f, layer - 1, "hc_out");
}

static void load(struct fixture *f, const float *x, uint32_t layer)
{
    memcpy(f->m->work->x, x, sizeof(float) * N * STREAM);
    for (size_t i = 0; i < N * HC && !layer; i++)
        f->m->work->pre[i] = i % HC ? 0 : 1;
    if (layer)
        memcpy(f->m->work->pre, golden(f, layer - 1, "pre_out"), sizeof(float) * N * HC);
}

/* Values are on the bf16 grid: most are equal, a few fall to the other side of a rounding. */
static void assert_grid(const char *what, uint32_t layer, const float *got, const float *want,
                        size_t n, double share)
{
    size_t differing = 0;
    double worst = 0, size = 0;
    for (size_t i = 0; i < n; i++) {
        differing += got[i] < want[i] || got[i] > want[i];
        worst = fmax(worst, fabs((double)got[i] - (double)want[i]));
        size = fmax(size, fabs((double)want[i]));
    }
    if (getenv("AGENTD_SHOW"))
        printf("L%u.%s: %.4f differ, worst %g of %g\n", layer, what,
               (double)differing / (double)n, worst, size);
    if ((double)differing > share * (double)n || worst > 0.004 * size)
        fail_msg("L%u.%s: %zu of %zu differ, by %g of %g", layer, what, differing, n, worst,
                 size);
}

static void check_output(struct fixture *f, uint32_t layer, const char *recorded,
                         const char *name, size_t width, double share)
{
    if (!has(f, layer, name))
        return;
    float *got = gather(&f->r, recorded, layer, 0, N);
    assert_grid(name, layer, got, golden(f, layer, name), N * width, share);
    free(got);
}

static void check_layer(struct fixture *f, uint32_t layer)
{
    struct error e = {0};
    if (config_engram_at(&f->m->config, layer) != CONFIG_NO_LAYER) {
        load(f, golden(f, layer - 1, "hc_out"), layer);
        forward_engram(f->m, &f->batch, layer);
        assert_grid("hc_in", layer, f->m->work->x, golden(f, layer, "hc_in"), N * STREAM, 0.02);
    }
    load(f, stream_in(f, layer), layer);
    forward_layer(f->m, &f->batch, layer);
    assert_ok(f->m->k.sync(&f->m->k, &e), &e);
    check_output(f, layer, "attn_out32", "attn_out", DIM, 0.02);
    check_output(f, layer, "hc_mid32", "hc_mid", STREAM, 0.02);
    check_output(f, layer, "ffn_out32", "ffn_out", DIM, 0.02);
    check_output(f, layer, "hc_out32", "hc_out", STREAM, 0.02);
}

static void run_layers(const char *backend)
{
    struct fixture f;
    setup(&f, backend);
    for (uint32_t l = 0; l < N_LAYERS; l++)
        check_layer(&f, l);
    teardown(&f);
}

static void test_layers_ref(void **state)
{
    (void)state;
    run_layers("ref");
}

static void test_layers_cpu(void **state)
{
    (void)state;
    run_layers("cpu");
}

/* ---- end to end ---------------------------------------------------------------------------
 */

struct drift {
    double cos, max, argmax;
};

static struct drift drift(const float *got, const float *want, size_t n)
{
    struct drift d = {.cos = 1};
    for (size_t i = 0; i < n; i++, got += VOCAB, want += VOCAB) {
        double xy = 0, xx = 0, yy = 0;
        size_t a = 0, b = 0;
        for (size_t k = 0; k < VOCAB; k++) {
            xy += (double)got[k] * (double)want[k];
            xx += (double)got[k] * (double)got[k];
            yy += (double)want[k] * (double)want[k];
            d.max = fmax(d.max, fabs((double)got[k] - (double)want[k]));
            a = got[k] > got[a] ? k : a;
            b = want[k] > want[b] ? k : b;
        }
        d.cos = fmin(d.cos, xy / sqrt(xx * yy));
        d.argmax += a == b ? 1 / (double)n : 0;
    }
    return d;
}

static void assert_drift(const char *what, const float *got, const float *want, size_t n)
{
    struct drift d = drift(got, want, n);
    if (getenv("AGENTD_SHOW"))
        printf("%s: cos %.5f, max %.3f, argmax %.3f\n", what, d.cos, d.max, d.argmax);
    if (!(d.cos >= 0.99 && d.max <= 1.2 && d.argmax >= 0.9))
        fail_msg("%s: cos %g (at least 0.99), max %g (at most 1.2), argmax %g (at least 0.9)",
                 what, d.cos, d.max, d.argmax);
}

struct case_run {
    struct engine *m;
    struct seq *s;
    struct record r;
    struct golden *g;
    uint32_t *ids;
};

static void start(struct case_run *c, const char *model, const char *inputs,
                  const char *expected, uint32_t n_prefill, enum prefill_mode mode,
                  uint32_t n_decode)
{
    struct golden_run how = {"cpu", PRECISION_OFFICIAL, 0, false};
    size_t n = 0;
    c->ids = golden_ids(inputs, &n);
    assert_true(n >= n_prefill + n_decode);
    c->m = golden_model(model, &how);
    c->g = golden_open(expected);
    record_init(&c->r, c->m, false);
    c->s = drive_seq(c->m);
    drive_input(c->m, c->s, c->ids, n_prefill, mode);
    drive_forced(c->m, c->s, c->ids + n_prefill, n_decode);
}

static void check(struct case_run *c, const char *name, uint32_t pos0, uint32_t n)
{
    float *got = gather_logits(&c->r, pos0, n);
    assert_drift(name, got, golden_f32(c->g, name, NULL), n);
    free(got);
}

static void stop(struct case_run *c)
{
    record_fini(&c->r);
    golden_close(c->g);
    engine_free(c->m);
    free(c->ids);
}

static void test_a_tiny(void **state)
{
    struct case_run c;
    (void)state;
    start(&c, TINY "model", TINY "inputs.json", TINY "expected.safetensors", 45, PREFILL_FULL,
          300);
    check(&c, "prefill_logits", 0, 45);
    check(&c, "decode_logits", 45, 300);
    stop(&c);
}

static void test_b_long(void **state)
{
    struct case_run c;
    float *sel = malloc(sizeof(*sel) * 30 * VOCAB);
    (void)state;
    start(&c, GOLDEN "b_long/model", GOLDEN "b_long/inputs.json",
          GOLDEN "b_long/expected.safetensors", 1601, PREFILL_FULL, 40);
    const int64_t *positions = golden_i64(c.g, "sel_positions", NULL);
    for (size_t i = 0; i < 30; i++) {
        float *row = gather_logits(&c.r, (uint64_t)positions[i], 1);
        memcpy(sel + i * VOCAB, row, sizeof(*row) * VOCAB);
        free(row);
    }
    assert_drift("prefill_logits_sel", sel, golden_f32(c.g, "prefill_logits_sel", NULL), 30);
    free(sel);
    check(&c, "decode_logits", 1601, 40);
    stop(&c);
}

/* full, and both forms of the clipped prefill. The 32 rows of a prompt's window are too few for
 * a share of 0.9 (the golden file's own second accumulation order misses it, too): prompt and
 * decode are judged together. */
static void test_c_replay(void **state)
{
    static const struct {
        const char *name;
        enum prefill_mode mode;
    } FORMS[] = {{"full", PREFILL_FULL}, {"dec", PREFILL_CED_REPORT}, {"dec_alt", PREFILL_CED}};
    (void)state;
    for (size_t i = 0; i < sizeof(FORMS) / sizeof(*FORMS); i++) {
        struct case_run c;
        char name[64];
        float *want = malloc(sizeof(*want) * (32 + 64) * VOCAB);
        start(&c, GOLDEN "c_replay/model", GOLDEN "c_replay/inputs.json",
              GOLDEN "c_replay/expected.safetensors", 400, FORMS[i].mode, 64);
        snprintf(name, sizeof(name), "%s.prompt_logits_last_window", FORMS[i].name);
        memcpy(want, golden_f32(c.g, name, NULL), sizeof(*want) * 32 * VOCAB);
        snprintf(name, sizeof(name), "%s.decode_logits", FORMS[i].name);
        memcpy(want + 32 * VOCAB, golden_f32(c.g, name, NULL), sizeof(*want) * 64 * VOCAB);
        float *got = gather_logits(&c.r, 400 - 32, 32 + 64);
        assert_drift(FORMS[i].name, got, want, 32 + 64);
        free(got);
        free(want);
        stop(&c);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_layers_ref), cmocka_unit_test(test_layers_cpu),
        cmocka_unit_test(test_a_tiny),     cmocka_unit_test(test_b_long),
        cmocka_unit_test(test_c_replay),
    };
    return !!cmocka_run_group_tests(tests, NULL, NULL);
}
