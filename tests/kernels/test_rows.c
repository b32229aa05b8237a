/* Ops whose rows are independent: norms, hyper-connections, rotation, grids, pooling, Engram,
 * embedding. Each against its formula on every backend, a row alone as in the batch. */
#include "tests/support/test.h"

#include <math.h>

#include "kernels/host.h"
#include "tests/kernels/backends.h"
#include "tests/kernels/data.h"

static const uint32_t dims[] = {1, 7, 15, 16, 17, 64, 130, 5120};
#define N_DIMS (sizeof dims / sizeof *dims)
#define N 5 /* rows of a batch */

static void test_rmsnorm(void **state)
{
    (void)state;
    for (size_t t = 0; t < N_DIMS; t++) {
        size_t d = dims[t];
        float *x = values_new(N * (d + 3), 1, 3), *w = values_new(d, 2, 2);
        float *y = guarded_new(N * d), *one = guarded_new(d),
              *want = calloc(N * d, sizeof *want);
        memset(x + d + 3, 0, d * sizeof *x); /* a row of zeros */
        for (size_t i = 0; i < N; i++) {
            double sum = 0;
            for (size_t j = 0; j < d; j++)
                sum += (double)x[i * (d + 3) + j] * (double)x[i * (d + 3) + j];
            for (size_t j = 0; j < d; j++)
                want[i * d + j] = (float)((double)w[j] * (double)x[i * (d + 3) + j] /
                                          sqrt(sum / (double)d + 1e-20));
        }
        for (size_t b = 0; b < n_backends; b++) {
            struct kernels *k = &backends[b];
            struct k_rmsnorm a = {.x = x,
                                  .w = w,
                                  .y = y,
                                  .n = N,
                                  .x_stride = d + 3,
                                  .d = (uint32_t)d,
                                  .eps = 1e-20f};
            k->rmsnorm(k, &a);
            guarded_check("rmsnorm", y, N * d);
            check_near(k->numerics, y, want, NULL, N * d, 8 * K_TOL_RMSNORM);
            assert_true(y[d] == 0);
            a.x += 3 * (d + 3), a.y = one, a.n = 1;
            singles[b].rmsnorm(&singles[b], &a);
            check_same("row alone", one, y + 3 * d, d);
            memcpy(one, a.x, d * sizeof *one);
            a.x = a.y = one, a.x_stride = 0; /* in place */
            k->rmsnorm(k, &a);
            check_same("in place", one, y + 3 * d, d);
            a.x = x + 3 * (d + 3), a.round = K_BF16;
            k->rmsnorm(k, &a);
            for (size_t j = 0; j < d; j++)
                assert_true(one[j] == k_bf16(y[3 * d + j]));
        }
        free(x), free(w), free(want);
        guarded_free(y), guarded_free(one);
    }
}

struct streams {
    float *x, *y, *scale, *base;
    struct k_weight fn;
    uint32_t hc, d;
};

static void check_mix(const struct streams *s, size_t b, const float *want[3])
{
    size_t hc = s->hc, width = hc * s->d;
    size_t n[3] = {N * hc, N * hc, N * hc * hc};
    float *out[3] = {guarded_new(n[0]), guarded_new(n[1]), guarded_new(n[2])};
    struct k_hc_mix a = {.x = s->x,
                         .fn = &s->fn,
                         .scale = s->scale,
                         .base = s->base,
                         .pre = out[0],
                         .post = out[1],
                         .comb = out[2],
                         .n = N,
                         .hc = s->hc,
                         .d = s->d,
                         .iters = 20,
                         .hc_eps = 1e-6f,
                         .norm_eps = 1e-20f};
    backends[b].hc_mix(&backends[b], &a);
    for (size_t j = 0; j < 3; j++) {
        guarded_check("mix", out[j], n[j]);
        check_near(backends[b].numerics, out[j], want[j], NULL, n[j], K_TOL_HC);
    }
    float pre[K_MAX_HC], post[K_MAX_HC], comb[K_MAX_HC * K_MAX_HC];
    a.x += 4 * width, a.n = 1, a.pre = pre, a.post = post, a.comb = comb;
    singles[b].hc_mix(&singles[b], &a);
    check_same("row alone", pre, out[0] + 4 * hc, hc);
    check_same("row alone", post, out[1] + 4 * hc, hc);
    check_same("row alone", comb, out[2] + 4 * hc * hc, hc * hc);
    for (size_t j = 0; j < 3; j++)
        guarded_free(out[j]);
}

/* Collapse and update with given coefficients, against the formulas. */
static void check_apply(const struct streams *s, size_t b, const float *want[3])
{
    size_t hc = s->hc, d = s->d, width = hc * d;
    float *h = guarded_new(N * d), *mean = guarded_new(N * d), *out = guarded_new(N * width);
    float *same = malloc(N * width * sizeof *same);
    struct kernels *k = &backends[b];
    k->hc_collapse(k, &(struct k_hc_collapse){s->x, want[0], h, N, s->hc, s->d, K_EXACT});
    k->hc_collapse(k, &(struct k_hc_collapse){s->x, NULL, mean, N, s->hc, s->d, K_EXACT});
    struct k_hc_update u = {s->x, s->y, want[1], want[2], out, N, s->hc, s->d, K_EXACT};
    k->hc_update(k, &u);
    guarded_check("collapse", h, N * d);
    guarded_check("update", out, N * width);
    for (size_t i = 0; i < N; i++)
        for (size_t j = 0; j < d; j++) {
            double sum = 0, all = 0;
            for (size_t c = 0; c < hc; c++) {
                double xc = (double)s->x[i * width + c * d + j];
                double next = (double)want[1][i * hc + c] * (double)s->y[i * d + j];
                sum += (double)want[0][i * hc + c] * xc;
                all += xc;
                for (size_t m = 0; m < hc; m++)
                    next += (double)want[2][i * hc * hc + m * hc + c] *
                            (double)s->x[i * width + m * d + j];
                assert_true(fabs((double)out[i * width + c * d + j] - next) <
                            4 * (double)K_TOL_HC);
            }
            assert_true(fabs((double)h[i * d + j] - sum) < 4 * (double)K_TOL_HC);
            assert_true(fabs((double)mean[i * d + j] - all / (double)hc) <
                        4 * (double)K_TOL_HC);
        }
    memcpy(same, s->x, N * width * sizeof *same);
    u.x = u.out = same; /* in place, one row at a time */
    for (size_t i = 0; i < N; i++) {
        struct k_hc_update one = u;
        one.x = one.out = same + i * width;
        one.y += i * d, one.post += i * hc, one.comb += i * hc * hc, one.n = 1;
        singles[b].hc_update(&singles[b], &one);
    }
    check_same("update in place", same, out, N * width);
    u.x = s->x, u.round = K_BF16;
    k->hc_update(k, &u);
    for (size_t i = 0; i < N * width; i++)
        assert_true(same[i] == k_bf16(out[i]));
    free(same);
    guarded_free(h), guarded_free(mean), guarded_free(out);
}

static void test_hc(void **state)
{
    (void)state;
    static const uint32_t hcs[] = {1, 2, 4, 8};
    for (size_t t = 0; t < 4; t++) {
        struct streams s = {.hc = hcs[t], .d = t == 2 ? 5120 : 37};
        uint32_t rows = (2 + s.hc) * s.hc;
        s.x = values_new((size_t)N * s.hc * s.d, 1, 4);
        s.y = values_new((size_t)N * s.d, 2, 4);
        s.scale = values_new(3, 3, 1);
        s.base = values_new(rows, 4, 2);
        s.fn = weight_new(K_W_F32, rows, s.hc * s.d, 1, 5);
        for (size_t i = 0; i < (size_t)rows * s.hc * s.d; i++)
            ((float *)(uintptr_t)s.fn.data)[i] *= 0.05f;
        size_t hc = s.hc;
        float *pre = calloc(N * hc, 4), *post = calloc(N * hc, 4),
              *comb = calloc(N * hc * hc, 4);
        struct k_hc_mix a = {.x = s.x,
                             .fn = &s.fn,
                             .scale = s.scale,
                             .base = s.base,
                             .pre = pre,
                             .post = post,
                             .comb = comb,
                             .n = N,
                             .hc = s.hc,
                             .d = s.d,
                             .iters = 20,
                             .hc_eps = 1e-6f,
                             .norm_eps = 1e-20f};
        backends[0].hc_mix(&backends[0], &a);
        for (size_t i = 0; i < N * hc; i++) { /* doubly stochastic after 20 rounds */
            float row = 0, column = 0;
            for (size_t j = 0; j < hc; j++) {
                row += comb[i / hc * hc * hc + i % hc * hc + j];
                column += comb[i / hc * hc * hc + j * hc + i % hc];
            }
            assert_true(fabsf(column - 1) < 1e-4f && fabsf(row - 1) < 0.1f);
        }
        for (size_t b = 0; b < n_backends; b++) {
            check_mix(&s, b, (const float *[3]){pre, post, comb});
            check_apply(&s, b, (const float *[3]){pre, post, comb});
        }
        free(s.x), free(s.y), free(s.scale), free(s.base), free(pre), free(post), free(comb);
        weight_free(&s.fn);
    }
}

static void test_rope(void **state)
{
    (void)state;
    enum { HEADS = 3, D = 40, HALF = 8, ROW = HEADS * D + 5 };
    float *x = values_new(N * ROW, 1, 2), inv_freq[HALF], cs[N * HALF], sn[N * HALF];
    const uint64_t pos[N] = {0, 1, 77, 65536, 1000000};
    k_rope_inv_freq(&(struct k_rope_config){.rope_dim = 2 * HALF, .base = 10000}, inv_freq);
    for (size_t b = 0; b < n_backends; b++) {
        struct kernels *k = &backends[b];
        float *y = malloc(N * ROW * sizeof *y);
        memcpy(y, x, N * ROW * sizeof *y);
        k->rope_table(k, &(struct k_rope_table){pos, inv_freq, cs, sn, N, HALF});
        struct k_rope a = {.x = y,
                           .cos = cs,
                           .sin = sn,
                           .n = N,
                           .x_stride = ROW,
                           .n_head = HEADS,
                           .d = D,
                           .half = HALF};
        k->rope(k, &a);
        for (size_t i = 0; i < N; i++)
            for (size_t j = 0; j < ROW; j++) {
                size_t h = j / D, at = j % D;
                double want = (double)x[i * ROW + j];
                if (h < HEADS && at >= D - 2 * HALF) {
                    size_t pair = (at - (D - 2 * HALF)) / 2;
                    const float *p = x + i * ROW + h * D + D - 2 * HALF + 2 * pair;
                    double angle = (double)((float)pos[i] * inv_freq[pair]);
                    want = at % 2 ? (double)p[0] * sin(angle) + (double)p[1] * cos(angle)
                                  : (double)p[0] * cos(angle) - (double)p[1] * sin(angle);
                }
                assert_true(fabs((double)y[i * ROW + j] - want) < 1e-6);
            }
        a.inverse = true;
        k->rope(k, &a);
        check_near("there and back", y, x, NULL, N * ROW, 1e-6f);
        free(y);
    }
    free(x);
}

static void test_formats(void **state)
{
    (void)state;
    static const enum k_format formats[] = {K_ROW_F32, K_ROW_FP8_32, K_ROW_FP4_16,
                                            K_ROW_FP4_32};
    static const float step[] = {0, 1 / 16.0f, 1 / 4.0f, 1 / 3.0f}; /* of the group's largest */
    enum { D = 160 };
    for (size_t f = 0; f < 4; f++) {
        size_t bytes = k_row_bytes(formats[f], D);
        float *x = values_new(N * D, 9, 50), y[N * D], z[N * D], want[N * D];
        uint8_t rows[N * D * 4], again[N * D * 4];
        x[5] = 0, x[D + 3] = 1e-30f;
        memset(x + 2 * D, 0, D * sizeof *x);
        for (size_t b = 0; b < n_backends; b++) {
            struct kernels *k = &backends[b];
            k->fake_quant(k, &(struct k_fake_quant){x, y, N, D, formats[f]});
            check_near("on the grid", y, x, NULL, N * D, step[f] * 50);
            k->encode(k, &(struct k_encode){
                             .x = x, .rows = rows, .n = N, .d = D, .format = formats[f]});
            k->decode(k, &(struct k_decode){rows, z, N, D, formats[f]});
            check_same("encode, decode", z, y, N * D);
            k->encode(k, &(struct k_encode){
                             .x = z, .rows = again, .n = N, .d = D, .format = formats[f]});
            k->decode(k, &(struct k_decode){again, z, N, D, formats[f]});
            for (size_t i = 0; i < N * D; i++) /* idempotent in value */
                assert_true(z[i] == y[i]);
            if (b == 0)
                memcpy(want, y, sizeof y);
            check_same(k->numerics, y, want, N * D);
            for (size_t i = 0; i < N; i++)
                k_decode_row(formats[f], rows + i * bytes, D, z + i * D);
            check_same("row", z, y, N * D);
        }
        free(x);
    }
    assert_int_equal(k_row_bytes(K_ROW_FP4_16, 512), 288);
    assert_int_equal(k_row_bytes(K_ROW_FP4_32, 128), 68);
    assert_int_equal(k_row_bytes(K_ROW_FP8_32, 512), 528);
    assert_int_equal(k_row_bytes(K_ROW_FP8_32, 40), 0);
}

/* Every code with every kind of scale expands alike on every backend, NaN included. */
static void test_all_codes(void **state)
{
    (void)state;
    static const enum k_format formats[] = {K_ROW_FP8_32, K_ROW_FP4_16, K_ROW_FP4_32};
    enum { D = 256 };
    for (size_t f = 0; f < 3; f++) {
        size_t bytes = k_row_bytes(formats[f], D), elements = f == 0 ? D : D / 2;
        for (unsigned scale = 0; scale < 256; scale++) {
            uint8_t row[D * 2];
            float want[D], got[D];
            for (size_t i = 0; i < elements; i++)
                row[i] = (uint8_t)i;
            memset(row + elements, (int)scale, bytes - elements);
            k_decode_row(formats[f], row, D, want);
            for (size_t b = 0; b < n_backends; b++) {
                backends[b].decode(&backends[b],
                                   &(struct k_decode){row, got, 1, D, formats[f]});
                for (size_t i = 0; i < D; i++)
                    assert_true(got[i] == want[i] || (isnan(got[i]) && isnan(want[i])));
            }
        }
    }
}

static void test_nan_in_grids(void **state)
{
    (void)state;
    static const enum k_format formats[] = {K_ROW_FP8_32, K_ROW_FP4_16, K_ROW_FP4_32};
    for (size_t f = 0; f < 3; f++) {
        size_t group = f == 1 ? 16 : 32;
        float x[64] = {0}, y[64];
        x[3] = NAN, x[40] = 1;
        for (size_t b = 0; b < n_backends; b++) {
            backends[b].fake_quant(&backends[b],
                                   &(struct k_fake_quant){x, y, 1, 64, formats[f]});
            for (size_t i = 0; i < 64; i++)
                assert_int_equal(isnan(y[i]) != 0, i < group);
        }
    }
}

static void test_compress(void **state)
{
    (void)state;
    enum { D = 19 };
    for (uint32_t ratio = 1; ratio <= 3; ratio++) {
        float *u = values_new(N * ratio * D, 1, 3), *g = values_new(N * ratio * D, 2, 20);
        for (size_t b = 0; b < n_backends; b++) {
            float *out = guarded_new(N * D), one[D];
            struct k_compress a = {.u = u, .g = g, .out = out, .n = N, .ratio = ratio, .d = D};
            backends[b].compress(&backends[b], &a);
            guarded_check("compress", out, N * D);
            for (size_t i = 0; i < N * D; i++) {
                double sum = 0, weight = 0;
                for (size_t t = 0; t < ratio; t++) {
                    size_t at = (i / D * ratio + t) * D + i % D;
                    double p = exp((double)g[at] - 20);
                    sum += p * (double)u[at];
                    weight += p;
                }
                assert_true(fabs((double)out[i] - sum / weight) < 3 * (double)K_TOL_COMPRESS);
            }
            a.u += 2 * ratio * D, a.g += 2 * ratio * D, a.out = one, a.n = 1;
            singles[b].compress(&singles[b], &a);
            check_same("row alone", one, out + 2 * D, D);
            guarded_free(out);
        }
        free(u), free(g);
    }
}

static void test_engram_rows(void **state)
{
    (void)state;
    uint8_t *codes = bytes_new(10 * 64, 1), *scales = bytes_new(10 * 2, 2);
    const uint64_t ids[6] = {9, 0, 3, 3, 7, 1};
    for (size_t b = 0; b < n_backends; b++) {
        float *out = guarded_new(6 * 64);
        backends[b].engram_rows(&backends[b],
                                &(struct k_engram_rows){codes, scales, ids, out, 2, 3, 64});
        for (size_t i = 0; i < 6 * 64; i++) {
            float want = k_e4m3_to_f32(codes[ids[i / 64] * 64 + i % 64]) *
                         k_e8m0_to_f32(scales[ids[i / 64] * 2 + i % 64 / 32]);
            assert_true(out[i] == want || (isnan(out[i]) && isnan(want)));
        }
        guarded_free(out);
    }
    free(codes), free(scales);
}

/* Rows go where they are told to, and nowhere else. */
static void test_engram_put(void **state)
{
    (void)state;
    static const size_t DIMS[] = {32, 64, 256};
    const uint64_t at[5] = {9, 0, 3, 7, 1};
    for (size_t k = 0; k < 3; k++) {
        size_t d = DIMS[k], n_scales = d / 32;
        uint8_t *from = bytes_new(5 * d, 1), *from_scales = bytes_new(5 * n_scales, 2);
        uint8_t *old = bytes_new(10 * d, 3), *old_scales = bytes_new(10 * n_scales, 4);
        for (size_t b = 0; b < n_backends; b++) {
            uint8_t *codes = aligned_alloc(32, 10 * d), *scales = malloc(10 * n_scales);
            memcpy(codes, old, 10 * d);
            memcpy(scales, old_scales, 10 * n_scales);
            backends[b].engram_put(&backends[b],
                                   &(struct k_engram_put){.codes = codes,
                                                          .scales = scales,
                                                          .from_codes = from,
                                                          .from_scales = from_scales,
                                                          .at = at,
                                                          .n = 5,
                                                          .d = (uint32_t)d});
            for (size_t row = 0; row < 10; row++) {
                size_t i = 0;
                while (i < 5 && at[i] != row)
                    i++;
                assert_memory_equal(codes + row * d, i < 5 ? from + i * d : old + row * d, d);
                assert_memory_equal(
                    scales + row * n_scales,
                    i < 5 ? from_scales + i * n_scales : old_scales + row * n_scales, n_scales);
            }
            free(codes), free(scales);
        }
        free(from), free(from_scales), free(old), free(old_scales);
    }
}

static void naive_gate(const float *x, const float *qw, const float *kw, const float *kv,
                       size_t hc, size_t d, size_t c, float *want, double *gate)
{
    double dot = 0, xx = 0, kk = 0;
    for (size_t j = 0; j < d; j++) {
        double xj = (double)x[c * d + j], kj = (double)kv[c * d + j];
        dot += xj * (double)qw[c * d + j] * (double)kw[c * d + j] * kj;
        xx += xj * xj;
        kk += kj * kj;
    }
    dot /= sqrt(xx / (double)d + 1e-20) * sqrt(kk / (double)d + 1e-20) * sqrt((double)d);
    double root = sqrt(fmax(fabs(dot), 1e-6));
    *gate = 1 / (1 + exp(dot < 0 ? root : -root));
    for (size_t j = 0; j < d; j++)
        want[j] = (float)((double)x[c * d + j] + *gate * (double)kv[hc * d + j]);
}

static void test_engram_gate(void **state)
{
    (void)state;
    for (size_t t = 0; t < N_DIMS; t++) {
        size_t hc = 3, d = dims[t], width = hc * d;
        float *x = values_new(N * width, 1, 2), *kv = values_new(N * (width + d), 2, 2);
        float *qw = values_new(width, 3, 2), *kw = values_new(width, 4, 2);
        float *want = calloc(d, sizeof *want);
        const uint8_t dead[N] = {0, 1, 0, 0, 0};
        for (size_t b = 0; b < n_backends; b++) {
            float *y = guarded_new(N * width), gate[N * 3], *one = malloc(width * sizeof *one);
            memcpy(y, x, N * width * sizeof *y);
            struct k_engram_gate a = {.x = y,
                                      .kv = kv,
                                      .qw = qw,
                                      .kw = kw,
                                      .dead = dead,
                                      .gate = gate,
                                      .n = N,
                                      .hc = 3,
                                      .d = (uint32_t)d,
                                      .eps = 1e-20f};
            backends[b].engram_gate(&backends[b], &a);
            guarded_check("engram", y, N * width);
            for (size_t i = 0; i < N; i++)
                for (size_t c = 0; c < hc; c++) {
                    double g;
                    naive_gate(x + i * width, qw, kw, kv + i * (width + d), hc, d, c, want, &g);
                    if (dead[i]) {
                        check_same("dead", y + i * width, x + i * width, width);
                        assert_true(gate[i * hc + c] == 0);
                        continue;
                    }
                    assert_true(fabs((double)gate[i * hc + c] - g) < 1e-5);
                    check_near(backends[b].numerics, y + i * width + c * d, want, NULL, d,
                               4 * K_TOL_ENGRAM);
                }
            memcpy(one, x + 4 * width, width * sizeof *one);
            a.x = one, a.kv += 4 * (width + d), a.n = 1, a.dead = NULL, a.gate = NULL;
            singles[b].engram_gate(&singles[b], &a);
            check_same("row alone", one, y + 4 * width, width);
            free(one);
            guarded_free(y);
        }
        free(x), free(kv), free(qw), free(kw), free(want);
    }
}

static void test_embed(void **state)
{
    (void)state;
    struct k_weight w = weight_new(K_W_BF16, 11, 13, 1, 1);
    const uint32_t ids[3] = {10, 0, 7};
    for (size_t b = 0; b < n_backends; b++) {
        float *x = guarded_new(3 * 4 * 13), row[13], pre[12];
        backends[b].embed(&backends[b], &(struct k_embed){&w, ids, x, pre, 3, 4});
        guarded_check("embed", x, 3 * 4 * 13);
        for (size_t i = 0; i < 12; i++) {
            k_expand_row(&w, ids[i / 4], row);
            check_same("embed", x + i * 13, row, 13);
            assert_true(pre[i] == (i % 4 == 0));
        }
        guarded_free(x);
    }
    weight_free(&w);
}

static void test_scale(void **state)
{
    (void)state;
    static const size_t sizes[] = {0, 1, 127, 128, 129, 1000};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
        for (int bf16 = 0; bf16 < 2; bf16++)
            for (size_t b = 0; b < n_backends; b++) {
                size_t n = sizes[s];
                float *x = guarded_new(n), *in = values_new(n + 1, 91, 3);
                struct error e = {0};
                in[n / 2] = NAN;
                memcpy(x, in, n * sizeof *x);
                backends[b].scale(&backends[b],
                                  &(struct k_scale){x, n, 0.3f, bf16 ? K_BF16 : K_EXACT});
                assert_ok(backends[b].sync(&backends[b], &e), &e);
                guarded_check("scale", x, n);
                for (size_t i = 0; i < n; i++) {
                    float want = bf16 ? k_bf16(in[i] * 0.3f) : in[i] * 0.3f;
                    assert_true(isnan(want) ? isnan(x[i]) : x[i] == want);
                }
                guarded_free(x);
                free(in);
            }
}

/* Memory that grows stays where it is, keeps what it holds, and is zero where it is new; what
 * was discarded may be used again after it has grown anew. */
static void check_growing(struct kernels *k, size_t unit)
{
    struct error e = {0};
    const uint8_t in[4] = {9, 8, 7, 6};
    uint8_t out[4];
    size_t total = 64 * unit, ends[16], n = 0;
    uint8_t *p = k->reserve(k, total);
    assert_non_null(p);
    for (size_t used = 0, to = unit / 3; to < total; used = to, to = to * 3 + 1) {
        assert_ok(k->grow(k, p, used, to, &e), &e);
        memset(out, 1, 4);
        k->copy_out(k, out, p + to - 4, 4);
        assert_int_equal(out[0] | out[1] | out[2] | out[3], 0);
        k->copy_in(k, p + to - 4, in, 4);
        ends[n++] = to;
        for (size_t i = 0; i < n; i++) {
            k->copy_out(k, out, p + ends[i] - 4, 4);
            assert_memory_equal(in, out, 4);
        }
    }
    k->discard(k, p, ends[0], ends[n - 1]); /* the first page is not whole in it */
    k->copy_out(k, out, p + ends[0] - 4, 4);
    assert_memory_equal(in, out, 4);
    assert_ok(k->sync(k, &e), &e);
    k->release(k, p, total);
    k->release(k, NULL, total);
}

/* On the host the larger unit is past the size from which small pages become huge ones. */
static void test_growing(void **state)
{
    (void)state;
    for (size_t b = 0; b < n_backends; b++) {
        struct kernels *k = &backends[b];
        struct error e = {0};
        struct k_device d;
        uint8_t some[4];
        assert_ok(k->describe(k, &d, &e), &e);
        assert_true(d.grow_bytes && d.total_bytes >= d.free_bytes && *d.name);
        check_growing(k, (size_t)d.grow_bytes);
        if (k->host_memory)
            check_growing(k, 256 * (size_t)d.grow_bytes);
        assert_true(k->pin(k, some, sizeof some));
        k->unpin(k, some);
        assert_null(k->reserve(k, SIZE_MAX / 2));
    }
}

static void test_memory(void **state)
{
    (void)state;
    for (size_t b = 0; b < n_backends; b++) {
        struct kernels *k = &backends[b];
        struct error e = {0};
        uint8_t *p = k->alloc(k, 10000), in[3] = {1, 2, 3}, out[3];
        assert_non_null(p);
        assert_int_equal((uintptr_t)p % (k->host_memory ? 4096 : 256), 0);
        assert_ok(k->sync(k, &e), &e);
        assert_int_equal(p[0] | p[9999], 0);
        assert_null(k->alloc(k, SIZE_MAX - 5));
        k->copy_in(k, p, in, 3);
        k->copy(k, p + 100, p, 3);
        k->copy_out(k, out, p + 100, 3);
        assert_memory_equal(in, out, 3);
        k->free(k, p);
        k->free(k, NULL);
        if (!k->host_memory)
            continue;
        /* Scratch that cannot be had: the op does nothing, sync says so once, then all is well.
         */
        struct k_weight w = {.type = K_W_F32, .n_out = 1, .n_in = 1 << 20};
        k->linear(k, &(struct k_linear){.w = &w, .n = (size_t)1 << 40, .in = K_BF16});
        k->rmsnorm(k, &(struct k_rmsnorm){.n = 1, .d = 1}); /* would crash if it ran */
        assert_int_equal(k->sync(k, &e), ERR_NOMEM);
        assert_ok(k->sync(k, &e), &e);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rmsnorm),    cmocka_unit_test(test_hc),
        cmocka_unit_test(test_rope),       cmocka_unit_test(test_formats),
        cmocka_unit_test(test_all_codes),  cmocka_unit_test(test_nan_in_grids),
        cmocka_unit_test(test_compress),   cmocka_unit_test(test_engram_rows),
        cmocka_unit_test(test_engram_put), cmocka_unit_test(test_engram_gate),
        cmocka_unit_test(test_embed),      cmocka_unit_test(test_scale),
        cmocka_unit_test(test_growing),    cmocka_unit_test(test_memory)};
    backends_open();
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    backends_close();
    return !!failed;
}
