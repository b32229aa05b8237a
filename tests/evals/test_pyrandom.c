/* Draws against values printed by CPython 3.11 and numpy 2.4 for the same seeds. */
#include "tests/support/test.h"

#include "base/encode.h"
#include "base/hash.h"
#include "evals/pyrandom.h"
#include "tests/evals/pyrandom_values.inc"

static void draws_of_python(void **state)
{
    (void)state;
    struct error e = {0};
    for (size_t s = 0; s < sizeof py_values / sizeof *py_values; s++) {
        const struct py_values *want = &py_values[s];
        struct pyrandom r;
        pyrandom_init(&r, want->seed);
        for (int i = 0; i < 4; i++)
            assert_int_equal(pyrandom_u32(&r), want->words[i]);
        for (int i = 0; i < 3; i++)
            assert_true(pyrandom_real(&r) == want->reals[i]);
        for (uint32_t i = 0; i < 6; i++)
            assert_int_equal(pyrandom_below(&r, i < 2 ? 1 + i : 1000 * i), want->below[i]);
        uint64_t big[2];
        pyrandom_u128(&r, big);
        assert_int_equal(big[0], want->u128[0]);
        assert_int_equal(big[1], want->u128[1]);
        for (int i = 0; i < 5; i++)
            assert_int_equal(pyrandom_choice_real(&r, 26), want->choices[i]);
        uint32_t got[40];
        assert_ok(pyrandom_sample(&r, 21, 5, got, &e), &e);
        assert_memory_equal(got, want->pool5, sizeof want->pool5);
        assert_ok(pyrandom_sample(&r, 22, 5, got, &e), &e);
        assert_memory_equal(got, want->set5, sizeof want->set5);
        assert_ok(pyrandom_sample(&r, 85, 6, got, &e), &e);
        assert_memory_equal(got, want->pool6, sizeof want->pool6);
        assert_ok(pyrandom_sample(&r, 86, 6, got, &e), &e);
        assert_memory_equal(got, want->set6, sizeof want->set6);
        for (uint32_t i = 0; i < 12; i++)
            got[i] = i;
        pyrandom_shuffle(&r, got, 12);
        assert_memory_equal(got, want->shuffled, sizeof want->shuffled);
        assert_int_equal(pyrandom_u32(&r), want->last);
    }
}

/* 5,000 words: the state is made anew several times. */
static void a_long_run(void **state)
{
    (void)state;
    struct pyrandom r;
    struct hash h;
    uint8_t digest[HASH_BYTES];
    char hex[HEX_CHARS(HASH_BYTES)];
    pyrandom_init(&r, 42);
    hash_init(&h, NULL, HASH_BYTES);
    for (int i = 0; i < 5000; i++)
        hash_u32le(&h, pyrandom_u32(&r));
    hash_final(&h, digest);
    hex_encode(digest, sizeof digest, hex);
    assert_string_equal(hex, PY_5000_WORDS);
}

static void draws_of_numpy(void **state)
{
    (void)state;
    struct pyrandom r;
    nprandom_init(&r, 42);
    for (size_t i = 0; i < sizeof np_values / sizeof *np_values; i++)
        assert_int_equal(nprandom_between(&r, np_values[i].low, np_values[i].high),
                         np_values[i].value);
}

static void too_many_to_draw(void **state)
{
    (void)state;
    struct pyrandom r;
    struct error e = {0};
    uint32_t out[4];
    pyrandom_init(&r, 1);
    assert_int_equal(pyrandom_sample(&r, 3, 4, out, &e), ERR_INVAL);
    assert_non_null(strstr(e.msg, "4 different ones out of 3"));
    assert_ok(pyrandom_sample(&r, 0, 0, out, &e), &e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(draws_of_python),
        cmocka_unit_test(a_long_run),
        cmocka_unit_test(draws_of_numpy),
        cmocka_unit_test(too_many_to_draw),
    };
    return !!cmocka_run_group_tests(tests, NULL, NULL);
}
