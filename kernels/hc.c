#include "kernels/hc.h"

#include <assert.h>
#include <math.h>

#include "kernels/hc_coefficients.h"
#include "kernels/host.h"

static void mix_rows(void *arg, size_t first, size_t last, uint32_t thread)
{
    const struct k_hc_mix *a = arg;
    (void)thread;
    size_t width = (size_t)a->hc * a->d;
    const float *fn = a->fn->data;
    double m[(2 + K_MAX_HC) * K_MAX_HC];
    for (size_t i = first; i < last; i++) {
        const float *x = a->x + i * width;
        double rho = 1 / sqrt(k_dot_ref(x, x, width) / (double)width + (double)a->norm_eps);
        for (uint32_t j = 0; j < (2 + a->hc) * a->hc; j++)
            m[j] = k_dot_ref(fn + j * width, x, width) * rho;
        k_hc_coefficients(m, a, a->pre + i * a->hc, a->post + i * a->hc,
                          a->comb + i * a->hc * a->hc);
    }
}

void k_hc_mix_ref(struct kernels *k, const struct k_hc_mix *a)
{
    if (k_failed(k))
        return;
    struct k_hc_mix args = *a;
    assert(a->fn->type == K_W_F32 && a->fn->n_in == a->hc * a->d);
    assert(a->fn->n_out == (2 + a->hc) * a->hc && a->hc <= K_MAX_HC);
    k_run(k, mix_rows, &args, a->n, a->n * a->fn->n_out * a->fn->n_in);
}

static void collapse_rows(void *arg, size_t first, size_t last, uint32_t thread)
{
    const struct k_hc_collapse *a = arg;
    (void)thread;
    for (size_t i = first; i < last; i++) {
        const float *x = a->x + i * a->hc * a->d;
        for (uint32_t j = 0; j < a->d; j++) {
            double sum = 0;
            for (uint32_t c = 0; c < a->hc; c++) {
                double pre = a->pre ? (double)a->pre[i * a->hc + c] : 1.0;
                sum += pre * (double)x[c * (size_t)a->d + j];
            }
            sum = a->pre ? sum : sum / a->hc;
            a->h[i * a->d + j] = k_round_to((float)sum, a->round);
        }
    }
}

void k_hc_collapse_ref(struct kernels *k, const struct k_hc_collapse *a)
{
    if (k_failed(k))
        return;
    struct k_hc_collapse args = *a;
    k_run(k, collapse_rows, &args, a->n, a->n * a->hc * a->d * 2);
}

static void update_rows(void *arg, size_t first, size_t last, uint32_t thread)
{
    const struct k_hc_update *a = arg;
    (void)thread;
    uint32_t hc = a->hc;
    size_t d = a->d;
    for (size_t i = first; i < last; i++) {
        const float *x = a->x + i * hc * d, *comb = a->comb + i * hc * hc;
        float *out = a->out + i * hc * d;
        for (size_t j = 0; j < d; j++) {
            float next[K_MAX_HC]; /* out may be x */
            for (uint32_t c = 0; c < hc; c++) {
                double sum = (double)a->post[i * hc + c] * (double)a->y[i * d + j];
                for (uint32_t b = 0; b < hc; b++)
                    sum += (double)comb[b * hc + c] * (double)x[b * d + j];
                next[c] = k_round_to((float)sum, a->round);
            }
            for (uint32_t c = 0; c < hc; c++)
                out[c * d + j] = next[c];
        }
    }
}

void k_hc_update_ref(struct kernels *k, const struct k_hc_update *a)
{
    if (k_failed(k))
        return;
    struct k_hc_update args = *a;
    assert(a->hc <= K_MAX_HC);
    k_run(k, update_rows, &args, a->n, a->n * a->hc * a->hc * a->d);
}
