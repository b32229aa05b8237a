/* A suite on disk: contexts that are ingested once, and samples that ask about them.
 *
 *   contexts.jsonl  {"id", "n_tokens", "text"}
 *   samples.jsonl   {"id", "context", "question", "answer_prefix", "answers": [...], "metric",
 *                    "max_tokens", "depth"}; the prompt is context text + question +
 *                    answer_prefix; depth (0..1, or null) says where in the context the answer
 * is suite.json      {"format": 1, "suite", "version", "seed", "tokenizer", "n_contexts",
 *                    "n_samples", "contexts", "samples"}: tokenizer, contexts and samples are
 *                    BLAKE2b-256 of tokenizer.json and of the two files. Written last: a folder
 *                    without it is not finished.
 *
 * Ids are SUITE/TASK/LENGTH/ORDINAL, those of contexts SUITE/TASK/LENGTH/cORDINAL; they are
 * unique within a suite and the only keys. Text is UTF-8; bytes are those of the generator, so
 * that the same options give the same files. */
#ifndef EVALS_SUITE_H
#define EVALS_SUITE_H

#include <stdint.h>
#include <stdio.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/hash.h"
#include "base/json.h"
#include "engine/tokenizer.h"
#include "evals/wordlist.h"

#define SUITE_FORMAT 1
#define SUITE_MAX_LINE_BYTES ((size_t)256 << 20)
#define SUITE_ID_BYTES 128

enum suite_metric {
    SUITE_ALL_MATCH, /* share of the answers that the text contains */
    SUITE_ANY_MATCH, /* 1 if it contains one of them */
    SUITE_SET_F1,    /* the bracket list on the last line against the set of answers */
    SUITE_RATIO,     /* the MRCR ratio against the one answer, whose prefix is required */
    SUITE_CHOICE,    /* "The correct answer is (A)": that letter */
    SUITE_FIRST_INT, /* the first run of digits */
    SUITE_WORD,      /* one of the words, split at white space and punctuation */
    /* Of InfiniteBench (evals/metric_infinitebench.c): */
    SUITE_LAST_INT,     /* the last word, an integer */
    SUITE_FIRST_NUMBER, /* the first number, an integer or a float as the answer is */
    SUITE_NUMBERS,      /* share of the answers that the first numbers are */
    SUITE_UPPER_WORD,   /* one of the words, in upper case */
    SUITE_CODE_OPTION,  /* of an answer and its letter (in this order), behind "answer is:" */
    SUITE_OPTION,       /* ditto; a letter at the beginning, or anywhere, too */
    SUITE_F1_WORDS,     /* words without articles and marks; the best of the answers */
    SUITE_F1_CHARS,     /* characters without marks; ditto */
    SUITE_ROUGE_LSUM,   /* longest common subsequences by line; ditto (metric_rouge.c) */
    SUITE_N_METRICS
};
extern const char *const suite_metric_names[SUITE_N_METRICS];

struct suite_sample {
    char id[SUITE_ID_BYTES], context[SUITE_ID_BYTES];
    const char *question; /* not 0-terminated */
    size_t n_question;
    const char *answer_prefix;
    size_t n_answer_prefix;
    const struct wordlist *answers;
    enum suite_metric metric;
    uint32_t max_tokens;
    double depth; /* 0..1; negative: none */
};

/* ---- writing ---------------------------------------------------------------------------- */

struct suite_file {
    FILE *f;
    struct hash hash;
    uint64_t n;
};

struct suite_writer {
    char *dir;
    const char *suite; /* borrowed */
    uint32_t version;
    uint64_t seed;
    uint8_t tokenizer[HASH_BYTES];
    struct suite_file contexts, samples;
    struct buf line;
};

/* Makes the folder and begins its files. ERR_CONFLICT when a finished suite lies there. The
 * writer is zeroed or open; suite_writer_fini in either case. */
NODISCARD enum err suite_writer_open(struct suite_writer *w, const char *dir, const char *suite,
                                     uint32_t version, uint64_t seed,
                                     const uint8_t tokenizer[HASH_BYTES], struct error *e);
/* The digest that suites are told apart by: of the model's tokenizer.json. */
NODISCARD enum err suite_tokenizer_digest(const char *model, uint8_t out[HASH_BYTES],
                                          struct error *e);
NODISCARD enum err suite_add_context(struct suite_writer *w, const char *id, uint64_t n_tokens,
                                     const void *text, size_t n, struct error *e);
NODISCARD enum err suite_add_sample(struct suite_writer *w, const struct suite_sample *s,
                                    struct error *e);
/* Makes the files durable and writes suite.json. */
NODISCARD enum err suite_writer_finish(struct suite_writer *w, struct error *e);
void suite_writer_fini(struct suite_writer *w);

/* ---- reading ---------------------------------------------------------------------------- */

/* Calls fn for every line of a JSONL file, parsed, in order; empty lines are skipped. Memory is
 * that of the longest line, of at most SUITE_MAX_LINE_BYTES: ERR_LIMIT. ERR_FORMAT. Both name
 * file and line. */
typedef enum err suite_line_fn(void *user, json_t *object, struct error *e);
NODISCARD enum err suite_read_lines(const char *path, suite_line_fn *fn, void *user,
                                    struct error *e);

/* suite.json of a folder, format and digests' types checked; to be decref'd. ERR_NOTFOUND: not
 * finished; ERR_FORMAT. One without "contexts" (no suite_writer wrote such) can be scored, but
 * a run asks for it. */
NODISCARD enum err suite_load(const char *dir, json_t **out, struct error *e);
/* Reads contexts and samples of the folder once, in pieces: ERR_CONFLICT names file and both
 * digests when it is not the one that suite.json, of suite_load(), has the digest of. */
NODISCARD enum err suite_check(const char *dir, const json_t *suite, struct error *e);

/* ---- generators ------------------------------------------------------------------------- */

struct suite_options {
    const struct tokenizer *tokenizer;
    uint64_t seed;
    uint32_t n_tokens;    /* that context, question and answer may have together */
    uint32_t n_questions; /* about each context */
};

struct suite_kind {
    const char *name, *summary;
    uint32_t version;     /* counts changes of what the same options give */
    uint32_t n_questions; /* of one context, by default */
    /* Adds context number `context` of one length, and its samples. */
    enum err (*generate)(const struct suite_options *o, uint32_t context,
                         struct suite_writer *w, struct error *e);
    /* Solves a question from nothing but the texts; answers are appended. ERR_FORMAT when they
     * are not such texts. Shares no code with generate. */
    enum err (*solve)(const char *context, size_t n_context, const char *question,
                      size_t n_question, struct wordlist *answers, struct error *e);
};

extern const struct suite_kind suite_kinds[];
extern const size_t suite_n_kinds;
/* NULL: no such suite. */
const struct suite_kind *suite_kind_of(const char *name);

#endif
