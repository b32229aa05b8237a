/* Random checkpoints: they open, stay sane through all layers, and come out the same again. */
#include <math.h>

#include "base/fs.h"
#include "engine/record.h"
#include "engine/safetensors.h"
#include "tests/support/checkpoint.h"
#include "tests/support/drive.h"
#include "tests/support/tempdir.h"
#include "tests/support/test.h"

static void make(const char *config, const char *out, uint64_t seed, uint64_t shard_bytes)
{
    struct error e = {0};
    struct checkpoint_options o = {.config = config,
                                   .tokenizer = CHECKPOINT_TOKENIZER,
                                   .out = out,
                                   .seed = seed,
                                   .shard_bytes = shard_bytes};
    assert_ok(checkpoint_make(&o, &e), &e);
}

static double spread(const float *x, size_t n)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++) {
        assert_true(isfinite(x[i]));
        sum += (double)x[i] * (double)x[i];
    }
    return sqrt(sum / (double)n);
}

/* Streams stay near size 1 and logits near 3 from the first layer to the last. */
static void check_sane(const char *config, uint32_t n_tokens)
{
    char dir[TEMPDIR_BYTES], model[128];
    struct engine_options o = {.no_weight_digest = true};
    uint32_t ids[300];
    tempdir_make(dir);
    snprintf(model, sizeof(model), "%s/m", dir);
    make(config, model, 1, 8 << 20); /* several shards */
    struct engine *m = drive_open(model, &o);
    struct seq *s = drive_seq(m);
    struct record r;
    record_init(&r, m, true);
    for (uint32_t i = 0; i < n_tokens; i++)
        ids[i] = (i * 7919 + i * i) % 490;
    drive_input(m, s, ids, n_tokens, PREFILL_FULL);
    for (uint32_t l = 0;; l++) {
        const struct record_tensor *t = record_find(&r, "hc_out32", l);
        if (!t)
            break;
        double x = spread(t->data, t->n * t->width);
        if (x < 0.5 || x > 2.5)
            fail_msg("%s: layer %u: streams of size %g", config, l, x);
    }
    double x = spread(r.logits.data, r.logits.n * r.logits.width);
    if (x < 1.5 || x > 6)
        fail_msg("%s: logits of size %g", config, x);
    record_fini(&r);
    engine_free(m);
    tempdir_remove(dir);
}

static void test_demo(void **state)
{
    (void)state;
    check_sane("tests/configs/demo.json", 160);
}

static void test_mini_40(void **state)
{
    (void)state;
    check_sane("tests/configs/mini-40.json", 140);
}

static void test_by_seed(void **state)
{
    (void)state;
    char dir[TEMPDIR_BYTES], path[3][128];
    struct error e = {0};
    struct buf text[3] = {BUF_INIT(1 << 26), BUF_INIT(1 << 26), BUF_INIT(1 << 26)};
    tempdir_make(dir);
    for (int i = 0; i < 3; i++) {
        snprintf(path[i], sizeof(path[i]), "%s/%d", dir, i);
        make("tests/configs/demo.json", path[i], i < 2 ? 5 : 6, 0);
        char file[512];
        snprintf(file, sizeof(file), "%s/model-00001-of-00001.safetensors", path[i]);
        assert_ok(fs_read_file(file, &text[i], &e), &e);
    }
    assert_int_equal(text[0].len, text[1].len);
    assert_memory_equal(text[0].data, text[1].data, text[0].len);
    assert_memory_not_equal(text[0].data, text[2].data, text[0].len);
    for (int i = 0; i < 3; i++)
        buf_fini(&text[i]);
    tempdir_remove(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_demo),
        cmocka_unit_test(test_mini_40),
        cmocka_unit_test(test_by_seed),
    };
    return !!cmocka_run_group_tests(tests, NULL, NULL);
}
