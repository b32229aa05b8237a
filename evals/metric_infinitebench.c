/* InfiniteBench's scorers of single answers (src/compute_scores.py), but for ROUGE
 * (metric_rouge.c). Where the original raises an exception the answer is worth 0. */
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "engine/unicode.h"
#include "evals/metric_internal.h"
#include "evals/pytext.h"

#define MAX_TEXT_BYTES ((size_t)256 << 20)
#define MAX_INT_DIGITS 4300 /* of Python's int() */

/* ---- pieces ----------------------------------------------------------------------------- */

/* The text without white space around it, each of these characters a space. */
static enum err spaced(const char *text, size_t n, const char *chars, struct buf *out,
                       struct error *e)
{
    pytext_strip(&text, &n);
    enum err rc = buf_add(out, text, n, e);
    for (size_t i = 0; i < out->len && !rc; i++)
        if (out->data[i] && strchr(chars, out->data[i]))
            out->data[i] = ' ';
    return rc;
}

/* Runs of spaces become one. */
static void single_spaces(struct buf *b)
{
    size_t n = 0;
    for (size_t i = 0; i < b->len; i++)
        if (b->data[i] != ' ' || !n || b->data[n - 1] != ' ')
            b->data[n++] = b->data[i];
    b->len = n;
}

static enum err replace_word(struct buf *b, const char *word, struct error *e)
{
    AUTO(buf) struct buf out = BUF_INIT(MAX_TEXT_BYTES);
    const size_t n_word = strlen(word);
    enum err rc = OK;
    for (size_t i = 0; i < b->len && !rc;) {
        const bool here = b->len - i >= n_word && !memcmp(b->data + i, word, n_word);
        rc = buf_add_byte(&out, here ? ' ' : b->data[i], e);
        i += here ? n_word : 1;
    }
    if (rc)
        return rc;
    buf_clear(b);
    return buf_add(b, out.data, out.len, e);
}

static bool starts(const char *s, size_t n, const char *what, size_t n_what)
{
    return n >= n_what && !memcmp(s, what, n_what);
}

static bool is_answer(const char *s, size_t n, const struct wordlist *answers)
{
    for (uint32_t i = 0; i < answers->n; i++) {
        size_t n_word;
        const char *word = wordlist_at(answers, i, &n_word);
        if (n == n_word && !memcmp(s, word, n))
            return true;
    }
    return false;
}

/* Behind the first of the marks that stands in the text, and one character more, an answer
 * begins. *found: there was a mark. */
static bool answer_behind(const struct buf *b, const char *const *marks,
                          const struct wordlist *answers, bool *found)
{
    const char *text = buf_str(b), *end = text + b->len, *at = NULL;
    size_t i = 0;
    while (marks[i] && !(at = memmem(text, b->len, marks[i], strlen(marks[i]))))
        i++;
    if (!(*found = at != NULL) || (at += strlen(marks[i])) == end)
        return false;
    uint32_t cp;
    const unsigned len = utf8_decode((const uint8_t *)at, (size_t)(end - at), &cp);
    at += len ? len : 1;
    for (uint32_t k = 0; k < answers->n; k++) {
        size_t n_word;
        const char *word = wordlist_at(answers, k, &n_word);
        if (starts(at, (size_t)(end - at), word, n_word))
            return true;
    }
    return false;
}

/* ---- numbers ---------------------------------------------------------------------------- */

/* Value of a decimal digit of any script, or -1: their tens stand in a row, from zero on. */
static int digit_value(uint32_t cp)
{
    uint32_t zero = cp;
    if (utf8proc_category((utf8proc_int32_t)cp) != UTF8PROC_CATEGORY_ND)
        return -1;
    while (zero && utf8proc_category((utf8proc_int32_t)zero - 1) == UTF8PROC_CATEGORY_ND)
        zero--;
    return (int)((cp - zero) % 10);
}

/* int(word) as its decimal digits without zeros in front; false: not an integer. */
static bool parse_int(const uint32_t *v, size_t n, struct buf *out)
{
    size_t i = n && (v[0] == '+' || v[0] == '-');
    const bool negative = i && v[0] == '-';
    bool digit_before = false;
    buf_clear(out);
    if (n - i > MAX_INT_DIGITS)
        return false;
    for (; i < n; i++) {
        const int d = digit_value(v[i]);
        if (d < 0 && !(v[i] == '_' && digit_before && i + 1 < n))
            return false;
        digit_before = d >= 0;
        if (d < 0 || (!d && !out->len))
            continue;
        if (!out->len && negative && buf_add_byte(out, '-', NULL))
            return false;
        if (buf_add_byte(out, (uint8_t)('0' + d), NULL))
            return false;
    }
    if (!digit_before)
        return false;
    return out->len || !buf_add_byte(out, '0', NULL);
}

/* The integer of an answer in the same form. */
static bool is_int(const struct wordlist *answers, uint32_t i, const struct buf *number,
                   struct error *e, enum err *rc)
{
    AUTO(pytext) struct pytext want = {NULL, 0};
    AUTO(buf) struct buf digits = BUF_INIT(1 << 16);
    size_t n;
    const char *word = wordlist_at(answers, i, &n);
    *rc = pytext_decode(word, n, &want, e);
    return !*rc && parse_int(want.v, want.n, &digits) && digits.len == number->len &&
           !memcmp(digits.data, number->data, digits.len);
}

/* code_run: the last word, as an integer. */
static enum err last_int(const char *text, size_t n, const struct wordlist *answers,
                         struct metric_result *out, struct error *e)
{
    AUTO(buf) struct buf b = BUF_INIT(MAX_TEXT_BYTES);
    AUTO(buf) struct buf number = BUF_INIT(1 << 16);
    AUTO(wordlist) struct wordlist words = WORDLIST_INIT;
    AUTO(pytext) struct pytext last = {NULL, 0};
    enum err rc = spaced(text, n, "\n.`'\":", &b, e);
    if (!rc)
        rc = pytext_split(buf_str(&b), b.len, &words, e);
    if (!rc && words.n) {
        size_t n_word;
        const char *word = wordlist_at(&words, words.n - 1, &n_word);
        rc = pytext_decode(word, n_word, &last, e);
    }
    if (rc)
        return rc;
    out->is_unparsable = !last.n || !parse_int(last.v, last.n, &number);
    out->score = !out->is_unparsable && is_int(answers, 0, &number, e, &rc);
    return rc;
}

static enum err add_point(struct buf *out, bool *is_float, struct error *e)
{
    *is_float = true;
    return buf_add_byte(out, '.', e);
}

/* First match of \d+\.\d+ or \d+, its digits as ASCII. */
static enum err find_number(const struct pytext *t, struct buf *out, bool *is_float,
                            struct error *e)
{
    size_t i = 0;
    enum err rc = OK;
    *is_float = false;
    while (i < t->n && digit_value(t->v[i]) < 0)
        i++;
    for (; i < t->n && !rc; i++) {
        const int d = digit_value(t->v[i]);
        if (d >= 0)
            rc = buf_add_byte(out, (uint8_t)('0' + d), e);
        else if (t->v[i] == '.' && !*is_float && i + 1 < t->n && digit_value(t->v[i + 1]) >= 0)
            rc = add_point(out, is_float, e);
        else
            break;
    }
    return rc;
}

/* math_find: the first number. An answer with a point is a float, one without an integer, which
 * a number with a point never is. */
static enum err first_number(const char *text, size_t n, const struct wordlist *answers,
                             struct metric_result *out, struct error *e)
{
    AUTO(pytext) struct pytext have = {NULL, 0};
    AUTO(pytext) struct pytext digits = {NULL, 0};
    AUTO(buf) struct buf found = BUF_INIT(MAX_TEXT_BYTES);
    AUTO(buf) struct buf number = BUF_INIT(1 << 16);
    size_t n_word;
    const char *want = wordlist_at(answers, 0, &n_word);
    bool is_float = false;
    enum err rc = pytext_decode(text, n, &have, e);
    if (!rc)
        rc = find_number(&have, &found, &is_float, e);
    if (!rc)
        rc = pytext_decode(buf_str(&found), found.len, &digits, e);
    if (rc)
        return rc;
    out->is_unparsable = !found.len;
    if (out->is_unparsable)
        return OK;
    if (memchr(want, '.', n_word)) {
        const double x = strtod(buf_str(&found), NULL), y = strtod(want, NULL);
        out->score = x >= y && x <= y;
        return OK;
    }
    out->score = !is_float && parse_int(digits.v, digits.n, &number) &&
                 is_int(answers, 0, &number, e, &rc);
    return rc;
}

/* math_calc: how many of the first numbers are the answers, up to the first that is not. */
static enum err numbers(const char *text, size_t n, const struct wordlist *answers,
                        struct metric_result *out, struct error *e)
{
    uint32_t n_right = 0, k = 0;
    enum err rc = OK;
    for (size_t i = 0; i < n && k < answers->n && !rc; k++) {
        AUTO(buf) struct buf number = BUF_INIT(MAX_TEXT_BYTES);
        AUTO(pytext) struct pytext digits = {NULL, 0};
        while (i < n && !(text[i] >= '0' && text[i] <= '9'))
            i++;
        const size_t from = i;
        while (i < n && text[i] >= '0' && text[i] <= '9')
            i++;
        if (i == from)
            break;
        rc = pytext_decode(text + from, i - from, &digits, e);
        if (rc || !parse_int(digits.v, digits.n, &number) ||
            !is_int(answers, k, &number, e, &rc))
            break;
        n_right++;
    }
    out->score = (double)n_right / answers->n;
    return rc;
}

/* ---- words and letters ------------------------------------------------------------------ */

/* str.upper(); of what becomes several characters those that become ASCII. */
static enum err add_upper(const char *word, size_t n, struct buf *out, struct error *e)
{
    static const struct {
        uint32_t cp;
        const char *upper;
    } several[] = {{0xdf, "SS"},    {0xfb00, "FF"},  {0xfb01, "FI"}, {0xfb02, "FL"},
                   {0xfb03, "FFI"}, {0xfb04, "FFL"}, {0xfb05, "ST"}, {0xfb06, "ST"}};
    AUTO(pytext) struct pytext t = {NULL, 0};
    enum err rc = pytext_decode(word, n, &t, e);
    for (size_t i = 0; i < t.n && !rc; i++) {
        const char *upper = NULL;
        for (size_t k = 0; k < sizeof several / sizeof *several; k++)
            upper = several[k].cp == t.v[i] ? several[k].upper : upper;
        uint8_t utf8[4];
        rc = upper ? buf_add_str(out, upper, e)
                   : buf_add(out, utf8,
                             (size_t)utf8proc_encode_char(
                                 utf8proc_toupper((utf8proc_int32_t)t.v[i]), utf8),
                             e);
    }
    return rc;
}

/* longdialogue_qa_eng: one of the words, in upper case. */
static enum err upper_word(const char *text, size_t n, const struct wordlist *answers,
                           struct metric_result *out, struct error *e)
{
    AUTO(buf) struct buf b = BUF_INIT(MAX_TEXT_BYTES);
    AUTO(buf) struct buf upper = BUF_INIT(MAX_TEXT_BYTES);
    AUTO(wordlist) struct wordlist words = WORDLIST_INIT;
    size_t n_want;
    const char *want = wordlist_at(answers, 0, &n_want);
    enum err rc = spaced(text, n, "\n:\"'.,?!{}", &b, e);
    if (!rc)
        rc = pytext_split(buf_str(&b), b.len, &words, e);
    for (uint32_t i = 0; i < words.n && !rc && out->score <= 0; i++) {
        size_t n_word;
        const char *word = wordlist_at(&words, i, &n_word);
        buf_clear(&upper);
        rc = add_upper(word, n_word, &upper, e);
        out->score = !rc && upper.len == n_want && !memcmp(buf_str(&upper), want, n_want);
    }
    return rc;
}

/* code_debug: answers are a name and its letter. */
static enum err code_option(const char *text, size_t n, const struct wordlist *answers,
                            struct metric_result *out, struct error *e)
{
    static const char *const marks[] = {
        "answer is:", "is:", "answer:", "correct option is:", NULL};
    AUTO(buf) struct buf b = BUF_INIT(MAX_TEXT_BYTES);
    size_t n_letter;
    const char *letter = wordlist_at(answers, 1, &n_letter);
    bool found = false;
    pytext_strip(&text, &n);
    if (n > n_letter && starts(text, n, letter, n_letter) && n_letter == 1 &&
        (text[1] == '.' || text[1] == ':')) {
        out->score = 1;
        return OK;
    }
    enum err rc = spaced(text, n, "\n`'\"-*", &b, e);
    if (!rc)
        rc = replace_word(&b, "Option", e);
    if (!rc)
        rc = replace_word(&b, "option", e);
    if (rc)
        return rc;
    single_spaces(&b);
    out->score = answer_behind(&b, marks, answers, &found);
    out->is_unparsable = !found;
    return OK;
}

/* longbook_choice_eng: a letter or its text. */
static enum err option(const char *text, size_t n, const struct wordlist *answers,
                       struct metric_result *out, struct error *e)
{
    static const char *const marks[] = {"answer is:", "answer:", "answer is", "option is",
                                        NULL};
    AUTO(buf) struct buf b = BUF_INIT(MAX_TEXT_BYTES);
    AUTO(wordlist) struct wordlist words = WORDLIST_INIT;
    bool found = false;
    pytext_strip(&text, &n);
    if (n && text[0] >= 'A' && text[0] <= 'D') {
        out->score = is_answer(text, 1, answers);
        return OK;
    }
    if (n && is_answer(text, n, answers)) {
        out->score = 1;
        return OK;
    }
    enum err rc = spaced(text, n, "\n\"'.,?!{}", &b, e);
    if (rc)
        return rc;
    single_spaces(&b);
    out->score = answer_behind(&b, marks, answers, &found);
    if (found)
        return OK;
    rc = pytext_split(buf_str(&b), b.len, &words, e);
    for (uint32_t i = 0; i < words.n && !rc; i++) {
        size_t n_word;
        const char *word = wordlist_at(&words, i, &n_word);
        if (!memmem("ABCD", 4, word, n_word))
            continue;
        out->score = is_answer(word, n_word, answers);
        return OK;
    }
    out->is_unparsable = true;
    return rc;
}

/* ---- F1 --------------------------------------------------------------------------------- */

/* Punctuation of Chinese text: what the original leaves out of answers in it. */
static const char chinese_marks[] =
    "！？｡。＂＃＄％＆＇（）＊＋，－／：；＜＝＞＠［＼］＾＿｀｛｜｝～｟｠｢｣､、〃》「」『』【】"
    "〔〕〖〗〘〙〚〛〜〝〞〟〰〾〿–—‘’‛“”„‟…‧﹏.";

static bool is_ascii_mark(uint32_t cp)
{
    return (cp >= '!' && cp <= '/') || (cp >= ':' && cp <= '@') || (cp >= '[' && cp <= '`') ||
           (cp >= '{' && cp <= '~');
}

/* What \w is. */
static bool is_word(uint32_t cp)
{
    const int c = (int)utf8proc_category((utf8proc_int32_t)cp);
    return cp == '_' || (c >= UTF8PROC_CATEGORY_LU && c <= UTF8PROC_CATEGORY_LO) ||
           (c >= UTF8PROC_CATEGORY_ND && c <= UTF8PROC_CATEGORY_NO);
}

/* Lower case, without the marks. */
static enum err plain(const char *text, size_t n, const struct pytext *marks,
                      struct pytext *out, struct error *e)
{
    AUTO(buf) struct buf lower = BUF_INIT(MAX_TEXT_BYTES);
    size_t n_out = 0;
    enum err rc = pytext_lower(text, n, &lower, e);
    if (!rc)
        rc = pytext_decode(buf_str(&lower), lower.len, out, e);
    for (size_t i = 0; i < out->n && !rc; i++) {
        bool is_mark = is_ascii_mark(out->v[i]);
        for (size_t k = 0; k < marks->n && !is_mark; k++)
            is_mark = marks->v[k] == out->v[i];
        if (!is_mark)
            out->v[n_out++] = out->v[i];
    }
    out->n = n_out;
    return rc;
}

/* Articles become spaces. */
static void drop_articles(struct pytext *t)
{
    static const char *const articles[] = {"a", "an", "the"};
    for (size_t i = 0; i < t->n; i++) {
        if (i && is_word(t->v[i - 1]))
            continue;
        for (size_t k = 0; k < 3; k++) {
            const size_t n = strlen(articles[k]);
            bool same = t->n - i >= n && (i + n == t->n || !is_word(t->v[i + n]));
            for (size_t m = 0; m < n && same; m++)
                same = t->v[i + m] == (uint32_t)articles[k][m];
            for (size_t m = 0; m < n && same; m++)
                t->v[i + m] = ' ';
        }
    }
}

/* Words of a text, or its characters, each as a hash of it: equal ones are equal numbers. */
struct tokens {
    uint64_t *v;
    size_t n;
};

static void tokens_fini(struct tokens *t)
{
    free(t->v);
}

static int compare(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* FNV-1a over code points: a collision of two words in one answer is once in 2^40 answers. */
static enum err make_tokens(const struct pytext *t, bool by_word, struct tokens *out,
                            struct error *e)
{
    const uint64_t basis = UINT64_C(14695981039346656037), prime = UINT64_C(1099511628211);
    bool open = false;
    if (!(out->v = calloc(t->n + 1, sizeof *out->v)))
        return err_set(e, ERR_NOMEM, "no memory for %zu words", t->n);
    for (size_t i = 0; i < t->n; i++) {
        const bool space = pytext_is_space(t->v[i]);
        if (space)
            open = false;
        if (space)
            continue;
        if (!open || !by_word)
            out->v[out->n++] = basis;
        out->v[out->n - 1] = (out->v[out->n - 1] ^ t->v[i]) * prime;
        open = true;
    }
    qsort(out->v, out->n, sizeof *out->v, compare);
    return OK;
}

static double f1_of(const struct tokens *a, const struct tokens *b)
{
    size_t same = 0;
    for (size_t i = 0, k = 0; i < a->n && k < b->n;) {
        same += a->v[i] == b->v[k];
        const bool left = a->v[i] <= b->v[k], right = a->v[i] >= b->v[k];
        i += left;
        k += right;
    }
    if (!same)
        return 0;
    const double precision = 1.0 * (double)same / (double)a->n,
                 recall = 1.0 * (double)same / (double)b->n;
    return 2 * precision * recall / (precision + recall);
}

static enum err normal(const char *text, size_t n, bool by_word, struct tokens *out,
                       struct error *e)
{
    AUTO(pytext) struct pytext marks = {NULL, 0};
    AUTO(pytext) struct pytext t = {NULL, 0};
    enum err rc =
        pytext_decode(chinese_marks, by_word ? 0 : sizeof chinese_marks - 1, &marks, e);
    if (!rc)
        rc = plain(text, n, &marks, &t, e);
    if (!rc && by_word)
        drop_articles(&t);
    return rc ? rc : make_tokens(&t, by_word, out, e);
}

/* longbook_qa_eng by words, longbook_qa_chn by characters: the best of the answers. */
static enum err f1(const char *text, size_t n, bool by_word, const struct wordlist *answers,
                   struct metric_result *out, struct error *e)
{
    AUTO(tokens) struct tokens have = {NULL, 0};
    enum err rc = normal(text, n, by_word, &have, e);
    for (uint32_t i = 0; i < answers->n && !rc; i++) {
        AUTO(tokens) struct tokens want = {NULL, 0};
        size_t n_word;
        const char *word = wordlist_at(answers, i, &n_word);
        rc = normal(word, n_word, by_word, &want, e);
        const double score = rc ? 0 : f1_of(&have, &want);
        out->score = score > out->score ? score : out->score;
    }
    return rc;
}

enum err metric_infinitebench(enum suite_metric metric, const char *text, size_t n,
                              const struct wordlist *answers, struct metric_result *out,
                              struct error *e)
{
    switch ((int)metric) {
    case SUITE_LAST_INT:
        return last_int(text, n, answers, out, e);
    case SUITE_FIRST_NUMBER:
        return first_number(text, n, answers, out, e);
    case SUITE_NUMBERS:
        return numbers(text, n, answers, out, e);
    case SUITE_UPPER_WORD:
        return upper_word(text, n, answers, out, e);
    case SUITE_CODE_OPTION:
        return code_option(text, n, answers, out, e);
    case SUITE_OPTION:
        return option(text, n, answers, out, e);
    default:
        return f1(text, n, metric == SUITE_F1_WORDS, answers, out, e);
    }
}
