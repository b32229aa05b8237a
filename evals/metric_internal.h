/* Between evals/metric.c and the scorers of one benchmark. */
#ifndef EVALS_METRIC_INTERNAL_H
#define EVALS_METRIC_INTERNAL_H

#include "evals/metric.h"

/* The metrics from SUITE_LAST_INT to SUITE_F1_CHARS, but for their check of how many answers
 * there are. */
NODISCARD enum err metric_infinitebench(enum suite_metric metric, const char *text, size_t n,
                                        const struct wordlist *answers,
                                        struct metric_result *out, struct error *e);

/* SUITE_ROUGE_LSUM. ERR_LIMIT over 65,536 words. */
NODISCARD enum err metric_rouge(const char *text, size_t n, const struct wordlist *answers,
                                struct metric_result *out, struct error *e);

#endif
