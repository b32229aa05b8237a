/* Our elementary functions against libm's long double, and Philox against its published
 * vectors. */
#include "tests/support/test.h"

#include <math.h>

#include "kernels/math.h"
#include "kernels/philox.h"

static void check(const char *what, double x, double got, long double want, double tol,
                  long double unit)
{
    long double diff = fabsl((long double)got - want);
    if (!(diff <= (long double)tol * unit))
        fail_msg("%s(%.17g) = %.17g, want %.17Lg", what, x, got, want);
}

static double draw(uint64_t i, double from, double to)
{
    return from + (to - from) * k_philox_uniform(7, i, 0);
}

static void test_exp_log(void **state)
{
    (void)state;
    for (uint64_t i = 0; i < 200000; i++) {
        double x = draw(i, -708, 709), y = k_exp(draw(i, -700, 700)), near = draw(i, -0.99, 2);
        long double e = expl((long double)x);
        check("exp", x, k_exp(x), e, 2e-15, e);
        check("log", y, k_log(y), logl((long double)y), 2e-15, fabsl(logl((long double)y)));
        check("log1p", near, k_log1p(near), log1pl((long double)near), 2e-15,
              fabsl(log1pl((long double)near)));
        double tiny = near * 1e-9;
        check("log1p", tiny, k_log1p(tiny), log1pl((long double)tiny), 2e-15,
              fabsl(log1pl((long double)tiny)));
    }
}

static void test_pow(void **state)
{
    (void)state;
    for (int dim = 8; dim <= 128; dim *= 2)
        for (int i = 0; i < dim; i += 2) {
            double y = (double)i / dim;
            long double want = powl(160000, (long double)y);
            check("pow", y, k_pow(160000, y), want, 4e-15, want);
        }
}

static void test_sincos(void **state)
{
    (void)state;
    for (uint64_t i = 0; i < 300000; i++) {
        /* f32 angles as positions times frequencies give them, and ones next to k pi/2 */
        double x = (double)(float)draw(i, 0, i % 3 == 0 ? 10 : i % 3 == 1 ? 1.1e6 : 1.3e8);
        if (i % 2)
            x = (double)(float)(floor(x / 2) * 1.5707963267948966);
        double s, c;
        k_sincos(x, &s, &c);
        check("sin", x, s, sinl((long double)x), 2e-15, 1);
        check("cos", x, c, cosl((long double)x), 2e-15, 1);
        float fs = (float)s, fc = (float)c;
        check("f32 sin", x, (double)fs, sinl((long double)x), 1.2e-7,
              fabsl(sinl((long double)x)));
        check("f32 cos", x, (double)fc, cosl((long double)x), 1.2e-7,
              fabsl(cosl((long double)x)));
    }
}

static void test_gates(void **state)
{
    (void)state;
    for (uint64_t i = 0; i < 50000; i++) {
        double x = draw(i, -60, 60);
        long double s = 1 / (1 + expl(-(long double)x)), p = log1pl(expl((long double)x));
        check("sigmoid", x, k_sigmoid(x), s, 4e-15, s);
        check("softplus", x, k_softplus(x), p, 4e-15, p);
    }
}

static void test_edges(void **state)
{
    (void)state;
    double s, c;
    assert_true(k_exp(0) == 1 && k_exp(-HUGE_VAL) == 0 && isinf(k_exp(710)));
    assert_true(k_exp(-745) > 0 && k_exp(-746) == 0 && isnan(k_exp((double)NAN)));
    assert_true(k_log(1) == 0 && k_log(0) == -HUGE_VAL && isnan(k_log(-1)) &&
                isnan(k_log((double)NAN)));
    assert_true(isinf(k_log(HUGE_VAL)) && fabs(k_log(0x1p-1074) + 744.44007192138126) < 1e-9);
    assert_true(k_softplus(1000) == 1000 && k_softplus(-1000) == 0 &&
                isnan(k_softplus((double)NAN)));
    assert_true(k_sigmoid(1000) == 1 && k_sigmoid(-1000) == 0 && isnan(k_sigmoid((double)NAN)));
    k_sincos(0, &s, &c);
    assert_true(s == 0 && c == 1);
    k_sincos(HUGE_VAL, &s, &c);
    assert_true(isnan(s) && isnan(c));
}

/* Known answers of the Random123 distribution. */
static void test_philox(void **state)
{
    (void)state;
    static const uint32_t zero[4] = {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8};
    static const uint32_t ones[4] = {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd};
    static const uint32_t pi[4] = {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1};
    uint32_t out[4];
    k_philox(0, 0, 0, out);
    assert_memory_equal(out, zero, sizeof out);
    k_philox(UINT64_MAX, UINT64_MAX, UINT64_MAX, out);
    assert_memory_equal(out, ones, sizeof out);
    k_philox(0x299f31d0a4093822, 0x85a308d3243f6a88, 0x0370734413198a2e, out);
    assert_memory_equal(out, pi, sizeof out);
    for (uint64_t i = 0; i < 10000; i++) {
        double u = k_philox_uniform(1, i, 0);
        assert_true(u >= 0 && u < 1);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_exp_log), cmocka_unit_test(test_pow),
        cmocka_unit_test(test_sincos),  cmocka_unit_test(test_gates),
        cmocka_unit_test(test_edges),   cmocka_unit_test(test_philox),
    };
    return !!cmocka_run_group_tests(tests, NULL, NULL);
}
