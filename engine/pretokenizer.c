#include "engine/pretokenizer.h"

#include <stdbool.h>

#include "engine/unicode.h"

const char *const pretokenizer_patterns[3] = {
    "\\p{N}{1,3}",
    "[一-龥぀-ゟ゠-ヿ]+",
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+"
    "|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"
    "| ?[\\p{P}\\p{S}]+[\\r\\n]*"
    "|\\s*[\\r\\n]+"
    "|\\s+(?!\\S)"
    "|\\s+",
};

/* One character: its length (0: not UTF-8, or the end) and classes. */
struct character {
    unsigned len;
    unsigned class;
    uint32_t cp;
};

static struct character character_at(const uint8_t *p, const uint8_t *end)
{
    struct character c = {0, 0, 0};
    c.len = utf8_decode(p, (size_t)(end - p), &c.cp);
    if (c.len)
        c.class = unicode_class(c.cp);
    return c;
}

static bool is_cjk(uint32_t cp)
{
    return (cp >= 0x4e00 && cp <= 0x9fa5) || (cp >= 0x3040 && cp <= 0x30ff);
}

static bool is_newline(uint32_t cp)
{
    return cp == '\r' || cp == '\n';
}

static bool is_ascii_letter(uint8_t b)
{
    return (b | 0x20) >= 'a' && (b | 0x20) <= 'z';
}

static const uint8_t *skip_class(const uint8_t *p, const uint8_t *end, unsigned classes)
{
    for (;;) {
        struct character c = character_at(p, end);
        if (!c.len || !(c.class & classes))
            return p;
        p += c.len;
    }
}

static const uint8_t *skip_newlines(const uint8_t *p, const uint8_t *end)
{
    while (p < end && is_newline(*p))
        p++;
    return p;
}

/* White space from p, which begins one: up to its last newline if it has any, else all but its
 * last character when something follows, which may then go with that one. */
static const uint8_t *match_space(const uint8_t *p, const uint8_t *end)
{
    const uint8_t *after_newline = NULL, *last = p, *q = p;
    for (;;) {
        struct character c = character_at(q, end);
        if (!c.len || !(c.class & UNICODE_SPACE))
            break;
        last = q;
        q += c.len;
        if (is_newline(c.cp))
            after_newline = q;
    }
    if (after_newline)
        return after_newline;
    return q == end || last == p ? q : last;
}

/* The third split: end of the match that begins at p, or p itself when there is none. The order
 * of the alternatives is that of the expression. */
static const uint8_t *match_word(const uint8_t *p, const uint8_t *end)
{
    struct character c = character_at(p, end);
    if (c.cp < 0x80 && c.class & (UNICODE_P | UNICODE_S) && p + 1 < end &&
        is_ascii_letter(p[1])) {
        for (p += 2; p < end && is_ascii_letter(*p);)
            p++;
        return p;
    }
    if (c.class & (UNICODE_L | UNICODE_M))
        return skip_class(p, end, UNICODE_L | UNICODE_M);
    const uint8_t *next = p + c.len;
    if (!is_newline(c.cp) && !(c.class & (UNICODE_P | UNICODE_S))) {
        const uint8_t *q = skip_class(next, end, UNICODE_L | UNICODE_M);
        if (q > next)
            return q;
    }
    const uint8_t *marks = c.cp == ' ' ? next : p;
    const uint8_t *q = skip_class(marks, end, UNICODE_P | UNICODE_S);
    if (q > marks)
        return skip_newlines(q, end);
    return c.class & UNICODE_SPACE ? match_space(p, end) : p;
}

/* First and second split: the end of the span at p. *whole is set for a piece that the third
 * split leaves as it is. */
static const uint8_t *find_span(const uint8_t *p, const uint8_t *end, bool *whole)
{
    struct character c = character_at(p, end);
    *whole = !c.len || c.class & UNICODE_N;
    if (!c.len)
        return p + 1;
    if (c.class & UNICODE_N) {
        for (int i = 0; i < 3 && c.len && c.class & UNICODE_N; i++) {
            p += c.len;
            c = character_at(p, end);
        }
        return p;
    }
    bool cjk = is_cjk(c.cp);
    while (c.len && !(c.class & UNICODE_N) && is_cjk(c.cp) == cjk) {
        p += c.len;
        c = character_at(p, end);
    }
    return p;
}

struct pretokenizer pretokenizer_start(const uint8_t *bytes, size_t n)
{
    const uint8_t *end = n ? bytes + n : bytes;
    return (struct pretokenizer){bytes, end, bytes};
}

size_t pretokenizer_next(struct pretokenizer *p, const uint8_t **piece)
{
    if (p->at == p->end)
        return 0;
    const uint8_t *start = p->at;
    bool whole = false;
    if (p->span_end == start)
        p->span_end = find_span(start, p->end, &whole);
    const uint8_t *q = whole ? p->span_end : match_word(start, p->span_end);
    if (q == start) {
        /* A gap: all that no alternative matches, up to where one does. */
        do {
            q += character_at(q, p->span_end).len;
        } while (q < p->span_end && match_word(q, p->span_end) == q);
    }
    *piece = start;
    p->at = q;
    return (size_t)(q - start);
}
