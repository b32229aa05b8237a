/* Router and mixture of experts on every backend. */
#include "tests/support/test.h"

#include <math.h>

#include "kernels/host.h"
#include "tests/kernels/backends.h"
#include "tests/kernels/data.h"

#define N_EXPERT 7

struct world {
    uint32_t d, inter, top_k;
    size_t n;
    struct k_expert experts[N_EXPERT], shared;
    float *x, *weight;
    int32_t *expert;
};

static struct k_expert expert_new(enum k_type type, uint32_t d, uint32_t inter, uint64_t seed)
{
    return (struct k_expert){weight_new(type, inter, d, 1, seed),
                             weight_new(type, inter, d, 1, seed + 10),
                             weight_new(type, d, inter, 1, seed + 20)};
}

static void expert_free(struct k_expert *e)
{
    weight_free(&e->w1);
    weight_free(&e->w3);
    weight_free(&e->w2);
}

static struct world world_new(size_t n, uint32_t d, uint32_t inter, uint32_t top_k,
                              enum k_type type)
{
    struct world w = {.d = d, .inter = inter, .top_k = top_k, .n = n};
    for (uint32_t e = 0; e < N_EXPERT; e++)
        w.experts[e] = expert_new(type, d, inter, 100 * (e + 1));
    w.shared = expert_new(type == K_W_F32 ? K_W_F32 : K_W_FP8_32X32, d, 2 * inter, 5000);
    w.x = values_new(n * d, 1, 4);
    w.weight = values_new(n * top_k, 2, 1);
    w.expert = calloc(n * top_k, sizeof *w.expert);
    uint8_t *b = bytes_new(n, 3);
    for (size_t i = 0; i < n; i++) /* distinct experts per token; expert 6 is never chosen */
        for (uint32_t t = 0; t < top_k; t++)
            w.expert[i * top_k + t] = (int32_t)((b[i] + 5 * t) % (N_EXPERT - 1));
    if (n > 2)
        w.expert[2 * top_k] = -1;
    free(b);
    return w;
}

static void world_free(struct world *w)
{
    for (uint32_t e = 0; e < N_EXPERT; e++)
        expert_free(&w->experts[e]);
    expert_free(&w->shared);
    free(w->x), free(w->weight), free(w->expert);
}

static void run(struct kernels *k, const struct world *w, size_t from, size_t n,
                enum k_round in, bool shared, float *y)
{
    struct error e = {0};
    k->moe(k, &(struct k_moe){.x = w->x + from * w->d,
                              .expert = w->expert + from * w->top_k,
                              .weight = w->weight + from * w->top_k,
                              .experts = w->experts,
                              .shared = shared ? &w->shared : NULL,
                              .y = y,
                              .n = n,
                              .d = w->d,
                              .top_k = w->top_k,
                              .n_expert = N_EXPERT,
                              .limit = 10,
                              .in = in});
    assert_ok(k->sync(k, &e), &e);
}

/* The same in three calls of moe_part, out of order, and one of moe_sum. */
static void run_parts(struct kernels *k, const struct world *w, enum k_round in, bool shared,
                      float *y)
{
    struct error e = {0};
    size_t n_part = w->n * (w->top_k + 1) * w->d;
    float *part = guarded_new(n_part);
    memset(part, 0xff, n_part * sizeof *part); /* NaN: what nobody chose is not read */
    static const uint8_t ONLY[3][N_EXPERT + 1] = {
        {0, 0, 0, 1, 0, 1, 1, 0}, {0, 0, 0, 0, 0, 0, 0, 1}, {1, 1, 1, 0, 1, 0, 0, 0}};
    struct k_moe a = {.x = w->x,
                      .expert = w->expert,
                      .weight = w->weight,
                      .experts = w->experts,
                      .shared = shared ? &w->shared : NULL,
                      .y = y,
                      .n = w->n,
                      .d = w->d,
                      .top_k = w->top_k,
                      .n_expert = N_EXPERT,
                      .limit = 10,
                      .in = in,
                      .part = part};
    for (size_t i = 0; i < 3; i++) {
        a.only = ONLY[i];
        k->moe_part(k, &a);
    }
    k->moe_sum(k, &a);
    assert_ok(k->sync(k, &e), &e);
    guarded_check("parts", part, n_part);
    guarded_free(part);
}

/* One expert of one token, from the formula; adds to y and to the sum of magnitudes. */
static void naive_expert(const struct k_expert *e, const float *x, double weight,
                         enum k_round in, double *y, float *size)
{
    size_t d = e->w1.n_in, inter = e->w1.n_out;
    double *a = calloc(inter, sizeof *a);
    float *row = calloc(d > inter ? d : inter, sizeof *row);
    for (size_t o = 0; o < inter; o++) {
        double g = 0, u = 0;
        k_expand_row(&e->w1, o, row);
        for (size_t j = 0; j < d; j++)
            g += (double)row[j] * (double)k_round_to(x[j], in);
        k_expand_row(&e->w3, o, row);
        for (size_t j = 0; j < d; j++)
            u += (double)row[j] * (double)k_round_to(x[j], in);
        g = fmin(g, 10);
        u = fmax(fmin(u, 10), -10);
        a[o] = g / (1 + exp(-g)) * u * weight;
        a[o] = in == K_BF16 ? (double)k_bf16((float)a[o]) : a[o];
    }
    for (size_t o = 0; o < d; o++) {
        k_expand_row(&e->w2, o, row);
        for (size_t j = 0; j < inter; j++) {
            y[o] += (double)row[j] * a[j];
            size[o] += fabsf(row[j] * (float)a[j]);
        }
    }
    free(a);
    free(row);
}

static void check_world(const struct world *w, enum k_round in, bool shared)
{
    size_t n = w->n * w->d;
    float *want = guarded_new(n), *y = guarded_new(n), *z = guarded_new(n);
    float *size = calloc(n, sizeof *size);
    double *sum = calloc(n, sizeof *sum);
    for (size_t i = 0; i < w->n; i++) {
        const float *x = w->x + i * w->d;
        for (uint32_t t = 0; t < w->top_k; t++)
            if (w->expert[i * w->top_k + t] >= 0)
                naive_expert(&w->experts[w->expert[i * w->top_k + t]], x,
                             (double)w->weight[i * w->top_k + t], in, sum + i * w->d,
                             size + i * w->d);
        if (shared)
            naive_expert(&w->shared, x, 1, in, sum + i * w->d, size + i * w->d);
    }
    for (size_t i = 0; i < n; i++)
        want[i] = (float)sum[i];
    for (size_t b = 0; b < n_backends; b++) {
        run(&backends[b], w, 0, w->n, in, shared, y);
        guarded_check("moe", y, n);
        /* a rounding of an activation may flip: one bf16 ulp of one term */
        check_near(backends[b].numerics, y, want, size, n, in == K_BF16 ? 1e-3f : K_TOL_MOE);
        run(&singles[b], w, 0, w->n, in, shared, z);
        check_same("one thread", z, y, n);
        for (size_t i = 0; i < w->n; i++)
            run(&backends[b], w, i, 1, in, shared, z + i * w->d);
        check_same("token alone", z, y, n);
        run_parts(&backends[b], w, in, shared, z);
        check_same("in parts", z, y, n);
    }
    free(size), free(sum);
    guarded_free(want), guarded_free(y), guarded_free(z);
}

static void test_moe(void **state)
{
    (void)state;
    static const struct {
        size_t n;
        uint32_t d, inter, top_k;
        enum k_type type;
    } cases[] = {{1, 64, 32, 2, K_W_FP4_1X32},   {5, 96, 64, 3, K_W_FP4_1X32},
                 {40, 64, 96, 2, K_W_FP4_1X32},  {3, 128, 160, 1, K_W_FP8_32X32},
                 {4, 20, 9, 2, K_W_F32},         {17, 160, 64, 6, K_W_FP4_1X32},
                 {150, 64, 160, 2, K_W_FP4_1X32}}; /* rows enough for CUDA's wide tiles */
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct world w =
            world_new(cases[i].n, cases[i].d, cases[i].inter, cases[i].top_k, cases[i].type);
        check_world(&w, K_EXACT, true);
        check_world(&w, K_BF16, true);
        check_world(&w, K_BF16, false);
        world_free(&w);
    }
}

/* Squared error of y relative to want. */
static double nmse(const float *y, const float *want, size_t n)
{
    double error = 0, sum = 0;
    for (size_t i = 0; i < n; i++) {
        error += pow((double)y[i] - (double)want[i], 2);
        sum += pow((double)want[i], 2);
    }
    return error / sum;
}

/* Official roundings: outputs on the bf16 grid; FP8 inputs cost some percent and no more; the
 * backends agree but for roundings that flip; a token alone has the same bits. */
/* a.y holds what moe gave; parts of even experts, then of odd ones and the shared one. */
static void check_parts(struct kernels *k, const struct k_moe *all)
{
    static const uint8_t EVEN[N_EXPERT + 1] = {1, 0, 1, 0, 1, 0, 1, 0},
                                         ODD[N_EXPERT + 1] = {0, 1, 0, 1, 0, 1, 0, 1};
    struct k_moe a = *all;
    a.y = guarded_new(a.n * a.d);
    a.only = EVEN;
    k->moe_part(k, &a);
    a.only = ODD;
    k->moe_part(k, &a);
    k->moe_sum(k, &a);
    check_same("in parts", a.y, all->y, a.n * a.d);
    guarded_free(a.y);
}

static void test_official(void **state)
{
    (void)state;
    struct world w = world_new(9, 64, 96, 2, K_W_FP4_1X32);
    size_t n = w.n * w.d, last = w.n - 1;
    float *exact = guarded_new(n), *ref = guarded_new(n), *y = guarded_new(n), one[64];
    run(&backends[0], &w, 0, w.n, K_EXACT, true, exact);
    for (size_t b = 0; b < n_backends; b++) {
        struct k_moe a = {.x = w.x,
                          .expert = w.expert,
                          .weight = w.weight,
                          .experts = w.experts,
                          .shared = &w.shared,
                          .y = b ? y : ref,
                          .n = w.n,
                          .d = w.d,
                          .top_k = w.top_k,
                          .n_expert = N_EXPERT,
                          .limit = 10,
                          .in = K_FP8_32,
                          .mid = K_BF16,
                          .out = K_BF16};
        backends[b].moe(&backends[b], &a);
        a.part = calloc(w.n * (w.top_k + 1) * w.d, sizeof *a.part);
        check_parts(&backends[b], &a);
        free(a.part);
        a.part = NULL;
        double error = nmse(a.y, exact, n);
        if (!(error > 1e-5 && error < 2e-2) || nmse(a.y, ref, n) > 1e-4)
            fail_msg("%s: error %g, from ref %g", backends[b].numerics, error,
                     nmse(a.y, ref, n));
        for (size_t i = 0; i < n; i++)
            assert_true(a.y[i] == k_bf16(a.y[i]));
        a.x += last * w.d, a.expert += last * w.top_k, a.weight += last * w.top_k;
        a.n = 1, a.y = one;
        singles[b].moe(&singles[b], &a);
        check_same("token alone", one, (b ? y : ref) + last * w.d, w.d);
    }
    guarded_free(exact), guarded_free(ref), guarded_free(y);
    world_free(&w);
}

static void test_limits(void **state)
{
    (void)state;
    /* d = inter = 1: y = w2 silu(min(w1 x, 10)) clamp(w3 x, +-10) */
    const float w1 = 3, w3 = -2, w2 = 1, x[3] = {1, 100, NAN}, weight[3] = {1, 1, 1};
    struct k_expert e = {{.type = K_W_F32, .n_out = 1, .n_in = 1, .data = &w1},
                         {.type = K_W_F32, .n_out = 1, .n_in = 1, .data = &w2},
                         {.type = K_W_F32, .n_out = 1, .n_in = 1, .data = &w2}};
    e.w3.data = &w3;
    const int32_t expert[3] = {0, 0, 0};
    for (size_t b = 0; b < n_backends; b++) {
        float y[3];
        backends[b].moe(&backends[b], &(struct k_moe){.x = x,
                                                      .expert = expert,
                                                      .weight = weight,
                                                      .experts = &e,
                                                      .y = y,
                                                      .n = 3,
                                                      .d = 1,
                                                      .top_k = 1,
                                                      .n_expert = 1,
                                                      .limit = 10});
        assert_true(fabsf(y[0] - 3 / (1 + expf(-3)) * -2) < 1e-5f);
        assert_true(fabsf(y[1] - 10 / (1 + expf(-10)) * -10) < 1e-4f);
        assert_true(isnan(y[2]));
    }
}

static void route(struct kernels *k, struct k_route a, int32_t *expert, float *weight)
{
    a.expert = expert;
    a.weight = weight;
    k->route(k, &a);
}

static void test_route(void **state)
{
    (void)state;
    const float logits[10] = {1, 3, 3, NAN, -2, 1, 3, 3, 2, -2}, none[5] = {0};
    const float alt[5] = {0, 0, 0, 9, 0}, low[5] = {0, -9, 0, 0, 0};
    const uint8_t image[2] = {0, 1};
    for (size_t b = 0; b < n_backends; b++) {
        struct kernels *k = &backends[b];
        int32_t e[10];
        float w[10], s3 = sqrtf(logf(1 + expf(3))), s1 = sqrtf(logf(1 + expf(1)));
        struct k_route a = {.logits = logits,
                            .bias = none,
                            .n = 1,
                            .n_expert = 5,
                            .top_k = 3,
                            .norm = true,
                            .scale = 1.5f};
        route(k, a, e, w);
        assert_true(e[0] == 1 && e[1] == 2 && e[2] == 0);
        assert_true(fabsf(w[0] - 1.5f * s3 / (2 * s3 + s1)) < 1e-6f && w[0] == w[1]);
        a.top_k = 5; /* the NaN comes last */
        route(k, a, e, w);
        assert_true(e[3] == 4 && e[4] == 3);
        a.top_k = 1; /* one expert: not normalised */
        route(k, a, e, w);
        assert_true(fabsf(w[0] - 1.5f * s3) < 1e-6f);
        a.bias = low; /* the bias moves the choice, not the weight */
        route(k, a, e, w);
        assert_true(e[0] == 2 && fabsf(w[0] - 1.5f * s3) < 1e-6f);
        a.bias = none, a.bias_alt = alt, a.alt = image, a.n = 2;
        route(k, a, e, w);
        assert_true(e[0] == 1 && e[1] == 3);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_moe), cmocka_unit_test(test_official),
        cmocka_unit_test(test_limits), cmocka_unit_test(test_route)};
    backends_open();
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    backends_close();
    return !!failed;
}
