#include "engine/json_literal.h"

#include <string.h>

#include "engine/value_type.h"

enum {
    BEFORE_VALUE = 0,
    BEFORE_VALUE_OR_END, /* behind "[" */
    BEFORE_KEY_OR_END,   /* behind "{" */
    BEFORE_KEY,
    BEFORE_COLON,
    BEHIND_VALUE, /* in a container */
    IN_STRING,
    IN_ESCAPE,
    IN_UNIT,         /* the four digits of \u */
    BEFORE_LOW,      /* the backslash of the second half of a pair */
    BEFORE_LOW_UNIT, /* its "u" */
    IN_TRUE,
    IN_FALSE,
    IN_NULL,
    BEHIND_MINUS,
    BEHIND_ZERO,
    IN_INTEGER,
    BEHIND_POINT,
    IN_FRACTION,
    BEHIND_E,
    BEHIND_E_SIGN,
    IN_EXPONENT,
    COMPLETE
};

#define MAX_INTEGER 18
#define MAX_FRACTION 30
#define MAX_EXPONENT 2

static bool is_digit(uint8_t b)
{
    return b >= '0' && b <= '9';
}

static bool go(struct json_literal *v, uint8_t at)
{
    v->at = at;
    v->n = 0;
    return true;
}

static bool end_value(struct json_literal *v)
{
    return go(v, v->depth ? BEHIND_VALUE : COMPLETE);
}

static bool open_container(struct json_literal *v, bool is_object)
{
    if (v->depth == JSON_LITERAL_DEPTH)
        return false;
    v->is_object = (v->is_object & ~(1u << v->depth)) | (uint32_t)is_object << v->depth;
    v->depth++;
    return go(v, is_object ? BEFORE_KEY_OR_END : BEFORE_VALUE_OR_END);
}

static bool in_object(const struct json_literal *v)
{
    return v->depth && (v->is_object >> (v->depth - 1) & 1);
}

static bool close_container(struct json_literal *v)
{
    v->depth--;
    return end_value(v);
}

static bool begin_string(struct json_literal *v, bool is_key)
{
    v->is_key = is_key;
    return go(v, IN_STRING);
}

/* Whether the whole value may have one of these types; what is inside it may have any. */
static bool may_be(const struct json_literal *v, uint8_t types)
{
    return v->depth || !v->types || (v->types & types);
}

/* The types of which a value that begins so may be. */
static uint8_t types_beginning(uint8_t b)
{
    switch (b) {
    case '"':
        return TYPE_STRING;
    case '{':
        return TYPE_OBJECT;
    case '[':
        return TYPE_ARRAY;
    case 't':
    case 'f':
        return TYPE_BOOLEAN;
    case 'n':
        return TYPE_NULL;
    default:
        return TYPE_NUMBER;
    }
}

static bool begin_value(struct json_literal *v, uint8_t b)
{
    if (!may_be(v, types_beginning(b)))
        return false;
    switch (b) {
    case '"':
        return begin_string(v, false);
    case '{':
        return open_container(v, true);
    case '[':
        return open_container(v, false);
    case 't':
        return go(v, IN_TRUE);
    case 'f':
        return go(v, IN_FALSE);
    case 'n':
        return go(v, IN_NULL);
    case '-':
        return go(v, BEHIND_MINUS);
    case '0':
        return go(v, BEHIND_ZERO);
    default:
        if (!is_digit(b))
            return false;
        go(v, IN_INTEGER);
        v->n = 1;
        return true;
    }
}

static bool feed_word(struct json_literal *v, const char *rest, uint8_t b)
{
    if (b != (uint8_t)rest[v->n])
        return false;
    return rest[++v->n] ? true : end_value(v);
}

/* ---- strings ------------------------------------------------------------------------------
 */

/* The first byte of a character beyond ASCII: how many follow, and the range of the next. */
static bool begin_character(struct json_literal *v, uint8_t b)
{
    v->low = 0x80;
    v->high = 0xbf;
    v->pending = b < 0xe0 ? 1 : b < 0xf0 ? 2 : 3;
    if (b == 0xe0)
        v->low = 0xa0;
    else if (b == 0xed)
        v->high = 0x9f;
    else if (b == 0xf0)
        v->low = 0x90;
    else if (b == 0xf4)
        v->high = 0x8f;
    return b >= 0xc2 && b <= 0xf4;
}

static bool feed_string(struct json_literal *v, uint8_t b)
{
    if (v->pending) {
        bool good = b >= v->low && b <= v->high;
        v->low = 0x80;
        v->high = 0xbf;
        v->pending--;
        return good;
    }
    if (b == '"')
        return v->is_key ? go(v, BEFORE_COLON) : end_value(v);
    if (b == '\\')
        return go(v, IN_ESCAPE);
    return b >= 0x80 ? begin_character(v, b) : b >= 0x20;
}

static bool feed_escape(struct json_literal *v, uint8_t b)
{
    if (b == 'u') {
        v->unit = 0;
        return go(v, IN_UNIT);
    }
    return b && strchr("\"\\/bfnrt", b) && go(v, IN_STRING);
}

static bool is_high(uint16_t unit)
{
    return unit >= 0xd800 && unit < 0xdc00;
}

/* Digits of a first half, or (behind BEFORE_LOW_UNIT, with n from 4) of a second one. */
static bool feed_unit(struct json_literal *v, uint8_t b)
{
    uint8_t lower = b | 0x20;
    bool is_letter = lower >= 'a' && lower <= 'f', is_second = v->n >= 4;
    uint16_t digit = is_digit(b) ? (uint16_t)(b - '0') : (uint16_t)(lower - 'a' + 10);
    if (!is_digit(b) && !is_letter)
        return false;
    if (is_second && ((v->n == 4 && digit != 0xd) || (v->n == 5 && digit < 0xc)))
        return false; /* not DC00 to DFFF */
    if (!is_second && v->n == 1 && v->unit == 0xd && digit >= 0xc)
        return false; /* a second half without a first */
    if (!is_second && v->n == 3 && !v->unit && !digit)
        return false; /* NUL */
    v->unit = (uint16_t)(v->unit << 4 | digit);
    if (++v->n % 4)
        return true;
    return go(v, !is_second && is_high(v->unit) ? BEFORE_LOW : IN_STRING);
}

/* ---- numbers ------------------------------------------------------------------------------
 */

static bool feed_behind(struct json_literal *v, uint8_t b);

static bool count_digit(struct json_literal *v, uint8_t at, uint8_t most)
{
    if (v->at != at)
        go(v, at);
    return ++v->n <= most;
}

/* What may follow a number's part that can be its end. */
static bool feed_number_end(struct json_literal *v, uint8_t b, bool may_point, bool may_e)
{
    if (may_point && b == '.')
        return may_be(v, TYPE_FRACTION) && go(v, BEHIND_POINT);
    if (may_e && (b == 'e' || b == 'E') && may_be(v, TYPE_FRACTION))
        return go(v, BEHIND_E);
    return end_value(v) && feed_behind(v, b);
}

static bool feed_number(struct json_literal *v, uint8_t b)
{
    switch (v->at) {
    case BEHIND_MINUS:
        return b == '0' ? go(v, BEHIND_ZERO)
                        : is_digit(b) && count_digit(v, IN_INTEGER, MAX_INTEGER);
    case BEHIND_ZERO:
        return feed_number_end(v, b, true, true);
    case IN_INTEGER:
        return is_digit(b) ? count_digit(v, IN_INTEGER, MAX_INTEGER)
                           : feed_number_end(v, b, true, true);
    case BEHIND_POINT:
        return is_digit(b) && count_digit(v, IN_FRACTION, MAX_FRACTION);
    case IN_FRACTION:
        return is_digit(b) ? count_digit(v, IN_FRACTION, MAX_FRACTION)
                           : feed_number_end(v, b, false, true);
    case BEHIND_E:
        if (b == '+' || b == '-')
            return go(v, BEHIND_E_SIGN);
        return is_digit(b) && count_digit(v, IN_EXPONENT, MAX_EXPONENT);
    case BEHIND_E_SIGN:
        return is_digit(b) && count_digit(v, IN_EXPONENT, MAX_EXPONENT);
    default: /* IN_EXPONENT */
        return is_digit(b) ? count_digit(v, IN_EXPONENT, MAX_EXPONENT)
                           : feed_number_end(v, b, false, false);
    }
}

/* ---- between tokens -----------------------------------------------------------------------
 */

static bool feed_behind(struct json_literal *v, uint8_t b)
{
    if (v->at == COMPLETE)
        return false;
    if (b == ',')
        return go(v, in_object(v) ? BEFORE_KEY : BEFORE_VALUE);
    if (b == ' ' || b == '\n') { /* the first byte behind a number */
        v->was_white = true;
        return true;
    }
    return b == (in_object(v) ? '}' : ']') && close_container(v);
}

static bool feed_between(struct json_literal *v, uint8_t b)
{
    bool is_white = b == ' ' || b == '\n';
    if (is_white) {
        bool may = v->depth && !v->was_white;
        v->was_white = true;
        return may;
    }
    v->was_white = false;
    switch (v->at) {
    case BEFORE_VALUE:
        return begin_value(v, b);
    case BEFORE_VALUE_OR_END:
        return b == ']' ? close_container(v) : begin_value(v, b);
    case BEFORE_KEY_OR_END:
        return b == '}' ? close_container(v) : b == '"' && begin_string(v, true);
    case BEFORE_KEY:
        return b == '"' && begin_string(v, true);
    case BEFORE_COLON:
        return b == ':' && go(v, BEFORE_VALUE);
    default:
        return feed_behind(v, b);
    }
}

bool json_literal_feed(struct json_literal *v, uint8_t b)
{
    switch (v->at) {
    case IN_STRING:
        return feed_string(v, b);
    case IN_ESCAPE:
        return feed_escape(v, b);
    case IN_UNIT:
        return feed_unit(v, b);
    case BEFORE_LOW:
        return b == '\\' && go(v, BEFORE_LOW_UNIT);
    case BEFORE_LOW_UNIT:
        if (b != 'u')
            return false;
        v->at = IN_UNIT;
        v->n = 4;
        return true;
    case IN_TRUE:
        return feed_word(v, "rue", b);
    case IN_FALSE:
        return feed_word(v, "alse", b);
    case IN_NULL:
        return feed_word(v, "ull", b);
    default:
        return v->at >= BEHIND_MINUS && v->at <= IN_EXPONENT ? feed_number(v, b)
                                                             : feed_between(v, b);
    }
}

bool json_literal_is_in_characters(const struct json_literal *v)
{
    return v->at == IN_STRING && !v->pending;
}

bool json_literal_is_complete(const struct json_literal *v)
{
    return v->at == COMPLETE || (!v->depth && (v->at == BEHIND_ZERO || v->at == IN_INTEGER ||
                                               v->at == IN_FRACTION || v->at == IN_EXPONENT));
}
