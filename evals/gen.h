/* What the generators share: a text that grows up to a length, a seed for each context, and the
 * questions about it.
 *
 * Pieces end with a newline and begin with something else than white space. No piece of the
 * pre-tokenizer reaches over such a border, so that the tokens of the text are the sum of those
 * of its pieces. */
#ifndef EVALS_GEN_H
#define EVALS_GEN_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/ids.h"
#include "evals/pyrandom.h"
#include "evals/suite.h"

struct gen_text {
    const struct tokenizer *tokenizer;
    struct buf text;
    struct ids ids; /* of the last count */
    uint64_t n_tokens, max_tokens;
};

void gen_text_init(struct gen_text *g, const struct tokenizer *t, uint64_t max_tokens);
void gen_text_fini(struct gen_text *g);
NODISCARD enum err gen_count(struct gen_text *g, const void *text, size_t n, uint64_t *out,
                             struct error *e);
/* Appends the piece if it fits, and says so; ERR_LIMIT: it did not and had to (fits NULL). */
NODISCARD enum err gen_text_add(struct gen_text *g, const struct buf *piece, bool *fits,
                                struct error *e);

/* ---- one context and what is asked about it ----------------------------------------------
 */

struct gen_context {
    const char *suite, *task;
    const struct suite_options *o;
    uint32_t number;
    struct pyrandom random; /* of this context alone: suite, seed, length and number, hashed */
    struct gen_text g;
};

/* A context of at most o->n_tokens less those that are reserved for a question and its answer.
 * ERR_LIMIT: that would leave less than is reserved. x may be given to gen_context_fini()
 * whatever this returns. */
NODISCARD enum err gen_context_begin(struct gen_context *x, const char *suite, const char *task,
                                     const struct suite_options *o, uint32_t number,
                                     uint32_t n_reserved, struct error *e);
void gen_context_fini(struct gen_context *x);
/* The text is complete. */
NODISCARD enum err gen_context_end(const struct gen_context *x, struct suite_writer *w,
                                   struct error *e);

struct gen_question {
    struct buf text;
    struct wordlist answers;
    double depth; /* share of the text in front of the answer; -1: it has no place */
};

/* Makes question number i. */
typedef enum err gen_ask_fn(void *task, struct gen_context *x, uint32_t i,
                            struct gen_question *out, struct error *e);
/* Adds o->n_questions samples of this metric, with answers of at most max_tokens. */
NODISCARD enum err gen_context_ask(struct gen_context *x, struct suite_writer *w,
                                   enum suite_metric metric, uint32_t max_tokens,
                                   gen_ask_fn *ask, void *task, struct error *e);

/* Adds the decimal number as an answer. */
NODISCARD enum err gen_add_number(struct wordlist *answers, int64_t v, struct error *e);

/* ---- the suites ---------------------------------------------------------------------------
 */

enum err needle_generate(const struct suite_options *, uint32_t, struct suite_writer *,
                         struct error *);
enum err needle_solve(const char *, size_t, const char *, size_t, struct wordlist *,
                      struct error *);
enum err graphwalks_generate(const struct suite_options *, uint32_t, struct suite_writer *,
                             struct error *);
enum err graphwalks_solve(const char *, size_t, const char *, size_t, struct wordlist *,
                          struct error *);
enum err latent_generate(const struct suite_options *, uint32_t, struct suite_writer *,
                         struct error *);
enum err latent_solve(const char *, size_t, const char *, size_t, struct wordlist *,
                      struct error *);
enum err records_generate(const struct suite_options *, uint32_t, struct suite_writer *,
                          struct error *);
enum err records_solve(const char *, size_t, const char *, size_t, struct wordlist *,
                       struct error *);
enum err mrcr_generate(const struct suite_options *, uint32_t, struct suite_writer *,
                       struct error *);
enum err mrcr_solve(const char *, size_t, const char *, size_t, struct wordlist *,
                    struct error *);

#endif
