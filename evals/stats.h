/* Intervals and tests for scores.
 *
 * `confidence` is that of a two-sided interval, such as 0.95. Nothing here allocates but the
 * bootstrap; nothing fails but by ERR_INVAL, whose message says which argument. */
#ifndef EVALS_STATS_H
#define EVALS_STATS_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

struct stats_interval {
    double mean, low, high;
};

/* Share k of n, k <= n, n > 0: Wilson's score interval without continuity correction. */
NODISCARD enum err stats_wilson(uint64_t k, uint64_t n, double confidence,
                                struct stats_interval *out, struct error *e);

/* Mean of n >= 2 values and Student's interval around it, from the sample's variance. */
NODISCARD enum err stats_mean(const double *v, size_t n, double confidence,
                              struct stats_interval *out, struct error *e);

/* Mean of n >= 1 values that come in clusters (the questions about one context are one: they
 * are not independent), with the percentile interval of a bootstrap that draws whole clusters.
 * cluster[i] in 0..n_clusters - 1, none empty. The draws are Python's random.Random(seed), one
 * randrange(n_clusters) each; percentiles are linear between neighbours. With one cluster low =
 * mean = high says nothing. ERR_NOMEM. */
NODISCARD enum err stats_bootstrap(const double *v, const uint32_t *cluster, size_t n,
                                   uint32_t n_clusters, uint32_t n_resamples, uint64_t seed,
                                   double confidence, struct stats_interval *out,
                                   struct error *e);

/* Exact McNemar test of paired outcomes, of which only the pairs that differ count: `first`
 * where only the first was right, `second` where only the second was. The two-sided p-value, 1
 * when none differ. */
double stats_mcnemar(uint64_t first, uint64_t second);

/* Quantiles of the standard normal and of Student's t distribution (dof > 0); 0 < p < 1. */
double stats_normal_quantile(double p);
double stats_t_quantile(double p, double dof);

#endif
