/* Attention on every backend: against a plain transcription of its formula, against the
 * reference, and bit for bit however the run of queries is cut. */
#include "tests/support/test.h"

#include <math.h>

#include "tests/kernels/backends.h"
#include "tests/kernels/data.h"

#define T 45 /* tokens */

struct world {
    uint32_t n_head, d, window, n_sel;
    enum k_format window_format, row_format;
    float *q, *sink;
    float *key, *row; /* [T][d] on their grids, as f32 */
    uint8_t *key_codes, *row_codes;
    int32_t *sel; /* [T][n_sel] */
};

static struct world world_new(uint32_t n_head, uint32_t d, uint32_t window, uint32_t n_sel,
                              bool grids)
{
    struct world w = {.n_head = n_head, .d = d, .window = window, .n_sel = n_sel};
    w.window_format = grids ? K_ROW_FP8_32 : K_ROW_F32;
    w.row_format = grids ? K_ROW_FP4_16 : K_ROW_F32;
    w.q = values_new((size_t)T * n_head * d, 1, 2);
    w.sink = values_new(n_head, 2, 2);
    w.key = values_new((size_t)T * d, 3, 1);
    w.row = values_new((size_t)T * d, 4, 1);
    size_t kb = k_row_bytes(w.window_format, d), rb = k_row_bytes(w.row_format, d);
    w.key_codes = calloc(T, kb);
    w.row_codes = calloc(T, rb);
    for (size_t i = 0; i < T; i++) {
        k_encode_row(w.window_format, w.key + i * d, d, w.key_codes + i * kb);
        k_decode_row(w.window_format, w.key_codes + i * kb, d, w.key + i * d);
        k_encode_row(w.row_format, w.row + i * d, d, w.row_codes + i * rb);
        k_decode_row(w.row_format, w.row_codes + i * rb, d, w.row + i * d);
    }
    w.sel = calloc((size_t)T * n_sel + 1, sizeof *w.sel);
    uint8_t *coin = bytes_new((size_t)T * T, 5);
    for (size_t i = 0; i < T; i++) { /* some rows up to the query's, some -1 between them */
        uint32_t n = 0;
        for (size_t r = 0; r < (i + 1) / 2 && n < n_sel; r++)
            if (coin[i * T + r] & 3)
                w.sel[i * n_sel + n++] = coin[i * T + r] & 4 ? (int32_t)r : -1;
        for (; n < n_sel; n++)
            w.sel[i * n_sel + n] = -1;
    }
    free(coin);
    return w;
}

static void world_free(struct world *w)
{
    free(w->q), free(w->sink), free(w->key), free(w->row);
    free(w->key_codes), free(w->row_codes), free(w->sel);
}

/* The formula for query p, straight from the f32 values: window [from, to), then its rows. */
static void naive(const struct world *w, size_t p, size_t from, size_t to, float *out)
{
    double s[2 * T];
    const float *v[2 * T];
    for (size_t h = 0; h < w->n_head; h++) {
        size_t n = 0;
        double max = (double)w->sink[h], sum;
        for (size_t t = from; t < to; t++)
            v[n++] = w->key + t * w->d;
        for (uint32_t j = 0; j < w->n_sel; j++)
            if (w->sel[p * w->n_sel + j] >= 0)
                v[n++] = w->row + (size_t)w->sel[p * w->n_sel + j] * w->d;
        for (size_t t = 0; t < n; t++) {
            s[t] = 0;
            for (uint32_t j = 0; j < w->d; j++)
                s[t] += (double)w->q[(p * w->n_head + h) * w->d + j] * (double)v[t][j];
            s[t] /= sqrt((double)w->d);
            max = fmax(max, s[t]);
        }
        sum = exp((double)w->sink[h] - max);
        for (size_t t = 0; t < n; t++)
            sum += exp(s[t] - max);
        for (uint32_t j = 0; j < w->d; j++) {
            double o = 0;
            for (size_t t = 0; t < n; t++)
                o += exp(s[t] - max) * (double)v[t][j];
            out[h * w->d + j] = (float)(o / sum);
        }
    }
}

/* Runs queries [from, to) in chunks of `cut`, keeping the ring as the engine does. */
static void run(struct kernels *k, const struct world *w, size_t from, size_t to, size_t cut,
                uint64_t lo, enum k_round prob, float *out)
{
    size_t kb = k_row_bytes(w->window_format, w->d);
    uint8_t *ring = calloc(w->window + 1, kb);
    struct error e = {0};
    for (size_t p = 0; p < from; p++)
        memcpy(ring + p % w->window * kb, w->key_codes + p * kb, kb);
    for (size_t p = from; p < to; p += cut) {
        size_t n = to - p < cut ? to - p : cut;
        struct k_attention a = {.q = w->q + p * w->n_head * w->d,
                                .out = out + p * w->n_head * w->d,
                                .n = n,
                                .n_head = w->n_head,
                                .d = w->d,
                                .ring = ring,
                                .keys = w->key_codes + p * kb,
                                .window_format = w->window_format,
                                .window = w->window,
                                .pos0 = p,
                                .lo = lo,
                                .rows = w->row_codes,
                                .row_format = w->row_format,
                                .sel = w->sel + p * w->n_sel,
                                .n_sel = w->n_sel,
                                .sink = w->sink,
                                .scale = 1 / sqrtf((float)w->d),
                                .prob = prob};
        k->attention(k, &a);
        for (size_t i = p; i < p + n; i++)
            memcpy(ring + i % w->window * kb, w->key_codes + i * kb, kb);
    }
    assert_ok(k->sync(k, &e), &e);
    free(ring);
}

static void check_world(const struct world *w, uint64_t lo, size_t from)
{
    size_t width = (size_t)w->n_head * w->d, n = T * width;
    float *want = guarded_new(n), *ref = guarded_new(n), *y = guarded_new(n),
          *z = guarded_new(n);
    for (size_t p = from; p < T; p++) {
        size_t first = p + 1 > w->window ? p + 1 - w->window : 0;
        naive(w, p, first < lo ? lo : first, p + 1, want + p * width);
    }
    run(&backends[0], w, from, T, T, lo, K_EXACT, ref);
    check_near("ref", ref + from * width, want + from * width, NULL, (T - from) * width, 1e-6f);
    for (size_t b = 0; b < n_backends; b++) {
        struct kernels *k = &backends[b];
        run(k, w, from, T, T, lo, K_EXACT, y);
        check_near(k->numerics, y + from * width, ref + from * width, NULL, (T - from) * width,
                   K_TOL_ATTENTION);
        size_t cuts[] = {1, 7, w->window, w->window + 1};
        for (size_t c = 0; c < 4; c++) {
            run(c % 2 ? k : &singles[b], w, from, T, cuts[c], lo, K_EXACT, z);
            check_same("cut", z + from * width, y + from * width, (T - from) * width);
        }
        run(k, w, from, T, T, lo, K_BF16, y);
        check_near("bf16", y + from * width, ref + from * width, NULL, (T - from) * width,
                   8e-3f);
        assert_true(memcmp(y, z, n * sizeof *y) != 0);
        run(&singles[b], w, from, T, 7, lo, K_BF16, z);
        check_same("bf16, cut", z + from * width, y + from * width, (T - from) * width);
    }
    if (!from)
        guarded_check("out", y, n);
    guarded_free(want), guarded_free(ref), guarded_free(y), guarded_free(z);
}

static void test_shapes(void **state)
{
    (void)state;
    static const struct {
        uint32_t n_head, d, window, n_sel;
        bool grids;
    } cases[] = {{1, 32, 8, 6, false},  {4, 64, 8, 22, true},  {17, 64, 1, 3, true},
                 {3, 96, 44, 0, false}, {33, 32, 64, 9, true}, {2, 512, 16, 22, true}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct world w = world_new(cases[i].n_head, cases[i].d, cases[i].window, cases[i].n_sel,
                                   cases[i].grids);
        check_world(&w, 0, 0);
        check_world(&w, 5, 5); /* a replayed tail: nothing before position 5 exists */
        check_world(&w, 2, 20);
        world_free(&w);
    }
}

/* Draft layers: the ring, then the whole block, for every query of it. */
static void test_block(void **state)
{
    (void)state;
    struct world w = world_new(3, 64, 8, 0, true);
    size_t kb = k_row_bytes(w.window_format, w.d), at = 20, n = 5, width = 3 * 64;
    uint8_t *ring = calloc(w.window, kb);
    float want[5 * 3 * 64], y[5 * 3 * 64];
    for (size_t p = 0; p < at; p++)
        memcpy(ring + p % w.window * kb, w.key_codes + p * kb, kb);
    for (size_t i = 0; i < n; i++)
        naive(&w, at + i, at - w.window, at + n, want + i * width);
    for (size_t b = 0; b < n_backends; b++) {
        struct k_attention a = {.q = w.q + at * width,
                                .out = y,
                                .n = n,
                                .n_head = 3,
                                .d = 64,
                                .ring = ring,
                                .keys = w.key_codes + at * kb,
                                .window_format = w.window_format,
                                .window = w.window,
                                .pos0 = at,
                                .block = true,
                                .sink = w.sink,
                                .scale = 0.125f};
        backends[b].attention(&backends[b], &a);
        check_near("block", y, want, NULL, n * width, K_TOL_ATTENTION);
    }
    free(ring);
    world_free(&w);
}

/* Queries from .. to-1 alone: their bits as in the whole call, nothing else written. */
static void test_some_queries(void **state)
{
    (void)state;
    struct world w = world_new(3, 64, 8, 9, true);
    size_t width = 3 * 64;
    float *whole = guarded_new(T * width), *some = guarded_new(T * width);
    for (size_t b = 0; b < n_backends; b++)
        for (int bf16 = 0; bf16 < 2; bf16++) {
            struct k_attention a = {.q = w.q,
                                    .out = whole,
                                    .n = T,
                                    .n_head = 3,
                                    .d = 64,
                                    .ring = w.key_codes,
                                    .keys = w.key_codes,
                                    .window_format = w.window_format,
                                    .window = 8,
                                    .rows = w.row_codes,
                                    .row_format = w.row_format,
                                    .sel = w.sel,
                                    .n_sel = 9,
                                    .sink = w.sink,
                                    .scale = 0.125f,
                                    .prob = bf16 ? K_BF16 : K_EXACT};
            backends[b].attention(&backends[b], &a);
            for (size_t i = 0; i < T * width; i++)
                some[i] = -7;
            a.out = some, a.from = 5, a.to = 17;
            backends[b].attention(&backends[b], &a);
            check_same("some queries", some + 5 * width, whole + 5 * width, 12 * width);
            for (size_t i = 0; i < T * width; i++)
                assert_true(some[i] == -7 || (i >= 5 * width && i < 17 * width));
        }
    guarded_free(whole), guarded_free(some);
    world_free(&w);
}

/* The released shape in the middle of a context, on the reference and on CUDA: many heads,
 * lists of 640 keys, among them missing ones; a query alone; a device with less shared memory,
 * whose blocks have fewer heads; and one with none to speak of, where plain instructions do it.
 */
#define REAL_N 5u
#define REAL_HEADS 64u
#define REAL_D 512u
#define REAL_SEL 512u
#define REAL_ROWS 600u
#define REAL_WIDTH ((size_t)REAL_HEADS * REAL_D)

static struct k_attention real_new(float q_scale)
{
    struct k_attention a = {.n = REAL_N,
                            .n_head = REAL_HEADS,
                            .d = REAL_D,
                            .window = 128,
                            .window_format = K_ROW_FP8_32,
                            .row_format = K_ROW_FP4_16,
                            .pos0 = 200,
                            .n_sel = REAL_SEL,
                            .scale = 1 / sqrtf(REAL_D)};
    size_t kb = k_row_bytes(K_ROW_FP8_32, REAL_D), rb = k_row_bytes(K_ROW_FP4_16, REAL_D);
    uint8_t *ring = calloc(128, kb), *keys = calloc(REAL_N, kb), *rows = calloc(REAL_ROWS, rb);
    float *x = values_new((128 + REAL_N + REAL_ROWS) * (size_t)REAL_D, 7, 4);
    int32_t *sel = calloc(REAL_N * REAL_SEL, sizeof *sel);
    for (size_t i = 0; i < 128 + REAL_N + REAL_ROWS; i++) { /* rows of unlike size */
        const float *from = x + i * REAL_D;
        for (size_t j = 0; j < REAL_D; j++)
            x[i * REAL_D + j] *= i % 16 == 0 ? 0.01f : i % 5 == 0 ? 0.3f : 1;
        if (i < 128)
            k_encode_row(K_ROW_FP8_32, from, REAL_D, ring + i * kb);
        else if (i < 128 + REAL_N)
            k_encode_row(K_ROW_FP8_32, from, REAL_D, keys + (i - 128) * kb);
        else
            k_encode_row(K_ROW_FP4_16, from, REAL_D, rows + (i - 128 - REAL_N) * rb);
    }
    for (size_t i = 0; i < REAL_N; i++)
        for (size_t t = 0; t < REAL_SEL; t++)
            sel[i * REAL_SEL + t] = t % 97 == 3 || t > 500 ? -1 : (int32_t)(t + 11 * i);
    free(x);
    a.q = values_new(REAL_N * REAL_WIDTH, 8, q_scale);
    a.sink = values_new(REAL_HEADS, 9, 2);
    a.ring = ring, a.keys = keys, a.rows = rows, a.sel = sel;
    return a;
}

static void real_free(struct k_attention *a)
{
    const void *const parts[] = {a->q, a->sink, a->ring, a->keys, a->rows, a->sel};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        void *p;
        memcpy(&p, &parts[i], sizeof p);
        free(p);
    }
}

static void real_run(struct kernels *k, const struct k_attention *real, size_t from, size_t to,
                     float *out)
{
    struct k_attention a = *real;
    struct error e = {0};
    a.from = from, a.to = to, a.out = out;
    k->attention(k, &a);
    assert_ok(k->sync(k, &e), &e);
}

/* The same calls on a device of so much shared memory for a block. */
static void real_on(const char *shared_bytes, const struct k_attention *a, size_t to,
                    float *out)
{
    struct kernels k = {0};
    struct error e = {0};
    setenv("AGENTD_EMULATED_SHARED_BYTES", shared_bytes, 1);
    assert_ok(open_cuda(&k, &e), &e);
    unsetenv("AGENTD_EMULATED_SHARED_BYTES");
    real_run(&k, a, 0, to, out);
    kernels_fini(&k);
}

static void test_real_shape(void **state)
{
    (void)state;
    struct kernels *cuda = &backends[n_backends - 1];
    struct k_attention a = real_new(3);
    size_t n = REAL_N * REAL_WIDTH;
    float *want = guarded_new(n), *y = guarded_new(n), *z = guarded_new(n);
    real_run(&backends[0], &a, 0, 0, want);
    real_run(cuda, &a, 0, 0, y);
    guarded_check("real shape", y, n);
    check_near("real shape", y, want, NULL, n, 4 * K_TOL_ATTENTION);
    real_run(cuda, &a, 1, 2, z);
    check_same("a query alone", z + REAL_WIDTH, y + REAL_WIDTH, REAL_WIDTH);
    real_run(cuda, &a, 2, 5, z);
    check_same("three queries", z + 2 * REAL_WIDTH, y + 2 * REAL_WIDTH, 3 * REAL_WIDTH);
    if (!getenv("AGENTD_TEST_GPU")) {
        real_on("166912", &a, 0, z);
        check_same("16 heads a block", z, y, n);
        real_on("49152", &a, 1, z);
        check_near("plain", z, want, NULL, REAL_WIDTH, 4 * K_TOL_ATTENTION);
        assert_true(memcmp(z, y, REAL_WIDTH * sizeof *z) != 0);
    }
    a.prob = K_BF16;
    real_run(&backends[0], &a, 0, 0, want);
    real_run(cuda, &a, 0, 0, y);
    check_near("online", y, want, NULL, n, 4 * 1e-3f); /* a weight may round the other way */
    real_run(cuda, &a, 3, 5, z);
    check_same("online, two queries", z + 3 * REAL_WIDTH, y + 3 * REAL_WIDTH, 2 * REAL_WIDTH);
    guarded_free(want), guarded_free(y), guarded_free(z);
    real_free(&a);
}

/* Codes and scales that no quantiser writes: a NaN reaches the queries and heads that it
 * reaches in the reference, scales of any size give its values. */
static void test_odd_codes(void **state)
{
    (void)state;
    for (int odd = 0; odd < 6; odd++) {
        struct world w = world_new(3, 64, 16, 9, true);
        size_t kb = k_row_bytes(w.window_format, 64), rb = k_row_bytes(w.row_format, 64);
        float max = 1, want[T * 3 * 64], y[T * 3 * 64], *q = w.q;
        if (odd == 0)
            w.key_codes[20 * kb + 5] = 0xff; /* a NaN code */
        else if (odd == 1)
            w.key_codes[20 * kb + 64] = 0xff; /* a NaN scale */
        else if (odd == 2)
            w.row_codes[4 * rb + 33] = 0x7f; /* and one of a row */
        else if (odd == 3)
            q[(9 * 3 + 1) * 64] = NAN, q[(30 * 3 + 2) * 64 + 63] = INFINITY;
        for (size_t i = 0; odd == 4 && i < T; i++) { /* keys and groups of very unlike size */
            w.key_codes[i * kb + 64] = (uint8_t)(80 + i), w.key_codes[i * kb + 65] = 60;
            w.row_codes[i * rb + 32] = (uint8_t)(i * 7 % 127), w.row_codes[i * rb + 33] = 1;
            max = 0x1p6f;
        }
        for (size_t i = 0; odd == 5 && i < T * 3 * 64; i++)
            q[i] *= i / 64 % 3 == 0 ? 0x1p-130f : i / 64 % 3 == 1 ? 0x1p-20f : 1;
        run(&backends[0], &w, 0, T, T, 0, K_EXACT, want);
        for (size_t b = 1; b < n_backends; b++) {
            run(&backends[b], &w, 0, T, T, 0, K_EXACT, y);
            for (size_t i = 0; i < T * 3 * 64; i++)
                if (isnan(want[i]) != isnan(y[i]) ||
                    (isfinite(want[i]) && !(fabsf(y[i] - want[i]) <= max * K_TOL_ATTENTION)))
                    fail_msg("%s, odd %d: [%zu] %g, want %g", backends[b].numerics, odd, i,
                             (double)y[i], (double)want[i]);
        }
        world_free(&w);
    }
}

/* No key at all gives zeros; a NaN key reaches exactly the queries that see it; a large sink
 * takes everything. */
static void test_edges(void **state)
{
    (void)state;
    struct world w = world_new(2, 32, 4, 0, false);
    float *keys = (float *)(void *)w.key_codes, y[T * 64];
    keys[10 * 32] = NAN;
    for (size_t b = 0; b < n_backends; b++) {
        struct k_attention a = {.q = w.q,
                                .out = y,
                                .n = T,
                                .n_head = 2,
                                .d = 32,
                                .sink = w.sink,
                                .scale = 1,
                                .keys = keys,
                                .ring = keys,
                                .window_format = K_ROW_F32};
        memset(y, 0x55, sizeof y);
        backends[b].attention(&backends[b], &a);
        for (size_t i = 0; i < T * 64; i++)
            assert_true(y[i] == 0);
        a.window = 4;
        backends[b].attention(&backends[b], &a);
        for (size_t i = 0; i < T; i++)
            assert_int_equal(isnan(y[i * 64]) != 0, i >= 10 && i < 14);
        float sink[2] = {1000, 1000};
        a.sink = sink;
        a.n = 9;
        backends[b].attention(&backends[b], &a);
        for (size_t i = 0; i < 9 * 64; i++)
            assert_true(fabsf(y[i]) < 1e-30f);
    }
    world_free(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shapes),       cmocka_unit_test(test_block),
        cmocka_unit_test(test_some_queries), cmocka_unit_test(test_real_shape),
        cmocka_unit_test(test_odd_codes),    cmocka_unit_test(test_edges)};
    backends_open();
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    backends_close();
    return !!failed;
}
