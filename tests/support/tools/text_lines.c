/* text_lines MODEL: the text side of the engine over JSON lines, for tests/reference. Each line
 * of stdin is an object and gets one of stdout:
 *
 *     {"text": S}                             {"ids": plain, "special": with added tokens
 * matched}
 *     {"messages": [...], "thinking": bool, "drop": bool, "effort": N}   {"text", "ids"}
 *
 * or {"error": message}. */
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "engine/chat.h"
#include "engine/tokenizer.h"

#define MAX_BYTES (1u << 20)

struct context {
    struct tokenizer *tokenizer;
    struct chat_ids ids;
};

static json_t *list_of(const struct ids *ids)
{
    json_t *list = json_array();
    for (size_t i = 0; i < ids->n; i++)
        json_array_append_new(list, json_integer(ids->v[i]));
    return list;
}

static enum err tokenize(const struct context *c, const json_t *in, json_t **out,
                         struct error *e)
{
    AUTO(ids) struct ids plain = IDS_INIT(MAX_BYTES), special = IDS_INIT(MAX_BYTES);
    const json_t *text = json_object_get(in, "text");
    const char *s = json_string_value(text);
    size_t n = json_string_length(text);
    enum err rc = tokenizer_encode(c->tokenizer, s, n, &plain, e);
    if (!rc)
        rc = tokenizer_encode_special(c->tokenizer, s, n, &special, e);
    if (!rc)
        *out = json_pack("{s:o, s:o}", "ids", list_of(&plain), "special", list_of(&special));
    return rc;
}

static enum err render(const struct context *c, const json_t *in, json_t **out, struct error *e)
{
    AUTO(prompt) struct prompt p = PROMPT_INIT(MAX_BYTES);
    AUTO(buf) struct buf text = BUF_INIT(2 * MAX_BYTES);
    AUTO(ids) struct ids ids = IDS_INIT(MAX_BYTES);
    struct chat_options o = {.thinking = json_is_true(json_object_get(in, "thinking")),
                             .drop_thinking = json_is_true(json_object_get(in, "drop"))};
    enum err rc = chat_effort(json_object_get(in, "effort"), &o.effort, e);
    if (rc || (rc = chat_render(&c->ids, json_object_get(in, "messages"), &o, &p, e)) ||
        (rc = prompt_text(&p, c->tokenizer, &text, e)) ||
        (rc = prompt_ids(&p, c->tokenizer, &ids, e)))
        return rc;
    *out = json_pack("{s:s%, s:o}", "text", buf_str(&text), text.len, "ids", list_of(&ids));
    return OK;
}

static void answer(const struct context *c, const char *line, size_t n)
{
    const struct json_limits limits = {
        .max_bytes = MAX_BYTES, .max_depth = 64, .allow_nul = true};
    json_auto_t *in = NULL, *out = NULL;
    struct error e = {0};
    enum err rc = json_parse(line, n, &limits, &in, &e);
    if (!rc)
        rc = json_object_get(in, "messages") ? render(c, in, &out, &e)
                                             : tokenize(c, in, &out, &e);
    if (rc || !out)
        out = json_pack("{s:s}", "error", rc ? e.msg : "no answer");
    json_dumpf(out, stdout, JSON_COMPACT | JSON_ENSURE_ASCII);
    putchar('\n');
}

int main(int argc, char **argv)
{
    struct context c = {0};
    struct error e = {0};
    if (argc != 2) {
        fprintf(stderr, "usage: text_lines MODEL < requests\n");
        return 2;
    }
    if (tokenizer_open(&c.tokenizer, argv[1], &e) || chat_ids_find(&c.ids, c.tokenizer, &e)) {
        fprintf(stderr, "text_lines: %s\n", e.msg);
        return 1;
    }
    char *line = NULL;
    size_t cap = 0;
    for (ssize_t n; (n = getline(&line, &cap, stdin)) > 0;)
        answer(&c, line, (size_t)n - (line[n - 1] == '\n'));
    free(line);
    tokenizer_free(c.tokenizer);
    return 0;
}
