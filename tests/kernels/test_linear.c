/* Products: every weight type, rounding, group and shape, on every backend, against the
 * reference; a row alone and on one thread has the same bits as in a batch. */
#include "tests/support/test.h"

#include <math.h>

#include "kernels/host.h"
#include "tests/kernels/backends.h"
#include "tests/kernels/data.h"

struct shape {
    uint32_t n_out, n_in, groups;
    size_t n;
};

static const struct shape shapes[] = {
    {1, 32, 1, 1},     {3, 64, 1, 3},     {4, 96, 1, 4},     {5, 128, 1, 5},
    {31, 160, 1, 15},  {33, 32, 1, 17},   {64, 512, 2, 2},   {96, 64, 3, 18},
    {65, 1280, 1, 33}, {130, 64, 1, 129}, {128, 5120, 1, 1}, {24, 20480, 1, 3},
};

static const enum k_type types[] = {K_W_F32, K_W_BF16, K_W_FP8_32X32, K_W_FP4_1X32};
static const enum k_round rounds[] = {K_EXACT, K_BF16, K_FP8_32};

/* sum |w||x| of every output, for the tolerance. */
static float *sizes(const struct k_linear *a)
{
    const struct k_weight *w = a->w;
    size_t groups = w->n_groups, width = w->n_in * groups;
    float *row = calloc(w->n_in, sizeof *row);
    float *size = calloc(a->n * w->n_out, sizeof *size);
    for (size_t o = 0; o < w->n_out; o++) {
        size_t g = o / (w->n_out / groups);
        k_expand_row(w, o, row);
        for (size_t i = 0; i < a->n; i++)
            for (uint32_t j = 0; j < w->n_in; j++)
                size[i * w->n_out + o] += fabsf(row[j] * a->x[i * width + g * w->n_in + j]);
    }
    free(row);
    return size;
}

static void run(struct kernels *k, struct k_linear a, float *y)
{
    struct error e = {0};
    a.y = y;
    k->linear(k, &a);
    assert_ok(k->sync(k, &e), &e);
}

static void check_rows_alone(struct kernels *k, const struct k_linear *a, const float *y)
{
    size_t n_out = a->w->n_out,
           width = (size_t)a->w->n_in * (a->w->n_groups ? a->w->n_groups : 1);
    float *one = guarded_new(n_out);
    size_t probes[] = {0, a->n / 2, a->n - 1};
    for (size_t p = 0; p < 3; p++) {
        struct k_linear row = *a;
        row.x = a->x + probes[p] * width;
        row.n = 1;
        run(k, row, one);
        check_same("row alone", one, y + probes[p] * n_out, n_out);
    }
    guarded_check("row alone", one, n_out);
    guarded_free(one);
}

static void check_one(struct k_linear a, const float *want, const float *size, size_t b)
{
    size_t n = a.n * a.w->n_out;
    float *y = guarded_new(n), *again = guarded_new(n);
    struct kernels *k = &backends[b];
    struct error e = {0};
    run(k, a, y);
    guarded_check(k->numerics, y, n);
    check_near(k->numerics, y, want, size, n, K_TOL_LINEAR);
    run(&singles[b], a, again);
    check_same("one thread", again, y, n);
    check_rows_alone(k, &a, y);
    struct k_weight packed = *a.w;
    assert_ok(k->pack(k, &packed, &e), &e);
    a.w = &packed;
    run(k, a, again);
    check_same("packed", again, y, n);
    a.out = K_BF16;
    run(k, a, again);
    for (size_t i = 0; i < n; i++)
        assert_true(again[i] == k_bf16(y[i]));
    k->unpack(k, &packed);
    guarded_free(y);
    guarded_free(again);
}

static void check_shape(const struct shape *s, enum k_type type, enum k_round in)
{
    size_t width = (size_t)s->n_in * s->groups;
    struct k_weight w = weight_new(type, s->n_out, s->n_in, s->groups, s->n_out + s->n_in);
    float *x = values_new(s->n * width, s->n, 3);
    float *want = guarded_new(s->n * s->n_out);
    struct k_linear a = {.w = &w, .x = x, .n = s->n, .in = in};
    run(&backends[0], a, want);
    float *size = sizes(&a);
    for (size_t b = 0; b < n_backends; b++)
        check_one(a, want, size, b);
    free(x), free(size);
    guarded_free(want);
    weight_free(&w);
}

static void test_shapes(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (size_t t = 0; t < 4; t++)
            for (size_t r = 0; r < 3; r++)
                if ((shapes[i].n_in < 20480 || t == 0))
                    check_shape(&shapes[i], types[t], rounds[r]);
}

/* Inner dimensions that fill no vector: only types without groups of 32 have them. */
static void test_odd_inner(void **state)
{
    (void)state;
    for (uint32_t n_in = 1; n_in < 70; n_in += n_in < 36 ? 1 : 11)
        for (size_t t = 0; t < 2; t++)
            for (size_t r = 0; r < 2; r++)
                check_shape(&(struct shape){6, n_in, 1, 5}, types[t], rounds[r]);
}

/* The three roundings of the input differ, so none of them can be skipped unseen. */
static void test_roundings_matter(void **state)
{
    (void)state;
    struct k_weight w = weight_new(K_W_FP8_32X32, 8, 64, 1, 1);
    float *x = values_new(64, 2, 1);
    for (size_t b = 0; b < n_backends; b++) {
        float y[3][8];
        for (size_t r = 0; r < 3; r++)
            run(&backends[b], (struct k_linear){.w = &w, .x = x, .n = 1, .in = rounds[r]},
                y[r]);
        assert_true(memcmp(y[0], y[1], sizeof y[0]) && memcmp(y[1], y[2], sizeof y[0]));
    }
    free(x);
    weight_free(&w);
}

static void test_nan_and_strides(void **state)
{
    (void)state;
    struct k_weight w = weight_new(K_W_BF16, 9, 40, 1, 5);
    float *x = values_new(5 * 50, 6, 1);
    x[2 * 50 + 7] = NAN;
    x[3 * 50] = INFINITY;
    for (size_t b = 0; b < n_backends; b++) {
        float *y = guarded_new(5 * 12), dense[5 * 40], want[5 * 9];
        for (size_t i = 0; i < 5; i++)
            memcpy(dense + i * 40, x + i * 50, sizeof(float) * 40);
        struct k_linear a = {.w = &w, .x = x, .n = 5, .x_stride = 50, .y_stride = 12};
        run(&backends[b], a, y);
        run(&backends[b], (struct k_linear){.w = &w, .x = dense, .n = 5}, want);
        for (size_t i = 0; i < 5; i++) {
            check_same("strides", y + i * 12, want + i * 9, 9);
            for (size_t j = 0; j < 9; j++)
                assert_true(i == 2   ? isnan(want[i * 9 + j])
                            : i == 3 ? !isfinite(want[i * 9 + j])
                                     : isfinite(want[i * 9 + j]));
            for (size_t j = 9; i < 4 && j < 12; j++)
                assert_true(isnan(y[i * 12 + j])); /* between the rows: untouched */
        }
        guarded_free(y);
    }
    free(x);
    weight_free(&w);
}

/* Every code under every scale, read out by unit vectors. */
static void test_all_codes(void **state)
{
    (void)state;
    float unit[32 * 32] = {0}, row[32], y[32 * 8];
    uint8_t codes[256], scale[8];
    for (size_t i = 0; i < 32; i++)
        unit[i * 33] = 1;
    for (unsigned i = 0; i < 256; i++)
        codes[i] = (i & 0x7f) == 0x7f ? 0 : (uint8_t)i;
    for (unsigned s = 0; s < 255; s++)
        for (size_t t = 2; t < 4; t++) {
            memset(scale, (int)s, sizeof scale);
            struct k_weight w = {types[t], 8, 32, 1, codes, scale, NULL};
            for (size_t b = 0; b < n_backends; b++) {
                bool bf16 = b + 1 == n_backends; /* CUDA: its tensor cores, as well */
                run(&backends[b],
                    (struct k_linear){
                        .w = &w, .x = unit, .n = 32, .in = bf16 && s % 2 ? K_BF16 : K_EXACT},
                    y);
                for (size_t o = 0; o < 8; o++) {
                    k_expand_row(&w, o, row);
                    for (size_t i = 0; i < 32; i++)
                        if (isfinite(row[i])) /* infinities times 0 spoil their row */
                            assert_true(y[i * 8 + o] == row[i] || s > 240 ||
                                        (b && y[i * 8 + o] == k_bf16(row[i])));
                }
            }
        }
    memset(codes, 0, sizeof codes);
    codes[5] = 0x7f, codes[37] = 0xff, codes[64] = 1, scale[0] = 127;
    struct k_weight nan = {K_W_FP8_32X32, 3, 32, 1, codes, scale, NULL};
    for (size_t b = 0; b < n_backends; b++) {
        for (size_t r = 0; r < 2; r++) {
            run(&backends[b], (struct k_linear){.w = &nan, .x = unit, .n = 1, .in = rounds[r]},
                y);
            assert_true(isnan(y[0]) && isnan(y[1]) && !isnan(y[2]));
        }
    }
}

/* A numerics class with two forms has the same bits in both, also where sums become subnormal.
 */
static void check_class(const struct k_linear *a)
{
    size_t n = a->n * a->w->n_out;
    float *y[MAX_BACKENDS];
    for (size_t b = 0; b < n_backends; b++) {
        y[b] = guarded_new(n);
        run(&backends[b], *a, y[b]);
        for (size_t other = 0; other < b; other++)
            if (!strcmp(backends[b].numerics, backends[other].numerics))
                check_same(backends[b].numerics, y[b], y[other], n);
    }
    for (size_t b = 0; b < n_backends; b++)
        guarded_free(y[b]);
}

static void test_classes(void **state)
{
    (void)state;
    static const struct shape hard[] = {{9, 40, 3, 7}, {37, 320, 1, 1}, {37, 320, 1, 11}};
    for (size_t i = 0; i < 3; i++)
        for (size_t t = 1; t < 4; t++)
            for (int tiny = 0; tiny < 2; tiny++) {
                size_t width = (size_t)hard[i].n_in * hard[i].groups;
                if (t > 1 && hard[i].n_in % 32)
                    continue;
                struct k_weight w =
                    weight_new(types[t], hard[i].n_out, hard[i].n_in, hard[i].groups, i);
                float *x = values_new(hard[i].n * width, i, tiny ? 0x1p-122f : 1);
                for (size_t j = 0; tiny && j < hard[i].n * width; j += 3)
                    x[j] *= 0x1p-10f; /* subnormal itself */
                check_class(&(struct k_linear){.w = &w, .x = x, .n = hard[i].n, .in = K_BF16});
                weight_free(&w);
                free(x);
            }
}

static void test_isa_names(void **state)
{
    (void)state;
    struct kernels k = {0};
    struct error e = {0};
    assert_int_equal(kernels_cpu(&k, "sse9", NULL, &e), ERR_INVAL);
    assert_non_null(strstr(e.msg, "sse9"));
    assert_ok(kernels_cpu(&k, NULL, NULL, &e), &e);
    assert_string_equal(k.numerics, backends[n_backends - 2].numerics);
    kernels_fini(&k);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shapes),           cmocka_unit_test(test_odd_inner),
        cmocka_unit_test(test_roundings_matter), cmocka_unit_test(test_nan_and_strides),
        cmocka_unit_test(test_all_codes),        cmocka_unit_test(test_classes),
        cmocka_unit_test(test_isa_names),
    };
    backends_open();
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    backends_close();
    return !!failed;
}
