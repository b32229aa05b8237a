#include "kernels/cuda.cuh"

#define THREADS 128u

/* A thread an angle. */
__global__ void rope_table_angle(struct k_rope_table a)
{
    size_t at = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= a.n * a.half)
        return;
    double s, c;
    k_sincos((double)((float)a.pos[at / a.half] * a.inv_freq[at % a.half]), &s, &c);
    a.cos[at] = (float)c;
    a.sin[at] = (float)s;
}

void k_rope_table_cuda(struct kernels *k, const struct k_rope_table *a)
{
    if (a->n && a->half)
        K_LAUNCH(rope_table_angle, dim3(k_div_up(a->n * a->half, THREADS)), dim3(THREADS), 0, k,
                 *a);
}

/* A thread a pair. */
__global__ void rope_pair(struct k_rope a)
{
    size_t per_row = (size_t)a.n_head * a.half;
    size_t at = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= a.n * per_row)
        return;
    size_t i = at / per_row, h = at % per_row / a.half, j = at % a.half;
    float *x = a.x + i * k_row_stride(a.x_stride, (size_t)a.n_head * a.d) + (h + 1) * a.d -
               2 * (size_t)a.half + 2 * j;
    float c = a.cos[i * a.half + j], s = a.sin[i * a.half + j], re = x[0], im = x[1];
    s = a.inverse ? -s : s;
    x[0] = k_rounded(re * c - im * s, a.round);
    x[1] = k_rounded(re * s + im * c, a.round);
}

void k_rope_cuda(struct kernels *k, const struct k_rope *a)
{
    size_t n = a->n * a->n_head * a->half;
    if (n)
        K_LAUNCH(rope_pair, dim3(k_div_up(n, THREADS)), dim3(THREADS), 0, k, *a);
}
