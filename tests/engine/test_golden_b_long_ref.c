/* Golden case b_long on the reference backend. */
#include "tests/support/golden_b_long.h"
#include "tests/support/test.h"

static void test_math(void **state)
{
    (void)state;
    golden_b_long("ref", PRECISION_MATH);
}

static void test_fp32kvq(void **state)
{
    (void)state;
    if (!getenv("AGENTD_SLOW"))
        skip(); /* half a minute of double sums; other cases run this mode on this backend */
    golden_b_long("ref", PRECISION_FP32KVQ);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_math),
                                       cmocka_unit_test(test_fp32kvq)};
    return !!cmocka_run_group_tests(tests, NULL, NULL);
}
