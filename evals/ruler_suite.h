/* RULER samples as a suite: each is a context of its own with an empty question. Beside the
 * suite's files stands TASK-LENGTH.jsonl, the original's validation.jsonl byte for byte. */
#ifndef EVALS_RULER_SUITE_H
#define EVALS_RULER_SUITE_H

#include "evals/ruler.h"
#include "evals/suite.h"

#define RULER_SUITE "ruler"
#define RULER_SUITE_VERSION 1

struct ruler_suite {
    const struct tokenizer *tokenizer;
    enum ruler_task tasks[RULER_N_TASKS];
    size_t n_tasks;
    uint32_t n_samples, seed;
    const char *nouns, *adjectives, *verbs, *english_words; /* see struct ruler_options */
};

/* Adds every task at one length. Errors of ruler_generate and of the writer. */
NODISCARD enum err ruler_suite_add(const struct ruler_suite *s, uint32_t n_tokens,
                                   struct suite_writer *w, struct error *e);

#endif
