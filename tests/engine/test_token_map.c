/* engine/token_map: the golden normal forms, the golden map, and a wrong count. */
#include "tests/support/test.h"

#include <jansson.h>

#include "base/fs.h"
#include "engine/token_map.h"

#define N_IDS 512u
#define N_COMPRESSED 424u

static void test_normal_forms(void **state)
{
    (void)state;
    json_auto_t *cases =
        json_load_file(GOLDEN "e_encoding/engram_normalize_cases.json", 0, NULL);
    assert_int_equal(json_array_size(cases), 23);
    size_t i;
    json_t *c;
    json_array_foreach(cases, i, c) {
        const json_t *text = json_object_get(c, "text");
        struct error e = {0};
        AUTO(buf) struct buf out = BUF_INIT(4096);
        assert_ok(
            token_map_normalize(json_string_value(text), json_string_length(text), &out, &e),
            &e);
        assert_string_equal(buf_str(&out), json_string_value(json_object_get(c, "normalized")));
    }
}

/* By the rule, beyond the golden cases: a mark alone leaves nothing; folding before stripping.
 */
static void test_rule(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"\xcc\x81", ""},          {" \xcc\x81", " "},    {"a \t\r\n b", "a b"},
        {"\xc2\x85x", "x"},        {"\xee\x80\x80", " "}, {"x\xee\x80\x80", "x "},
        {"ﬃ Ⅷ ½", "ffi viii 1⁄2"}, {"ΑΆ", "αα"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct error e = {0};
        AUTO(buf) struct buf out = BUF_INIT(4096);
        assert_ok(token_map_normalize(cases[i][0], strlen(cases[i][0]), &out, &e), &e);
        assert_string_equal(buf_str(&out), cases[i][1]);
    }
    struct error e = {0};
    AUTO(buf) struct buf out = BUF_INIT(4096);
    assert_int_equal(token_map_normalize("\xff", 1, &out, &e), ERR_FORMAT);
}

static void test_golden_map(void **state)
{
    (void)state;
    static const char *const models[] = {"a_tiny", "b_long", "c_replay"};
    for (int m = 0; m < 3; m++) {
        char dir[256], path[300];
        snprintf(dir, sizeof dir, GOLDEN "%s/model", models[m]);
        snprintf(path, sizeof path, "%s/engram_token_map.npy", dir);
        struct error e = {0};
        AUTO(buf) struct buf npy = BUF_INIT(1 << 20);
        assert_ok(fs_read_file(path, &npy, &e), &e);
        assert_true(npy.len > N_IDS * 4);
        int32_t want[N_IDS];
        memcpy(want, npy.data + npy.len - sizeof want, sizeof want);
        struct tokenizer *t = NULL;
        uint32_t map[N_IDS];
        assert_ok(tokenizer_open(&t, dir, &e), &e);
        assert_ok(token_map_build(t, map, N_IDS, N_COMPRESSED, &e), &e);
        for (uint32_t id = 0; id < N_IDS; id++)
            assert_int_equal(map[id], want[id]);
        tokenizer_free(t);
    }
}

static void test_wrong_count(void **state)
{
    (void)state;
    struct error e = {0};
    struct tokenizer *t = NULL;
    static uint32_t map[N_IDS + 100];
    assert_ok(tokenizer_open(&t, GOLDEN "a_tiny/model", &e), &e);
    assert_int_equal(token_map_build(t, map, N_IDS, 99092, &e), ERR_FORMAT);
    assert_non_null(strstr(e.msg, "424"));
    assert_non_null(strstr(e.msg, "99092"));
    /* Ids beyond the tokenizer's read like the empty text: one more key for all of them. */
    assert_ok(token_map_build(t, map, N_IDS + 100, N_COMPRESSED + 1, &e), &e);
    assert_int_equal(map[N_IDS], N_COMPRESSED);
    assert_int_equal(map[N_IDS + 99], N_COMPRESSED);
    tokenizer_free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_normal_forms),
        cmocka_unit_test(test_rule),
        cmocka_unit_test(test_golden_map),
        cmocka_unit_test(test_wrong_count),
    };
    return !!cmocka_run_group_tests(tests, NULL, NULL);
}
