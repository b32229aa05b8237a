/* Elementary functions of our own: libm differs between releases, and results must not.
 *
 * Computed in double by argument reduction and polynomials, with IEEE operations only, so the
 * bits are the same on every machine. Errors are below 2e-15 relative (k_exp, k_log, k_pow over
 * the range where the result is normal), so the f32 results are correctly rounded but for one
 * case in millions. NaN gives NaN. Taylor polynomials
 * throughout: after reduction the arguments are small enough that a few more terms cost little,
 * and every coefficient is a number that can be checked by eye. Host and device share the text.
 */
#ifndef KERNELS_MATH_H
#define KERNELS_MATH_H

#include "kernels/bits.h"

#define K_LN2_HI 0x1.62e42feep-1 /* 32 bits: n * K_LN2_HI is exact for |n| < 2^21 */
#define K_LN2_LO 0x1.a39ef35793c76p-33
#define K_ROUND_MAGIC 0x1.8p52 /* x + this - this is x to the nearest integer, |x| < 2^51 */

K_FN uint64_t k_f64_bits(double x)
{
    uint64_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

K_FN double k_f64_from_bits(uint64_t u)
{
    double x;
    memcpy(&x, &u, sizeof x);
    return x;
}

/* x * 2^n for -2044 <= n <= 2046, in two exact steps but for the last. */
K_FN double k_scale2(double x, int n)
{
    int half = n / 2;
    double a = k_f64_from_bits((uint64_t)(1023 + half) << 52);
    double b = k_f64_from_bits((uint64_t)(1023 + n - half) << 52);
    return x * a * b;
}

/* e^x; +inf above 709.78, 0 below -745. */
K_FN double k_exp(double x)
{
    if (x != x)
        return x;
    if (x > 709.782712893384)
        return k_f64_from_bits(0x7ff0000000000000u);
    if (x < -745.2)
        return 0;
    double n = (x * 0x1.71547652b82fep0 + K_ROUND_MAGIC) - K_ROUND_MAGIC;
    double r = (x - n * K_LN2_HI) - n * K_LN2_LO; /* |r| <= 0.347 */
    double p = 1.0 / 6227020800.0;
    p = p * r + 1.0 / 479001600.0;
    p = p * r + 1.0 / 39916800.0;
    p = p * r + 1.0 / 3628800.0;
    p = p * r + 1.0 / 362880.0;
    p = p * r + 1.0 / 40320.0;
    p = p * r + 1.0 / 5040.0;
    p = p * r + 1.0 / 720.0;
    p = p * r + 1.0 / 120.0;
    p = p * r + 1.0 / 24.0;
    p = p * r + 1.0 / 6.0;
    p = p * r + 1.0 / 2.0;
    return k_scale2(1.0 + (r + r * r * p), (int)n);
}

/* 2 atanh(s) = log((1+s)/(1-s)) for |s| <= 0.172 */
K_FN double k_two_atanh(double s)
{
    double z = s * s;
    double p = 1.0 / 25.0;
    p = p * z + 1.0 / 23.0;
    p = p * z + 1.0 / 21.0;
    p = p * z + 1.0 / 19.0;
    p = p * z + 1.0 / 17.0;
    p = p * z + 1.0 / 15.0;
    p = p * z + 1.0 / 13.0;
    p = p * z + 1.0 / 11.0;
    p = p * z + 1.0 / 9.0;
    p = p * z + 1.0 / 7.0;
    p = p * z + 1.0 / 5.0;
    p = p * z + 1.0 / 3.0;
    return 2 * s + 2 * s * z * p;
}

/* Natural logarithm; -inf at 0, NaN below. */
K_FN double k_log(double x)
{
    if (!(x > 0))
        return x == 0 ? k_f64_from_bits(0xfff0000000000000u)
                      : k_f64_from_bits(0x7ff8000000000000u);
    uint64_t u = k_f64_bits(x);
    if (u == 0x7ff0000000000000u)
        return x;
    int n = 0;
    if (u < (uint64_t)1 << 52) {
        u = k_f64_bits(x * 0x1p54);
        n = -54;
    }
    n += (int)(u >> 52) - 1023;
    double m = k_f64_from_bits((u & 0xfffffffffffffu) | 0x3ff0000000000000u);
    if (m > 1.4142135623730951) {
        m *= 0.5;
        n++;
    }
    double e = (double)n;
    return e * K_LN2_HI + (k_two_atanh((m - 1) / (m + 1)) + e * K_LN2_LO);
}

/* log(1 + x), accurate near 0. x > -1. */
K_FN double k_log1p(double x)
{
    if (x > -0.25 && x < 0.4)
        return k_two_atanh(x / (2 + x));
    return k_log(1 + x);
}

/* base^y for base > 0. */
K_FN double k_pow(double base, double y)
{
    return k_exp(y * k_log(base));
}

/* Sine and cosine; absolute error below 2e-15 for |x| <= 2^27, NaN beyond. */
K_FN void k_sincos(double x, double *sin_out, double *cos_out)
{
    /* pi/2 in pieces of 26, 26 and 53 bits: the first two products are exact for |n| < 2^27. */
    const double pi2_1 = 0x1.921fb5p0, pi2_2 = 0x1.110b46p-26, pi2_3 = 0x1.1a62633145c07p-54;
    if (!(x >= -0x1p27 && x <= 0x1p27)) {
        *sin_out = *cos_out = k_f64_from_bits(0x7ff8000000000000u);
        return;
    }
    double shifted = x * 0x1.45f306dc9c883p-1 + K_ROUND_MAGIC;
    double n = shifted - K_ROUND_MAGIC;
    double r = ((x - n * pi2_1) - n * pi2_2) - n * pi2_3;
    double z = r * r, s = 1.0 / 355687428096000.0, c = 1.0 / 20922789888000.0;
    s = s * z - 1.0 / 1307674368000.0;
    s = s * z + 1.0 / 6227020800.0;
    s = s * z - 1.0 / 39916800.0;
    s = s * z + 1.0 / 362880.0;
    s = s * z - 1.0 / 5040.0;
    s = s * z + 1.0 / 120.0;
    s = s * z - 1.0 / 6.0;
    s = r + r * z * s;
    c = c * z - 1.0 / 87178291200.0;
    c = c * z + 1.0 / 479001600.0;
    c = c * z - 1.0 / 3628800.0;
    c = c * z + 1.0 / 40320.0;
    c = c * z - 1.0 / 720.0;
    c = c * z + 1.0 / 24.0;
    c = 1.0 - (0.5 * z - z * z * c);
    switch ((unsigned)k_f64_bits(shifted) & 3u) {
    case 0:
        *sin_out = s, *cos_out = c;
        break;
    case 1:
        *sin_out = c, *cos_out = -s;
        break;
    case 2:
        *sin_out = -s, *cos_out = -c;
        break;
    default:
        *sin_out = -c, *cos_out = s;
        break;
    }
}

K_FN double k_sigmoid(double x)
{
    return 1 / (1 + k_exp(-x));
}

/* log(1 + e^x), x itself for large x. */
K_FN double k_softplus(double x)
{
    return x > 0 ? x + k_log1p(k_exp(-x)) : k_log1p(k_exp(x));
}

#endif
