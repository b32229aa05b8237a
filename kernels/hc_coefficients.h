/* From the products of a hyper-connection to its coefficients. Host and device share the text.
 * Internal to kernels/. */
#ifndef KERNELS_HC_COEFFICIENTS_H
#define KERNELS_HC_COEFFICIENTS_H

#include "kernels/hc.h"
#include "kernels/math.h"

/* Divides every entry of each column (or row) of z [hc][hc] by its sum + eps. */
K_FN void k_hc_normalise(double *z, uint32_t hc, bool columns, double eps)
{
    uint32_t step = columns ? hc : 1, next = columns ? 1 : hc;
    for (uint32_t i = 0; i < hc; i++) {
        double sum = 0;
        for (uint32_t j = 0; j < hc; j++)
            sum += z[i * next + j * step];
        double factor = 1 / (sum + eps);
        for (uint32_t j = 0; j < hc; j++)
            z[i * next + j * step] *= factor;
    }
}

K_FN void k_hc_softmax_row(double *z, uint32_t n, double eps)
{
    double max = z[0], sum = 0;
    for (uint32_t j = 1; j < n; j++)
        max = z[j] > max ? z[j] : max;
    for (uint32_t j = 0; j < n; j++)
        sum += z[j] = k_exp(z[j] - max);
    for (uint32_t j = 0; j < n; j++)
        z[j] = z[j] / sum + eps;
}

/* The coefficients of one token from its (2+hc)*hc numbers m, for every host backend: m, scale,
 * base, pre, post, comb, hc, iters, hc_eps as in k_hc_mix. In double, rounded once. */
K_FN void k_hc_coefficients(const double *m, const struct k_hc_mix *a, float *pre, float *post,
                            float *comb)
{
    uint32_t hc = a->hc;
    double z[K_MAX_HC * K_MAX_HC];
    double eps = (double)a->hc_eps;
    double s0 = (double)a->scale[0], s1 = (double)a->scale[1], s2 = (double)a->scale[2];
    for (uint32_t c = 0; c < hc; c++) {
        pre[c] = (float)(k_sigmoid(m[c] * s0 + (double)a->base[c]) + eps);
        post[c] = (float)(2 * k_sigmoid(m[hc + c] * s1 + (double)a->base[hc + c]));
    }
    for (uint32_t j = 0; j < hc * hc; j++)
        z[j] = m[2 * hc + j] * s2 + (double)a->base[2 * hc + j];
    for (uint32_t j = 0; j < hc; j++)
        k_hc_softmax_row(z + j * hc, hc, eps);
    k_hc_normalise(z, hc, true, eps);
    for (uint32_t t = 1; t < a->iters; t++) {
        k_hc_normalise(z, hc, false, eps);
        k_hc_normalise(z, hc, true, eps);
    }
    for (uint32_t j = 0; j < hc * hc; j++)
        comb[j] = (float)z[j];
}

#endif
