#include "evals/pytext.h"

#include <stdlib.h>
#include <utf8proc.h>

#include "engine/unicode.h"

void pytext_fini(struct pytext *t)
{
    free(t->v);
    t->v = NULL;
    t->n = 0;
}

static unsigned next(const char *s, size_t n, uint32_t *cp)
{
    unsigned len = utf8_decode((const uint8_t *)s, n, cp);
    if (len)
        return len;
    *cp = 0xfffd;
    return 1;
}

enum err pytext_decode(const char *s, size_t n, struct pytext *out, struct error *e)
{
    uint32_t *v = calloc(n + 1, sizeof *v);
    if (!v)
        return err_set(e, ERR_NOMEM, "no memory for %zu characters", n);
    size_t n_v = 0;
    for (size_t i = 0; i < n;)
        i += next(s + i, n - i, &v[n_v++]);
    *out = (struct pytext){v, n_v};
    return OK;
}

bool pytext_is_space(uint32_t cp)
{
    return (cp >= 0x1c && cp <= 0x1f) || (unicode_class(cp) & UNICODE_SPACE);
}

void pytext_strip(const char **s, size_t *n)
{
    size_t start = 0, end = 0;
    bool begun = false;
    for (size_t i = 0; i < *n;) {
        uint32_t cp;
        unsigned len = next(*s + i, *n - i, &cp);
        if (!pytext_is_space(cp)) {
            start = begun ? start : i;
            begun = true;
            end = i + len;
        }
        i += len;
    }
    *s += start;
    *n = end - start;
}

enum err pytext_split(const char *s, size_t n, struct wordlist *out, struct error *e)
{
    size_t from = 0;
    enum err rc = OK;
    for (size_t i = 0; i < n && !rc;) {
        uint32_t cp;
        const unsigned len = next(s + i, n - i, &cp);
        const bool space = pytext_is_space(cp);
        if (space && i > from)
            rc = wordlist_add(out, s + from, i - from, e);
        i += len;
        from = space ? i : from;
    }
    return rc || from == n ? rc : wordlist_add(out, s + from, n - from, e);
}

/* ---- lower case ------------------------------------------------------------------------- */

struct range {
    uint32_t first, last;
};

static bool in_ranges(uint32_t cp, const struct range *v, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (cp >= v[i].first && cp <= v[i].last)
            return true;
    return false;
}

#define IN(cp, list) in_ranges((cp), (list), sizeof(list) / sizeof *(list))

/* Derived property Case_Ignorable: marks, formats and modifiers, and the Word_Break classes
 * MidLetter, MidNumLet and Single_Quote. */
static bool is_ignorable(uint32_t cp)
{
    static const struct range mid[] = {
        {0x27, 0x27},     {0x2e, 0x2e},     {0x3a, 0x3a},     {0xb7, 0xb7},
        {0x387, 0x387},   {0x55f, 0x55f},   {0x5f4, 0x5f4},   {0x2018, 0x2019},
        {0x2024, 0x2024}, {0x2027, 0x2027}, {0xfe13, 0xfe13}, {0xfe52, 0xfe52},
        {0xfe55, 0xfe55}, {0xff07, 0xff07}, {0xff0e, 0xff0e}, {0xff1a, 0xff1a}};
    int class = (int)utf8proc_category((utf8proc_int32_t)cp);
    return class == UTF8PROC_CATEGORY_MN || class == UTF8PROC_CATEGORY_ME ||
           class == UTF8PROC_CATEGORY_CF || class == UTF8PROC_CATEGORY_LM ||
           class == UTF8PROC_CATEGORY_SK || IN(cp, mid);
}

/* Derived property Cased, of what is not ignorable: cased letters, and the letter-like signs of
 * Other_Lowercase and Other_Uppercase. */
static bool is_cased(uint32_t cp)
{
    static const struct range other[] = {
        {0xaa, 0xaa},       {0xba, 0xba},       {0x2160, 0x217f},  {0x24b6, 0x24e9},
        {0x1f130, 0x1f149}, {0x1f150, 0x1f169}, {0x1f170, 0x1f189}};
    int class = (int)utf8proc_category((utf8proc_int32_t)cp);
    return class == UTF8PROC_CATEGORY_LU || class == UTF8PROC_CATEGORY_LL ||
           class == UTF8PROC_CATEGORY_LT || IN(cp, other);
}

/* Whether the sigma at v[i] ends a word: a cased letter before it and none behind, what is
 * ignorable left out. */
static bool is_final_sigma(const struct pytext *t, size_t i)
{
    size_t before = i, behind = i + 1;
    while (before > 0 && is_ignorable(t->v[before - 1]))
        before--;
    if (!before || !is_cased(t->v[before - 1]))
        return false;
    while (behind < t->n && is_ignorable(t->v[behind]))
        behind++;
    return behind == t->n || !is_cased(t->v[behind]);
}

static enum err add_char(struct buf *out, uint32_t cp, struct error *e)
{
    uint8_t utf8[4];
    utf8proc_ssize_t n = utf8proc_encode_char((utf8proc_int32_t)cp, utf8);
    return buf_add(out, utf8, (size_t)n, e);
}

enum err pytext_lower(const char *s, size_t n, struct buf *out, struct error *e)
{
    AUTO(pytext) struct pytext t = {NULL, 0};
    enum err rc = pytext_decode(s, n, &t, e);
    for (size_t i = 0; i < t.n && !rc; i++) {
        uint32_t cp = t.v[i];
        if (cp == 0x130)
            rc = buf_add_str(out, "i\xcc\x87", e);
        else if (cp == 0x3a3)
            rc = add_char(out, is_final_sigma(&t, i) ? 0x3c2 : 0x3c3, e);
        else
            rc = add_char(out, (uint32_t)utf8proc_tolower((utf8proc_int32_t)cp), e);
    }
    return rc;
}
