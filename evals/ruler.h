/* The core six tasks of RULER, generated so that every byte is the original's.
 *
 * Source: github.com/NVIDIA/RULER (Apache-2.0, Copyright 2024 NVIDIA CORPORATION), revision
 * c3f5e3b, scripts/data: prepare.py and synthetic/, with the model template `base`. The texts
 * of the templates and of the noise sentence in ruler_*.c are the original's, as the task wants
 * them; the code is not. For the same tokenizer, seed and word lists the lines are equal to the
 * original's validation.jsonl, byte for byte.
 *
 * A task first searches how much filler fits the length, and every probe of the search draws a
 * sample of its own: the state of the generator, and with it every sample, depends on the
 * tokenizer. Samples can therefore be made only in order, from the first.
 *
 * `index` is what the original writes there: for the needle tasks the position of the answer in
 * characters. Different samples can have the same; never use it as a key. */
#ifndef EVALS_RULER_H
#define EVALS_RULER_H

#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"
#include "engine/tokenizer.h"
#include "evals/wordlist.h"

enum ruler_task {
    RULER_NIAH_SINGLE_1,   /* one needle in repeated sentences */
    RULER_NIAH_MULTIKEY_2, /* one needle among needles: word keys, number values */
    RULER_NIAH_MULTIKEY_3, /* the same with UUIDs as keys and values */
    RULER_VT,              /* variable tracking: a chain of four assignments */
    RULER_CWE,             /* common words extraction */
    RULER_FWE,             /* frequent words extraction */
    RULER_N_TASKS
};

extern const char *const ruler_task_names[RULER_N_TASKS];

struct ruler_options {
    enum ruler_task task;
    uint32_t n_tokens; /* prompt and answer together: 512..2^22 */
    uint32_t n_samples;
    uint32_t seed; /* the original's is 42 */
    const struct tokenizer *tokenizer;
    /* Word lists of the package wonderwords (assets/), and english_words.json of the original.
     * Needed: nouns and adjectives by niah_single_1 and niah_multikey_2, all four by cwe (the
     * last only if more words are wanted than the others have; else it may be NULL). */
    const char *nouns, *adjectives, *verbs, *english_words;
};

struct ruler_sample {
    uint64_t ordinal;
    int64_t index;
    const char *input; /* not 0-terminated; the rest of the prompt is answer_prefix */
    size_t n_input;
    const char *answer_prefix;
    size_t n_answer_prefix;
    const struct wordlist *outputs;
    uint64_t length;               /* tokens of the prompt plus those reserved for an answer */
    int64_t token_position_answer; /* -1: the task has none */
    uint32_t n_tokens_to_generate;
};

/* Called for each sample in order; what it points to is valid during the call. An error ends
 * the generation. */
typedef enum err ruler_fn(void *user, const struct ruler_sample *s, struct error *e);

/* ERR_INVAL: an option; a word list that is missing or too small. ERR_LIMIT: no sample fits the
 * length. Errors of reading the lists, of the tokenizer and of fn. Blocks; needs memory of
 * about 20 times the text. */
NODISCARD enum err ruler_generate(const struct ruler_options *o, ruler_fn *fn, void *user,
                                  struct error *e);

/* Appends the sample as a line of the original's JSONL. */
NODISCARD enum err ruler_line(const struct ruler_sample *s, struct buf *out, struct error *e);

/* Index of a task's name, or RULER_N_TASKS. */
enum ruler_task ruler_task_of(const char *name);

#endif
