/* MD5 (RFC 1321) of a short text. For names that only have to look arbitrary; never for
 * integrity. */
#ifndef EVALS_MD5_H
#define EVALS_MD5_H

#include <stddef.h>
#include <stdint.h>

#define MD5_BYTES 16
#define MD5_MAX_TEXT 55 /* one block */

void md5_short(const void *text, size_t n, uint8_t out[MD5_BYTES]);

#endif
