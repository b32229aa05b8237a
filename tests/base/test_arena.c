/* base/arena: alignment, zeroes, objects that never move, the cap. */
#include "tests/support/test.h"

#include "base/arena.h"

static void test_objects_stay(void **state)
{
    (void)state;
    struct error e = {0};
    AUTO(arena) struct arena a = ARENA_INIT(16 << 20);
    enum { N = 3000 };
    static unsigned char *objects[N];
    for (size_t i = 0; i < N; i++) {
        size_t n = i * 37 % 5000;
        objects[i] = arena_alloc(&a, n, &e);
        assert_non_null(objects[i]);
        assert_int_equal((uintptr_t)objects[i] % 16, 0);
        for (size_t k = 0; k < n; k++)
            assert_int_equal(objects[i][k], 0);
        memset(objects[i], (int)(i & 255), n);
    }
    for (size_t i = 0; i < N; i++)
        for (size_t k = 0; k < i * 37 % 5000; k++)
            assert_int_equal(objects[i][k], i & 255);
}

static void test_cap(void **state)
{
    (void)state;
    struct error e = {0};
    AUTO(arena) struct arena a = ARENA_INIT(1000);
    assert_non_null(arena_alloc(&a, 980, &e));
    assert_null(arena_alloc(&a, 17, &e));
    assert_int_equal(e.code, ERR_LIMIT);
    assert_string_equal(e.msg, "arena: 992 bytes and 17 more, at most 1000");
    assert_null(arena_alloc(&a, SIZE_MAX, &e));
    assert_null(arena_array(&a, SIZE_MAX / 4, 8, &e));
    assert_int_equal(e.code, ERR_LIMIT);
    assert_null(arena_text(&a, "", SIZE_MAX, &e));
    arena_fini(&a);
    assert_non_null(arena_alloc(&a, 980, &e));
}

static void test_text(void **state)
{
    (void)state;
    struct error e = {0};
    AUTO(arena) struct arena a = ARENA_INIT(1000);
    assert_string_equal(arena_text(&a, "abcdef", 3, &e), "abc");
    assert_string_equal(arena_text(&a, NULL, 0, &e), "");
    void *p = arena_alloc(&a, 0, &e), *q = arena_alloc(&a, 0, &e);
    assert_ptr_not_equal(p, q);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_objects_stay),
        cmocka_unit_test(test_cap),
        cmocka_unit_test(test_text),
    };
    return !!cmocka_run_group_tests(tests, NULL, NULL);
}
