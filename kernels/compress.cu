#include "kernels/cuda.cuh"

#define THREADS 128u

/* A thread a channel of a group. */
__global__ void compress_channel(struct k_compress a)
{
    size_t at = (size_t)blockIdx.x * blockDim.x + threadIdx.x, d = a.d;
    if (at >= a.n * d)
        return;
    size_t first = at / d * a.ratio * d + at % d;
    const float *u = a.u + first, *g = a.g + first;
    if (a.ratio == 1) {
        a.out[at] = k_rounded(u[0], a.round);
        return;
    }
    double max = (double)g[0], weight = 0, sum = 0;
    for (uint32_t t = 1; t < a.ratio; t++)
        max = (double)g[t * d] > max ? (double)g[t * d] : max;
    for (uint32_t t = 0; t < a.ratio; t++) {
        double p = k_exp((double)g[t * d] - max);
        weight += p;
        sum += p * (double)u[t * d];
    }
    a.out[at] = k_rounded((float)(sum / weight), a.round);
}

void k_compress_cuda(struct kernels *k, const struct k_compress *a)
{
    if (a->n)
        K_LAUNCH(compress_channel, dim3(k_div_up(a->n * a->d, THREADS)), dim3(THREADS), 0, k,
                 *a);
}
