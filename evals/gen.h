/* What the generators share: a seed for each context, and a text that grows up to a length.
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

/* The generator of one context: seed, suite, length and ordinal, hashed. */
void gen_seed(struct pyrandom *r, const char *suite, const struct suite_options *o,
              uint32_t context);

/* Fills s->id and s->context: SUITE/TASK/LENGTH/ORDINAL, ordinals counted over all contexts. */
void gen_ids(struct suite_sample *s, const char *suite, const char *task,
             const struct suite_options *o, uint32_t context, uint64_t ordinal);

/* Adds the decimal number as an answer. */
NODISCARD enum err gen_add_number(struct wordlist *answers, int64_t v, struct error *e);

/* The suites. */
enum err needle_generate(const struct suite_options *, struct suite_writer *, struct error *);
enum err needle_solve(const char *, size_t, const char *, size_t, struct wordlist *,
                      struct error *);
enum err graphwalks_generate(const struct suite_options *, struct suite_writer *,
                             struct error *);
enum err graphwalks_solve(const char *, size_t, const char *, size_t, struct wordlist *,
                          struct error *);
enum err latent_generate(const struct suite_options *, struct suite_writer *, struct error *);
enum err latent_solve(const char *, size_t, const char *, size_t, struct wordlist *,
                      struct error *);
enum err records_generate(const struct suite_options *, struct suite_writer *, struct error *);
enum err records_solve(const char *, size_t, const char *, size_t, struct wordlist *,
                       struct error *);
enum err mrcr_generate(const struct suite_options *, struct suite_writer *, struct error *);
enum err mrcr_solve(const char *, size_t, const char *, size_t, struct wordlist *,
                    struct error *);

#endif
