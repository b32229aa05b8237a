#include "evals/stats.h"

#include <assert.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>

#include "base/auto.h"
#include "evals/pyrandom.h"

#define BISECTIONS 200 /* more than a double has bits; ends when the middle is an end */

/* ---- distributions ---------------------------------------------------------------------- */

static double normal_cdf(double x, double unused)
{
    (void)unused;
    return 0.5 * erfc(-x / sqrt(2));
}

/* The continued fraction of the incomplete beta function, by Lentz's method. */
static double beta_fraction(double x, double a, double b)
{
    const double tiny = 1e-300;
    double c = 1, d = 1 - (a + b) * x / (a + 1);
    d = 1 / (fabs(d) < tiny ? tiny : d);
    double f = d;
    for (int m = 1; m < 10000; m++) {
        const double even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m));
        const double odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1));
        double change = 1;
        for (int i = 0; i < 2; i++) {
            const double term = i ? odd : even;
            d = 1 + term * d;
            d = 1 / (fabs(d) < tiny ? tiny : d);
            c = 1 + term / c;
            c = fabs(c) < tiny ? tiny : c;
            change = c * d;
            f *= change;
        }
        if (fabs(change - 1) < 1e-16)
            break;
    }
    return f;
}

/* Regularised incomplete beta function. */
static double beta(double x, double a, double b)
{
    if (x <= 0 || x >= 1)
        return x > 0;
    const double front =
        exp(lgamma(a + b) - lgamma(a) - lgamma(b) + a * log(x) + b * log1p(-x));
    return x < (a + 1) / (a + b + 2) ? front * beta_fraction(x, a, b) / a
                                     : 1 - front * beta_fraction(1 - x, b, a) / b;
}

/* Near the middle the tail is half less a small number, of which no digits may be lost. */
static double t_cdf(double t, double dof)
{
    const double square = t * t;
    const double tail = square < dof ? 0.5 - 0.5 * beta(square / (dof + square), 0.5, dof / 2)
                                     : 0.5 * beta(dof / (dof + square), dof / 2, 0.5);
    return t < 0 ? tail : 1 - tail;
}

/* x with cdf(x) = p <= 0.5, by bisection of the lower half, where no digits are lost. */
static double lower_quantile(double (*cdf)(double, double), double p, double parameter)
{
    double low = -1, high = 0;
    while (cdf(low, parameter) > p && low > -1e300)
        low *= 2;
    for (int i = 0; i < BISECTIONS; i++) {
        double mid = low + (high - low) / 2;
        *(cdf(mid, parameter) < p ? &low : &high) = mid;
    }
    return low + (high - low) / 2;
}

double stats_normal_quantile(double p)
{
    assert(p > 0 && p < 1);
    return p < 0.5   ? lower_quantile(normal_cdf, p, 0)
           : p > 0.5 ? -lower_quantile(normal_cdf, 1 - p, 0)
                     : 0;
}

double stats_t_quantile(double p, double dof)
{
    assert(p > 0 && p < 1 && dof > 0);
    return p < 0.5   ? lower_quantile(t_cdf, p, dof)
           : p > 0.5 ? -lower_quantile(t_cdf, 1 - p, dof)
                     : 0;
}

/* ---- intervals -------------------------------------------------------------------------- */

static enum err check_confidence(double confidence, struct error *e)
{
    return confidence > 0 && confidence < 1
               ? OK
               : err_set(e, ERR_INVAL, "confidence %g, want 0..1", confidence);
}

enum err stats_wilson(uint64_t k, uint64_t n, double confidence, struct stats_interval *out,
                      struct error *e)
{
    enum err rc = check_confidence(confidence, e);
    if (rc)
        return rc;
    if (!n || k > n)
        return err_set(e, ERR_INVAL, "Wilson: %llu of %llu", (unsigned long long)k,
                       (unsigned long long)n);
    const double z = -stats_normal_quantile((1 - confidence) / 2), total = (double)n;
    const double p = (double)k / total, denominator = 1 + z * z / total;
    const double centre = (p + z * z / (2 * total)) / denominator;
    const double half =
        z / denominator * sqrt(p * (1 - p) / total + z * z / (4 * total * total));
    /* At the ends the exact bound is the end itself; rounding must not leave it. */
    *out = (struct stats_interval){p, k ? centre - half : 0, k < n ? centre + half : 1};
    return OK;
}

static double mean_of(const double *v, size_t n)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += v[i];
    return sum / (double)n;
}

enum err stats_mean(const double *v, size_t n, double confidence, struct stats_interval *out,
                    struct error *e)
{
    enum err rc = check_confidence(confidence, e);
    if (rc)
        return rc;
    if (n < 2)
        return err_set(e, ERR_INVAL, "mean of %zu values, want 2 at least", n);
    const double mean = mean_of(v, n);
    double squares = 0;
    for (size_t i = 0; i < n; i++)
        squares += (v[i] - mean) * (v[i] - mean);
    const double error_of_mean = sqrt(squares / (double)(n - 1) / (double)n);
    const double half =
        -stats_t_quantile((1 - confidence) / 2, (double)(n - 1)) * error_of_mean;
    *out = (struct stats_interval){mean, mean - half, mean + half};
    return OK;
}

/* ---- bootstrap -------------------------------------------------------------------------- */

static int compare_double(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Of sorted values, as numpy.quantile by default. */
static double quantile(const double *sorted, size_t n, double q)
{
    const double at = q * (double)(n - 1);
    const size_t low = (size_t)at, high = low + 1 < n ? low + 1 : low;
    return sorted[low] + (sorted[high] - sorted[low]) * (at - (double)low);
}

struct sums {
    double sum;
    uint64_t n;
};

static enum err sum_clusters(const double *v, const uint32_t *cluster, size_t n,
                             uint32_t n_clusters, struct sums *out, struct error *e)
{
    for (size_t i = 0; i < n; i++) {
        if (cluster[i] >= n_clusters)
            return err_set(e, ERR_INVAL, "bootstrap: cluster %u of %u", cluster[i], n_clusters);
        out[cluster[i]].sum += v[i];
        out[cluster[i]].n++;
    }
    for (uint32_t k = 0; k < n_clusters; k++)
        if (!out[k].n)
            return err_set(e, ERR_INVAL, "bootstrap: cluster %u is empty", k);
    return OK;
}

enum err stats_bootstrap(const double *v, const uint32_t *cluster, size_t n,
                         uint32_t n_clusters, uint32_t n_resamples, uint64_t seed,
                         double confidence, struct stats_interval *out, struct error *e)
{
    enum err rc = check_confidence(confidence, e);
    if (rc)
        return rc;
    if (!n || !n_clusters || !n_resamples)
        return err_set(e, ERR_INVAL, "bootstrap: %zu values, %u clusters, %u resamples", n,
                       n_clusters, n_resamples);
    AUTO_FREE struct sums *sums = calloc(n_clusters, sizeof *sums);
    AUTO_FREE double *means = calloc(n_resamples, sizeof *means);
    if (!sums || !means)
        return err_set(e, ERR_NOMEM, "no memory for a bootstrap of %u", n_resamples);
    if ((rc = sum_clusters(v, cluster, n, n_clusters, sums, e)))
        return rc;
    struct pyrandom r;
    pyrandom_init(&r, seed);
    for (uint32_t i = 0; i < n_resamples; i++) {
        struct sums total = {0, 0};
        for (uint32_t k = 0; k < n_clusters; k++) {
            const struct sums *s = &sums[pyrandom_below(&r, n_clusters)];
            total.sum += s->sum;
            total.n += s->n;
        }
        means[i] = total.sum / (double)total.n;
    }
    qsort(means, n_resamples, sizeof *means, compare_double);
    *out = (struct stats_interval){mean_of(v, n),
                                   quantile(means, n_resamples, (1 - confidence) / 2),
                                   quantile(means, n_resamples, (1 + confidence) / 2)};
    return OK;
}

/* ---- tests ------------------------------------------------------------------------------ */

double stats_mcnemar(uint64_t first, uint64_t second)
{
    const uint64_t few = first < second ? first : second, n = first + second;
    if (first == second)
        return 1;
    double p = 0;
    for (uint64_t k = few + 1; k-- > 0;) {
        const double term = exp(lgamma((double)n + 1) - lgamma((double)k + 1) -
                                lgamma((double)(n - k) + 1) - (double)n * log(2));
        p += term;
        if (term < p * 1e-18)
            break;
    }
    return p < 0.5 ? 2 * p : 1;
}
