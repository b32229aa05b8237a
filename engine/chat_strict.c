#include "engine/chat_strict.h"

#include <string.h>

#include "engine/pyjson.h"
#include "engine/unicode.h"

#define EOS "<｜end▁of▁sentence｜>"
#define THINK_END "</think>"
#define CALLS_START "\n\n<｜DSML｜ calls"
#define CALLS_END "</｜DSML｜ calls>"
#define INVOKE "<｜DSML｜ invoke"
#define INVOKE_END "</｜DSML｜ invoke"
#define PARAMETER "<｜DSML｜ parameter"
#define PARAMETER_END "</｜DSML｜ parameter"

struct strict {
    const char *start, *p, *end;
    struct error *e;
};

struct span {
    const char *p;
    size_t n;
};

static enum err fail(const struct strict *s, const char *why)
{
    return err_set(s->e, ERR_FORMAT, "byte %zu: %s", (size_t)(s->p - s->start), why);
}

static enum err no_memory(const struct strict *s)
{
    return err_set(s->e, ERR_NOMEM, "no memory for the message");
}

/* Moves to the nearest of the stops (NULL ends the list), or to the end; what lies before it is
 * *before. The stop is passed and returned, or NULL at the end. */
static const char *read_until(struct strict *s, const char *const *stops, struct span *before)
{
    const char *best = NULL, *at = s->end;
    for (; *stops; stops++) {
        const char *hit = memmem(s->p, (size_t)(s->end - s->p), *stops, strlen(*stops));
        if (hit && hit < at) {
            at = hit;
            best = *stops;
        }
    }
    *before = (struct span){s->p, (size_t)(at - s->p)};
    s->p = at + (best ? strlen(best) : 0);
    return best;
}

static bool span_is(struct span s, const char *text)
{
    return s.n == strlen(text) && !memcmp(s.p, text, s.n);
}

/* Takes a literal text off the front. */
static bool span_take(struct span *s, const char *text)
{
    size_t n = strlen(text);
    if (s->n < n || memcmp(s->p, text, n))
        return false;
    s->p += n;
    s->n -= n;
    return true;
}

/* Takes everything up to the first occurrence of text, and that too. */
static bool span_take_until(struct span *s, const char *text, struct span *before)
{
    const char *hit = memmem(s->p, s->n, text, strlen(text));
    if (!hit)
        return false;
    *before = (struct span){s->p, (size_t)(hit - s->p)};
    s->n -= before->n + strlen(text);
    s->p = hit + strlen(text);
    return true;
}

/* One parameter, from behind its opening mark to behind its closing one. keys guards against
 * a second one of the same name. */
static enum err read_parameter(struct strict *s, json_t *keys, struct buf *arguments)
{
    static const char *const stops[] = {PARAMETER_END, NULL};
    struct span inside, name, value;
    if (!read_until(s, stops, &inside))
        return fail(s, "a parameter without end");
    if (!span_take(&inside, " name=\"") || !span_take_until(&inside, "\" string=\"", &name))
        return fail(s, "a parameter without name and string");
    bool is_string = span_take(&inside, "true\">");
    if (!is_string && !span_take(&inside, "false\">"))
        return fail(s, "a parameter whose string attribute is neither true nor false");
    value = inside;
    if (json_object_getn(keys, name.p, name.n))
        return fail(s, "the same parameter twice");
    if (memchr(name.p, 0, name.n))
        return fail(s, "a NUL byte in a parameter name");
    if (json_object_setn_new(keys, name.p, name.n, json_true()))
        return no_memory(s);
    enum err rc = arguments->len > 1 ? buf_add_str(arguments, ", ", s->e) : OK;
    if (!rc)
        rc = pyjson_string(name.p, name.n, arguments, s->e);
    if (!rc)
        rc = buf_add_str(arguments, ": ", s->e);
    if (!rc)
        rc = is_string ? pyjson_string(value.p, value.n, arguments, s->e)
                       : buf_add(arguments, value.p, value.n, s->e);
    return rc;
}

/* One call, from behind its opening mark to behind its closing one. */
static enum err read_call(struct strict *s, json_t *calls)
{
    static const char *const stops[] = {PARAMETER, INVOKE_END, NULL};
    struct span head, name, between;
    const char *stop = read_until(s, stops, &head);
    if (!stop)
        return fail(s, "a call without end");
    if (!span_take(&head, " name=\"") || !span_take_until(&head, "\">\n", &name) ||
        !(head.n == 0 || span_is(head, "\n")))
        return fail(s, "a call without a proper name");
    json_auto_t *keys = json_object();
    AUTO(buf) struct buf arguments = BUF_INIT(SIZE_MAX / 4);
    enum err rc = keys ? buf_add_str(&arguments, "{", s->e) : no_memory(s);
    while (!rc && stop && !strcmp(stop, PARAMETER)) {
        if ((rc = read_parameter(s, keys, &arguments)))
            return rc;
        stop = read_until(s, stops, &between);
        if (!stop || !span_is(between, ">\n"))
            return fail(s, "text between parameters");
    }
    if (!rc)
        rc = buf_add_str(&arguments, "}", s->e);
    if (rc)
        return rc;
    json_t *call = json_pack("{s:s,s:{s:s%,s:s%}}", "type", "function", "function", "name",
                             name.p, name.n, "arguments", buf_str(&arguments), arguments.len);
    return !call || json_array_append_new(calls, call) ? no_memory(s) : OK;
}

static enum err read_calls(struct strict *s, json_t *calls)
{
    static const char *const stops[] = {INVOKE, CALLS_END, NULL};
    for (;;) {
        struct span between;
        const char *stop = read_until(s, stops, &between);
        if (!stop)
            return fail(s, "a call block without end");
        if (!span_is(between, ">\n"))
            return fail(s, "text between calls");
        if (!strcmp(stop, CALLS_END))
            return OK;
        enum err rc = read_call(s, calls);
        if (rc)
            return rc;
    }
}

/* Special tokens of the format have no place in what is shown. */
static enum err check_text(const struct strict *s, struct span text)
{
    static const char *const banned[] = {"<｜begin▁of▁sentence｜>", EOS, "<think>", THINK_END,
                                         "｜DSML｜"};
    for (size_t i = 0; i < sizeof banned / sizeof banned[0]; i++)
        if (memmem(text.p, text.n, banned[i], strlen(banned[i])))
            return err_set(s->e, ERR_FORMAT, "%s in the text", banned[i]);
    return OK;
}

enum err chat_strict_parse(const void *bytes, size_t n, bool thinking, json_t **out,
                           struct error *e)
{
    static const char *const think_stops[] = {THINK_END, CALLS_START, NULL};
    static const char *const text_stops[] = {EOS, CALLS_START, NULL};
    static const char *const eos_stops[] = {EOS, NULL};
    struct strict s = {bytes, bytes, (const char *)bytes + n, e};
    if (!utf8_is_valid(bytes, n))
        return err_set(e, ERR_FORMAT, "not UTF-8");
    struct span reasoning = {"", 0}, content, rest;
    if (thinking) {
        const char *stop = read_until(&s, think_stops, &reasoning);
        if (!stop || strcmp(stop, THINK_END))
            return fail(&s, "reasoning without </think>");
    }
    json_auto_t *calls = json_array();
    const char *stop = read_until(&s, text_stops, &content);
    enum err rc = calls ? OK : no_memory(&s);
    if (!rc && stop && !strcmp(stop, CALLS_START)) {
        rc = read_calls(&s, calls);
        stop = rc ? NULL : read_until(&s, eos_stops, &rest);
        if (!rc && rest.n)
            return fail(&s, "text behind the call block");
    }
    if (!rc && !stop)
        return fail(&s, "no end of sentence");
    if (!rc && s.p != s.end)
        return fail(&s, "text behind the end of sentence");
    if (!rc)
        rc = check_text(&s, content);
    if (!rc)
        rc = check_text(&s, reasoning);
    if (rc)
        return rc;
    json_t *result =
        json_pack("{s:s,s:s%,s:s%,s:O}", "role", "assistant", "content", content.p, content.n,
                  "reasoning_content", reasoning.p, reasoning.n, "tool_calls", calls);
    if (!result)
        return no_memory(&s);
    *out = result;
    return OK;
}
