/* engine/unicode: UTF-8 exactly as the standard has it, and samples of every class; the pieces
 * of the three splits where the expression's order matters. */
#include "tests/support/test.h"

#include "base/buf.h"
#include "engine/pretokenizer.h"
#include "engine/unicode.h"

static unsigned put(uint32_t cp, uint8_t *p)
{
    if (cp < 0x80) {
        p[0] = (uint8_t)cp;
        return 1;
    }
    unsigned n = cp < 0x800 ? 2 : cp < 0x10000 ? 3 : 4;
    for (unsigned i = n - 1; i; i--, cp >>= 6)
        p[i] = (uint8_t)(0x80 | (cp & 0x3f));
    p[0] = (uint8_t)(0xf00 >> n | cp);
    return n;
}

static void test_every_character(void **state)
{
    (void)state;
    for (uint32_t cp = 0; cp <= 0x110000; cp++) {
        uint8_t p[4] = {0};
        uint32_t back = 0;
        unsigned n = put(cp, p);
        bool is_character = cp <= 0x10ffff && (cp < 0xd800 || cp > 0xdfff);
        assert_int_equal(utf8_decode(p, n, &back), is_character ? n : 0);
        if (!is_character)
            continue;
        assert_int_equal(back, cp);
        assert_int_equal(utf8_length(p[0]), n);
        for (unsigned cut = 1; cut < n; cut++) {
            assert_int_equal(utf8_decode(p, cut, &back), 0);
            assert_int_equal(utf8_open_tail(p, cut), cut);
        }
        assert_int_equal(utf8_open_tail(p, n), 0);
    }
}

static void test_invalid(void **state)
{
    (void)state;
    static const char *const bad[] = {"\x80",
                                      "\xc0\x80",
                                      "\xc1\xbf",
                                      "\xe0\x9f\xbf",
                                      "\xf0\x8f\xbf\xbf",
                                      "\xed\xa0\x80",
                                      "\xf4\x90\x80\x80",
                                      "\xf5\x80\x80\x80",
                                      "\xff",
                                      "\xe4\xbd\xc3",
                                      "\xf0\x9f\x98\x41"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        uint32_t cp;
        assert_int_equal(utf8_decode((const uint8_t *)bad[i], strlen(bad[i]), &cp), 0);
        assert_false(utf8_is_valid((const uint8_t *)bad[i], strlen(bad[i])));
    }
    assert_int_equal(utf8_open_tail((const uint8_t *)"a\xe0\x9f", 3),
                     0); /* can become nothing */
    assert_int_equal(utf8_open_tail((const uint8_t *)"\xf0\x9f\x98", 3), 3);
    assert_true(utf8_is_valid((const uint8_t *)"", 0));
}

static void test_classes(void **state)
{
    (void)state;
    static const struct {
        uint32_t cp;
        unsigned class;
    } cases[] = {
        {'a', UNICODE_L},
        {'Z', UNICODE_L},
        {'0', UNICODE_N},
        {'!', UNICODE_P},
        {'_', UNICODE_P},
        {'$', UNICODE_S},
        {'+', UNICODE_S},
        {'`', UNICODE_S},
        {'~', UNICODE_S},
        {' ', UNICODE_SPACE},
        {'\v', UNICODE_SPACE},
        {0x1c, 0},
        {0x7f, 0},
        {0x85, UNICODE_SPACE},
        {0xaa, UNICODE_L},
        {0xad, 0},
        {0xb2, UNICODE_N},
        {0x301, UNICODE_M},
        {0x660, UNICODE_N},
        {0x2028, UNICODE_SPACE},
        {0x200b, 0},
        {0x2160, UNICODE_N},
        {0x3000, UNICODE_SPACE},
        {0x30fb, UNICODE_P},
        {0x4e00, UNICODE_L},
        {0xe000, 0},
        {0xff5c, UNICODE_S},
        {0x1f600, UNICODE_S},
        {0x1c89, UNICODE_L},
        {0x10d40, UNICODE_N},
        {0x10ffff, 0},
        {0x378, 0}, /* 16.0's */
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        if (unicode_class(cases[i].cp) != cases[i].class)
            fail_msg("U+%04X: class %u", cases[i].cp, unicode_class(cases[i].cp));
}

static void test_splits(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"a  b", "a| | b"},
        {"a \n b", "a| \n| b"},
        {"a  \n\n  ", "a|  \n\n|  "},
        {"x\t\ty", "x|\t|\ty"},
        {"(abc)(1)", "(abc|)(|1|)"},
        {"_a$b 'c", "_a|$b| '|c"},
        {" !?\n\nz", " !?\n\n|z"},
        {"1234567", "123|456|7"},
        {"a1b22c", "a|1|b|22|c"},
        {"東京・大阪", "東京|・|大阪"},
        {"東京abc", "東京|abc"},
        {"が\xe3\x82\x99゛", "が\xe3\x82\x99|゛"},
        {"\x01\x02 a", "\x01\x02| a"},
        {"\x01"
         "a\x01",
         "\x01"
         "a|\x01"},
        {"\xcc\x81"
         "a",
         "\xcc\x81"
         "a"},
        {"a\xff\xfe"
         "b",
         "a|\xff|\xfe|b"},
        {"  \xff", "  |\xff"},
        {"\xc2\xa0\xc2\xa0x", "\xc2\xa0|\xc2\xa0x"},
        {" \xe2\x80\x8b", " |\xe2\x80\x8b"},
        {"\r\n\r\na", "\r\n\r\n|a"},
        {" \r", " \r"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct pretokenizer p =
            pretokenizer_start((const uint8_t *)cases[i][0], strlen(cases[i][0]));
        AUTO(buf) struct buf have = BUF_INIT(1000);
        struct error e = {0};
        const uint8_t *piece;
        for (size_t n; (n = pretokenizer_next(&p, &piece));) {
            if (have.len)
                assert_ok(buf_add_byte(&have, '|', &e), &e);
            assert_ok(buf_add(&have, piece, n, &e), &e);
        }
        assert_string_equal(buf_str(&have), cases[i][1]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_character),
        cmocka_unit_test(test_invalid),
        cmocka_unit_test(test_classes),
        cmocka_unit_test(test_splits),
    };
    return !!cmocka_run_group_tests(tests, NULL, NULL);
}
