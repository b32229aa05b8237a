#include "kernels/cuda.cuh"
#include "kernels/hc_coefficients.h"

#define THREADS 256u
#define MAX_MIX ((2 + K_MAX_HC) * K_MAX_HC)

/* A block a token: the products of its streams with every row of fn, then the coefficients. */
__global__ void hc_mix_token(struct k_hc_mix a, struct k_weight fn)
{
    K_SHARED(double, m);
    float *scratch = (float *)(m + MAX_MIX);
    size_t i = blockIdx.x, width = (size_t)a.hc * a.d;
    const float *x = a.x + i * width, *rows = (const float *)fn.data;
    float sum = 0;
    for (size_t j = threadIdx.x; j < width; j += blockDim.x)
        sum = fmaf(x[j], x[j], sum);
    sum = k_block_sum(sum, scratch);
    double rho = 1 / sqrt((double)sum / (double)width + (double)a.norm_eps);
    for (uint32_t o = 0; o < fn.n_out; o++) {
        sum = 0;
        for (size_t j = threadIdx.x; j < width; j += blockDim.x)
            sum = fmaf(rows[o * width + j], x[j], sum);
        sum = k_block_sum(sum, scratch);
        if (threadIdx.x == 0)
            m[o] = (double)sum * rho;
    }
    if (threadIdx.x == 0)
        k_hc_coefficients(m, &a, a.pre + i * a.hc, a.post + i * a.hc, a.comb + i * a.hc * a.hc);
}

void k_hc_mix_cuda(struct kernels *k, const struct k_hc_mix *a)
{
    if (a->n)
        K_LAUNCH(hc_mix_token, dim3((unsigned)a->n), dim3(THREADS),
                 MAX_MIX * sizeof(double) + THREADS / K_WARP * sizeof(float), k, *a, *a->fn);
}

/* A thread a value of h. */
__global__ void hc_collapse_value(struct k_hc_collapse a)
{
    size_t at = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= a.n * a.d)
        return;
    size_t i = at / a.d, j = at % a.d;
    const float *x = a.x + i * a.hc * a.d + j;
    float sum = 0;
    for (uint32_t c = 0; c < a.hc; c++)
        sum = fmaf(a.pre ? a.pre[i * a.hc + c] : 1.0f, x[c * (size_t)a.d], sum);
    a.h[at] = k_rounded(a.pre ? sum : sum / (float)a.hc, a.round);
}

void k_hc_collapse_cuda(struct kernels *k, const struct k_hc_collapse *a)
{
    if (a->n)
        K_LAUNCH(hc_collapse_value, dim3(k_div_up(a->n * a->d, THREADS)), dim3(THREADS), 0, k,
                 *a);
}

/* A thread a channel: it reads all streams before it writes one, since out may be x. */
__global__ void hc_update_channel(struct k_hc_update a)
{
    size_t at = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= a.n * a.d)
        return;
    size_t i = at / a.d, j = at % a.d, d = a.d;
    const float *x = a.x + i * a.hc * d + j, *comb = a.comb + i * a.hc * a.hc;
    float *out = a.out + i * a.hc * d + j, next[K_MAX_HC];
    for (uint32_t c = 0; c < a.hc; c++) {
        float sum = a.post[i * a.hc + c] * a.y[at];
        for (uint32_t b = 0; b < a.hc; b++)
            sum = fmaf(comb[b * a.hc + c], x[b * d], sum);
        next[c] = k_rounded(sum, a.round);
    }
    for (uint32_t c = 0; c < a.hc; c++)
        out[c * d] = next[c];
}

void k_hc_update_cuda(struct kernels *k, const struct k_hc_update *a)
{
    if (a->n)
        K_LAUNCH(hc_update_channel, dim3(k_div_up(a->n * a->d, THREADS)), dim3(THREADS), 0, k,
                 *a);
}
