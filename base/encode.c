#include "base/encode.h"

#include <string.h>

void hex_encode(const void *src, size_t n, char *dst)
{
    static const char digits[] = "0123456789abcdef";
    const uint8_t *s = src;
    for (size_t i = 0; i < n; i++) {
        dst[2 * i] = digits[s[i] >> 4];
        dst[2 * i + 1] = digits[s[i] & 15];
    }
    dst[2 * n] = '\0';
}

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    if (c >= 'A' && c <= 'F')
        return c - 'A' + 10;
    return -1;
}

enum err hex_decode(const char *src, size_t n_chars, void *dst, size_t n, struct error *e)
{
    if (n_chars % 2 || n_chars / 2 != n)
        return err_set(e, ERR_FORMAT, "hexadecimal: %zu characters for %zu bytes", n_chars, n);
    for (size_t i = 0; i < n_chars; i++)
        if (hex_digit(src[i]) < 0)
            return err_set(e, ERR_FORMAT, "hexadecimal: character %zu is no digit", i);
    uint8_t *d = dst;
    for (size_t i = 0; i < n; i++)
        d[i] = (uint8_t)(hex_digit(src[2 * i]) << 4 | hex_digit(src[2 * i + 1]));
    return OK;
}

static const char base64_digits[] =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

void base64_encode(const void *src, size_t n, char *dst)
{
    const uint8_t *s = src;
    for (size_t i = 0; i < n; i += 3, dst += 4) {
        uint32_t v = (uint32_t)s[i] << 16;
        v |= i + 1 < n ? (uint32_t)s[i + 1] << 8 : 0;
        v |= i + 2 < n ? s[i + 2] : 0;
        dst[0] = base64_digits[v >> 18];
        dst[1] = base64_digits[v >> 12 & 63];
        dst[2] = i + 1 < n ? base64_digits[v >> 6 & 63] : '=';
        dst[3] = i + 2 < n ? base64_digits[v & 63] : '=';
    }
    *dst = '\0';
}

static int base64_digit(char c)
{
    const char *at = c ? strchr(base64_digits, c) : NULL;
    return at ? (int)(at - base64_digits) : -1;
}

enum err base64_decode(const char *src, size_t n_chars, void *dst, size_t cap, size_t *n_out,
                       struct error *e)
{
    if (n_chars % 4)
        return err_set(e, ERR_FORMAT, "base64: %zu characters, want a multiple of 4", n_chars);
    size_t pad = 0;
    while (pad < 2 && pad < n_chars && src[n_chars - 1 - pad] == '=')
        pad++;
    size_t n = n_chars / 4 * 3 - pad;
    if (n > cap)
        return err_set(e, ERR_LIMIT, "base64: %zu bytes, at most %zu", n, cap);
    for (size_t i = 0; i < n_chars - pad; i++)
        if (base64_digit(src[i]) < 0)
            return err_set(e, ERR_FORMAT, "base64: character %zu is not in the alphabet", i);
    /* The bits behind the last byte must be 0: one text for one value. */
    unsigned last = pad ? (unsigned)base64_digit(src[n_chars - 1 - pad]) : 0;
    if ((pad == 1 && last & 3) || (pad == 2 && last & 15))
        return err_set(e, ERR_FORMAT, "base64: character %zu has bits past the end",
                       n_chars - 1 - pad);
    uint8_t *d = dst;
    uint32_t v = 0;
    for (size_t i = 0, k = 0; i < n_chars; i++) {
        v = v << 6 | (src[i] == '=' ? 0u : (uint32_t)base64_digit(src[i]));
        for (unsigned b = 0; i % 4 == 3 && b < 3 && k < n; b++)
            d[k++] = (uint8_t)(v >> (16 - 8 * b));
    }
    *n_out = n;
    return OK;
}
