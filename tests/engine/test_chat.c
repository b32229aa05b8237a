/* engine/chat: the golden conversations byte by byte; text never becomes a special id; segments
 * and runs put together are the whole conversation. */
#include "tests/support/test.h"

#include <jansson.h>

#include "engine/chat.h"
#include "engine/pyjson.h"

#define DIR GOLDEN "e_encoding"

struct fixture {
    struct tokenizer *t;
    struct chat_ids ids;
};

static int set_up(void **state)
{
    static struct fixture f;
    struct error e = {0};
    assert_ok(tokenizer_open(&f.t, DIR, &e), &e);
    assert_ok(chat_ids_find(&f.ids, f.t, &e), &e);
    *state = &f;
    return 0;
}

static int tear_down(void **state)
{
    tokenizer_free(((struct fixture *)*state)->t);
    return 0;
}

/* ---- golden -------------------------------------------------------------------------------
 */

static enum err render(const struct fixture *f, const json_t *c, struct prompt *out,
                       struct error *e)
{
    struct chat_options o = {.drop_thinking =
                                 !json_is_false(json_object_get(c, "drop_thinking"))};
    const char *mode = json_string_value(json_object_get(c, "thinking_mode"));
    o.thinking = mode && !strcmp(mode, "thinking");
    enum err rc = chat_effort(json_object_get(c, "reasoning_effort"), &o.effort, e);
    return rc ? rc : chat_render(&f->ids, json_object_get(c, "messages"), &o, out, e);
}

static json_t *load_cases(const char *kind)
{
    json_auto_t *cases = json_load_file(DIR "/cases.json", 0, NULL);
    return json_incref(json_object_get(cases, kind));
}

/* The text, and the ids of the reference: those of the rendered string with added tokens
 * matched, as no golden content holds the text of one. */
static void test_golden(void **state)
{
    const struct fixture *f = *state;
    json_auto_t *cases = load_cases("encode");
    assert_int_equal(json_array_size(cases), 19);
    size_t i;
    json_t *c;
    json_array_foreach(cases, i, c) {
        const char *want = json_string_value(json_object_get(c, "expected"));
        struct error e = {0};
        AUTO(prompt) struct prompt p = PROMPT_INIT(1 << 20);
        AUTO(buf) struct buf text = BUF_INIT(1 << 20);
        AUTO(ids) struct ids ids = IDS_INIT(1 << 20), reference = IDS_INIT(1 << 20);
        assert_ok(render(f, c, &p, &e), &e);
        assert_ok(prompt_text(&p, f->t, &text, &e), &e);
        assert_string_equal(buf_str(&text), want);
        assert_ok(prompt_ids(&p, f->t, &ids, &e), &e);
        assert_ok(tokenizer_encode_special(f->t, want, strlen(want), &reference, &e), &e);
        assert_int_equal(ids.n, reference.n);
        assert_memory_equal(ids.v, reference.v, ids.n * sizeof *ids.v);
    }
}

/* ---- what the golden cases leave out --------------------------------------------------------
 */

static void assert_renders(const struct fixture *f, const char *json, const char *want)
{
    json_error_t why;
    json_auto_t *c = json_loads(json, JSON_ALLOW_NUL, &why);
    if (!c)
        fail_msg("%s: %s", json, why.text);
    struct error e = {0};
    AUTO(prompt) struct prompt p = PROMPT_INIT(1 << 20);
    AUTO(buf) struct buf text = BUF_INIT(1 << 20);
    assert_ok(render(f, c, &p, &e), &e);
    assert_ok(prompt_text(&p, f->t, &text, &e), &e);
    assert_string_equal(buf_str(&text), want);
}

#define BOS "<｜begin▁of▁sentence｜>"
#define EOS "<｜end▁of▁sentence｜>"
#define SYS "<｜System｜>"
#define USER "<｜User｜>"
#define ASK "<｜Assistant｜>"
#define EFFORT(n)                                                                              \
    "Reasoning Effort: " n                                                                     \
    " (range 1-100, the higher the value, the more thorough the reasoning)\n\n"

static void test_roles_and_tasks(void **state)
{
    const struct fixture *f = *state;
    assert_renders(
        f,
        "{\"messages\": [{\"role\": \"user\", \"content\": \"a\", \"task\": \"title\"},"
        "{\"role\": \"assistant\", \"content\": \"T\", \"reasoning_content\": \"r\"},"
        "{\"role\": \"user\", \"content\": \"b\"}], \"thinking_mode\": \"thinking\","
        "\"drop_thinking\": false, \"reasoning_effort\": \"low\"}",
        BOS SYS EFFORT("50") USER "a<｜title｜>T" EOS USER "b" ASK "<think>");
    /* A task ends the user turn; a task on a later message of the turn is kept. */
    assert_renders(
        f,
        "{\"messages\": [{\"role\": \"user\", \"content\": \"a\", \"task\": \"query\"},"
        "{\"role\": \"user\", \"content\": \"b\"},"
        "{\"role\": \"user\", \"content\": \"c\", \"task\": \"action\"}],"
        "\"thinking_mode\": \"chat\"}",
        BOS USER "a" USER "b\n\nc" ASK "</think><｜action｜>");
    /* Content in parts, no content, an assistant turn without a user before it. */
    assert_renders(f,
                   "{\"messages\": [{\"role\": \"assistant\", \"content\": null},"
                   "{\"role\": \"user\", \"content\": [{\"type\": \"text\", \"text\": \"x\"},"
                   "{\"type\": \"file\"}]}]}",
                   BOS EOS USER "x\n\n[Unsupported file]" ASK "</think>");
    /* Thinking kept: the empty reasoning still closes, in the middle too. */
    assert_renders(
        f,
        "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"},"
        "{\"role\": \"assistant\", \"content\": \"b\"},"
        "{\"role\": \"system\", \"content\": \"rule\"},"
        "{\"role\": \"assistant\", \"content\": \"c\", \"reasoning_content\": \"r\"},"
        "{\"role\": \"user\", \"content\": \"d\"}], \"thinking_mode\": \"thinking\","
        "\"drop_thinking\": false, \"reasoning_effort\": 1}",
        BOS SYS EFFORT("1") USER "a" ASK "<think></think>b" EOS SYS "rule" ASK
                                 "<think>r</think>c" EOS USER "d" ASK "<think>");
}

static void test_results_in_call_order(void **state)
{
    assert_renders(*state,
                   "{\"messages\": [{\"role\": \"user\", \"content\": \"q\"},"
                   "{\"role\": \"assistant\", \"content\": \"\", \"tool_calls\": ["
                   "{\"id\": \"a\", \"function\": {\"name\": \"f\", \"arguments\": {}}},"
                   "{\"id\": \"b\", \"function\": {\"name\": \"g\", \"arguments\": {}}}]},"
                   "{\"role\": \"tool\", \"tool_call_id\": \"b\", \"content\": \"B\"},"
                   "{\"role\": \"user\", \"content\": \"between\"},"
                   "{\"role\": \"tool\", \"tool_call_id\": \"a\", \"content\": \"A\"},"
                   "{\"role\": \"tool\", \"tool_call_id\": \"?\", \"content\": \"unknown\"}]}",
                   BOS USER
                   "q" ASK "</think>\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"f\">\n\n"
                   "</｜DSML｜ invoke>\n<｜DSML｜ invoke name=\"g\">\n\n</｜DSML｜ invoke>\n"
                   "</｜DSML｜ calls>" EOS USER "<tool_result>A</tool_result>\n\nbetween\n\n"
                   "<tool_result>unknown</tool_result>\n\n<tool_result>B</tool_result>" ASK
                   "</think>");
}

static void assert_arguments(const struct fixture *f, const char *arguments, const char *want)
{
    AUTO(buf) struct buf json = BUF_INIT(1 << 16), text = BUF_INIT(1 << 16);
    struct error e = {0};
    assert_ok(buf_printf(&json, &e,
                         "{\"messages\": [{\"role\": \"assistant\", \"tool_calls\": "
                         "[{\"function\": {\"name\": \"f\", \"arguments\": %s}}]}]}",
                         arguments),
              &e);
    assert_ok(buf_printf(&text, &e,
                         BOS "\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"f\">\n%s\n"
                             "</｜DSML｜ invoke>\n</｜DSML｜ calls>" EOS,
                         want),
              &e);
    assert_renders(f, buf_str(&json), buf_str(&text));
}

#define PARAM(name, string, value)                                                             \
    "<｜DSML｜ parameter name=\"" name "\" string=\"" string "\">" value "</｜DSML｜ "       \
    "parameter>"

static void test_arguments(void **state)
{
    const struct fixture *f = *state;
    assert_arguments(
        f, "{\"z\": 1.0, \"a\": [1e100, -0.5, 1e-7]}",
        PARAM("z", "false", "1.0") "\n" PARAM("a", "false", "[1e+100, -0.5, 1e-07]"));
    assert_arguments(f, "\"{\\\"k\\\": \\\"a\\\\n\\\\u0001\\\"}\"",
                     PARAM("k", "true", "a\n\x01"));
    assert_arguments(f, "\"\\\"{\\\\\\\"k\\\\\\\": true}\\\"\"", PARAM("k", "false", "true"));
    assert_arguments(f, "\"no json\"", PARAM("arguments", "true", "no json"));
    assert_arguments(f, "\"[1]\"", PARAM("arguments", "true", "[1]"));
    assert_arguments(f, "[1, \"é\"]", PARAM("arguments", "false", "[1, \"é\"]"));
    assert_arguments(f, "null", PARAM("arguments", "false", "null"));
}

static void test_errors(void **state)
{
    static const char *const cases[][2] = {
        {"{\"messages\": []}", "messages: want an array"},
        {"{\"messages\": [{\"role\": \"developer\"}]}",
         "messages[0]: role: \"developer\" is none"},
        {"{\"messages\": [{\"role\": \"user\", \"content\": 1}]}", "messages[0]: content"},
        {"{\"messages\": [{\"role\": \"user\", \"task\": \"x\"}]}", "messages[0]: task"},
        {"{\"messages\": [{\"role\": \"tool\", \"task\": \"query\"}]}", "messages[0]: task"},
        {"{\"messages\": [{\"role\": \"user\", \"tools\": [1]}]}", "messages[0]: tools"},
        {"{\"messages\": [{\"role\": \"system\", \"tools\": [1]}]}",
         "tools[0]: want an object"},
        {"{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"image_url\"}]}]}",
         "images"},
        {"{\"messages\": [{\"role\": \"assistant\", \"tool_calls\": [{}]}]}", "tool_calls[0]"},
        {"{\"messages\": [{\"role\": \"assistant\", \"tool_calls\": [{\"function\": {\"name\": "
         "\"f\", \"arguments\": \"{\\\"n\\\": 99999999999999999999}\"}}]}]}",
         "too big"},
        {"{\"messages\": [{\"role\": \"user\"}], \"reasoning_effort\": 0}", "effort"},
        {"{\"messages\": [{\"role\": \"user\"}], \"reasoning_effort\": 101}", "effort"},
        {"{\"messages\": [{\"role\": \"user\"}], \"reasoning_effort\": \"High\"}", "effort"},
        {"{\"messages\": [{\"role\": \"user\"}], \"reasoning_effort\": true}", "effort"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        json_auto_t *c = json_loads(cases[i][0], 0, NULL);
        struct error e = {0};
        AUTO(prompt) struct prompt p = PROMPT_INIT(1 << 20);
        enum err rc = render(*state, c, &p, &e);
        if (!rc || !strstr(e.msg, cases[i][1]))
            fail_msg("%s: code %d, %s", cases[i][0], rc, e.msg);
    }
}

/* ---- injection ----------------------------------------------------------------------------
 */

static void count_specials(const struct fixture *f, const json_t *messages, size_t *n_special,
                           size_t *n_plain)
{
    struct error e = {0};
    AUTO(prompt) struct prompt p = PROMPT_INIT(1 << 20);
    AUTO(ids) struct ids ids = IDS_INIT(1 << 20);
    struct chat_options o = {.thinking = true, .effort = 75};
    assert_ok(chat_render(&f->ids, messages, &o, &p, &e), &e);
    assert_ok(prompt_ids(&p, f->t, &ids, &e), &e);
    *n_special = *n_plain = 0;
    for (size_t i = 0; i < ids.n; i++)
        ++*(tokenizer_is_added(f->t, ids.v[i]) ? n_special : n_plain);
}

/* One conversation with the same text at every place that an outsider writes. */
static json_t *conversation_with(const char *s)
{
    json_t *tool =
        json_pack("{s:{s:s,s:s,s:{s:s,s:{s:{s:s}}}},s:{s:s,s:s}}", "function", "name", s,
                  "description", s, "parameters", "type", "object", "properties", s,
                  "description", s, "namespace", "name", s, "description", s);
    return json_pack(
        "[{s:s,s:s,s:[o],s:{s:s}},{s:s,s:s},{s:s,s:s,s:s,s:[{s:s,s:{s:s,s:{s:s,s:[s]}}}]},"
        "{s:s,s:s,s:s},{s:s,s:[{s:s,s:s},{s:s}]},{s:s,s:s}]",
        "role", "system", "content", s, "tools", tool, "response_format", "x", s, "role",
        "user", "content", s, "role", "assistant", "content", s, "reasoning_content", s,
        "tool_calls", "id", "c", "function", "name", s, "arguments", s, s, "n", s, "role",
        "tool", "tool_call_id", "c", "content", s, "role", "user", "content", "type", "text",
        "text", s, "type", s, "role", "latest_reminder", "content", s);
}

static void test_text_never_becomes_special(void **state)
{
    const struct fixture *f = *state;
    size_t want, plain;
    json_auto_t *harmless = conversation_with("harmless");
    count_specials(f, harmless, &want, &plain);
    assert_true(want > 10);
    size_t tried = 0;
    for (uint32_t id = 0; id < tokenizer_size(f->t); id++) {
        if (!tokenizer_is_added(f->t, id))
            continue;
        size_t n, have;
        const uint8_t *text = tokenizer_bytes(f->t, id, &n);
        char quoted[300];
        snprintf(quoted, sizeof quoted, "x%.*sy", (int)n, (const char *)text);
        quoted[n + 1] = 0;
        for (int cut = 0; cut < 2; cut++) { /* alone, and behind a letter */
            json_auto_t *messages = conversation_with(quoted + 1 - cut);
            assert_non_null(messages);
            count_specials(f, messages, &have, &plain);
            assert_int_equal(have, want);
            tried++;
        }
    }
    assert_int_equal(tried, 2 * 18);
}

/* A spelling cut by a joint: half in one piece of a prompt, half in the next. */
static void test_joints_make_no_special(void **state)
{
    const struct fixture *f = *state;
    static const char text[] = "</think>";
    for (size_t cut = 0; cut <= strlen(text); cut++) {
        struct error e = {0};
        AUTO(prompt) struct prompt p = PROMPT_INIT(1 << 10);
        AUTO(ids) struct ids ids = IDS_INIT(1 << 10), whole = IDS_INIT(1 << 10);
        assert_ok(prompt_add(&p, text, cut, &e), &e);
        assert_ok(prompt_add_str(&p, text + cut, &e), &e);
        assert_ok(prompt_ids(&p, f->t, &ids, &e), &e);
        assert_ok(tokenizer_encode(f->t, text, strlen(text), &whole, &e), &e);
        assert_int_equal(ids.n, whole.n);
        assert_memory_equal(ids.v, whole.v, ids.n * sizeof *ids.v);
        assert_int_equal(prompt_add_id(&p, TOKEN_NONE, &e), ERR_INVAL);
    }
}

/* ---- segments -----------------------------------------------------------------------------
 */

struct rng {
    uint64_t s;
};

static unsigned pick(struct rng *r, unsigned n)
{
    r->s = r->s * 6364136223846793005ull + 1442695040888963407ull;
    return (unsigned)(r->s >> 33) % n;
}

static const char *some_text(struct rng *r)
{
    static const char *const texts[] = {"",       "Hello",      "\n\n",           " the end ",
                                        "日本。", "</think>",   "<｜User｜>hi",   "{\"a\": 1}",
                                        "é\n",    "12345 678 ", "｜DSML｜ calls", "\t x"};
    return texts[pick(r, sizeof texts / sizeof texts[0])];
}

/* A session and the conversation that says the same. */
struct story {
    const struct fixture *f;
    struct rng rng;
    bool thinking, has_tools;
    struct ids tape;
    json_t *messages;
};

static void add_message(struct story *s, json_t *m)
{
    assert_int_equal(json_array_append_new(s->messages, m), 0);
}

static struct chat_segment begin_segment(struct story *s, const json_t *tools, bool is_first)
{
    struct chat_segment g = CHAT_SEGMENT_INIT(&s->f->ids, s->thinking, 1 << 20);
    struct error e = {0};
    if (!is_first)
        return g;
    const char *system = pick(&s->rng, 3) ? some_text(&s->rng) : NULL;
    struct chat_setup setup = {42, system, system ? strlen(system) : 0, tools};
    assert_ok(chat_segment_open(&g, &setup, &e), &e);
    if (tools)
        add_message(s, json_pack("{s:s,s:s?,s:O}", "role", "system", "content", system, "tools",
                                 tools));
    else if (system)
        add_message(s, json_pack("{s:s,s:s}", "role", "system", "content", system));
    return g;
}

/* The whole conversation so far; its ids must be the tape. */
static void assert_tape_is_conversation(const struct story *s)
{
    struct chat_options o = {.thinking = s->thinking, .drop_thinking = false, .effort = 42};
    struct error e = {0};
    AUTO(prompt) struct prompt p = PROMPT_INIT(1 << 20);
    AUTO(ids) struct ids ids = IDS_INIT(1 << 20);
    assert_ok(chat_render(&s->f->ids, s->messages, &o, &p, &e), &e);
    assert_ok(prompt_ids(&p, s->f->t, &ids, &e), &e);
    assert_int_equal(ids.n, s->tape.n);
    assert_memory_equal(ids.v, s->tape.v, ids.n * sizeof *ids.v);
}

static void add_blocks(struct story *s, struct chat_segment *g, unsigned n_results)
{
    struct error e = {0};
    for (unsigned i = 0; i < n_results; i++) {
        const char *text = some_text(&s->rng);
        char id[16];
        snprintf(id, sizeof id, "c%u", i);
        assert_ok(chat_segment_tool_result(g, text, strlen(text), &e), &e);
        add_message(
            s, json_pack("{s:s,s:s,s:s}", "role", "tool", "tool_call_id", id, "content", text));
    }
    for (unsigned n = n_results ? pick(&s->rng, 2) : 1 + pick(&s->rng, 2); n--;) {
        const char *text = some_text(&s->rng);
        assert_ok(chat_segment_user(g, text, strlen(text), &e), &e);
        add_message(s, json_pack("{s:s,s:s}", "role", "user", "content", text));
    }
    for (unsigned n = pick(&s->rng, 4) / 2; n--;) {
        const char *text = some_text(&s->rng);
        assert_ok(chat_segment_note(g, text, strlen(text), &e), &e);
        add_message(s, json_pack("{s:s,s:s}", "role", "system", "content", text));
    }
}

/* A run of the model: the ids that the reference has for it. Returns its number of calls; cut
 * is set when it ended without EOS (then in its thinking, or in its answer). */
static unsigned add_run(struct story *s, bool *cut, bool *thinking_open)
{
    struct error e = {0};
    struct prompt p = PROMPT_INIT(1 << 20);
    const struct chat_ids *ids = &s->f->ids;
    const char *reasoning = some_text(&s->rng), *content = some_text(&s->rng);
    json_t *m = json_pack("{s:s}", "role", "assistant");
    unsigned n_calls = pick(&s->rng, 3);
    *cut = pick(&s->rng, 4) == 0;
    *thinking_open = *cut && s->thinking && pick(&s->rng, 2);
    if (s->thinking) {
        json_object_set_new(m, "reasoning_content", json_string(reasoning));
        assert_ok(prompt_add_str(&p, reasoning, &e), &e);
        if (!*thinking_open)
            assert_ok(prompt_add_id(&p, ids->think_end, &e), &e);
    }
    if (!*thinking_open) {
        json_object_set_new(m, "content", json_string(content));
        assert_ok(prompt_add_str(&p, content, &e), &e);
    }
    n_calls = *cut ? 0 : n_calls;
    for (unsigned i = 0; i < n_calls; i++) {
        char id[16];
        snprintf(id, sizeof id, "c%u", i);
        json_t *call =
            json_pack("{s:s,s:{s:s,s:{}}}", "id", id, "function", "name", "f", "arguments");
        if (!i)
            json_object_set_new(m, "tool_calls", json_array());
        json_array_append_new(json_object_get(m, "tool_calls"), call);
    }
    if (n_calls) {
        const char *sep = "\n\n<";
        for (unsigned i = 0; i <= n_calls + 1; i++) {
            static const char *const tags[] = {" calls>\n<", " invoke name=\"f\">\n\n</",
                                               " calls>"};
            assert_ok(prompt_add_str(&p, sep, &e), &e);
            assert_ok(prompt_add_id(&p, ids->dsml, &e), &e);
            assert_ok(prompt_add_str(&p, tags[i == 0 ? 0 : i <= n_calls ? 1 : 2], &e), &e);
            sep = "";
            if (i && i <= n_calls) {
                assert_ok(prompt_add_id(&p, ids->dsml, &e), &e);
                assert_ok(prompt_add_str(&p, i < n_calls ? " invoke>\n<" : " invoke>\n</", &e),
                          &e);
            }
        }
    }
    if (!*cut)
        assert_ok(prompt_add_id(&p, ids->eos, &e), &e);
    assert_ok(prompt_ids(&p, s->f->t, &s->tape, &e), &e);
    prompt_fini(&p);
    add_message(s, m);
    return n_calls;
}

static void tell_story(const struct fixture *f, uint64_t seed, const json_t *some_tools)
{
    struct story s = {
        .f = f, .rng = {seed}, .tape = IDS_INIT(1 << 20), .messages = json_array()};
    s.thinking = pick(&s.rng, 2);
    s.has_tools = pick(&s.rng, 2);
    bool cut = false, thinking_open = false;
    unsigned n_results = 0;
    for (int turn = 0; turn < 6; turn++) {
        struct error e = {0};
        struct chat_segment g = begin_segment(&s, s.has_tools ? some_tools : NULL, turn == 0);
        if (cut)
            assert_ok(chat_segment_close_run(&g, thinking_open, &e), &e);
        add_blocks(&s, &g, n_results);
        assert_ok(chat_segment_finish(&g, f->t, &s.tape, &e), &e);
        chat_segment_fini(&g);
        assert_tape_is_conversation(&s);
        n_results = add_run(&s, &cut, &thinking_open);
        if (!cut)
            assert_tape_is_conversation(&s);
    }
    ids_fini(&s.tape);
    json_decref(s.messages);
}

/* Each check of a longer conversation against the same tape shows that the shorter one was its
 * beginning: nothing is ever rendered again in another way. */
static void test_segments_are_the_conversation(void **state)
{
    json_auto_t *tools = json_loads("[{\"type\": \"function\", \"function\": {\"name\": \"f\", "
                                    "\"parameters\": {\"type\": \"object\"}}},"
                                    "{\"name\": \"g\", \"description\": \"</think>\"}]",
                                    0, NULL);
    uint64_t n = getenv("AGENTD_SLOW") ? 20000 : 400;
    for (uint64_t seed = 1; seed <= n; seed++)
        tell_story(*state, seed * 7919, tools);
}

static void test_segment_needs_content(void **state)
{
    const struct fixture *f = *state;
    struct error e = {0};
    AUTO(chat_segment) struct chat_segment g = CHAT_SEGMENT_INIT(&f->ids, true, 1 << 10);
    AUTO(ids) struct ids out = IDS_INIT(100);
    assert_int_equal(chat_segment_finish(&g, f->t, &out, &e), ERR_INVAL);
    assert_int_equal(out.n, 0);
}

/* ---- JSON as Python writes it
 * ---------------------------------------------------------------- */

static void test_python_json(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"[1.0,-0.0,0.1,1e15,1e16,123456789012345680.0,1e-4,1e-5,1.5e300,5e-324]",
         "[1.0, -0.0, 0.1, 1000000000000000.0, 1e+16, 1.2345678901234568e+17, 0.0001, 1e-05, "
         "1.5e+300, 5e-324]"},
        {"[0.30000000000000004,2.5,100.0,9007199254740993.0,123.456]",
         "[0.30000000000000004, 2.5, 100.0, 9007199254740992.0, 123.456]"},
        {"{\"b\":[],\"a\":{},\"é\":null,\"t\":[true,false]}",
         "{\"b\": [], \"a\": {}, \"é\": null, \"t\": [true, false]}"},
        {"[\"\\u0001\\n\\r\\t\\b\\f\\\"\\\\/\\u007f\\u2028\"]",
         "[\"\\u0001\\n\\r\\t\\b\\f\\\"\\\\/\x7f\xe2\x80\xa8\"]"},
        {"[-9223372036854775808]", "[-9223372036854775808]"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        json_auto_t *v = json_loads(cases[i][0], 0, NULL);
        struct error e = {0};
        AUTO(buf) struct buf out = BUF_INIT(4096);
        assert_ok(pyjson_dump(v, &out, &e), &e);
        assert_string_equal(buf_str(&out), cases[i][1]);
    }
}

static void test_json_validity(void **state)
{
    (void)state;
    static const char *const good[] = {
        "1",       " -0.5e+10 ",       "\"a\\u00e9\\ud83d\\ude00\"",
        "[]",      "{\"a\": [1, {}]}", "123456789012345678901234",
        "\n null", "[ 1 , 2 ]",        "{ }"};
    static const char *const bad[] = {"",       "01",  "1.",       "+1",        "[1,]",
                                      "{a: 1}", "NaN", "\"\n\"",   "\"\\x\"",   "\"\\ud800\"",
                                      "[1",     "1 2", "\"\xff\"", "{\"a\" 1}", "tru",
                                      "\"",     "-",   "{,}"};
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++)
        assert_true(pyjson_valid(good[i], strlen(good[i])));
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_false(pyjson_valid(bad[i], strlen(bad[i])));
    char deep[1000];
    memset(deep, '[', sizeof deep);
    assert_false(pyjson_valid(deep, sizeof deep));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden),
        cmocka_unit_test(test_roles_and_tasks),
        cmocka_unit_test(test_results_in_call_order),
        cmocka_unit_test(test_arguments),
        cmocka_unit_test(test_errors),
        cmocka_unit_test(test_text_never_becomes_special),
        cmocka_unit_test(test_joints_make_no_special),
        cmocka_unit_test(test_segments_are_the_conversation),
        cmocka_unit_test(test_segment_needs_content),
        cmocka_unit_test(test_python_json),
        cmocka_unit_test(test_json_validity),
    };
    return !!cmocka_run_group_tests(tests, set_up, tear_down);
}
