/* RULER, common words extraction. Texts: NVIDIA/RULER, Apache-2.0 (see ruler.h). */
#include <math.h>
#include <stdlib.h>

#include "evals/ruler_internal.h"

#define N_COMMON 10
#define N_GENERATE 120
#define STEP 10
#define N_ESTIMATE 4096 /* words of the sample that the search starts from */
#define PREFIX_MARK " Answer: T"

/* How many words, and how often the common and the others stand in a list. */
struct cwe_shape {
    uint32_t n_words, n_common_times, n_other_times;
};

struct cwe {
    struct wordlist words; /* nouns, adjectives and verbs, sorted, without doubles */
    uint32_t *order;       /* their shuffle, once for all samples */
    struct wordlist many;  /* english_words.json, loaded when first needed */
    struct cwe_shape example, problem; /* n_words of problem: the size drawn */
};

static void cwe_fini(struct cwe *t)
{
    wordlist_fini(&t->words);
    wordlist_fini(&t->many);
    free(t->order);
}

static enum err add_list(struct ruler *r, const struct wordlist *words, const uint32_t *list,
                         uint32_t n, struct error *e)
{
    enum err rc = OK;
    for (uint32_t i = 0; i < n && !rc; i++) {
        size_t n_word;
        const char *word = wordlist_at(words, list[i], &n_word);
        rc = buf_printf(&r->text, e, "%s%u. ", i ? " " : "", i + 1);
        if (!rc)
            rc = buf_add(&r->text, word, n_word, e);
    }
    return rc;
}

/* The words that a list of n draws from. */
static enum err source(struct ruler *r, struct cwe *t, uint32_t n, const struct wordlist **out,
                       struct error *e)
{
    *out = n <= t->words.n ? &t->words : &t->many;
    if (n <= t->words.n || t->many.n)
        return OK;
    if (!r->o->english_words)
        return err_set(
            e, ERR_INVAL,
            "cwe: %u words are wanted, the lists hold %u: english_words.json is needed", n,
            t->words.n);
    return wordlist_load_json(&t->many, r->o->english_words, e);
}

/* Appends a problem to r->text; common[] are its answers, as indices into *words. A sample that
 * shrank below ten words has them all as common ones. */
static enum err add_problem(struct ruler *r, struct cwe *t, const struct cwe_shape *shape,
                            const struct wordlist **words, uint32_t *common, struct error *e)
{
    enum err rc = source(r, t, shape->n_words, words, e);
    if (rc)
        return rc;
    const uint32_t n = shape->n_words, n_common = n < N_COMMON ? n : N_COMMON;
    const uint32_t n_other = n - n_common;
    const uint64_t n_list =
        (uint64_t)n_common * shape->n_common_times + (uint64_t)n_other * shape->n_other_times;
    AUTO_FREE uint32_t *drawn = calloc(n, sizeof *drawn), *list = calloc(n_list, sizeof *list);
    if (!drawn || !list)
        return err_set(e, ERR_NOMEM, "no memory for a list of %u words", n);
    if ((rc = pyrandom_sample(&r->py, (*words)->n, n, drawn, e)))
        return err_wrap(e, rc, "cwe: words");
    for (uint32_t i = 0; i < n && *words == &t->words; i++)
        drawn[i] = t->order[drawn[i]];
    uint32_t at = 0;
    for (uint32_t k = 0; k < shape->n_common_times; k++)
        for (uint32_t i = 0; i < n_common; i++)
            list[at++] = drawn[i];
    for (uint32_t k = 0; k < shape->n_other_times; k++)
        for (uint32_t i = 0; i < n_other; i++)
            list[at++] = drawn[n_common + i];
    for (uint32_t i = 0; i < n_common; i++)
        common[i] = drawn[i];
    struct pyrandom own; /* every list is shuffled by a generator of its own */
    pyrandom_init(&own, r->o->seed);
    pyrandom_shuffle(&own, list, at);
    rc =
        buf_add_str(&r->text,
                    "Below is a numbered list of words. In these words, some appear more often "
                    "than others. Memorize the ones that appear most often.\n",
                    e);
    if (!rc)
        rc = add_list(r, *words, list, at, e);
    return rc ? rc
              : buf_add_str(&r->text,
                            "\nQuestion: What are the 10 most common words in the above list? "
                            "Answer: The top 10 words that appear most often in the list are:",
                            e);
}

/* A solved example, then the problem. */
static enum err draw(struct ruler *r, void *task, uint32_t size, struct error *e)
{
    struct cwe *t = task;
    const struct wordlist *words;
    uint32_t common[N_COMMON];
    struct cwe_shape shape = t->problem;
    shape.n_words = size;
    buf_clear(&r->text);
    enum err rc = add_problem(r, t, &t->example, &words, common, e);
    if (!rc)
        rc = buf_add_byte(&r->text, ' ', e);
    if (!rc)
        rc = add_list(r, words, common, N_COMMON, e);
    if (!rc)
        rc = buf_add_byte(&r->text, '\n', e);
    if (!rc)
        rc = add_problem(r, t, &shape, &words, common, e);
    wordlist_clear(&r->outputs);
    for (uint32_t i = 0; i < N_COMMON && i < size && !rc; i++) {
        size_t n;
        const char *word = wordlist_at(words, common[i], &n);
        rc = wordlist_add(&r->outputs, word, n, e);
    }
    return rc;
}

static enum err load_words(struct ruler *r, struct cwe *t, struct error *e)
{
    const char *const paths[] = {r->o->nouns, r->o->adjectives, r->o->verbs};
    enum err rc = OK;
    for (size_t i = 0; i < sizeof paths / sizeof *paths && !rc; i++)
        rc = paths[i] ? wordlist_load_lines(&t->words, paths[i], e)
                      : err_set(e, ERR_INVAL, "cwe needs lists of nouns, adjectives and verbs");
    if (!rc)
        rc = wordlist_sort_unique(&t->words, e);
    if (rc)
        return rc;
    t->order = calloc(t->words.n + 1, sizeof *t->order);
    if (!t->order)
        return err_set(e, ERR_NOMEM, "no memory for %u words", t->words.n);
    for (uint32_t i = 0; i < t->words.n; i++)
        t->order[i] = i;
    struct pyrandom own;
    pyrandom_init(&own, r->o->seed);
    pyrandom_shuffle(&own, t->order, t->words.n);
    return OK;
}

/* Python's a // b for positive numbers. */
static double floor_divide(double a, double b)
{
    double quotient = (a - fmod(a, b)) / b, down = floor(quotient);
    return quotient - down > 0.5 ? down + 1 : down;
}

/* The upper end of the search comes from a sample of 4,096 words, whatever the length. */
static enum err estimate(struct ruler *r, struct ruler_fit *fit, struct error *e)
{
    uint64_t n = 0;
    enum err rc = draw(r, fit->task, N_ESTIMATE, e);
    if (!rc)
        rc = ruler_count(r, r->text.data, r->text.len, &n, e);
    if (rc)
        return rc;
    double per_word = (double)n / N_ESTIMATE;
    uint32_t upper = (uint32_t)floor_divide((double)fit->n_tokens, per_word) * 2;
    fit->upper = upper > 2 * STEP ? upper : 2 * STEP;
    return OK;
}

enum err ruler_cwe(struct ruler *r, struct error *e)
{
    const bool is_short = r->o->n_tokens < 4096;
    AUTO(cwe)
    struct cwe t = {
        .words = WORDLIST_INIT,
        .many = WORDLIST_INIT,
        .example = is_short ? (struct cwe_shape){20, 3, 1} : (struct cwe_shape){40, 10, 3},
        .problem = is_short ? (struct cwe_shape){0, 6, 1} : (struct cwe_shape){0, 30, 3},
    };
    struct ruler_fit fit = {.draw = draw,
                            .task = &t,
                            .step = STEP,
                            .overhead = N_GENERATE,
                            .n_tokens = r->o->n_tokens};
    uint32_t size = 0;
    enum err rc = load_words(r, &t, e);
    if (!rc)
        rc = estimate(r, &fit, e);
    if (!rc)
        rc = ruler_search(r, &fit, &size, e);
    for (uint32_t i = 0; i < r->o->n_samples && !rc; i++) {
        struct ruler_sample s = {.ordinal = i,
                                 .index = i,
                                 .token_position_answer = -1,
                                 .n_tokens_to_generate = N_GENERATE};
        rc = ruler_draw_fitting(r, &fit, size, &s.length, e);
        if (!rc)
            rc = ruler_emit(r, &s, PREFIX_MARK, e);
    }
    return rc;
}
