/* What an answer is worth. Scores are in 0..1 and computed in doubles by the same steps as the
 * originals, so that they are equal to the last bit:
 *
 *   all_match, any_match  NVIDIA/RULER, scripts/eval: string_match_all, string_match_part of
 * one sample, after its clean-up of the text set_f1                the list of the last line
 * against the set of answers ratio                 MRCR's grade: difflib ratio on code points,
 * the required prefix cut off
 *
 *   choice                extract_answer of LongBench v2's pred.py
 *   first_int, word       InfiniteBench's scorers of passkey and number_string, and of
 *                         kv_retrieval
 *   last_int, first_number, numbers, upper_word, code_option, option, f1_words, f1_chars
 *                         those of code_run, math_find, math_calc, longdialogue_qa_eng,
 *                         code_debug, longbook_choice_eng, longbook_qa_eng, longbook_qa_chn
 *   rouge_lsum            that of longbook_sum_eng: rouge_score 0.1.2, rougeLsum, no stemmer
 *
 * tests/evals/make_metric_scores.py has the Python that they are tested against, for those of
 * the last lines make_infinitebench_scores.py runs the original. */
#ifndef EVALS_METRIC_H
#define EVALS_METRIC_H

#include <stdbool.h>

#include "base/err.h"
#include "evals/suite.h"
#include "evals/wordlist.h"

#define METRIC_PREFIX_CHARS 10 /* of the random string in front of a ratio's answer */

struct metric_result {
    double score;
    bool is_empty;      /* nothing but white space */
    bool is_unparsable; /* the form that the metric needs is missing; the score is 0 */
};

/* Scores n bytes of an answer's text. answers has one word at least (ERR_INVAL); for an
 * option two; but for the sets, matches, numbers and F1 no more than that. ERR_NOMEM,
 * ERR_LIMIT. */
NODISCARD enum err metric_score(enum suite_metric metric, const char *text, size_t n,
                                const struct wordlist *answers, struct metric_result *out,
                                struct error *e);

/* Index of a metric's name, or SUITE_N_METRICS. */
enum suite_metric metric_of(const char *name);

#endif
