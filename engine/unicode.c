#include "engine/unicode.h"

enum { L = UNICODE_L, M = UNICODE_M, N = UNICODE_N, P = UNICODE_P, S = UNICODE_S };

static const struct {
    uint32_t first, last;
    uint8_t class;
} ranges[] = {
#include "engine/unicode_table.inc"
};

#define N_RANGES (sizeof ranges / sizeof ranges[0])

static bool is_space(uint32_t cp)
{
    return (cp >= 9 && cp <= 13) || cp == ' ' || cp == 0x85 || cp == 0xa0 || cp == 0x1680 ||
           (cp >= 0x2000 && cp <= 0x200a) || cp == 0x2028 || cp == 0x2029 || cp == 0x202f ||
           cp == 0x205f || cp == 0x3000;
}

/* Most text is ASCII, where no search is needed. */
static unsigned ascii_class(uint32_t cp)
{
    if ((cp | 0x20) >= 'a' && (cp | 0x20) <= 'z')
        return UNICODE_L;
    if (cp >= '0' && cp <= '9')
        return UNICODE_N;
    if (is_space(cp))
        return UNICODE_SPACE;
    if (cp < 0x20 || cp == 0x7f)
        return 0;
    switch (cp) {
    case '$':
    case '+':
    case '<':
    case '=':
    case '>':
    case '^':
    case '`':
    case '|':
    case '~':
        return UNICODE_S;
    default:
        return UNICODE_P;
    }
}

unsigned unicode_class(uint32_t cp)
{
    if (cp < 0x80)
        return ascii_class(cp);
    size_t lo = 0, hi = N_RANGES;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        if (cp < ranges[mid].first)
            hi = mid;
        else if (cp > ranges[mid].last)
            lo = mid + 1;
        else
            return ranges[mid].class;
    }
    return is_space(cp) ? UNICODE_SPACE : 0;
}

unsigned utf8_length(uint8_t first)
{
    if (first < 0x80)
        return 1;
    if (first < 0xc2)
        return 0;
    return first < 0xe0 ? 2 : first < 0xf0 ? 3 : first < 0xf5 ? 4 : 0;
}

/* Bounds of the second byte: they rule out overlong forms, surrogates and what is past
 * U+10FFFF. */
static bool second_fits(uint8_t first, uint8_t second)
{
    uint8_t lo = first == 0xe0 ? 0xa0 : first == 0xf0 ? 0x90 : 0x80;
    uint8_t hi = first == 0xed ? 0x9f : first == 0xf4 ? 0x8f : 0xbf;
    return second >= lo && second <= hi;
}

unsigned utf8_decode(const uint8_t *p, size_t n, uint32_t *cp)
{
    unsigned len = n ? utf8_length(p[0]) : 0;
    if (!len || len > n)
        return 0;
    if (len == 1) {
        *cp = p[0];
        return 1;
    }
    if (!second_fits(p[0], p[1]))
        return 0;
    uint32_t v = p[0] & (0x7fu >> len);
    for (unsigned i = 1; i < len; i++) {
        if ((p[i] & 0xc0) != 0x80)
            return 0;
        v = v << 6 | (p[i] & 0x3fu);
    }
    *cp = v;
    return len;
}

size_t utf8_open_tail(const uint8_t *p, size_t n)
{
    for (size_t k = 1; k <= 3 && k <= n; k++) {
        uint8_t first = p[n - k];
        if ((first & 0xc0) == 0x80)
            continue;
        if (utf8_length(first) <= k || (k >= 2 && !second_fits(first, p[n - k + 1])))
            return 0;
        return k;
    }
    return 0;
}

bool utf8_is_valid(const uint8_t *p, size_t n)
{
    for (size_t i = 0; i < n;) {
        uint32_t cp;
        unsigned len = utf8_decode(p + i, n - i, &cp);
        if (!len)
            return false;
        i += len;
    }
    return true;
}
