/* One JSON value byte by byte: can what came so far still become one? A plain value of a few
 * words, so that a sampler may try a token on a copy.
 *
 * What it lets pass is what base/json.h reads: UTF-8, no lone surrogate and no NUL in \u,
 * numbers that fit (18 digits of an integer part, 30 behind the point, exponents of two
 * digits), nesting up to JSON_LITERAL_DEPTH. White space is one blank or newline at a time, and
 * only inside: a model must not be able to go on with it for ever. Where the type is known, an
 * integer has no point and no exponent. */
#ifndef ENGINE_JSON_LITERAL_H
#define ENGINE_JSON_LITERAL_H

#include <stdbool.h>
#include <stdint.h>

#define JSON_LITERAL_DEPTH                                                                     \
    24 /* the arguments object and the schema's own limit are around it */

struct json_literal {
    uint8_t at;        /* enum in json_literal.c; 0: nothing came yet */
    uint8_t n;         /* digits or bytes of the part in work */
    uint8_t depth;     /* open arrays and objects */
    bool is_key;       /* the string in work is a key */
    bool was_white;    /* the byte before was white space between tokens */
    uint8_t pending;   /* continuation bytes of a character that are missing */
    uint8_t low, high; /* range of the next of them */
    uint16_t unit;     /* of a \u escape; a high surrogate until its second half came */
    uint8_t types; /* that the whole value may have (value_type.h); 0: any. Set by the caller */
    uint32_t is_object; /* bit per level */
};

/* Takes a byte. False, with v undefined, when no value can come of it. */
bool json_literal_feed(struct json_literal *v, uint8_t b);
/* Between two characters of a string: any but a quote, a backslash and a control character may
 * come. */
bool json_literal_is_in_characters(const struct json_literal *v);
/* A whole value came: nothing has to follow (a number may still go on). */
bool json_literal_is_complete(const struct json_literal *v);

#endif
