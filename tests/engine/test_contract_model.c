/* The contract of engine.h on a checkpoint, on both host backends. */
#include "tests/support/drive.h"
#include "tests/support/engine_contract.h"
#include "tests/support/test.h"

static void run(const char *backend, enum precision precision, uint32_t n_turns)
{
    struct engine_options o = {.backend = backend,
                               .precision = precision,
                               .n_threads = 1,
                               .chunk_tokens = 16,
                               .digests = true};
    struct engine_contract c = {.m = drive_open(GOLDEN "a_tiny/model", &o),
                                .first_id = 3,
                                .n_ids = 300,
                                /* the window is 32 */
                                .input_tokens = 45,
                                .run_tokens = 6,
                                .n_turns = n_turns,
                                .temperature = 1};
    contract_all(&c);
    engine_free(c.m);
}

static void test_ref_fast(void **state)
{
    (void)state;
    run("ref", PRECISION_FAST, 2);
}

static void test_ref_math(void **state)
{
    (void)state;
    run("ref", PRECISION_MATH, 1);
}

static void test_cpu_fast(void **state)
{
    (void)state;
    run("cpu", PRECISION_FAST, 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ref_fast),
        cmocka_unit_test(test_ref_math),
        cmocka_unit_test(test_cpu_fast),
    };
    return !!cmocka_run_group_tests(tests, NULL, NULL);
}
