#include "evals/wordlist.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/fs.h"
#include "base/json.h"
#include "engine/unicode.h"

#define MAX_FILE_BYTES ((size_t)64 << 20)

/* ---- lists ------------------------------------------------------------------------------ */

void wordlist_fini(struct wordlist *l)
{
    buf_fini(&l->text);
    free(l->starts);
    l->starts = NULL;
    l->n = l->cap = 0;
}

void wordlist_clear(struct wordlist *l)
{
    buf_clear(&l->text);
    l->n = 0;
}

static enum err grow(struct wordlist *l, struct error *e)
{
    if (l->n + 1 < l->cap)
        return OK;
    uint32_t cap = l->cap ? l->cap * 2 : 256;
    uint32_t *starts = cap ? realloc(l->starts, cap * sizeof *starts) : NULL;
    if (!starts)
        return err_set(e, ERR_NOMEM, "no memory for a list of %u words", cap);
    l->starts = starts;
    l->cap = cap;
    return OK;
}

enum err wordlist_add(struct wordlist *l, const void *word, size_t n, struct error *e)
{
    enum err rc = grow(l, e);
    if (!rc)
        rc = buf_reserve(&l->text, n + 1, e);
    if (rc)
        return rc;
    l->starts[l->n] = (uint32_t)l->text.len;
    if ((rc = buf_add(&l->text, word, n, e)) || (rc = buf_add_byte(&l->text, '\n', e)))
        return rc;
    l->starts[++l->n] = (uint32_t)l->text.len;
    return OK;
}

const char *wordlist_at(const struct wordlist *l, uint32_t i, size_t *n)
{
    assert(i < l->n);
    *n = l->starts[i + 1] - l->starts[i] - 1;
    return (const char *)l->text.data + l->starts[i];
}

static int compare_bytes(const void *a, size_t n_a, const void *b, size_t n_b)
{
    int order = memcmp(a, b, n_a < n_b ? n_a : n_b);
    return order ? order : (n_a > n_b) - (n_a < n_b);
}

static int compare_words(const void *a, const void *b, void *list)
{
    size_t n_a, n_b;
    const char *x = wordlist_at(list, *(const uint32_t *)a, &n_a);
    const char *y = wordlist_at(list, *(const uint32_t *)b, &n_b);
    return compare_bytes(x, n_a, y, n_b);
}

/* As if a dash stood behind both: the order of the pairs. */
static int compare_firsts(const void *a, const void *b, void *list)
{
    size_t n_a, n_b;
    const char *x = wordlist_at(list, *(const uint32_t *)a, &n_a);
    const char *y = wordlist_at(list, *(const uint32_t *)b, &n_b);
    size_t n = n_a < n_b ? n_a : n_b;
    int order = memcmp(x, y, n);
    if (order || n_a == n_b)
        return order;
    int next_x = n_a == n ? '-' : (uint8_t)x[n], next_y = n_b == n ? '-' : (uint8_t)y[n];
    return next_x != next_y ? next_x - next_y : (n_a > n_b) - (n_a < n_b);
}

static enum err sort_unique(struct wordlist *l,
                            int (*compare)(const void *, const void *, void *), struct error *e)
{
    AUTO(wordlist) struct wordlist sorted = WORDLIST_INIT;
    AUTO_FREE uint32_t *order = calloc(l->n ? l->n : 1, sizeof *order);
    if (!order)
        return err_set(e, ERR_NOMEM, "no memory to sort %u words", l->n);
    for (uint32_t i = 0; i < l->n; i++)
        order[i] = i;
    qsort_r(order, l->n, sizeof *order, compare, l);
    for (uint32_t i = 0; i < l->n; i++) {
        if (i && !compare_words(&order[i - 1], &order[i], l))
            continue;
        size_t n;
        const char *word = wordlist_at(l, order[i], &n);
        enum err rc = wordlist_add(&sorted, word, n, e);
        if (rc)
            return rc;
    }
    struct wordlist swap = *l;
    *l = sorted;
    sorted = swap;
    return OK;
}

enum err wordlist_sort_unique(struct wordlist *l, struct error *e)
{
    return sort_unique(l, compare_words, e);
}

/* ---- files ------------------------------------------------------------------------------ */

/* Length of s without the white space at its end: str.rstrip(). */
static size_t stripped(const uint8_t *s, size_t n)
{
    size_t end = 0;
    for (size_t i = 0; i < n;) {
        uint32_t cp = 0;
        unsigned len = utf8_decode(s + i, n - i, &cp);
        i += len;
        if (!(unicode_class(cp) & UNICODE_SPACE) && !(cp >= 0x1c && cp <= 0x1f))
            end = i;
    }
    return end;
}

enum err wordlist_load_lines(struct wordlist *l, const char *path, struct error *e)
{
    AUTO(buf) struct buf file = BUF_INIT(MAX_FILE_BYTES);
    enum err rc = fs_read_file(path, &file, e);
    if (rc)
        return err_wrap(e, rc, "word list");
    if (!utf8_is_valid(file.data, file.len))
        return err_set(e, ERR_FORMAT, "word list %s: not UTF-8", path);
    for (size_t at = 0; at < file.len && !rc;) {
        const uint8_t *line = file.data + at;
        size_t n = 0, left = file.len - at;
        while (n < left && line[n] != '\n' && line[n] != '\r')
            n++;
        at += n + 1;
        if (n + 1 < left && line[n] == '\r' && line[n + 1] == '\n')
            at++;
        rc = wordlist_add(l, line, stripped(line, n), e);
    }
    return rc;
}

enum err wordlist_load_json(struct wordlist *l, const char *path, struct error *e)
{
    const struct json_limits limits = {.max_bytes = MAX_FILE_BYTES, .max_depth = 2};
    AUTO(buf) struct buf file = BUF_INIT(MAX_FILE_BYTES);
    json_auto_t *object = NULL;
    enum err rc = fs_read_file(path, &file, e);
    if (!rc)
        rc = json_parse(buf_str(&file), file.len, &limits, &object, e);
    if (rc)
        return err_wrap(e, rc, "word list %s", path);
    const char *key;
    json_t *word;
    json_object_foreach(object, key, word) {
        const char *text = json_string_value(word);
        if (!text || strchr(text, '\n'))
            return err_set(e, ERR_FORMAT, "word list %s: \"%.40s\": want a word", path, key);
        if ((rc = wordlist_add(l, text, json_string_length(word), e)))
            return rc;
    }
    return json_object_size(object)
               ? OK
               : err_set(e, ERR_FORMAT, "word list %s: want an object of words", path);
}

/* ---- pairs ------------------------------------------------------------------------------ */

void word_pairs_fini(struct word_pairs *p)
{
    for (uint32_t i = 0; i < p->n_groups; i++)
        wordlist_fini(&p->groups[i].made);
    free(p->groups);
    wordlist_fini(&p->firsts);
    wordlist_fini(&p->seconds);
    *p = (struct word_pairs){.n = 0};
}

static enum err add_pair(const struct word_pairs *p, uint32_t first, uint32_t second,
                         struct buf *out, struct error *e)
{
    size_t n_a, n_b;
    const char *a = wordlist_at(&p->firsts, first, &n_a);
    const char *b = wordlist_at(&p->seconds, second, &n_b);
    enum err rc = buf_add(out, a, n_a, e);
    if (!rc)
        rc = buf_add_byte(out, '-', e);
    return rc ? rc : buf_add(out, b, n_b, e);
}

/* The pairs of firsts [from, to) as a sorted list. */
static enum err make_group(const struct word_pairs *p, uint32_t from, uint32_t to,
                           struct wordlist *out, struct error *e)
{
    AUTO(buf) struct buf pair = BUF_INIT(WORDLIST_MAX_BYTES);
    enum err rc = OK;
    for (uint32_t i = from; i < to; i++)
        for (uint32_t k = 0; k < p->seconds.n; k++) {
            buf_clear(&pair);
            if (!(rc = add_pair(p, i, k, &pair, e)))
                rc = wordlist_add(out, buf_str(&pair), pair.len, e);
            if (rc)
                return rc;
        }
    return wordlist_sort_unique(out, e);
}

/* Whether first word i begins with first word `head` and a dash. */
static bool goes_on(const struct wordlist *firsts, uint32_t head, uint32_t i)
{
    size_t n_head, n;
    const char *h = wordlist_at(firsts, head, &n_head), *w = wordlist_at(firsts, i, &n);
    return n > n_head && !memcmp(h, w, n_head) && w[n_head] == '-';
}

static enum err group(struct word_pairs *p, struct error *e)
{
    p->groups = calloc(p->firsts.n, sizeof *p->groups);
    if (!p->groups)
        return err_set(e, ERR_NOMEM, "no memory for %u groups of words", p->firsts.n);
    for (uint32_t from = 0, to; from < p->firsts.n; from = to) {
        for (to = from + 1; to < p->firsts.n && goes_on(&p->firsts, from, to);)
            to++;
        struct word_group *g = &p->groups[p->n_groups++];
        *g = (struct word_group){.first = from, .start = p->n, .made = WORDLIST_INIT};
        enum err rc = to - from > 1 ? make_group(p, from, to, &g->made, e) : OK;
        if (rc)
            return rc;
        p->n += g->made.n ? g->made.n : p->seconds.n;
    }
    return p->n <= UINT32_MAX ? OK
                              : err_set(e, ERR_LIMIT, "%llu pairs of words are too many",
                                        (unsigned long long)p->n);
}

enum err word_pairs_init(struct word_pairs *p, struct wordlist *take_firsts,
                         struct wordlist *take_seconds, struct error *e)
{
    *p = (struct word_pairs){.firsts = *take_firsts, .seconds = *take_seconds};
    *take_firsts = *take_seconds = (struct wordlist)WORDLIST_INIT;
    enum err rc = p->firsts.n && p->seconds.n
                      ? OK
                      : err_set(e, ERR_INVAL, "pairs of words: a list is empty");
    if (!rc)
        rc = sort_unique(&p->firsts, compare_firsts, e);
    if (!rc)
        rc = wordlist_sort_unique(&p->seconds, e);
    if (!rc)
        rc = group(p, e);
    if (rc)
        word_pairs_fini(p);
    return rc;
}

enum err word_pairs_add(const struct word_pairs *p, uint64_t i, struct buf *out,
                        struct error *e)
{
    assert(i < p->n);
    uint32_t low = 0, high = p->n_groups; /* groups[low].start <= i < groups[high].start */
    while (high - low > 1) {
        uint32_t mid = low + (high - low) / 2;
        *(p->groups[mid].start <= i ? &low : &high) = mid;
    }
    const struct word_group *g = &p->groups[low];
    uint32_t k = (uint32_t)(i - g->start);
    if (!g->made.n)
        return add_pair(p, g->first, k, out, e);
    size_t n;
    const char *pair = wordlist_at(&g->made, k, &n);
    return buf_add(out, pair, n, e);
}
