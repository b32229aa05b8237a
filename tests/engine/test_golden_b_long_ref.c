/* Golden case b_long on the reference backend, mode math. */
#include "tests/support/golden_b_long.h"
#include "tests/support/test.h"

static void test_math(void **state)
{
    (void)state;
    golden_b_long("ref", PRECISION_MATH);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_math)};
    return !!cmocka_run_group_tests(tests, NULL, NULL);
}
