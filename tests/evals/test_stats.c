/* Against scipy and numpy (make_stats_values.py). */
#include "tests/support/test.h"

#include <math.h>

#include "evals/stats.h"
#include "tests/evals/stats_values.inc"

#define COUNT(v) (sizeof(v) / sizeof *(v))

static void near(double have, double want, const char *what, double at)
{
    if (!(fabs(have - want) <= 1e-9 * fmax(1e-3, fabs(want))))
        fail_msg("%s at %g: %.17g, want %.17g", what, at, have, want);
}

static void wilson_as_scipy(void **state)
{
    (void)state;
    struct error e = {0};
    for (size_t i = 0; i < COUNT(wilson); i++) {
        struct stats_interval got;
        assert_ok(stats_wilson(wilson[i].k, wilson[i].n, wilson[i].confidence, &got, &e), &e);
        near(got.low, wilson[i].low, "low", (double)i);
        near(got.high, wilson[i].high, "high", (double)i);
        assert_true(got.low >= 0 && got.low <= got.mean && got.mean <= got.high &&
                    got.high <= 1);
    }
}

static void quantiles_as_scipy(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(t_quantiles); i++)
        near(stats_t_quantile(t_quantiles[i].p, t_quantiles[i].dof), t_quantiles[i].t, "t",
             (double)i);
    for (size_t i = 0; i < COUNT(normal_quantiles); i++)
        near(stats_normal_quantile(normal_quantiles[i].p), normal_quantiles[i].z, "normal",
             (double)i);
}

static void mean_as_scipy(void **state)
{
    (void)state;
    struct stats_interval got;
    struct error e = {0};
    assert_ok(stats_mean(values, COUNT(values), 0.95, &got, &e), &e);
    near(got.mean, mean_of_values.mean, "mean", 0);
    near(got.low, mean_of_values.low, "low", 0);
    near(got.high, mean_of_values.high, "high", 0);
}

static void bootstrap_as_python(void **state)
{
    (void)state;
    struct stats_interval got, again;
    struct error e = {0};
    assert_ok(stats_bootstrap(values, clusters, COUNT(values), 7, 2000, 11, 0.95, &got, &e),
              &e);
    near(got.mean, bootstrap_of_values.mean, "mean", 0);
    near(got.low, bootstrap_of_values.low, "low", 0);
    near(got.high, bootstrap_of_values.high, "high", 0);
    assert_ok(stats_bootstrap(values, clusters, COUNT(values), 7, 2000, 11, 0.95, &again, &e),
              &e);
    assert_memory_equal(&got, &again, sizeof got);
    assert_ok(stats_bootstrap(values, clusters, COUNT(values), 7, 2000, 12, 0.95, &again, &e),
              &e);
    assert_true(memcmp(&got, &again, sizeof got));
    /* One cluster has no spread that could be seen. */
    const uint32_t one[3] = {0, 0, 0};
    assert_ok(stats_bootstrap(values, one, 3, 1, 100, 1, 0.95, &got, &e), &e);
    assert_true(got.low >= got.mean - 1e-15 && got.high <= got.mean + 1e-15);
}

static void mcnemar_as_scipy(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(mcnemar); i++)
        near(stats_mcnemar(mcnemar[i].first, mcnemar[i].second), mcnemar[i].p, "p", (double)i);
}

static void wrong_arguments(void **state)
{
    (void)state;
    struct stats_interval out = {1, 2, 3};
    struct error e = {0};
    const uint32_t gap[2] = {0, 2};
    assert_int_equal(stats_wilson(2, 1, 0.95, &out, &e), ERR_INVAL);
    assert_int_equal(stats_wilson(0, 0, 0.95, &out, &e), ERR_INVAL);
    assert_int_equal(stats_wilson(1, 2, 1, &out, &e), ERR_INVAL);
    assert_int_equal(stats_mean(values, 1, 0.95, &out, &e), ERR_INVAL);
    assert_int_equal(stats_bootstrap(values, gap, 2, 3, 10, 1, 0.95, &out, &e), ERR_INVAL);
    assert_non_null(strstr(e.msg, "cluster 1 is empty"));
    assert_int_equal(stats_bootstrap(values, gap, 2, 2, 10, 1, 0.95, &out, &e), ERR_INVAL);
    assert_true(out.mean >= 1 && out.low >= 2 && out.high >= 3); /* untouched */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(wilson_as_scipy),  cmocka_unit_test(quantiles_as_scipy),
        cmocka_unit_test(mean_as_scipy),    cmocka_unit_test(bootstrap_as_python),
        cmocka_unit_test(mcnemar_as_scipy), cmocka_unit_test(wrong_arguments),
    };
    return !!cmocka_run_group_tests(tests, NULL, NULL);
}
