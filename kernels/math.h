/* Elementary functions of our own: libm differs between releases, and results must not.
 *
 * Computed in double by argument reduction and polynomials, with IEEE operations only, so the
 * bits are the same on every machine. Errors are below 2e-15 relative (k_exp, k_log, k_pow over
 * the range where the result is normal), so the f32 results are correctly rounded but for one
 * case in millions. NaN gives NaN. */
#ifndef KERNELS_MATH_H
#define KERNELS_MATH_H

#ifdef __cplusplus
extern "C" {
#endif

/* e^x; +inf above 709.78, 0 below -745. */
double k_exp(double x);
/* Natural logarithm; -inf at 0, NaN below. */
double k_log(double x);
/* log(1 + x), accurate near 0. x > -1. */
double k_log1p(double x);
/* base^y for base > 0. */
double k_pow(double base, double y);
/* Sine and cosine; absolute error below 2e-15 for |x| <= 2^27, NaN beyond. */
void k_sincos(double x, double *sin_out, double *cos_out);
/* 1 / (1 + e^-x) */
double k_sigmoid(double x);
/* log(1 + e^x), x itself for large x. */
double k_softplus(double x);

#ifdef __cplusplus
}
#endif
#endif
