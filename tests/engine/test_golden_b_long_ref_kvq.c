/* Golden case b_long on the reference backend, mode fp32kvq: a program of its own, since double
 * sums take their time. */
#include "tests/support/golden_b_long.h"
#include "tests/support/test.h"

static void test_fp32kvq(void **state)
{
    (void)state;
    golden_b_long("ref", PRECISION_FP32KVQ);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_fp32kvq)};
    return !!cmocka_run_group_tests(tests, NULL, NULL);
}
