/* Tokenizer, prompts and parsers without memory: whichever allocation fails, the call says so,
 * leaves its outputs as they were, and leaks nothing (under ASan). */
#include "tests/support/test.h"

#include <jansson.h>

#include "base/fault.h"
#include "base/fs.h"
#include "engine/chat.h"
#include "engine/chat_parser.h"
#include "engine/chat_strict.h"
#include "engine/token_map.h"
#include "tests/support/alloc_fault.h"

#define DIR GOLDEN "e_encoding"
#define EOS "<｜end▁of▁sentence｜>"

struct fixture {
    struct buf file;
    struct tokenizer *t;
    struct chat_ids ids;
    json_t *messages;
};

static const char output[] =
    "why</think>so\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"f\">\n"
    "<｜DSML｜ parameter name=\"a\" string=\"true\">x</｜DSML｜ parameter>\n"
    "<｜DSML｜ parameter name=\"b\" string=\"false\">[1]</｜DSML｜ parameter>\n"
    "</｜DSML｜ invoke>\n</｜DSML｜ calls>" EOS;

static int set_up(void **state)
{
    static struct fixture f = {.file = BUF_INIT(1 << 20)};
    struct error e = {0};
    assert_ok(fs_read_file(DIR "/tokenizer.json", &f.file, &e), &e);
    assert_ok(tokenizer_open(&f.t, DIR, &e), &e);
    assert_ok(chat_ids_find(&f.ids, f.t, &e), &e);
    f.messages = json_loads(
        "[{\"role\": \"system\", \"tools\": [{\"function\": {\"name\": \"f\"}, \"namespace\": "
        "{\"name\": \"n\", \"description\": \"d\"}}]}, {\"role\": \"user\", \"content\": "
        "\"q\"}, "
        "{\"role\": \"assistant\", \"tool_calls\": [{\"id\": \"c\", \"function\": {\"name\": "
        "\"f\", "
        "\"arguments\": \"{\\\"k\\\": [1.5, \\\"v\\\"]}\"}}]}, "
        "{\"role\": \"tool\", \"tool_call_id\": \"c\", \"content\": \"r\"}]",
        0, NULL);
    assert_non_null(f.messages);
    *state = &f;
    return 0;
}

static int tear_down(void **state)
{
    struct fixture *f = *state;
    buf_fini(&f->file);
    tokenizer_free(f->t);
    json_decref(f->messages);
    return 0;
}

/* Runs op with every allocation failing in turn, then without; counts the failures. */
static void walk(enum err (*op)(struct fixture *f, struct error *e), struct fixture *f,
                 uint64_t at_least)
{
    json_malloc_t old_malloc;
    json_free_t old_free;
    json_get_alloc_funcs(&old_malloc, &old_free);
    for (uint64_t n = 1;; n++) {
        struct error e = {0};
        json_set_alloc_funcs(alloc_fault_malloc, free);
        fault_arm(FAULT_FAIL, "alloc", n);
        enum err rc = op(f, &e);
        bool failed = fault_disarm();
        json_set_alloc_funcs(old_malloc, old_free);
        if (!failed) {
            assert_ok(rc, &e);
            assert_true(n > at_least);
            return;
        }
        if (rc != ERR_NOMEM)
            fail_msg("allocation %d: code %d, %s", (int)n, rc, e.msg);
    }
}

static enum err encode(struct fixture *f, struct error *e)
{
    char text[300];
    memset(text, 'a', sizeof text);
    AUTO(ids) struct ids out = IDS_INIT(1000);
    AUTO(buf) struct buf back = BUF_INIT(1000);
    enum err rc = tokenizer_encode_special(f->t, text, sizeof text, &out, e);
    if (rc)
        assert_int_equal(out.n, 0);
    if (!rc)
        rc = tokenizer_decode(f->t, out.v, out.n, &back, e);
    if (rc)
        assert_int_equal(back.len, 0);
    return rc;
}

static enum err make_bytes(struct fixture *f, struct error *e)
{
    (void)f;
    struct tokenizer *t = NULL;
    enum err rc = tokenizer_new_bytes(&t, e);
    assert_true(!rc == !!t);
    tokenizer_free(t);
    return rc;
}

static enum err map(struct fixture *f, struct error *e)
{
    static uint32_t out[512];
    return token_map_build(f->t, out, 512, 424, e);
}

static enum err render(struct fixture *f, struct error *e)
{
    struct chat_options o = {.thinking = true, .effort = 75};
    AUTO(prompt) struct prompt p = PROMPT_INIT(1 << 16);
    AUTO(ids) struct ids ids = IDS_INIT(1 << 16);
    AUTO(buf) struct buf text = BUF_INIT(1 << 16);
    enum err rc = chat_render(&f->ids, f->messages, &o, &p, e);
    if (!rc)
        rc = prompt_ids(&p, f->t, &ids, e);
    assert_true(!rc || !ids.n);
    return rc ? rc : prompt_text(&p, f->t, &text, e);
}

static enum err parse(struct fixture *f, struct error *e)
{
    (void)f;
    struct chat_parser_options o = {.thinking = true, .literal = true};
    struct chat_parser *p = NULL;
    enum err rc = chat_parser_new(&p, &o, e);
    for (size_t i = 0; i < strlen(output) && !rc; i += 7)
        rc = chat_parser_feed(p, output + i, strlen(output + i) < 7 ? strlen(output + i) : 7,
                              false, e);
    if (!rc)
        rc = chat_parser_finish(p, e);
    if (!rc)
        assert_true(chat_parser_call(p, 0)->is_complete);
    chat_parser_free(p);
    return rc;
}

static enum err parse_strict(struct fixture *f, struct error *e)
{
    (void)f;
    json_auto_t *out = NULL;
    enum err rc = chat_strict_parse(output, strlen(output), true, &out, e);
    assert_true(!rc == !!out);
    return rc;
}

static void test_encode(void **state)
{
    walk(encode, *state, 2);
}

static void test_bytes(void **state)
{
    walk(make_bytes, *state, 3);
}

static void test_map(void **state)
{
    walk(map, *state, 200);
}

static void test_render(void **state)
{
    walk(render, *state, 20);
}

static void test_parse(void **state)
{
    walk(parse, *state, 5);
}

static void test_strict(void **state)
{
    walk(parse_strict, *state, 20);
}

/* The file has thousands of values: only every 97th allocation fails. */
static void test_load(void **state)
{
    const struct fixture *f = *state;
    for (uint64_t n = 1;; n += 97) {
        struct error e = {0};
        struct tokenizer *t = NULL;
        fault_arm(FAULT_FAIL, "alloc", n);
        enum err rc = tokenizer_parse(&t, f->file.data, f->file.len, &e);
        bool failed = fault_disarm();
        assert_true(!rc == !!t);
        tokenizer_free(t);
        if (!failed)
            break;
        assert_int_equal(rc, ERR_NOMEM);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_encode), cmocka_unit_test(test_bytes),
        cmocka_unit_test(test_map),    cmocka_unit_test(test_render),
        cmocka_unit_test(test_parse),  cmocka_unit_test(test_strict),
        cmocka_unit_test(test_load),
    };
    return !!cmocka_run_group_tests(tests, set_up, tear_down);
}
