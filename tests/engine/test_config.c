/* config.json: every bundled configuration is read; what is missing, contradictory or of
 * another model is refused with the field's name and its value. */
#include "base/fs.h"
#include "engine/config.h"
#include "tests/support/test.h"

#define BASE "tests/configs/mini-40.json"

static void load(const char *path, struct buf *out)
{
    struct error e = {0};
    assert_ok(fs_read_file(path, out, &e), &e);
}

static void test_bundled(void **state)
{
    static const char *const PATHS[] = {
        "tests/configs/demo.json",          "tests/configs/geom.json",
        "tests/configs/mini-40.json",       "tests/configs/v4mini.json",
        "tests/configs/real-1.json",        "tests/configs/real-2.json",
        GOLDEN "a_tiny/model/config.json",  GOLDEN "b_long/model/config.json",
        GOLDEN "c_replay/model/config.json"};
    (void)state;
    for (size_t i = 0; i < sizeof(PATHS) / sizeof(*PATHS); i++) {
        AUTO(buf) struct buf text = BUF_INIT(1 << 20);
        struct config c;
        struct error e = {0};
        load(PATHS[i], &text);
        assert_ok(config_parse(&c, buf_str(&text), text.len, &e), &e);
    }
}

/* The layer roles of the release (model description, 1.3). */
static void test_roles(void **state)
{
    AUTO(buf) struct buf text = BUF_INIT(1 << 20);
    struct config c;
    struct error e = {0};
    (void)state;
    load(BASE, &text);
    assert_ok(config_parse(&c, buf_str(&text), text.len, &e), &e);
    assert_int_equal(c.n_layers, 40);
    assert_int_equal(c.last_source, 20);
    assert_int_equal(c.kv_of[1], CONFIG_NO_LAYER);
    assert_int_equal(c.kv_of[2], 0);
    assert_int_equal(c.kv_of[13], 1);
    assert_int_equal(c.kv_of[39], 3);
    assert_int_equal(c.index_of[7], 2);
    assert_int_equal(c.index_of[23], 20);
    assert_int_equal(c.index_of[24], 24);
    assert_int_equal(c.index_of[39], 36);
    assert_true(config_is_kv_source(&c, 14) && !config_is_kv_source(&c, 24));
    assert_true(config_is_index_source(&c, 24) && !config_is_index_source(&c, 25));
    assert_true(config_is_masked(&c, 24) && !config_is_masked(&c, 20) &&
                !config_is_masked(&c, 14));
    assert_int_equal(config_engram_at(&c, 14), 1);
    assert_int_equal(config_engram_at(&c, 2), CONFIG_NO_LAYER);
}

/* text with the first `from` replaced by `to`. */
static void replace(struct buf *text, const char *from, const char *to)
{
    AUTO(buf) struct buf out = BUF_INIT(1 << 20);
    struct error e = {0};
    const char *at = strstr(buf_str(text), from);
    if (!at)
        fail_msg("%s: not in %s", from, BASE);
    assert_ok(buf_add(&out, text->data, (size_t)(at - buf_str(text)), &e), &e);
    assert_ok(buf_add_str(&out, to, &e), &e);
    assert_ok(buf_add_str(&out, at + strlen(from), &e), &e);
    buf_clear(text);
    assert_ok(buf_add(text, out.data, out.len, &e), &e);
}

static void test_refused(void **state)
{
    static const struct {
        const char *from, *to;
        enum err code;
        const char *says;
    } CASES[] = {
        {"\"hidden_size\": 256", "\"hidden_size\": 255", ERR_UNSUPPORTED, "hidden_size is 255"},
        {"\"hidden_size\": 256", "\"hidden_size\": 0", ERR_UNSUPPORTED, "hidden_size is 0"},
        {"\"hidden_size\": 256", "\"hidden_size\": 99999999999", ERR_UNSUPPORTED,
         "hidden_size is 99999999999"},
        {"\"hidden_size\": 256", "\"hidden_size\": \"256\"", ERR_FORMAT,
         "hidden_size: no integer"},
        {"\"hidden_size\": 256,", "", ERR_FORMAT, "hidden_size: missing"},
        {"deepseek_v41\"", "deepseek_v3\"", ERR_UNSUPPORTED, "model_type is \"deepseek_v3\""},
        {"\"silu\"", "\"gelu\"", ERR_UNSUPPORTED, "hidden_act is \"gelu\""},
        {"sqrtsoftplus", "sigmoid", ERR_UNSUPPORTED, "scoring_func is \"sigmoid\""},
        {"\"ue8m0\"", "\"float\"", ERR_UNSUPPORTED, "scale_fmt is \"float\""},
        {"\"yarn\"", "\"linear\"", ERR_UNSUPPORTED, "rope_type is \"linear\""},
        {"\"attention_bias\": false", "\"attention_bias\": true", ERR_UNSUPPORTED,
         "attention_bias"},
        {"\"num_key_value_heads\": 1", "\"num_key_value_heads\": 2", ERR_UNSUPPORTED,
         "num_key_value_heads is 2"},
        {"\"n_shared_experts\": 1", "\"n_shared_experts\": 0", ERR_UNSUPPORTED,
         "n_shared_experts is 0"},
        {"\"num_experts_per_tok\": 2", "\"num_experts_per_tok\": 9", ERR_FORMAT,
         "num_experts_per_tok 9 of n_routed_experts 8"},
        {"\"qk_rope_head_dim\": 16", "\"qk_rope_head_dim\": 48", ERR_FORMAT,
         "qk_rope_head_dim 48 is above"},
        {"\"num_hidden_layers\": 40", "\"num_hidden_layers\": 36", ERR_FORMAT,
         "compress_ratios has 40 entries for 36 layers"},
        {"\"candidate_source_layer_id\": 20", "\"candidate_source_layer_id\": 21", ERR_FORMAT,
         "candidate_source_layer_id 21"},
        {"\"candidate_source_layer_id\": 20", "\"candidate_source_layer_id\": 14",
         ERR_UNSUPPORTED, "index source 20 does not read"},
        {"\"kv_source_layer_ids\": [\n   2,", "\"kv_source_layer_ids\": [\n   9,", ERR_FORMAT,
         "8 behind 9"},
        {"\"kv_source_layer_ids\": [\n   2,", "\"kv_source_layer_ids\": [\n   3,", ERR_FORMAT,
         "layer 2: compress_ratio 2, no source below"},
        {"\"kv_source_layer_ids\": [\n   2,", "\"kv_source_layer_ids\": [\n   1,\n   2,",
         ERR_FORMAT, "layer 1 is a source, its compress_ratio is 0"},
        {"   14,\n   20\n  ],\n  \"index_source", "   14,\n   22\n  ],\n  \"index_source",
         ERR_FORMAT, "layer 20: compress_ratio 1, its source 14 has 2"},
        {"   20,\n   24,", "   24,", ERR_FORMAT, "kv source 20 is no index source"},
        {"\"engram_num_embeddings\": [\n   12126,", "\"engram_num_embeddings\": [", ERR_FORMAT,
         "engram_num_embeddings has 1 entries for 2 layers"},
        {"\"pad_token_id\": 2", "\"pad_token_id\": 512", ERR_FORMAT, "pad_token_id is 512"},
        {"\"bos_token_id\": 0", "\"bos_token_id\": 0, \"bos_token_id\": 1", ERR_FORMAT,
         "duplicate"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(CASES) / sizeof(*CASES); i++) {
        AUTO(buf) struct buf text = BUF_INIT(1 << 20);
        struct config c;
        struct error e = {0};
        load(BASE, &text);
        replace(&text, CASES[i].from, CASES[i].to);
        enum err rc = config_parse(&c, buf_str(&text), text.len, &e);
        if (rc != CASES[i].code || !strstr(e.msg, CASES[i].says))
            fail_msg("%s: code %d \"%s\", want %d \"%s\"", CASES[i].to, (int)rc, e.msg,
                     (int)CASES[i].code, CASES[i].says);
    }
}

/* 40 ratios or 43, drafts or none: the same main model. */
static void test_draft_ratios(void **state)
{
    AUTO(buf) struct buf text = BUF_INIT(1 << 20);
    struct config c;
    struct error e = {0};
    (void)state;
    load(BASE, &text);
    replace(&text, "\"num_nextn_predict_layers\": 0", "\"num_nextn_predict_layers\": 3");
    assert_int_equal(config_parse(&c, buf_str(&text), text.len, &e), ERR_UNSUPPORTED);
    assert_non_null(strstr(e.msg, "dspark_block_size is 0, want 1 to 15"));
    replace(&text, "\"dspark_block_size\": 0", "\"dspark_block_size\": 5");
    assert_int_equal(config_parse(&c, buf_str(&text), text.len, &e), ERR_FORMAT);
    assert_non_null(strstr(e.msg, "dspark_target_layer_ids is empty, with 3 draft layers"));
    replace(&text, "\"dspark_target_layer_ids\": []", "\"dspark_target_layer_ids\": [37, 39]");
    assert_ok(config_parse(&c, buf_str(&text), text.len, &e), &e);
    assert_int_equal(c.n_drafts, 3);
    assert_int_equal(c.n_draft_targets, 2);
    replace(&text, "\"compress_ratios\": [\n   0,\n   0,",
            "\"compress_ratios\": [\n   0,\n   0,");
    replace(&text, "   1\n  ],\n  \"compress_rope",
            "   1,\n   0,\n   0,\n   0\n  ],\n  \"compress_rope");
    assert_ok(config_parse(&c, buf_str(&text), text.len, &e), &e);
    assert_int_equal(c.ratio[39], 1);
    replace(&text, "   0,\n   0,\n   0\n  ],", "   0,\n   0,\n   2\n  ],");
    assert_int_equal(config_parse(&c, buf_str(&text), text.len, &e), ERR_UNSUPPORTED);
    assert_non_null(strstr(e.msg, "compress_ratios[42] is 2"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bundled),
        cmocka_unit_test(test_roles),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_draft_ratios),
    };
    return !!cmocka_run_group_tests(tests, NULL, NULL);
}
