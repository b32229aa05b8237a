/* engine/chat_parser: every fault of prompt.md's list at every split, as bytes and as tokens;
 * the strict parser on the golden cases; random shapes. */
#include "tests/support/test.h"

#include <jansson.h>

#include "engine/chat.h"
#include "engine/chat_parser.h"
#include "engine/chat_strict.h"
#include "engine/pyjson.h"
#include "engine/unicode.h"

#define DIR GOLDEN "e_encoding"
#define EOS "<｜end▁of▁sentence｜>"
#define OPEN(s) "<｜DSML｜ " s
#define CLOSE(s) "</｜DSML｜ " s ">"
#define CALLS(inside) "\n\n" OPEN("calls>\n") inside CLOSE("calls")
#define CALL(name, inside) OPEN("invoke name=\"" name "\">\n") inside CLOSE("invoke") "\n"
#define STR(name, value)                                                                       \
    OPEN("parameter name=\"" name "\" string=\"true\">") value CLOSE("parameter") "\n"
#define RAW(name, value)                                                                       \
    OPEN("parameter name=\"" name "\" string=\"false\">") value CLOSE("parameter") "\n"

/* ---- one parse, written down
 * ----------------------------------------------------------------- */

/* Everything that may not depend on the chunks: results, and the joined events in their order.
 */
struct record {
    struct buf events, result;
    enum chat_event_kind last_kind;
    uint32_t last_call;
    bool any;
};

static enum err on_event(void *user, const struct chat_event *ev, struct error *e)
{
    static const char *const names[] = {"text", "thinking", "begin", "args", "end"};
    struct record *r = user;
    enum err rc = OK;
    bool goes_on = r->any && r->last_kind == ev->kind && r->last_call == ev->call &&
                   ev->kind != CHAT_CALL_BEGIN && ev->kind != CHAT_CALL_END;
    if (ev->kind == CHAT_TEXT || ev->kind == CHAT_THINKING)
        assert_true(ev->n > 0);
    if (!goes_on)
        rc = buf_printf(&r->events, e, "|%s %u:", names[ev->kind], ev->call);
    r->any = true;
    r->last_kind = ev->kind;
    r->last_call = ev->call;
    return rc ? rc : buf_add(&r->events, ev->bytes, ev->n, e);
}

static void record_fini(struct record *r)
{
    buf_fini(&r->events);
    buf_fini(&r->result);
}

static void write_result(struct record *r, const struct chat_parser *p)
{
    struct error e = {0};
    if (chat_parser_text(p)->len)
        assert_ok(buf_printf(&r->result, &e, "text=%s\n", buf_str(chat_parser_text(p))), &e);
    if (chat_parser_thinking(p)->len)
        assert_ok(buf_printf(&r->result, &e, "thinking=%s\n", buf_str(chat_parser_thinking(p))),
                  &e);
    for (uint32_t i = 0; i < chat_parser_n_calls(p); i++) {
        const struct chat_call *c = chat_parser_call(p, i);
        assert_ok(buf_printf(&r->result, &e, "call %s%s%s\n", c->name,
                             c->is_complete ? c->arguments : " incomplete",
                             c->is_repaired ? " repaired" : ""),
                  &e);
        if (c->is_complete)
            assert_true(pyjson_valid(c->arguments, c->arguments_len));
    }
    for (int i = 0; i < CHAT_N_PROBLEMS; i++)
        if (chat_parser_problems(p)[i])
            assert_ok(buf_printf(&r->result, &e, "%s=%u\n",
                                 chat_problem_name((enum chat_problem)i),
                                 chat_parser_problems(p)[i]),
                      &e);
    assert_ok(buf_printf(&r->result, &e, "%s%s%s",
                         chat_parser_thinking_open(p) ? "thinking open\n" : "",
                         chat_parser_block_open(p) ? "block open\n" : "",
                         chat_parser_lost_calls(p) ? "lost\n" : ""),
              &e);
}

static struct chat_parser *new_parser(struct record *r, bool thinking, bool literal)
{
    struct chat_parser_options o = {
        .thinking = thinking, .literal = literal, .on_event = on_event, .user = r};
    struct chat_parser *p = NULL;
    struct error e = {0};
    assert_ok(chat_parser_new(&p, &o, &e), &e);
    return p;
}

static void finish(struct record *r, struct chat_parser *p)
{
    struct error e = {0};
    assert_ok(chat_parser_finish(p, &e), &e);
    write_result(r, p);
    chat_parser_free(p);
}

#define RECORD_INIT                                                                            \
    {                                                                                          \
        .events = BUF_INIT(1 << 20), .result = BUF_INIT(1 << 20)                               \
    }

/* Bytes, cut at two places and otherwise fed `step` at a time. */
static void parse_bytes(struct record *r, bool thinking, const char *s, size_t n, size_t cut,
                        size_t step)
{
    struct chat_parser *p = new_parser(r, thinking, true);
    struct error e = {0};
    for (size_t i = 0; i < n;) {
        size_t end = i + step < n ? i + step : n;
        if (i < cut && end > cut)
            end = cut;
        assert_ok(chat_parser_feed(p, s + i, end - i, false, &e), &e);
        i = end;
    }
    finish(r, p);
}

static void parse_tokens(struct record *r, const struct tokenizer *t, bool thinking,
                         const struct ids *ids)
{
    struct chat_parser *p = new_parser(r, thinking, false);
    struct error e = {0};
    for (size_t i = 0; i < ids->n; i++) {
        size_t n;
        const uint8_t *bytes = tokenizer_bytes(t, ids->v[i], &n);
        assert_ok(chat_parser_feed(p, bytes, n, tokenizer_is_added(t, ids->v[i]), &e), &e);
    }
    finish(r, p);
}

static void assert_same(const struct record *a, const struct record *b, const char *input)
{
    if (strcmp(buf_str(&a->result), buf_str(&b->result)) ||
        strcmp(buf_str(&a->events), buf_str(&b->events)))
        fail_msg("%s\n--- one way:\n%s%s\n--- another:\n%s%s", input, buf_str(&a->result),
                 buf_str(&a->events), buf_str(&b->result), buf_str(&b->events));
}

/* ---- faults at every split
 * ------------------------------------------------------------------- */

struct fault {
    const char *input;
    const char *want; /* as write_result writes it */
    bool thinking;
    bool bytes_only; /* spellings that are no added tokens */
};

static const struct fault faults[] = {
    /* What a model should write. */
    {"why</think>Hi" EOS, "text=Hi\nthinking=why\n", true, false},
    {"\n\nwhy\n</think>\n\nHi\nyou\n\n" EOS, "text=Hi\nyou\n\n\nthinking=why\n", true, false},
    {"Let me look." CALLS(CALL("f", STR("a", "x\n\"y\"\\") RAW("b", "[1, {\"c\": null}]"))) EOS,
     "text=Let me look.\ncall f{\"a\": \"x\\n\\\"y\\\"\\\\\", \"b\": [1, {\"c\": null}]}\n",
     false, false},
    {"r</think>" CALLS(CALL("f", "\n") CALL("g", "")) EOS, "thinking=r\ncall f{}\ncall g{}\n",
     true, false},
    /* A parameter that is really called arguments; values that look like markup. */
    {CALLS(CALL("f", STR("arguments", "{\"a\": 1}"))) EOS,
     "call f{\"arguments\": \"{\\\"a\\\": 1}\"}\n", false, false},
    {CALLS(CALL("f", STR("a", "</parameter> <b> </ </think> </invoke> |DSML|"))) EOS,
     "call f{\"a\": \"</parameter> <b> </ </think> </invoke> |DSML|\"}\n", false, false},
    /* Thinking that is still open, thinking and special tokens where they do not belong. */
    {"so far", "thinking=so far\nthinking open\n", true, false},
    {"a</think>b</think>c<think>d" EOS, "text=bcd\nthinking=a\nstray_think=2\n", true, false},
    {"a<｜User｜>b" EOS "<｜User｜>more", "text=ab\nstray_special=1\nafter_block=1\n", false,
     false},
    {"think" CALLS(CALL("f", "")) EOS,
     "thinking=think\ncall f{}\ncall_in_thinking=1\nthinking open\n", true, false},
    {"a<", "text=a<\n", false, false},
    {"a</", "text=a</\n", false, false},
    {"a\n</b> <<think", "text=a\n</b> <<think\n", false, false},
    /* No block, an older block name, no space, further bars, no "<". */
    {CALL("f", STR("a", "1")), "call f{\"a\": \"1\"}\nbare_invoke=1\n", false, false},
    {"x\n\n" OPEN("tool_calls>\n") CALL("f", "") CLOSE("tool_calls"),
     "text=x\ncall f{}\nblock_name=1\n", false, false},
    {OPEN("function_calls>") CALL("f", "") CLOSE("calls"), "call f{}\nblock_name=1\n", false,
     false},
    {"<｜DSML｜calls>\n<｜DSML｜invoke name=\"f\">\n</｜DSML｜invoke>\n</｜DSML｜calls>",
     "call f{}\nmark_spelling=4\n", false, false},
    {"<｜｜DSML｜｜ calls>\n<｜｜DSML｜｜ invoke name=\"f\">\n</｜｜DSML｜｜ "
     "invoke>\n</｜｜DSML｜｜ calls>",
     "call f{}\nmark_spelling=4\n", false, false},
    {"<|DSML|calls>\n<|DSML|invoke name=\"f\">\n<|DSML|parameter name=\"a\" "
     "string=\"true\">v</|DSML|parameter>\n</|DSML|invoke>\n</|DSML|calls>",
     "call f{\"a\": \"v\"}\nmark_spelling=6\n", false, true},
    {"｜DSML｜ calls>\n" CALL("f", "") CLOSE("calls"), "call f{}\nmark_spelling=1\n", false,
     false},
    {"a|DSML|b", "text=a|DSML|b\n", false, true},
    /* Ends that are missing: of everything, at the token limit, of a parameter, of a call. */
    {CALLS(CALL("f", STR("a", "v"))) "", "call f{\"a\": \"v\"}\n", false, false},
    {"\n\n" OPEN("calls>\n") CALL("f", STR("a", "v")) EOS,
     "call f{\"a\": \"v\"}\nunfinished_block=1\nblock open\n", false, false},
    {"\n\n" OPEN("calls>\n") OPEN("invoke name=\"f\">\n")
         OPEN("parameter name=\"a\" string=\"true\">v"),
     "call f incomplete\nunfinished_block=1\nunfinished_call=1\nblock open\nlost\n", false,
     false},
    {"\n\n" OPEN("calls>\n") OPEN("invoke name=\"f\">\n") OPEN("parameter name=\"a\""),
     "call f incomplete\nbad_tag=1\nunfinished_block=1\nunfinished_call=1\nblock open\nlost\n",
     false, false},
    {CALLS(CALL("f", OPEN("parameter name=\"a\" string=\"true\">v\n"))) EOS,
     "call f{\"a\": \"v\"} repaired\nmissing_close=1\n", false, false},
    {CALLS(CALL("f", OPEN("parameter name=\"a\" string=\"true\">v\n") STR("b", "w"))) EOS,
     "call f{\"a\": \"v\", \"b\": \"w\"} repaired\nmissing_close=1\n", false, false},
    {CALLS(OPEN("invoke name=\"f\">\n") STR("a", "v") CALL("g", "")) EOS,
     "call f{\"a\": \"v\"} repaired\ncall g{}\nmissing_close=1\n", false, false},
    {CALLS(OPEN("invoke name=\"f\">\n") STR("a", "v")) EOS,
     "call f{\"a\": \"v\"} repaired\nmissing_close=1\n", false, false},
    /* A misspelt closer must not swallow the rest. */
    {CALLS(CALL("f", OPEN("parameter name=\"a\" string=\"true\">") "v" CLOSE("param") "\n" STR(
                         "b", "w"))) EOS,
     "call f{\"a\": \"v\", \"b\": \"w\"} repaired\nbad_close=1\n", false, false},
    {CALLS(OPEN("invoke name=\"f\">\n") STR("a", "v") CLOSE("invok")) EOS,
     "call f{\"a\": \"v\"} repaired\nbad_close=1\n", false, false},
    /* A value that quotes the format: it cannot be told from missing closers, so nothing runs.
     */
    {CALLS(CALL("write", STR("text", "say " CALLS(CALL("rm", STR("path", "/")))))) EOS,
     "call write incomplete repaired\ncall rm incomplete\nbad_tag=1\nmissing_close=1\n"
     "after_block=1\nlost\n",
     false, false},
    {CALLS(CALL("write", STR("text", "say " CALL("rm", STR("path", "/")) "."))) EOS,
     "call write incomplete repaired\ncall rm incomplete\nmissing_close=1\nstray_close=2\n"
     "junk_in_block=1\nlost\n",
     false, false},
    {CALLS(CALL("write", STR("text", "say " STR("x", "y") " and more"))) EOS,
     "call write incomplete repaired\nmissing_close=1\nstray_close=1\njunk_in_block=7\nlost\n",
     false, false},
    /* Nothing in the block, stray closers, text between, text and calls behind. */
    {"hm" CALLS("") EOS, "text=hm\nempty_block=1\nlost\n", false, false},
    {"hm\n" OPEN("calls>"), "text=hm\nempty_block=1\nunfinished_block=1\nblock open\nlost\n",
     false, false},
    {"a " CLOSE("calls") " b" CLOSE("invoke"), "text=a  b\nstray_close=2\n", false, false},
    {CALLS(CLOSE("invoke") CLOSE("parameter") CALL("f", CLOSE("parameter"))) EOS,
     "call f{}\nstray_close=3\n", false, false},
    {CALLS("go: " CALL("f", "")) EOS, "call f{}\njunk_in_block=3\n", false, false},
    {CALLS(CALL("f", "{\"a\": 1}\n")) EOS, "call f incomplete\njunk_in_block=7\nlost\n", false,
     false},
    {CALLS(CALL("f", "")) "\nDone! " CALLS(CALL("g", "")) EOS "x", "call f{}\nafter_block=1\n",
     false, false},
    /* Names and values that are not what they should be. */
    {CALLS(CALL("f", STR("a", "1") STR("a", "2") RAW("b", "3"))) EOS,
     "call f{\"a\": \"1\", \"b\": 3} repaired\nduplicate_parameter=1\n", false, false},
    {CALLS(CALL("f", RAW("a", "1")) CALL("f", RAW("a", "1"))) EOS,
     "call f{\"a\": 1}\ncall f{\"a\": 1}\nduplicate_call=1\n", false, false},
    {CALLS(CALL("f", RAW("a", "{oops") RAW("b", "") RAW("c", "NaN") RAW("d", " 1\n"))) EOS,
     "call f{\"a\": \"{oops\", \"b\": \"\", \"c\": \"NaN\", \"d\":  1\n} "
     "repaired\nbad_json=3\n",
     false, false},
    {CALLS(CALL("f", OPEN("parameter name=\"a\">") "1" CLOSE("parameter")
                         OPEN("parameter name=\"b\">") "x y" CLOSE("parameter"))) EOS,
     "call f{\"a\": 1, \"b\": \"x y\"} repaired\nstring_attribute=2\n", false, false},
    {CALLS(CALL("f\x01\x7f", STR("k\x1b[2J", "v\x02"))) EOS,
     "call f��{\"k�[2J\": \"v\\u0002\"}\nbad_name=2\n", false, false},
    {CALLS(CALL("f", STR("a", "v\xffw"))) EOS, "call f{\"a\": \"v�w\"} repaired\nbad_utf8=1\n",
     false, false},
    {CALLS(CALL("", "")) EOS, "call  incomplete\nbad_name=1\nlost\n", false, false},
    {CALLS(OPEN("invoke>") CLOSE("invoke")) EOS, "call  incomplete\nbad_name=1\nlost\n", false,
     false},
    {CALLS(CALL("f", OPEN("parameter string=\"true\">") "v" CLOSE("parameter"))) EOS,
     "call f incomplete\nbad_name=1\nstray_close=1\njunk_in_block=1\nlost\n", false, false},
    {CALLS(OPEN("invoke name=\"f>\n") CLOSE("invoke")) EOS,
     "call f incomplete\nbad_tag=1\nlost\n", false, false},
    {CALLS(CALL("f", OPEN("parameter nam=\"a\" string=\"true\">") "v" CLOSE("parameter"))) EOS,
     "call f incomplete\nbad_name=1\nstray_close=1\njunk_in_block=1\nlost\n", false, false},
    {OPEN("parameter name=\"a\" string=\"true\">") "v" CLOSE("parameter") " x",
     "bad_tag=1\nstray_close=1\nafter_block=1\nlost\n", false, false},
    {CALLS(OPEN("calls>\n") CALL("f", "")) EOS, "call f{}\nbad_tag=1\n", false, false},
    {"see <｜DSML｜", "text=see \nbad_tag=1\nblock open\nlost\n", false, false},
    {"caf\xc3\xa9 \xc3</think>", "text=caf\xc3\xa9 \xc3\nstray_think=1\n", false, false},
};

static void check_fault(const struct tokenizer *t, const struct fault *f)
{
    size_t n = strlen(f->input);
    AUTO(record) struct record whole = RECORD_INIT;
    parse_bytes(&whole, f->thinking, f->input, n, 0, n ? n : 1);
    if (strcmp(buf_str(&whole.result), f->want))
        fail_msg("%s\n--- have:\n%s--- want:\n%s", f->input, buf_str(&whole.result), f->want);
    for (size_t step = 1; step <= 3; step++) {
        AUTO(record) struct record r = RECORD_INIT;
        parse_bytes(&r, f->thinking, f->input, n, 0, step);
        assert_same(&whole, &r, f->input);
    }
    for (size_t cut = 1; cut < n; cut++) {
        AUTO(record) struct record r = RECORD_INIT;
        parse_bytes(&r, f->thinking, f->input, n, cut, n);
        assert_same(&whole, &r, f->input);
    }
    if (f->bytes_only)
        return;
    struct error e = {0};
    AUTO(record) struct record r = RECORD_INIT;
    AUTO(ids) struct ids ids = IDS_INIT(1 << 16);
    assert_ok(tokenizer_encode_special(t, f->input, n, &ids, &e), &e);
    parse_tokens(&r, t, f->thinking, &ids);
    assert_same(&whole, &r, f->input);
}

static void test_vllm_53227_sglang_40236_llama_cpp_28612_generic_agent_804_faults(void **state)
{
    for (size_t i = 0; i < sizeof faults / sizeof faults[0]; i++)
        check_fault(*state, &faults[i]);
}

/* Fed with tokens, plain spellings neither open nor close; they are shown, and counted. */
static void test_plain_spellings_are_text(void **state)
{
    static const char input[] = "a</think>b" CALLS(CALL("f", STR("a", "v"))) "c<|DSML|d" EOS;
    const struct tokenizer *t = *state;
    struct error e = {0};
    for (int thinking = 0; thinking < 2; thinking++) {
        AUTO(record) struct record r = RECORD_INIT;
        AUTO(ids) struct ids ids = IDS_INIT(1 << 16);
        assert_ok(tokenizer_encode(t, input, strlen(input), &ids, &e), &e);
        parse_tokens(&r, t, thinking, &ids);
        AUTO(buf) struct buf want = BUF_INIT(1 << 16);
        assert_ok(buf_printf(&want, &e,
                             thinking ? "thinking=%s\nplain_markup=8\nthinking open\n"
                                      : "text=%s\nplain_markup=8\nlost\n",
                             input),
                  &e);
        assert_string_equal(buf_str(&r.result), buf_str(&want));
    }
}

/* An ended-by-EOS id closes; its spelling in plain bytes does not. */
static void test_eos(void **state)
{
    const struct tokenizer *t = *state;
    struct error e = {0};
    struct record r = RECORD_INIT;
    struct chat_parser *p = new_parser(&r, false, false);
    assert_ok(chat_parser_feed(p, EOS, strlen(EOS), false, &e), &e);
    assert_false(chat_parser_saw_eos(p));
    assert_ok(chat_parser_feed(p, EOS, strlen(EOS), true, &e), &e);
    assert_true(chat_parser_saw_eos(p));
    finish(&r, p);
    record_fini(&r);
    assert_true(tokenizer_added(t, EOS) != TOKEN_NONE);
}

/* Text events end on character borders while the text goes on; broken bytes come through. */
static void test_borders(void **state)
{
    (void)state;
    static const char text[] = "日本é😀\xe6\x97 x\xff";
    struct error e = {0};
    struct record r = RECORD_INIT;
    struct chat_parser *p = new_parser(&r, false, true);
    for (size_t i = 0; i < strlen(text); i++) {
        assert_ok(chat_parser_feed(p, text + i, 1, false, &e), &e);
        assert_int_equal(utf8_open_tail(r.events.data, r.events.len), 0);
    }
    assert_ok(chat_parser_finish(p, &e), &e);
    assert_string_equal(buf_str(&r.events), "|text 0:日本é😀\xe6\x97 x\xff");
    chat_parser_free(p);
    record_fini(&r);
}

static void test_limits(void **state)
{
    (void)state;
    struct error e = {0};
    struct chat_parser_options o = {.literal = true, .max_bytes = 10000, .max_calls = 2};
    struct chat_parser *p = NULL;
    assert_ok(chat_parser_new(&p, &o, &e), &e);
    for (int i = 0; i < 4; i++) {
        static const char call[] = CALL("f", "");
        assert_ok(chat_parser_feed(p, call, strlen(call), false, &e), &e);
    }
    assert_int_equal(chat_parser_n_calls(p), 2);
    assert_true(chat_parser_lost_calls(p));
    assert_int_equal(chat_parser_problems(p)[CHAT_TOO_MANY], 1);
    static const char zeros[10000];
    assert_int_equal(chat_parser_feed(p, zeros, sizeof zeros, false, &e), ERR_LIMIT);
    chat_parser_free(p);

    struct record r = RECORD_INIT;
    p = new_parser(&r, false, true);
    AUTO(buf) struct buf many = BUF_INIT(1 << 20);
    assert_ok(buf_add_str(&many, OPEN("invoke name=\"f\">"), &e), &e);
    for (int i = 0; i < 300; i++)
        assert_ok(buf_printf(&many, &e, RAW("p%d", "1"), i), &e);
    assert_ok(buf_add_str(&many, CLOSE("invoke"), &e), &e);
    assert_ok(chat_parser_feed(p, many.data, many.len, false, &e), &e);
    assert_int_equal(chat_parser_problems(p)[CHAT_TOO_MANY], 300 - 256);
    assert_false(chat_parser_call(p, 0)->is_complete);
    finish(&r, p);
    record_fini(&r);
}

/* A tag that never ends is given up after a kilobyte; a megabyte of newlines is held as a
 * count. */
static void test_endless(void **state)
{
    (void)state;
    struct error e = {0};
    struct record r = {.events = BUF_INIT(1 << 22), .result = BUF_INIT(1 << 22)};
    struct chat_parser *p = new_parser(&r, false, true);
    AUTO(buf) struct buf in = BUF_INIT(1 << 22);
    assert_ok(buf_add_str(&in, "a", &e), &e);
    for (int i = 0; i < 1 << 20; i++)
        assert_ok(buf_add_byte(&in, '\n', &e), &e);
    assert_ok(buf_add_str(&in, "b" OPEN("invoke name=\""), &e), &e);
    for (int i = 0; i < 4096; i++)
        assert_ok(buf_add_byte(&in, 'n', &e), &e);
    assert_ok(chat_parser_feed(p, in.data, in.len, false, &e), &e);
    assert_int_equal(chat_parser_text(p)->len, (1 << 20) + 2);
    assert_int_equal(chat_parser_n_calls(p), 1);
    assert_ok(chat_parser_finish(p, &e), &e);
    assert_false(chat_parser_call(p, 0)->is_complete);
    chat_parser_free(p);
    record_fini(&r);
}

static enum err refuse(void *user, const struct chat_event *ev, struct error *e)
{
    (void)ev;
    return --*(int *)user ? OK : err_set(e, ERR_CLOSED, "no more");
}

static void test_refused_events(void **state)
{
    (void)state;
    static const char input[] = "t</think>x" CALLS(CALL("f", STR("a", "v")));
    struct error e = {0};
    for (int at = 1; at <= 5; at++) {
        int left = at;
        struct chat_parser_options o = {
            .thinking = true, .literal = true, .on_event = refuse, .user = &left};
        struct chat_parser *p = NULL;
        assert_ok(chat_parser_new(&p, &o, &e), &e);
        assert_int_equal(chat_parser_feed(p, input, strlen(input), false, &e), ERR_CLOSED);
        chat_parser_free(p);
    }
}

/* ---- random shapes
 * --------------------------------------------------------------------------- */

static unsigned pick(uint64_t *s, unsigned n)
{
    *s = *s * 6364136223846793005ull + 1442695040888963407ull;
    return (unsigned)(*s >> 33) % n;
}

static const char *const shapes[] = {"<｜DSML｜ calls>",
                                     "</｜DSML｜ calls>",
                                     "<｜DSML｜ invoke name=\"f\">",
                                     "</｜DSML｜ invoke>",
                                     "<｜DSML｜ parameter name=\"a\" string=\"true\">",
                                     "<｜DSML｜ parameter name=\"b\" string=\"false\">",
                                     "</｜DSML｜ parameter>",
                                     "</｜DSML｜ param>",
                                     "<｜｜DSML｜｜ calls>",
                                     "<|DSML| invoke name=\"g\">",
                                     "</|DSML| parameter>",
                                     "</think>",
                                     "<think>",
                                     "｜DSML｜",
                                     "<｜DSML｜",
                                     "\n",
                                     "\n\n",
                                     "<",
                                     "</",
                                     "｜",
                                     "|",
                                     ">",
                                     "\"",
                                     " ",
                                     "text",
                                     "{\"k\": [1, 2]}",
                                     "é",
                                     "\xff",
                                     "\xe4\xbd",
                                     "<｜User｜>",
                                     "-1",
                                     "日"};

/* A piece of output: a shape, now and then cut short or with a byte of it changed. */
static void add_piece(struct buf *in, uint64_t *seed)
{
    struct error e = {0};
    const char *shape = shapes[pick(seed, sizeof shapes / sizeof shapes[0])];
    size_t n = strlen(shape), from = in->len;
    unsigned how = pick(seed, 16);
    if (!how)
        n = 1 + pick(seed, (unsigned)n);
    assert_ok(buf_add(in, shape, n, &e), &e);
    if (how == 1)
        in->data[from + pick(seed, (unsigned)n)] = (uint8_t)pick(seed, 256);
}

/* No mark is shown, as text or as thinking. Where something was dropped out of the middle of a
 * text, its two ends may look like one. */
static bool shows_mark(const struct record *r)
{
    const char *result = buf_str(&r->result);
    const char *calls = strstr(result, "\ncall "), *mark = strstr(result, "｜DSML｜");
    if (!mark || (calls && calls < mark))
        return false;
    return !strstr(result, "\nstray_think=") && !strstr(result, "\nstray_special=") &&
           !strstr(result, "\nstray_close=");
}

static void test_vllm_54686_56184_random_shapes(void **state)
{
    (void)state;
    uint64_t seed = 11;
    int rounds = getenv("AGENTD_SLOW") ? 1000000 : 3000;
    for (int round = 0; round < rounds; round++) {
        struct error e = {0};
        AUTO(buf) struct buf in = BUF_INIT(1 << 16);
        for (unsigned n = 1 + pick(&seed, 24); n--;)
            add_piece(&in, &seed);
        if (pick(&seed, 2))
            assert_ok(buf_add_str(&in, EOS, &e), &e);
        bool thinking = pick(&seed, 2);
        AUTO(record) struct record a = RECORD_INIT, b = RECORD_INIT, c = RECORD_INIT;
        parse_bytes(&a, thinking, buf_str(&in), in.len, 0, in.len);
        parse_bytes(&b, thinking, buf_str(&in), in.len, 0, 1);
        parse_bytes(&c, thinking, buf_str(&in), in.len, pick(&seed, (unsigned)in.len),
                    1 + pick(&seed, 9));
        assert_same(&a, &b, buf_str(&in));
        assert_same(&a, &c, buf_str(&in));
        if (shows_mark(&a))
            fail_msg("%s\n--- shows:\n%s", buf_str(&in), buf_str(&a.result));
    }
}

/* ---- stop strings
 * ---------------------------------------------------------------------------- */

static const char *const stops[] = {"STOP", "TOP!", "\n\nUser:", "é|"};

static struct chat_parser *stopping(struct record *r, bool thinking, bool literal)
{
    struct chat_parser_options o = {.thinking = thinking,
                                    .literal = literal,
                                    .stop = stops,
                                    .n_stop = sizeof stops / sizeof *stops,
                                    .on_event = on_event,
                                    .user = r};
    struct chat_parser *p = NULL;
    struct error e = {0};
    assert_ok(chat_parser_new(&p, &o, &e), &e);
    return p;
}

/* At every split: the same text and stop, and what was sent is exactly that text. */
static void check_stop(bool thinking, const char *output, const char *text, const char *stop)
{
    size_t n = strlen(output);
    for (size_t cut = 0; cut <= n; cut++)
        for (size_t step = 1; step <= n; step += step < 4 ? 1 : n) {
            AUTO(record) struct record r = RECORD_INIT;
            struct chat_parser *p = stopping(&r, thinking, true);
            struct error e = {0};
            for (size_t i = 0; i < n;) {
                size_t end = i + step < n ? i + step : n;
                if (i < cut && end > cut)
                    end = cut;
                assert_ok(chat_parser_feed(p, output + i, end - i, false, &e), &e);
                i = end;
            }
            assert_ok(chat_parser_finish(p, &e), &e);
            const char *have = chat_parser_stopped(p);
            if (strcmp(buf_str(chat_parser_text(p)), text) != 0 || !have != !stop ||
                (stop && strcmp(have, stop) != 0))
                fail_msg("%s\ntext \"%s\", stop %s", output, buf_str(chat_parser_text(p)),
                         have ? have : "none");
            AUTO(buf) struct buf want = BUF_INIT(1 << 12);
            assert_ok(buf_printf(&want, &e, "%s%s", *text ? "|text 0:" : "", text), &e);
            const char *sent = strstr(buf_str(&r.events), "|text 0:");
            const char *rest = sent ? strstr(sent + 1, "|begin") : NULL;
            size_t len = !sent ? 0 : rest ? (size_t)(rest - sent) : strlen(sent);
            if (len != want.len || (sent && memcmp(sent, buf_str(&want), len) != 0))
                fail_msg("%s\nsent \"%s\", want \"%s\"", output, sent, buf_str(&want));
            chat_parser_free(p);
        }
}

static void test_stop(void **state)
{
    (void)state;
    check_stop(false, "one STOP two", "one ", "STOP");
    check_stop(false, "one STO", "one STO", NULL); /* was held back, and comes out */
    check_stop(false, "one STO two", "one STO two", NULL);
    check_stop(false, "SSTOP", "S", "STOP");
    check_stop(false, "STOP", "", "STOP");
    check_stop(false, "a STOP! b", "a ", "STOP"); /* both match; the one that ends first */
    check_stop(false, "a TOP! b", "a ", "TOP!");
    check_stop(false, "a\n\nUser: b", "a", "\n\nUser:");
    check_stop(false, "a\n\nUsers", "a\n\nUsers", NULL);
    check_stop(false, "caf\xc3\xa9|x", "caf", "é|");
    check_stop(false, "caf\xc3\xa9 |x", "café |x", NULL);
    check_stop(true, "STOP</think>one STOP two", "one ", "STOP"); /* not in thinking */
    check_stop(false, "ST</think>OP x", "", "STOP"); /* what is dropped parts nothing */
    check_stop(false, "ST</｜DSML｜ parameter>OP x", "", "STOP");
    check_stop(false, "one STOP" CALLS(CALL("f", "")), "one ",
               "STOP"); /* no call comes of it */
    check_stop(false, "one" CALLS(CALL("f", STR("a", "STOP"))), "one", NULL); /* nor in calls */
    check_stop(false, "one ST" CALLS(CALL("f", "")), "one ST", NULL);
}

/* ---- the reference parser -------------------------------------------------------------------
 */

static void test_strict_golden(void **state)
{
    (void)state;
    json_auto_t *root = json_load_file(DIR "/cases.json", 0, NULL);
    const json_t *cases = json_object_get(root, "parse");
    assert_int_equal(json_array_size(cases), 6);
    for (size_t i = 0; i < json_array_size(cases); i++) {
        const json_t *c = json_array_get(cases, i);
        const char *in = json_string_value(json_object_get(c, "completion"));
        const char *mode = json_string_value(json_object_get(c, "thinking_mode"));
        json_auto_t *out = NULL;
        struct error e = {0};
        enum err rc = chat_strict_parse(in, strlen(in), !strcmp(mode, "thinking"), &out, &e);
        if (json_is_true(json_object_get(c, "error"))) {
            assert_int_equal(rc, ERR_FORMAT);
            continue;
        }
        assert_ok(rc, &e);
        assert_true(json_equal(out, json_object_get(c, "expected")));
    }
}

static void test_strict_errors(void **state)
{
    (void)state;
    static const char *const bad[] = {
        "a" EOS "b",
        "a",
        "<think>a" EOS,
        "｜DSML｜" EOS,
        CALLS(CALL("f", "")),
        CALLS(CALL("f", "")) "x" EOS,
        CALLS("x" CALL("f", "")) EOS,
        CALLS(CALL("f", STR("a", "1") STR("a", "2"))) EOS,
        CALLS(CALL("f", STR("a", "1") "x")) EOS,
        CALLS(CALL("f", OPEN("parameter name=\"a\" string=\"maybe\">") "v" CLOSE("parameter")))
            EOS,
        CALLS(OPEN("invoke>\n") CLOSE("invoke") "\n") EOS,
        "\n\n" OPEN("calls>\n") EOS,
        "\xff" EOS,
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        json_auto_t *out = NULL;
        struct error e = {0};
        if (chat_strict_parse(bad[i], strlen(bad[i]), false, &out, &e) != ERR_FORMAT)
            fail_msg("%s: accepted", bad[i]);
        assert_null(out);
    }
}

/* What the strict parser accepts, the lenient one reads alike (but for newlines at the edges).
 */
static void test_strict_and_lenient_agree(void **state)
{
    (void)state;
    static const char in[] = "why</think>so" CALLS(
        CALL("f", STR("a", "x\ny") RAW("b", "{\"c\": [1]}")) CALL("g", "")) EOS;
    json_auto_t *strict = NULL;
    struct error e = {0};
    assert_ok(chat_strict_parse(in, strlen(in), true, &strict, &e), &e);
    struct record r = RECORD_INIT;
    struct chat_parser *p = new_parser(&r, true, true);
    assert_ok(chat_parser_feed(p, in, strlen(in), false, &e), &e);
    const json_t *calls = json_object_get(strict, "tool_calls");
    assert_int_equal(json_array_size(calls), chat_parser_n_calls(p));
    for (uint32_t i = 0; i < chat_parser_n_calls(p); i++) {
        const json_t *f = json_object_get(json_array_get(calls, i), "function");
        const struct chat_call *c = chat_parser_call(p, i);
        assert_string_equal(c->name, json_string_value(json_object_get(f, "name")));
        assert_string_equal(c->arguments, json_string_value(json_object_get(f, "arguments")));
    }
    finish(&r, p);
    record_fini(&r);
}

static int open_golden(void **state)
{
    struct tokenizer *t = NULL;
    struct error e = {0};
    assert_ok(tokenizer_open(&t, DIR, &e), &e);
    *state = t;
    return 0;
}

static int close_golden(void **state)
{
    tokenizer_free(*state);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_vllm_53227_sglang_40236_llama_cpp_28612_generic_agent_804_faults),
        cmocka_unit_test(test_plain_spellings_are_text),
        cmocka_unit_test(test_eos),
        cmocka_unit_test(test_borders),
        cmocka_unit_test(test_limits),
        cmocka_unit_test(test_endless),
        cmocka_unit_test(test_refused_events),
        cmocka_unit_test(test_stop),
        cmocka_unit_test(test_vllm_54686_56184_random_shapes),
        cmocka_unit_test(test_strict_golden),
        cmocka_unit_test(test_strict_errors),
        cmocka_unit_test(test_strict_and_lenient_agree),
    };
    return !!cmocka_run_group_tests(tests, open_golden, close_golden);
}
