/* Operator-level vectors (tests/golden/d_ops): roundings, grids, sinkhorn, rotary tables of the
 * real configuration, sparse attention, router, quantised products. On the reference backend
 * and on every CPU instruction set that this machine has. */
#include "tests/support/test.h"

#include <math.h>

#include "kernels/bits.h"
#include "kernels/hc_coefficients.h"
#include "kernels/kernels.h"
#include "tests/kernels/backends.h"
#include "tests/support/golden.h"

static struct golden *ops;

static int open_ops(void **state)
{
    (void)state;
    ops = golden_open(GOLDEN "d_ops/ops.safetensors");
    return 0;
}

static int close_ops(void **state)
{
    (void)state;
    golden_close(ops);
    return 0;
}

static void assert_close(const char *what, size_t i, float got, float want, float tol)
{
    float diff = fabsf(got - want);
    if (!(diff <= tol * (1 + fabsf(want))))
        fail_msg("%s[%zu]: %.9g, want %.9g", what, i, (double)got, (double)want);
}

static void test_e4m3(void **state)
{
    (void)state;
    size_t n;
    const float *in = golden_f32(ops, "e4m3.in", &n);
    const float *out = golden_f32(ops, "e4m3.out", NULL);
    const uint8_t *code = golden_bytes(ops, "e4m3.code", NULL);
    for (size_t i = 0; i < n; i++) {
        assert_int_equal(k_f32_to_e4m3(in[i]), code[i]);
        assert_int_equal(k_f32_bits(k_e4m3_to_f32(code[i])), k_f32_bits(out[i]));
    }
}

static void test_e2m1(void **state)
{
    (void)state;
    size_t n;
    const float *in = golden_f32(ops, "e2m1.in", &n);
    const float *out = golden_f32(ops, "e2m1.out", NULL);
    const uint8_t *code = golden_bytes(ops, "e2m1.code", NULL);
    for (size_t i = 0; i < n; i++) {
        assert_int_equal(k_f32_to_e2m1(in[i]), code[i]);
        assert_true(k_e2m1_to_f32(code[i]) == out[i]);
    }
}

/* The first weights of the released checkpoint, copied into the specification. */
static void test_real_bytes(void **state)
{
    (void)state;
    uint8_t fp8[32] = {0xd8, 0x71, 0xf2, 0x79, 0x70, 0x69, 0xf0, 0xe5}, fp8_scale = 0x73;
    static const float fp8_want[8] = {-0.00390625f, 0.03515625f,  -0.0390625f, 0.0703125f,
                                      0.03125f,     0.017578125f, -0.03125f,   -0.0126953125f};
    uint8_t fp4[16] = {0xa0, 0xa8, 0xec, 0x4a, 0xad, 0xaf, 0x42, 0xaa}, fp4_scale = 0x78;
    static const float fp4_want[16] = {0,          -.0078125f, 0,          -.0078125f,
                                       -.015625f,  -.03125f,   -.0078125f, .015625f,
                                       -.0234375f, -.0078125f, -.046875f,  -.0078125f,
                                       .0078125f,  .015625f,   -.0078125f, -.0078125f};
    struct k_weight w8 = {
        .type = K_W_FP8_32X32, .n_out = 1, .n_in = 32, .data = fp8, .scale = &fp8_scale};
    struct k_weight w4 = {
        .type = K_W_FP4_1X32, .n_out = 1, .n_in = 32, .data = fp4, .scale = &fp4_scale};
    for (size_t b = 0; b < n_backends; b++) {
        struct kernels *k = &backends[b];
        for (size_t i = 0; i < 16; i++) {
            float x[32] = {0}, y = 0;
            x[i] = 1;
            k->linear(k, &(struct k_linear){.w = &w4, .x = x, .y = &y, .n = 1});
            assert_true(y == fp4_want[i]);
            k->linear(k, &(struct k_linear){.w = &w8, .x = x, .y = &y, .n = 1});
            assert_true(i >= 8 || y == fp8_want[i]);
        }
    }
}

static void check_grid(struct kernels *k, const char *name, enum k_format format)
{
    size_t n;
    const float *in = golden_f32(ops, "quant.in", &n), *want = golden_f32(ops, name, NULL);
    uint32_t d = 512;
    size_t rows = n / d, bytes = k_row_bytes(format, d);
    float *got = calloc(n, sizeof *got);
    uint8_t *codes = calloc(rows, bytes);
    k->fake_quant(k, &(struct k_fake_quant){in, got, rows, d, format});
    for (size_t i = 0; i < n; i++)
        if (got[i] != want[i])
            fail_msg("%s %s[%zu]: %a, want %a", k->numerics, name, i, (double)got[i],
                     (double)want[i]);
    k->encode(k,
              &(struct k_encode){.x = in, .rows = codes, .n = rows, .d = d, .format = format});
    memset(got, 0, n * sizeof *got);
    k->decode(k, &(struct k_decode){codes, got, rows, d, format});
    assert_memory_equal(got, want, n * sizeof *got);
    free(got);
    free(codes);
}

static void test_grids(void **state)
{
    (void)state;
    for (size_t b = 0; b < n_backends; b++) {
        check_grid(&backends[b], "quant.fp8_qdq", K_ROW_FP8_32);
        check_grid(&backends[b], "quant.fp4_e4m3_16_qdq", K_ROW_FP4_16);
        check_grid(&backends[b], "quant.fp4_e8m0_32_qdq", K_ROW_FP4_32);
    }
}

static void test_fp8_codes(void **state)
{
    (void)state;
    const float *in = golden_f32(ops, "quant.in", NULL);
    const float *grid = golden_f32(ops, "quant.fp8_grid", NULL);
    const uint8_t *scales = golden_bytes(ops, "quant.fp8_e8m0", NULL);
    for (size_t i = 0; i < 64; i++) {
        uint8_t row[512 + 16];
        k_encode_row(K_ROW_FP8_32, in + i * 512, 512, row);
        assert_memory_equal(row + 512, scales + i * 16, 16);
        for (size_t j = 0; j < 512; j++)
            assert_true(k_e4m3_to_f32(row[j]) == grid[i * 512 + j]);
    }
}

static void test_sinkhorn(void **state)
{
    (void)state;
    const float *mixes = golden_f32(ops, "sinkhorn.mixes", NULL);
    const float *want[3] = {golden_f32(ops, "sinkhorn.pre", NULL),
                            golden_f32(ops, "sinkhorn.post", NULL),
                            golden_f32(ops, "sinkhorn.comb", NULL)};
    struct k_hc_mix a = {.scale = golden_f32(ops, "sinkhorn.scale", NULL),
                         .base = golden_f32(ops, "sinkhorn.base", NULL),
                         .hc = 4,
                         .iters = 20,
                         .hc_eps = 1e-6f};
    for (size_t i = 0; i < 32; i++) {
        double m[24];
        float pre[4], post[4], comb[16];
        for (size_t j = 0; j < 24; j++)
            m[j] = (double)mixes[i * 24 + j];
        k_hc_coefficients(m, &a, pre, post, comb);
        for (size_t j = 0; j < 4; j++) {
            assert_close("pre", i * 4 + j, pre[j], want[0][i * 4 + j], 1e-6f);
            assert_close("post", i * 4 + j, post[j], want[1][i * 4 + j], 1e-6f);
        }
        for (size_t j = 0; j < 16; j++)
            assert_close("comb", i * 16 + j, comb[j], want[2][i * 16 + j], 1e-6f);
    }
}

static void check_rope(struct kernels *k, const char *name, const struct k_rope_config *c)
{
    char key[64];
    size_t n;
    const int64_t *positions = golden_i64(ops, "rope.positions", &n);
    uint64_t pos[16];
    float inv_freq[32], cs[16 * 32], sn[16 * 32];
    assert_true(n <= 16);
    for (size_t i = 0; i < n; i++)
        pos[i] = (uint64_t)positions[i];
    k_rope_inv_freq(c, inv_freq);
    snprintf(key, sizeof key, "rope.%s.inv_freq", name);
    const float *want = golden_f32(ops, key, NULL);
    for (size_t j = 0; j < 32; j++)
        if (inv_freq[j] != want[j])
            fail_msg("%s[%zu]: %a, want %a", key, j, (double)inv_freq[j], (double)want[j]);
    /* The tables are compared for the recorded frequencies: an ulp of those is 0.06 rad here.
     */
    k->rope_table(k, &(struct k_rope_table){pos, want, cs, sn, n, 32});
    snprintf(key, sizeof key, "rope.%s.cos", name);
    const float *want_cos = golden_f32(ops, key, NULL);
    snprintf(key, sizeof key, "rope.%s.sin", name);
    const float *want_sin = golden_f32(ops, key, NULL);
    for (size_t i = 0; i < n * 32; i++) {
        assert_close(name, i, cs[i], want_cos[i], 1e-6f);
        assert_close(name, i, sn[i], want_sin[i], 1e-6f);
    }
}

static void test_rope_tables(void **state)
{
    (void)state;
    struct k_rope_config swa = {.rope_dim = 64, .base = 10000};
    struct k_rope_config compressed = {.rope_dim = 64,
                                       .base = 160000,
                                       .yarn = true,
                                       .factor = 16,
                                       .beta_fast = 32,
                                       .beta_slow = 1,
                                       .original_max_position = 65536};
    for (size_t b = 0; b < n_backends; b++) {
        check_rope(&backends[b], "swa", &swa);
        check_rope(&backends[b], "compressed", &compressed);
    }
}

static void check_sparse(struct kernels *k)
{
    size_t n;
    const float *q = golden_f32(ops, "sparse.q", NULL),
                *kv = golden_f32(ops, "sparse.kv", NULL);
    const int64_t *idx = golden_i64(ops, "sparse.idx", &n);
    const float *want = golden_f32(ops, "sparse.out", NULL);
    int32_t sel[450];
    float out[3 * 4 * 64];
    assert_int_equal(n, 450);
    for (size_t i = 0; i < n; i++)
        sel[i] = (int32_t)idx[i];
    struct k_attention a = {.q = q,
                            .out = out,
                            .n = 3,
                            .n_head = 4,
                            .d = 64,
                            .rows = kv,
                            .row_format = K_ROW_F32,
                            .sel = sel,
                            .n_sel = 150,
                            .sink = golden_f32(ops, "sparse.sink", NULL),
                            .scale = 0.125f,
                            .prob = K_BF16,
                            .round = K_BF16};
    k->attention(k, &a);
    for (size_t i = 0; i < 3 * 4 * 64; i++)
        assert_close("sparse.out", i, out[i], want[i], 0x1p-8f);
    for (size_t i = 2 * 4 * 64; i < 3 * 4 * 64; i++)
        assert_true(out[i] == 0);
    /* Without the roundings the result is near, and not the same. */
    a.prob = a.round = K_EXACT;
    k->attention(k, &a);
    for (size_t i = 0; i < 3 * 4 * 64; i++)
        assert_close("sparse.out, exact", i, out[i], want[i], 0x1p-7f);
}

static void test_sparse_attention(void **state)
{
    (void)state;
    for (size_t b = 0; b < n_backends; b++)
        check_sparse(&backends[b]);
}

static void test_router(void **state)
{
    (void)state;
    const int64_t *idx = golden_i64(ops, "gate.idx", NULL);
    const float *weight = golden_f32(ops, "gate.weight", NULL);
    for (size_t b = 0; b < n_backends; b++) {
        struct kernels *k = &backends[b];
        int32_t expert[64 * 6];
        float w[64 * 6];
        k->route(k, &(struct k_route){.logits = golden_f32(ops, "gate.logits", NULL),
                                      .bias = golden_f32(ops, "gate.bias", NULL),
                                      .expert = expert,
                                      .weight = w,
                                      .n = 64,
                                      .n_expert = 384,
                                      .top_k = 6,
                                      .norm = true,
                                      .scale = 1.5f});
        for (size_t i = 0; i < 64 * 6; i++) {
            assert_int_equal(expert[i], idx[i]);
            assert_close("gate.weight", i, w[i], weight[i], 1e-6f);
        }
    }
}

static void check_linear(struct kernels *k, const char *name, enum k_type type)
{
    char key[64];
    snprintf(key, sizeof key, "linear.%s.weight", name);
    struct k_weight w = {
        .type = type, .n_out = 64, .n_in = 128, .data = golden_bytes(ops, key, NULL)};
    snprintf(key, sizeof key, "linear.%s.scale", name);
    w.scale = golden_bytes(ops, key, NULL);
    snprintf(key, sizeof key, "linear.%s.y", name);
    const float *want = golden_f32(ops, key, NULL);
    float y[5 * 64];
    k->linear(k, &(struct k_linear){.w = &w,
                                    .x = golden_f32(ops, "linear.x", NULL),
                                    .y = y,
                                    .n = 5,
                                    .in = K_FP8_32,
                                    .out = K_BF16});
    for (size_t i = 0; i < 5 * 64; i++)
        assert_close(key, i, y[i], want[i], 0x1p-8f * fabsf(want[i]) / (1 + fabsf(want[i])));
}

static void test_quantised_linear(void **state)
{
    (void)state;
    for (size_t b = 0; b < n_backends; b++) {
        check_linear(&backends[b], "fp8", K_W_FP8_32X32);
        check_linear(&backends[b], "fp4", K_W_FP4_1X32);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_e4m3),        cmocka_unit_test(test_e2m1),
        cmocka_unit_test(test_real_bytes),  cmocka_unit_test(test_grids),
        cmocka_unit_test(test_fp8_codes),   cmocka_unit_test(test_sinkhorn),
        cmocka_unit_test(test_rope_tables), cmocka_unit_test(test_sparse_attention),
        cmocka_unit_test(test_router),      cmocka_unit_test(test_quantised_linear),
    };
    backends_open();
    int failed = cmocka_run_group_tests(tests, open_ops, close_ops);
    backends_close();
    return !!failed;
}
