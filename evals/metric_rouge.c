/* ROUGE-Lsum as rouge_score computes it without a stemmer: the F1 of a summary whose lines are
 * compared by their longest common subsequences. */
#include <stdlib.h>
#include <string.h>

#include "evals/metric_internal.h"
#include "evals/pytext.h"

#define MAX_TEXT_BYTES ((size_t)256 << 20)
#define MAX_WORDS ((size_t)1 << 16) /* of a text */
#define MAX_CELLS ((size_t)1 << 26) /* of the table of two lines: 256 MB */

/* Lines of words; a word is the number of its first appearance in either text. */
struct rouge_text {
    uint32_t *words;
    size_t *ends; /* of line i, in words */
    size_t n_words, n_lines;
};

struct rouge {
    struct wordlist vocabulary;
    struct rouge_text want, have;
    uint32_t *n_want, *n_have; /* [vocabulary]: how often a word may still count */
    uint32_t *table;
    bool *in_lcs;
};

static void rouge_text_fini(struct rouge_text *t)
{
    free(t->words);
    free(t->ends);
}

static void rouge_fini(struct rouge *r)
{
    wordlist_fini(&r->vocabulary);
    rouge_text_fini(&r->want);
    rouge_text_fini(&r->have);
    free(r->n_want);
    free(r->n_have);
    free(r->table);
    free(r->in_lcs);
}

static enum err number_of(struct rouge *r, const char *word, size_t n, uint32_t *out,
                          struct error *e)
{
    for (uint32_t i = 0; i < r->vocabulary.n; i++) {
        size_t n_other;
        const char *other = wordlist_at(&r->vocabulary, i, &n_other);
        if (n == n_other && !memcmp(word, other, n)) {
            *out = i;
            return OK;
        }
    }
    *out = r->vocabulary.n;
    return wordlist_add(&r->vocabulary, word, n, e);
}

static bool is_word(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9');
}

/* Lower case, words of a-z and 0-9, lines that are not empty. */
static enum err read_text(struct rouge *r, const char *text, size_t n, struct rouge_text *out,
                          struct error *e)
{
    AUTO(buf) struct buf lower = BUF_INIT(MAX_TEXT_BYTES);
    enum err rc = pytext_lower(text, n, &lower, e);
    const char *s = buf_str(&lower);
    out->words = calloc(lower.len + 1, sizeof *out->words);
    out->ends = calloc(lower.len + 1, sizeof *out->ends);
    if (!rc && (!out->words || !out->ends))
        rc = err_set(e, ERR_NOMEM, "no memory for %zu words", lower.len);
    for (size_t i = 0, line = 0; i <= lower.len && !rc;) {
        const size_t from = i;
        while (i < lower.len && is_word(s[i]))
            i++;
        if (i > from && out->n_words == MAX_WORDS)
            rc = err_set(e, ERR_LIMIT, "rouge: over %zu words", MAX_WORDS);
        else if (i > from)
            rc = number_of(r, s + from, i - from, &out->words[out->n_words++], e);
        if ((i == lower.len || s[i] == '\n') && i > line)
            out->ends[out->n_lines++] = out->n_words;
        line = i < lower.len && s[i] == '\n' ? i + 1 : line;
        i++;
    }
    return rc;
}

/* Marks the words of a that are in the longest common subsequence with b. */
static enum err mark_lcs(struct rouge *r, const uint32_t *a, size_t n_a, const uint32_t *b,
                         size_t n_b, struct error *e)
{
    const size_t width = n_b + 1;
    if (n_a >= MAX_CELLS / width)
        return err_set(e, ERR_LIMIT, "rouge: a line of %zu words against one of %zu", n_a, n_b);
    uint32_t *t = realloc(r->table, (n_a + 1) * width * sizeof *t);
    if (!t)
        return err_set(e, ERR_NOMEM, "no memory for %zu by %zu words", n_a, n_b);
    r->table = t;
    memset(t, 0, (n_a + 1) * width * sizeof *t);
    for (size_t i = 1; i <= n_a; i++)
        for (size_t k = 1; k <= n_b; k++) {
            const uint32_t up = t[(i - 1) * width + k], left = t[i * width + k - 1];
            t[i * width + k] = a[i - 1] == b[k - 1] ? t[(i - 1) * width + k - 1] + 1
                               : up > left          ? up
                                                    : left;
        }
    for (size_t i = n_a, k = n_b; i > 0 && k > 0;) {
        const bool same = a[i - 1] == b[k - 1];
        const bool left = t[i * width + k - 1] > t[(i - 1) * width + k];
        if (same)
            r->in_lcs[i - 1] = true;
        i -= same || !left;
        k -= same || left;
    }
    return OK;
}

/* Words of a wanted line that are in its subsequence with any line of the other text, each
 * counted as often as both texts have it. */
static enum err count_hits(struct rouge *r, const uint32_t *line, size_t n, uint64_t *n_hits,
                           struct error *e)
{
    enum err rc = OK;
    memset(r->in_lcs, 0, n * sizeof *r->in_lcs);
    for (size_t k = 0, from = 0; k < r->have.n_lines && !rc; from = r->have.ends[k++])
        rc = mark_lcs(r, line, n, r->have.words + from, r->have.ends[k] - from, e);
    for (size_t i = 0; i < n; i++) {
        const uint32_t w = line[i];
        if (!r->in_lcs[i] || !r->n_want[w] || !r->n_have[w])
            continue;
        ++*n_hits;
        r->n_want[w]--;
        r->n_have[w]--;
    }
    return rc;
}

static enum err score_one(struct rouge *r, double *out, struct error *e)
{
    uint64_t n_hits = 0;
    enum err rc = OK;
    *out = 0;
    if (!r->want.n_words || !r->have.n_words)
        return OK;
    r->n_want = calloc(r->vocabulary.n, sizeof *r->n_want);
    r->n_have = calloc(r->vocabulary.n, sizeof *r->n_have);
    r->in_lcs = calloc(r->want.n_words, sizeof *r->in_lcs);
    if (!r->n_want || !r->n_have || !r->in_lcs)
        return err_set(e, ERR_NOMEM, "no memory for %u words", r->vocabulary.n);
    for (size_t i = 0; i < r->want.n_words; i++)
        r->n_want[r->want.words[i]]++;
    for (size_t i = 0; i < r->have.n_words; i++)
        r->n_have[r->have.words[i]]++;
    for (size_t k = 0, from = 0; k < r->want.n_lines && !rc; from = r->want.ends[k++])
        rc = count_hits(r, r->want.words + from, r->want.ends[k] - from, &n_hits, e);
    const double recall = (double)n_hits / (double)r->want.n_words,
                 precision = (double)n_hits / (double)r->have.n_words;
    if (!rc && precision + recall > 0)
        *out = 2 * precision * recall / (precision + recall);
    return rc;
}

enum err metric_rouge(const char *text, size_t n, const struct wordlist *answers,
                      struct metric_result *out, struct error *e)
{
    enum err rc = OK;
    for (uint32_t i = 0; i < answers->n && !rc; i++) {
        AUTO(rouge) struct rouge r = {.vocabulary = WORDLIST_INIT};
        size_t n_want;
        const char *want = wordlist_at(answers, i, &n_want);
        double score = 0;
        rc = read_text(&r, want, n_want, &r.want, e);
        if (!rc)
            rc = read_text(&r, text, n, &r.have, e);
        if (!rc)
            rc = score_one(&r, &score, e);
        out->score = score > out->score ? score : out->score;
    }
    return rc;
}
