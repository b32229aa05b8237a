/* RULER, frequent words extraction. Texts: NVIDIA/RULER, Apache-2.0 (see ruler.h). */
#include <stdlib.h>
#include <string.h>

#include "evals/ruler_internal.h"

#define WORD_LETTERS 6
#define N_ANSWERS 3
#define N_GENERATE 50
#define ZETA_2 1.6449340668482264 /* of the frequencies' exponent, 2 */
#define PREFIX_MARK " Answer: A"

typedef char coded_word[WORD_LETTERS];

struct fwe {
    coded_word *words;   /* [n_words] the most frequent one first */
    uint32_t n_words;    /* the first of them is written as dots */
    uint64_t max_tokens; /* of the prompt */
    int64_t step;
};

static void fwe_fini(struct fwe *t)
{
    free(t->words);
}

static int compare_coded(const void *a, const void *b)
{
    return memcmp(a, b, WORD_LETTERS);
}

/* Sorts and drops doubles. */
static uint32_t sort_unique(coded_word *words, uint32_t n)
{
    uint32_t kept = 0;
    qsort(words, n, sizeof *words, compare_coded);
    for (uint32_t i = 0; i < n; i++)
        if (!kept || compare_coded(words[kept - 1], words[i]) != 0)
            memmove(words[kept++], words[i], sizeof *words);
    return kept;
}

static void draw_word(struct pyrandom *py, coded_word word)
{
    for (int i = 0; i < WORD_LETTERS; i++)
        word[i] = (char)('a' + pyrandom_choice_real(py, 26));
}

/* n different words: as many as were drawn twice are drawn in addition, one at a time. */
static enum err draw_words(struct ruler *r, struct fwe *t, struct error *e)
{
    AUTO_FREE uint32_t *order = calloc(t->n_words, sizeof *order);
    AUTO_FREE coded_word *sorted = calloc(t->n_words, sizeof *sorted);
    if (!order || !sorted)
        return err_set(e, ERR_NOMEM, "no memory for %u coded words", t->n_words);
    for (uint32_t i = 0; i < t->n_words; i++)
        draw_word(&r->py, sorted[i]);
    for (uint32_t n; (n = sort_unique(sorted, t->n_words)) < t->n_words;)
        draw_word(&r->py, sorted[n]); /* the words behind are doubles: see sort_unique */
    for (uint32_t i = 0; i < t->n_words; i++)
        order[i] = i;
    struct pyrandom own;
    pyrandom_init(&own, r->o->seed);
    pyrandom_shuffle(&own, order, t->n_words);
    for (uint32_t i = 0; i < t->n_words; i++)
        memcpy(t->words[i], sorted[order[i]], sizeof *t->words);
    return OK;
}

/* How often the word of rank k (from 0) stands in a text of n_text words. */
static uint32_t n_times(int64_t n_text, uint32_t k)
{
    double rank = k + 1.0;
    double times = (double)n_text * (1 / (rank * rank)) / ZETA_2;
    return times > 0 ? (uint32_t)times : 0;
}

/* Writes the prompt for a text of n_text words; *n_tokens of it. */
static enum err write_prompt(struct ruler *r, const struct fwe *t, int64_t n_text,
                             uint64_t *n_tokens, struct error *e)
{
    size_t n = 0;
    for (uint32_t k = 0; k < t->n_words; k++)
        n += n_times(n_text, k);
    AUTO_FREE uint32_t *list = calloc(n + 1, sizeof *list);
    if (!list)
        return err_set(e, ERR_NOMEM, "no memory for a text of %zu words", n);
    uint32_t *next = list;
    for (uint32_t k = 0; k < t->n_words; k++)
        for (uint32_t i = n_times(n_text, k); i-- > 0;)
            *next++ = k;
    struct pyrandom own;
    pyrandom_init(&own, r->o->seed);
    pyrandom_shuffle(&own, list, n);
    buf_clear(&r->text);
    enum err rc =
        buf_add_str(&r->text,
                    "Read the following coded text and track the frequency of each "
                    "coded word. Find the three most frequently appeared coded words. ",
                    e);
    for (size_t i = 0; i < n && !rc; i++) {
        if (i)
            rc = buf_add_byte(&r->text, ' ', e);
        if (!rc)
            rc = list[i] ? buf_add(&r->text, t->words[list[i]], WORD_LETTERS, e)
                         : buf_add_str(&r->text, "...", e);
    }
    if (!rc)
        rc = buf_add_str(
            &r->text,
            "\nQuestion: Do not provide any explanation. Please ignore the dots "
            "'....'. What are the three most frequently appeared words in the above "
            "coded text? Answer: According to the coded text above, the three most "
            "frequently appeared words are:",
            e);
    return rc ? rc : ruler_count(r, r->text.data, r->text.len, n_tokens, e);
}

/* The largest text that fits, in steps from a guess upwards. */
static enum err grow(struct ruler *r, struct fwe *t, int64_t *n_text, struct error *e)
{
    uint64_t n = 0;
    int64_t size = (int64_t)t->max_tokens / WORD_LETTERS;
    enum err rc = draw_words(r, t, e);
    if (!rc)
        rc = write_prompt(r, t, size, &n, e);
    while (!rc && n < t->max_tokens)
        rc = write_prompt(r, t, size += t->step, &n, e);
    *n_text = size - t->step;
    return rc;
}

/* A sample of n_text words, or as many steps fewer as it takes. */
static enum err draw(struct ruler *r, struct fwe *t, int64_t n_text, uint64_t *n,
                     struct error *e)
{
    enum err rc = draw_words(r, t, e);
    if (!rc)
        rc = write_prompt(r, t, n_text, n, e);
    while (!rc && *n > t->max_tokens) {
        if (n_text <= 0)
            return err_set(e, ERR_LIMIT, "fwe: the question alone has more than %llu tokens",
                           (unsigned long long)t->max_tokens);
        rc = write_prompt(r, t, n_text -= t->step, n, e);
    }
    wordlist_clear(&r->outputs);
    for (uint32_t i = 1; i <= N_ANSWERS && !rc; i++)
        rc = wordlist_add(&r->outputs, t->words[i], WORD_LETTERS, e);
    return rc;
}

enum err ruler_fwe(struct ruler *r, struct error *e)
{
    AUTO(fwe) struct fwe t = {.max_tokens = r->o->n_tokens - N_GENERATE};
    t.n_words = (uint32_t)(t.max_tokens / 50);
    t.step = (int64_t)t.max_tokens / 32;
    t.words = calloc(t.n_words, sizeof *t.words);
    if (!t.words)
        return err_set(e, ERR_NOMEM, "no memory for %u coded words", t.n_words);
    int64_t n_text = 0;
    enum err rc = grow(r, &t, &n_text, e);
    for (uint32_t i = 0; i < r->o->n_samples && !rc; i++) {
        struct ruler_sample s = {.ordinal = i,
                                 .index = i,
                                 .token_position_answer = -1,
                                 .n_tokens_to_generate = N_GENERATE};
        rc = draw(r, &t, n_text, &s.length, e);
        s.length += N_GENERATE;
        if (!rc)
            rc = ruler_emit(r, &s, PREFIX_MARK, e);
    }
    return rc;
}
