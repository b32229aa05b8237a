#include "tests/kernels/data.h"

#include <math.h>

#include "kernels/bits.h"
#include "kernels/philox.h"
#include "tests/support/test.h"

#define GUARD 32
#define CANARY 0x7fedcba9u /* a NaN that no arithmetic makes */

float *values_new(size_t n, uint64_t seed, float scale)
{
    float *p = malloc((n + 1) * sizeof *p);
    assert_non_null(p);
    for (size_t i = 0; i < n; i++)
        p[i] = scale * (float)(2 * k_philox_uniform(seed, i, 0) - 1);
    return p;
}

uint8_t *bytes_new(size_t n, uint64_t seed)
{
    uint8_t *p = malloc(n + 1);
    assert_non_null(p);
    for (size_t i = 0; i < n; i++)
        p[i] = (uint8_t)(k_philox_uniform(seed, i, 1) * 256);
    return p;
}

static uint8_t *scales_new(size_t n, uint64_t seed)
{
    uint8_t *p = bytes_new(n, seed);
    for (size_t i = 0; i < n; i++)
        p[i] = (uint8_t)(118 + p[i] % 8);
    return p;
}

struct k_weight weight_new(enum k_type type, uint32_t n_out, uint32_t n_in, uint32_t n_groups,
                           uint64_t seed)
{
    struct k_weight w = {.type = type, .n_out = n_out, .n_in = n_in, .n_groups = n_groups};
    size_t data_bytes, scale_bytes, n = (size_t)n_out * n_in;
    assert_true(k_weight_bytes(&w, &data_bytes, &scale_bytes));
    if (type == K_W_F32) {
        w.data = values_new(n, seed, 1);
    } else if (type == K_W_BF16) {
        float *f = values_new(n, seed, 1);
        uint16_t *b = malloc(data_bytes + 1);
        for (size_t i = 0; i < n; i++)
            b[i] = k_f32_to_bf16(f[i]);
        free(f);
        w.data = b;
    } else {
        uint8_t *codes = bytes_new(data_bytes, seed);
        for (size_t i = 0; type == K_W_FP8_32X32 && i < n; i++)
            codes[i] = (codes[i] & 0x7f) == 0x7f ? 0 : codes[i];
        w.data = codes;
        w.scale = scales_new(scale_bytes, seed + 1);
    }
    return w;
}

void weight_free(struct k_weight *w)
{
    union {
        const void *in;
        void *out;
    } data = {w->data}, scale = {w->scale};
    free(data.out);
    free(scale.out);
}

float *guarded_new(size_t n)
{
    float *p = malloc((n + 2 * GUARD) * sizeof *p);
    assert_non_null(p);
    for (size_t i = 0; i < n + 2 * GUARD; i++)
        p[i] = k_f32_from_bits(CANARY);
    return p + GUARD;
}

void guarded_check(const char *what, const float *p, size_t n)
{
    for (size_t i = 0; i < GUARD; i++)
        if (k_f32_bits(p[n + i]) != CANARY || k_f32_bits(*(p - 1 - i)) != CANARY)
            fail_msg("%s: written outside its %zu values", what, n);
    for (size_t i = 0; i < n; i++)
        if (k_f32_bits(p[i]) == CANARY)
            fail_msg("%s[%zu] of %zu: not written", what, i, n);
}

void guarded_free(float *p)
{
    free(p - GUARD);
}

void check_near(const char *what, const float *got, const float *want, const float *size,
                size_t n, float tol)
{
    for (size_t i = 0; i < n; i++) {
        float limit = tol * (size ? size[i] : 1);
        if (isnan(want[i]) ? !isnan(got[i]) : !(fabsf(got[i] - want[i]) <= limit))
            if (got[i] != want[i])
                fail_msg("%s[%zu] of %zu: %.9g, want %.9g within %.3g", what, i, n,
                         (double)got[i], (double)want[i], (double)limit);
    }
}

void check_same(const char *what, const float *got, const float *want, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (k_f32_bits(got[i]) != k_f32_bits(want[i]))
            fail_msg("%s[%zu] of %zu: %a, want the same bits as %a", what, i, n, (double)got[i],
                     (double)want[i]);
}
