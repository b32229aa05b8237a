#include "evals/metric.h"

#include <string.h>

#include "evals/difflib.h"
#include "evals/metric_internal.h"
#include "evals/pytext.h"

#define MAX_TEXT_BYTES ((size_t)256 << 20)
#define LIST_MARK "Final Answer:"

enum suite_metric metric_of(const char *name)
{
    enum suite_metric m = 0;
    while (m < SUITE_N_METRICS && strcmp(name, suite_metric_names[m]) != 0)
        m++;
    return m;
}

/* ---- containing ------------------------------------------------------------------------- */

/* RULER's clean-up: stripped, control characters made newlines, stripped, lower case. */
static enum err clean(const char *text, size_t n, struct buf *out, struct error *e)
{
    AUTO(buf) struct buf copy = BUF_INIT(MAX_TEXT_BYTES);
    pytext_strip(&text, &n);
    enum err rc = buf_add(&copy, text, n, e);
    if (rc)
        return rc;
    for (size_t i = 0; i < n; i++)
        if (copy.data[i] < 0x20)
            copy.data[i] = '\n';
    text = buf_str(&copy);
    pytext_strip(&text, &n);
    return pytext_lower(text, n, out, e);
}

static enum err score_match(bool all, const char *text, size_t n,
                            const struct wordlist *answers, double *score, struct error *e)
{
    AUTO(buf) struct buf have = BUF_INIT(MAX_TEXT_BYTES);
    AUTO(buf) struct buf want = BUF_INIT(MAX_TEXT_BYTES);
    uint32_t n_found = 0;
    enum err rc = clean(text, n, &have, e);
    for (uint32_t i = 0; i < answers->n && !rc; i++) {
        size_t n_word;
        const char *word = wordlist_at(answers, i, &n_word);
        buf_clear(&want);
        rc = pytext_lower(word, n_word, &want, e);
        n_found += !rc && memmem(buf_str(&have), have.len, buf_str(&want), want.len);
    }
    *score = all ? (double)n_found / answers->n : n_found > 0;
    return rc;
}

/* ---- lists ------------------------------------------------------------------------------ */

/* What stands between the brackets of the last line; false: no such list. */
static bool find_list(const char **text, size_t *n)
{
    const char *start = *text;
    pytext_strip(text, n);
    *n += (size_t)(*text - start);
    *text = start; /* only the end is stripped */
    const char *end = *text + *n, *line = memrchr(*text, '\n', *n);
    line = line ? line + 1 : *text;
    const char *close = memrchr(line, ']', (size_t)(end - line));
    while (close && (line = memmem(line, (size_t)(end - line), LIST_MARK, strlen(LIST_MARK)))) {
        line += strlen(LIST_MARK);
        const char *open = line + (line < end && *line == ' ');
        if (open < close && *open == '[') {
            *text = open + 1;
            *n = (size_t)(close - open - 1);
            return true;
        }
    }
    return false;
}

static enum err split_list(const char *text, size_t n, struct wordlist *out, struct error *e)
{
    enum err rc = OK;
    for (const char *end = text + n; text <= end && !rc;) {
        const char *comma = memchr(text, ',', (size_t)(end - text)), *item = text;
        size_t n_item = (size_t)((comma ? comma : end) - text);
        text += n_item + 1;
        pytext_strip(&item, &n_item);
        if (n_item)
            rc = wordlist_add(out, item, n_item, e);
    }
    return rc ? rc : wordlist_sort_unique(out, e);
}

/* Words that stand in both of two sorted lists. */
static uint32_t count_common(const struct wordlist *a, const struct wordlist *b)
{
    uint32_t n = 0;
    for (uint32_t i = 0, k = 0; i < a->n && k < b->n;) {
        size_t n_x, n_y;
        const char *x = wordlist_at(a, i, &n_x), *y = wordlist_at(b, k, &n_y);
        int order = memcmp(x, y, n_x < n_y ? n_x : n_y);
        order = order ? order : (n_x > n_y) - (n_x < n_y);
        n += order == 0;
        i += order <= 0;
        k += order >= 0;
    }
    return n;
}

static enum err score_set(const char *text, size_t n, const struct wordlist *answers,
                          struct metric_result *out, struct error *e)
{
    AUTO(wordlist) struct wordlist have = WORDLIST_INIT;
    AUTO(wordlist) struct wordlist want = WORDLIST_INIT;
    if (!find_list(&text, &n)) {
        out->is_unparsable = true;
        return OK;
    }
    enum err rc = split_list(text, n, &have, e);
    for (uint32_t i = 0; i < answers->n && !rc; i++) {
        size_t n_word;
        const char *word = wordlist_at(answers, i, &n_word);
        rc = wordlist_add(&want, word, n_word, e);
    }
    if (!rc)
        rc = wordlist_sort_unique(&want, e);
    if (rc || !have.n)
        return rc;
    const double n_common = count_common(&have, &want);
    const double recall = n_common / want.n, precision = n_common / have.n;
    out->score = n_common > 0 ? 2 * (recall * precision) / (recall + precision) : 0;
    return OK;
}

/* ---- ratio ------------------------------------------------------------------------------ */

static enum err score_ratio(const char *text, size_t n, const struct wordlist *answers,
                            struct metric_result *out, struct error *e)
{
    AUTO(pytext) struct pytext have = {NULL, 0};
    AUTO(pytext) struct pytext want = {NULL, 0};
    size_t n_answer;
    const char *answer = wordlist_at(answers, 0, &n_answer);
    enum err rc = pytext_decode(text, n, &have, e);
    if (!rc)
        rc = pytext_decode(answer, n_answer, &want, e);
    if (rc)
        return rc;
    const size_t n_prefix = want.n < METRIC_PREFIX_CHARS ? want.n : METRIC_PREFIX_CHARS;
    if (have.n < n_prefix || memcmp(have.v, want.v, n_prefix * sizeof *have.v) != 0) {
        out->is_unparsable = true;
        return OK;
    }
    return difflib_ratio(have.v + n_prefix, have.n - n_prefix, want.v + n_prefix,
                         want.n - n_prefix, &out->score, e);
}

/* ---- a letter, a number, a word -----------------------------------------------------------
 */

#define CHOICE_MARK "The correct answer is "

/* The letter behind the first mark that one stands behind: in brackets, else without. 0: none.
 */
static char find_choice(const char *text, size_t n, bool bracketed)
{
    const char *end = text + n, *at = text;
    const size_t n_mark = strlen(CHOICE_MARK);
    while ((at = memmem(at, (size_t)(end - at), CHOICE_MARK, n_mark))) {
        const char *p = at + n_mark;
        at++;
        if (bracketed && !(end - p >= 3 && p[0] == '(' && p[2] == ')'))
            continue;
        p += bracketed;
        if (p < end && *p >= 'A' && *p <= 'D')
            return *p;
    }
    return 0;
}

static enum err score_choice(const char *text, size_t n, const struct wordlist *answers,
                             struct metric_result *out, struct error *e)
{
    AUTO(buf) struct buf plain = BUF_INIT(MAX_TEXT_BYTES);
    size_t n_word;
    const char *word = wordlist_at(answers, 0, &n_word);
    enum err rc = OK;
    for (size_t i = 0; i < n && !rc; i++)
        if (text[i] != '*')
            rc = buf_add_byte(&plain, (uint8_t)text[i], e);
    if (rc)
        return rc;
    char letter = find_choice(buf_str(&plain), plain.len, true);
    letter = letter ? letter : find_choice(buf_str(&plain), plain.len, false);
    out->is_unparsable = !letter;
    out->score = letter && n_word == 1 && *word == letter;
    return OK;
}

static void score_first_int(const char *text, size_t n, const struct wordlist *answers,
                            struct metric_result *out)
{
    size_t from = 0, n_word;
    const char *word = wordlist_at(answers, 0, &n_word);
    while (from < n && !(text[from] >= '0' && text[from] <= '9'))
        from++;
    size_t to = from;
    while (to < n && text[to] >= '0' && text[to] <= '9')
        to++;
    out->is_unparsable = from == n;
    out->score = from < n && n_word == to - from && !memcmp(word, text + from, n_word);
}

static enum err score_word(const char *text, size_t n, const struct wordlist *answers,
                           struct metric_result *out, struct error *e)
{
    AUTO(pytext) struct pytext have = {NULL, 0};
    AUTO(pytext) struct pytext want = {NULL, 0};
    size_t n_word;
    const char *word = wordlist_at(answers, 0, &n_word);
    enum err rc = pytext_decode(text, n, &have, e);
    if (!rc)
        rc = pytext_decode(word, n_word, &want, e);
    for (size_t i = 0, from = 0; i <= have.n && !rc; i++) {
        const uint32_t c = i < have.n ? have.v[i] : ' ';
        if (!pytext_is_space(c) && !(c < 0x80 && strchr(":\"'.,?!{}", (int)c)))
            continue;
        if (i > from && i - from == want.n &&
            !memcmp(have.v + from, want.v, want.n * sizeof *want.v))
            out->score = 1;
        from = i + 1;
    }
    return rc;
}

static bool has_answers(enum suite_metric metric, uint32_t n)
{
    static const uint32_t exactly[SUITE_N_METRICS] = {
        [SUITE_RATIO] = 1,      [SUITE_CHOICE] = 1,      [SUITE_FIRST_INT] = 1,
        [SUITE_WORD] = 1,       [SUITE_LAST_INT] = 1,    [SUITE_FIRST_NUMBER] = 1,
        [SUITE_UPPER_WORD] = 1, [SUITE_CODE_OPTION] = 2, [SUITE_OPTION] = 2};
    const uint32_t want = metric < SUITE_N_METRICS ? exactly[metric] : 0;
    return want ? n == want : n > 0;
}

enum err metric_score(enum suite_metric metric, const char *text, size_t n,
                      const struct wordlist *answers, struct metric_result *out,
                      struct error *e)
{
    struct metric_result result = {.score = 0};
    const char *rest = text;
    size_t n_rest = n;
    enum err rc = OK;
    if (!has_answers(metric, answers->n))
        return err_set(e, ERR_INVAL, "score: %u answers", answers->n);
    pytext_strip(&rest, &n_rest);
    result.is_empty = !n_rest;
    switch (metric) {
    case SUITE_ALL_MATCH:
    case SUITE_ANY_MATCH:
        rc = score_match(metric == SUITE_ALL_MATCH, text, n, answers, &result.score, e);
        break;
    case SUITE_SET_F1:
        rc = score_set(text, n, answers, &result, e);
        break;
    case SUITE_RATIO:
        rc = score_ratio(text, n, answers, &result, e);
        break;
    case SUITE_CHOICE:
        rc = score_choice(text, n, answers, &result, e);
        break;
    case SUITE_FIRST_INT:
        score_first_int(text, n, answers, &result);
        break;
    case SUITE_WORD:
        rc = score_word(text, n, answers, &result, e);
        break;
    case SUITE_LAST_INT:
    case SUITE_FIRST_NUMBER:
    case SUITE_NUMBERS:
    case SUITE_UPPER_WORD:
    case SUITE_CODE_OPTION:
    case SUITE_OPTION:
    case SUITE_F1_WORDS:
    case SUITE_F1_CHARS:
        rc = metric_infinitebench(metric, text, n, answers, &result, e);
        break;
    case SUITE_ROUGE_LSUM:
        rc = metric_rouge(text, n, answers, &result, e);
        break;
    case SUITE_N_METRICS:
        return err_set(e, ERR_INVAL, "score: unknown metric");
    }
    if (!rc)
        *out = result;
    return rc;
}
