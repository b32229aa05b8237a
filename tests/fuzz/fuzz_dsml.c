/* engine/chat_parser: whatever the output and however it is cut, the same calls, text and
 * events come out; complete calls have JSON arguments; no mark is shown; what the strict parser
 * accepts, the lenient one reads as the same calls. The first byte chooses the mode and the
 * chunks. */
#include <stdlib.h>
#include <string.h>

#include "engine/chat_parser.h"
#include "engine/chat_strict.h"
#include "engine/pyjson.h"
#include "engine/unicode.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define MAX_INPUT (1u << 16)

struct seen {
    struct buf text, thinking, args;
    uint32_t n_ended;
};

static void seen_fini(struct seen *s)
{
    buf_fini(&s->text);
    buf_fini(&s->thinking);
    buf_fini(&s->args);
}

static void require(bool holds)
{
    if (!holds)
        abort();
}

static enum err on_event(void *user, const struct chat_event *ev, struct error *e)
{
    struct seen *s = user;
    if (ev->kind == CHAT_CALL_BEGIN || ev->kind == CHAT_CALL_END) {
        require(ev->call == s->n_ended);
        s->n_ended += ev->kind == CHAT_CALL_END;
        return OK;
    }
    struct buf *b = ev->kind == CHAT_TEXT       ? &s->text
                    : ev->kind == CHAT_THINKING ? &s->thinking
                                                : &s->args;
    return buf_add(b, ev->bytes, ev->n, e);
}

static struct chat_parser *parse(struct seen *s, const uint8_t *data, size_t size,
                                 bool thinking, size_t chunk)
{
    struct chat_parser_options o = {
        .thinking = thinking, .literal = true, .on_event = on_event, .user = s};
    struct chat_parser *p = NULL;
    require(!chat_parser_new(&p, &o, NULL));
    for (size_t i = 0; i < size; i += chunk)
        require(
            !chat_parser_feed(p, data + i, size - i < chunk ? size - i : chunk, false, NULL));
    require(!chat_parser_finish(p, NULL));
    return p;
}

static bool equal(const struct buf *a, const struct buf *b)
{
    return a->len == b->len && !memcmp(buf_str(a), buf_str(b), a->len);
}

static void check_events(const struct chat_parser *p, const struct seen *s)
{
    require(equal(chat_parser_text(p), &s->text) &&
            equal(chat_parser_thinking(p), &s->thinking));
    require(s->n_ended == chat_parser_n_calls(p));
    size_t at = 0;
    for (uint32_t i = 0; i < s->n_ended; i++) {
        const struct chat_call *c = chat_parser_call(p, i);
        require(at + c->arguments_len <= s->args.len);
        require(!memcmp(buf_str(&s->args) + at, c->arguments, c->arguments_len));
        require(!c->is_complete || pyjson_valid(c->arguments, c->arguments_len));
        require(utf8_is_valid((const uint8_t *)c->name, strlen(c->name)));
        at += c->arguments_len;
    }
    require(at == s->args.len);
    /* What is dropped out of the middle of a text may leave two halves of a mark side by side.
     */
    const uint32_t *problems = chat_parser_problems(p);
    if (problems[CHAT_STRAY_THINK] || problems[CHAT_STRAY_SPECIAL] ||
        problems[CHAT_STRAY_CLOSE])
        return;
    require(!memmem(buf_str(&s->text), s->text.len, "｜DSML｜", strlen("｜DSML｜")));
    require(!memmem(buf_str(&s->thinking), s->thinking.len, "｜DSML｜", strlen("｜DSML｜")));
}

static void check_strict(const struct chat_parser *p, const json_t *strict)
{
    const json_t *calls = json_object_get(strict, "tool_calls");
    const uint32_t *problems = chat_parser_problems(p);
    for (uint32_t i = 0; i < CHAT_N_PROBLEMS; i++)
        if (problems[i])
            return; /* the reference lets some through that the lenient parser repairs */
    require(json_array_size(calls) == chat_parser_n_calls(p));
    for (uint32_t i = 0; i < chat_parser_n_calls(p); i++) {
        const json_t *f = json_object_get(json_array_get(calls, i), "function");
        require(!strcmp(json_string_value(json_object_get(f, "name")),
                        chat_parser_call(p, i)->name));
    }
}

#define SEEN_INIT                                                                              \
    {                                                                                          \
        BUF_INIT(8 * MAX_INPUT), BUF_INIT(8 * MAX_INPUT), BUF_INIT(64 * MAX_INPUT), 0          \
    }

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (!size || size > MAX_INPUT)
        return 0;
    bool thinking = data[0] & 1;
    size_t chunk = 1 + (data[0] >> 1);
    AUTO(seen) struct seen a = SEEN_INIT, b = SEEN_INIT;
    struct chat_parser *p = parse(&a, data + 1, size - 1, thinking, size);
    struct chat_parser *q = parse(&b, data + 1, size - 1, thinking, chunk);
    check_events(p, &a);
    check_events(q, &b);
    require(equal(&a.text, &b.text) && equal(&a.thinking, &b.thinking) &&
            equal(&a.args, &b.args));
    require(!memcmp(chat_parser_problems(p), chat_parser_problems(q),
                    CHAT_N_PROBLEMS * sizeof(uint32_t)));
    json_auto_t *strict = NULL;
    if (!chat_strict_parse(data + 1, size - 1, thinking, &strict, NULL))
        check_strict(p, strict);
    chat_parser_free(p);
    chat_parser_free(q);
    return 0;
}
