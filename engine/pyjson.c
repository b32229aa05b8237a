#include "engine/pyjson.h"

#include <math.h>
#include <string.h>

#include "engine/unicode.h"

#define MAX_DEPTH 200

/* ---- strings ------------------------------------------------------------------------------
 */

static enum err escape_byte(uint8_t b, struct buf *out, struct error *e)
{
    switch (b) {
    case '"':
        return buf_add_str(out, "\\\"", e);
    case '\\':
        return buf_add_str(out, "\\\\", e);
    case '\n':
        return buf_add_str(out, "\\n", e);
    case '\r':
        return buf_add_str(out, "\\r", e);
    case '\t':
        return buf_add_str(out, "\\t", e);
    case '\f':
        return buf_add_str(out, "\\f", e);
    case '\b':
        return buf_add_str(out, "\\b", e);
    default:
        return buf_printf(out, e, "\\u%04x", b);
    }
}

enum err pyjson_escape(const void *bytes, size_t n, struct buf *out, struct error *e)
{
    const uint8_t *p = bytes;
    enum err rc = OK;
    for (size_t i = 0, plain = 0; i <= n && !rc;) {
        uint32_t cp = 0;
        unsigned len = i < n ? utf8_decode(p + i, n - i, &cp) : 0;
        if (len && cp >= 0x20 && cp != '"' && cp != '\\') {
            i += len;
            continue;
        }
        rc = buf_add(out, p + plain, i - plain, e);
        if (i < n && !rc)
            rc = len ? escape_byte((uint8_t)cp, out, e) : buf_add_str(out, "\xef\xbf\xbd", e);
        plain = ++i;
    }
    return rc;
}

enum err pyjson_string(const void *bytes, size_t n, struct buf *out, struct error *e)
{
    enum err rc = buf_add_byte(out, '"', e);
    if (!rc)
        rc = pyjson_escape(bytes, n, out, e);
    return rc ? rc : buf_add_byte(out, '"', e);
}

/* ---- values -------------------------------------------------------------------------------
 */

/* As Python's repr(float): the fewest digits that read back as the same value, positional for
 * exponents -4..15, at least one digit behind the point. */
static enum err dump_real(double v, struct buf *out, struct error *e)
{
    char text[40];
    int precision = 0;
    do {
        snprintf(text, sizeof text, "%.*e", precision++, v);
    } while (strtod(text, NULL) != v && precision < 17);
    char *mark = strchr(text, 'e');
    if (!mark) /* jansson holds no infinities and no NaN */
        return err_set(e, ERR_INVAL, "JSON: %s is no number", text);
    int exponent = (int)strtol(mark + 1, NULL, 10), digits = precision - 1;
    *mark = 0;
    if (exponent < -4 || exponent > 15)
        return buf_printf(out, e, "%se%c%02d", text, exponent < 0 ? '-' : '+', abs(exponent));
    int decimals = digits - exponent;
    return buf_printf(out, e, "%.*f", decimals < 1 ? 1 : decimals, v);
}

static enum err dump(const json_t *v, unsigned depth, struct buf *out, struct error *e);

static enum err dump_array(const json_t *v, unsigned depth, struct buf *out, struct error *e)
{
    enum err rc = buf_add_byte(out, '[', e);
    for (size_t i = 0; i < json_array_size(v) && !rc; i++) {
        if (i)
            rc = buf_add_str(out, ", ", e);
        if (!rc)
            rc = dump(json_array_get(v, i), depth + 1, out, e);
    }
    return rc ? rc : buf_add_byte(out, ']', e);
}

static enum err dump_object(const json_t *v, unsigned depth, struct buf *out, struct error *e)
{
    enum err rc = buf_add_byte(out, '{', e);
    const char *sep = "";
    const char *key;
    json_t *value;
    json_t *object = json_incref((json_t *)(uintptr_t)v); /* the iterator wants it mutable */
    json_object_foreach(object, key, value) {
        if (!rc)
            rc = buf_add_str(out, sep, e);
        if (!rc)
            rc = pyjson_string(key, strlen(key), out, e);
        if (!rc)
            rc = buf_add_str(out, ": ", e);
        if (!rc)
            rc = dump(value, depth + 1, out, e);
        sep = ", ";
    }
    json_decref(object);
    return rc ? rc : buf_add_byte(out, '}', e);
}

static enum err dump(const json_t *v, unsigned depth, struct buf *out, struct error *e)
{
    if (depth > MAX_DEPTH)
        return err_set(e, ERR_LIMIT, "JSON: nested over %d deep", MAX_DEPTH);
    switch (json_typeof(v)) {
    case JSON_OBJECT:
        return dump_object(v, depth, out, e);
    case JSON_ARRAY:
        return dump_array(v, depth, out, e);
    case JSON_STRING:
        return pyjson_string(json_string_value(v), json_string_length(v), out, e);
    case JSON_INTEGER:
        return buf_printf(out, e, "%lld", (long long)json_integer_value(v));
    case JSON_REAL:
        return dump_real(json_real_value(v), out, e);
    case JSON_TRUE:
        return buf_add_str(out, "true", e);
    case JSON_FALSE:
        return buf_add_str(out, "false", e);
    case JSON_NULL:
        break;
    }
    return buf_add_str(out, "null", e);
}

enum err pyjson_dump(const json_t *v, struct buf *out, struct error *e)
{
    return dump(v, 0, out, e);
}

/* ---- validity -----------------------------------------------------------------------------
 */

struct scanner {
    const uint8_t *p, *end;
};

static void skip_space(struct scanner *s)
{
    while (s->p < s->end && (*s->p == ' ' || *s->p == '\t' || *s->p == '\n' || *s->p == '\r'))
        s->p++;
}

static bool take(struct scanner *s, uint8_t b)
{
    if (s->p == s->end || *s->p != b)
        return false;
    s->p++;
    return true;
}

static bool take_word(struct scanner *s, const char *word)
{
    size_t n = strlen(word);
    if ((size_t)(s->end - s->p) < n || memcmp(s->p, word, n))
        return false;
    s->p += n;
    return true;
}

static bool take_digits(struct scanner *s)
{
    const uint8_t *start = s->p;
    while (s->p < s->end && *s->p >= '0' && *s->p <= '9')
        s->p++;
    return s->p > start;
}

static bool take_number(struct scanner *s)
{
    take(s, '-');
    if (!take(s, '0') && !take_digits(s))
        return false;
    if (take(s, '.') && !take_digits(s))
        return false;
    if (take(s, 'e') || take(s, 'E')) {
        if (!take(s, '+'))
            take(s, '-');
        return take_digits(s);
    }
    return true;
}

static bool take_hex4(struct scanner *s, unsigned *out)
{
    unsigned v = 0;
    for (int i = 0; i < 4; i++, s->p++) {
        if (s->p == s->end)
            return false;
        uint8_t b = *s->p, letter = (uint8_t)(b | 0x20);
        if (b >= '0' && b <= '9')
            v = v * 16 + b - '0';
        else if (letter >= 'a' && letter <= 'f')
            v = v * 16 + letter - 'a' + 10;
        else
            return false;
    }
    *out = v;
    return true;
}

/* Behind a backslash. Surrogates only in pairs: others could not be written as UTF-8. */
static bool take_escape(struct scanner *s)
{
    if (s->p == s->end)
        return false;
    uint8_t b = *s->p++;
    if (b != 'u')
        return b && strchr("\"\\/bfnrt", b);
    unsigned high, low;
    if (!take_hex4(s, &high))
        return false;
    if (high < 0xd800 || high > 0xdfff)
        return true;
    return high < 0xdc00 && take_word(s, "\\u") && take_hex4(s, &low) && low >= 0xdc00 &&
           low <= 0xdfff;
}

static bool take_string(struct scanner *s)
{
    if (!take(s, '"'))
        return false;
    while (s->p < s->end) {
        uint32_t cp;
        unsigned len = utf8_decode(s->p, (size_t)(s->end - s->p), &cp);
        if (!len || cp < 0x20)
            return false;
        s->p += len;
        if (cp == '"')
            return true;
        if (cp == '\\' && !take_escape(s))
            return false;
    }
    return false;
}

static bool take_value(struct scanner *s, unsigned depth);

static bool take_members(struct scanner *s, unsigned depth, uint8_t close)
{
    skip_space(s);
    if (take(s, close))
        return true;
    for (;;) {
        skip_space(s);
        if (close == '}') {
            if (!take_string(s))
                return false;
            skip_space(s);
            if (!take(s, ':'))
                return false;
        }
        if (!take_value(s, depth + 1))
            return false;
        if (take(s, close))
            return true;
        if (!take(s, ','))
            return false;
    }
}

static bool take_value(struct scanner *s, unsigned depth)
{
    if (depth > MAX_DEPTH)
        return false;
    skip_space(s);
    bool good;
    if (take(s, '{'))
        good = take_members(s, depth, '}');
    else if (take(s, '['))
        good = take_members(s, depth, ']');
    else if (s->p < s->end && *s->p == '"')
        good = take_string(s);
    else
        good = take_word(s, "true") || take_word(s, "false") || take_word(s, "null") ||
               take_number(s);
    skip_space(s);
    return good;
}

bool pyjson_valid(const void *bytes, size_t n)
{
    struct scanner s = {bytes, (const uint8_t *)bytes + n};
    return take_value(&s, 0) && s.p == s.end;
}
