#include "engine/chat_tag.h"

#include <string.h>

bool chat_tag_add(struct chat_tag_text *t, uint8_t byte)
{
    if (byte == '"')
        t->in_quotes = !t->in_quotes;
    if (!t->in_quotes && (byte == '>' || byte == '\n'))
        return true;
    t->bytes[t->n++] = byte;
    return t->n == sizeof t->bytes;
}

struct reader {
    const uint8_t *p, *end;
};

static bool take(struct reader *r, const char *word)
{
    size_t n = strlen(word);
    if ((size_t)(r->end - r->p) < n || memcmp(r->p, word, n))
        return false;
    r->p += n;
    return true;
}

static bool skip_bars(struct reader *r)
{
    const uint8_t *start = r->p;
    while (take(r, "｜") || take(r, "|")) {
    }
    return r->p > start;
}

static size_t skip_spaces(struct reader *r)
{
    const uint8_t *start = r->p;
    while (r->p < r->end && (*r->p == ' ' || *r->p == '\t' || *r->p == '\r'))
        r->p++;
    return (size_t)(r->p - start);
}

/* A run of letters and underscores. */
static size_t take_word(struct reader *r, const uint8_t **word)
{
    *word = r->p;
    while (r->p < r->end && (*r->p == '_' || ((*r->p | 0x20) >= 'a' && (*r->p | 0x20) <= 'z')))
        r->p++;
    return (size_t)(r->p - *word);
}

static bool is_word(const uint8_t *p, size_t n, const char *word)
{
    return n == strlen(word) && !memcmp(p, word, n);
}

/* ="value"; an unclosed one ends at the first ">", newline or at the end. */
static bool take_value(struct reader *r, const uint8_t **value, size_t *n)
{
    if (!take(r, "=\""))
        return false;
    const uint8_t *quote = memchr(r->p, '"', (size_t)(r->end - r->p));
    *value = r->p;
    if (quote) {
        *n = (size_t)(quote - r->p);
        r->p = quote + 1;
        return true;
    }
    while (r->p < r->end && *r->p != '>' && *r->p != '\n')
        r->p++;
    *n = (size_t)(r->p - *value);
    r->p = r->end;
    return false;
}

static void read_attributes(struct reader *r, struct chat_tag *tag)
{
    while (skip_spaces(r), r->p < r->end) {
        const uint8_t *word, *value = NULL;
        size_t len = take_word(r, &word), n = 0;
        if (!len || !take_value(r, &value, &n))
            tag->is_well_formed = false;
        if (!value)
            return;
        if (is_word(word, len, "name") && !tag->name) {
            tag->name = value;
            tag->name_len = n;
        } else if (is_word(word, len, "string") && is_word(value, n, "true")) {
            tag->string = CHAT_STRING_TRUE;
        } else if (is_word(word, len, "string") && is_word(value, n, "false")) {
            tag->string = CHAT_STRING_FALSE;
        } else {
            tag->is_well_formed = false;
        }
    }
}

struct chat_tag chat_tag_read(const struct chat_tag_text *t, bool whole)
{
    struct reader r = {t->bytes, t->bytes + t->n};
    struct chat_tag tag = {.kind = CHAT_TAG_OTHER, .is_well_formed = whole && !t->in_quotes};
    bool has_bars = skip_bars(&r);
    tag.is_usual = skip_spaces(&r) == 1 && !has_bars;
    const uint8_t *word;
    size_t n = take_word(&r, &word);
    if (is_word(word, n, "invoke")) {
        tag.kind = CHAT_TAG_INVOKE;
    } else if (is_word(word, n, "parameter")) {
        tag.kind = CHAT_TAG_PARAMETER;
    } else if (is_word(word, n, "calls") || is_word(word, n, "tool_calls") ||
               is_word(word, n, "function_calls")) {
        tag.kind = CHAT_TAG_BLOCK;
        tag.is_current_name = is_word(word, n, "calls");
    }
    read_attributes(&r, &tag);
    return tag;
}
