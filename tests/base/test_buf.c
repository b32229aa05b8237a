/* base/buf: the cap holds, failures change nothing, text stays terminated. */
#include "tests/support/test.h"

#include "base/buf.h"

static void test_grows_to_max_and_no_further(void **state)
{
    (void)state;
    AUTO(buf) struct buf b = BUF_INIT(100);
    struct error e = {0};
    for (int i = 0; i < 100; i++)
        assert_int_equal(buf_add_byte(&b, 'x', &e), OK);
    assert_int_equal(buf_add_byte(&b, 'x', &e), ERR_LIMIT);
    assert_int_equal(b.len, 100);
    assert_string_equal(e.msg, "buffer: 100 bytes and 1 more, at most 100");
    assert_int_equal(buf_str(&b)[100], 0);
}

static void test_printf_drop_take(void **state)
{
    (void)state;
    AUTO(buf) struct buf b = BUF_INIT(1 << 20);
    assert_string_equal(buf_str(&b), "");
    assert_int_equal(buf_printf(&b, NULL, "%s-%d", "abc", 42), OK);
    buf_drop(&b, 2);
    assert_string_equal(buf_str(&b), "c-42");
    size_t len;
    AUTO_FREE char *s = buf_take(&b, &len);
    assert_int_equal(len, 4);
    assert_string_equal(s, "c-42");
    assert_int_equal(b.len, 0);
}

static void test_little_endian(void **state)
{
    (void)state;
    AUTO(buf) struct buf b = BUF_INIT(12);
    assert_int_equal(buf_add_u32le(&b, 0x04030201u, NULL), OK);
    assert_int_equal(buf_add_u64le(&b, 0x0c0b0a0908070605ull, NULL), OK);
    for (size_t i = 0; i < 12; i++)
        assert_int_equal(b.data[i], i + 1);
}

static void test_error_messages(void **state)
{
    (void)state;
    struct error e = {0};
    assert_int_equal(err_sys(&e, 28, "write %s", "a.pack"), ERR_LIMIT);
    assert_int_equal(err_wrap(&e, ERR_LIMIT, "save %d", 7), ERR_LIMIT);
    assert_string_equal(e.msg, "save 7: write a.pack: No space left on device");
    assert_int_equal(e.sys, 28);
    err_set(&e, ERR_FORMAT,
            "\xc3\xa9 \xc3( \xed\xa0\x80 \xf4\x90\x80\x80 \xc0\xaf \x1b[0m\n \xc2\x9b");
    assert_string_equal(e.msg, "\xc3\xa9 ?( ??? ???? ?? ?[0m? ??");
    char big[400];
    memset(big, 'y', sizeof big - 1);
    big[sizeof big - 1] = 0;
    err_set(&e, ERR_INVAL, "%s", big);
    assert_int_equal(strlen(e.msg), ERR_MSG_BYTES - 1);
    assert_string_equal(e.msg + ERR_MSG_BYTES - 4, "...");
    for (size_t i = 0; i + 1 < sizeof big; i++)
        big[i] = i % 2 ? '\xa9' : '\xc3'; /* two bytes each, so the cut falls inside of one */
    err_set(&e, ERR_INVAL, "x%s", big);
    assert_string_equal(e.msg + ERR_MSG_BYTES - 7, "\xc3\xa9?...");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_grows_to_max_and_no_further),
        cmocka_unit_test(test_printf_drop_take),
        cmocka_unit_test(test_little_endian),
        cmocka_unit_test(test_error_messages),
    };
    return !!cmocka_run_group_tests(tests, NULL, NULL);
}
