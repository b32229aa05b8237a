#include "kernels/cuda.cuh"

#define THREADS 128u

__global__ void scale_value(struct k_scale a)
{
    size_t at = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (at < a.n)
        a.x[at] = k_rounded(a.x[at] * a.by, a.round);
}

void k_scale_cuda(struct kernels *k, const struct k_scale *a)
{
    if (a->n)
        K_LAUNCH(scale_value, dim3(k_div_up(a->n, THREADS)), dim3(THREADS), 0, k, *a);
}
