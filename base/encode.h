/* Bytes as text: hexadecimal and base64.
 *
 * Encoders write a terminating 0 and cannot fail; the caller provides the size the macro says.
 * Decoders are strict (no white space, no missing padding, lower or upper case hexadecimal) and
 * return ERR_FORMAT with the position, or ERR_LIMIT when dst is too small. */
#ifndef BASE_ENCODE_H
#define BASE_ENCODE_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

#define HEX_CHARS(n) (2 * (n) + 1)
#define BASE64_CHARS(n) (((n) + 2) / 3 * 4 + 1)

/* Lower case. dst has HEX_CHARS(n) bytes. */
void hex_encode(const void *src, size_t n, char *dst);
/* Exactly 2 * n digits, n_chars long, become n bytes. */
NODISCARD enum err hex_decode(const char *src, size_t n_chars, void *dst, size_t n,
                              struct error *e);

/* Standard alphabet with padding. dst has BASE64_CHARS(n) bytes. */
void base64_encode(const void *src, size_t n, char *dst);
/* *n_out bytes, at most cap. */
NODISCARD enum err base64_decode(const char *src, size_t n_chars, void *dst, size_t cap,
                                 size_t *n_out, struct error *e);

#endif
