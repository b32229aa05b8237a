/* What the pre-tokenizer and the parsers need of Unicode: UTF-8 and a few general categories.
 *
 * The table is committed (Unicode 16.0.0, made by scripts/make_unicode_table.py) because the
 * Unicode version of a system library would decide over token ids. */
#ifndef ENGINE_UNICODE_H
#define ENGINE_UNICODE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define UNICODE_VERSION "16.0.0"

/* Bits, so that a set of classes can be asked for at once. Every code point has at most one of
 * the first five. */
enum unicode_class {
    UNICODE_L = 1,     /* letters */
    UNICODE_M = 2,     /* combining marks */
    UNICODE_N = 4,     /* numbers */
    UNICODE_P = 8,     /* punctuation */
    UNICODE_S = 16,    /* symbols */
    UNICODE_SPACE = 32 /* property White_Space; without U+001C..1F */
};

unsigned unicode_class(uint32_t cp);

/* The character at p[0]: its length 1..4, with *cp set; 0 when p[0] does not begin a whole,
 * shortest form, non-surrogate UTF-8 sequence within n bytes. */
unsigned utf8_decode(const uint8_t *p, size_t n, uint32_t *cp);

/* Length of the whole sequence that a first byte announces (1..4), 0 for a byte that begins
 * none. */
unsigned utf8_length(uint8_t first);

/* How many bytes at the end of p could become one character with more bytes behind: 0..3. */
size_t utf8_open_tail(const uint8_t *p, size_t n);

bool utf8_is_valid(const uint8_t *p, size_t n);

#endif
