#include "kernels/cuda.cuh"

#define THREADS 128u

__global__ void scale_value(struct k_scale a)
{
    size_t at = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (at < a.n)
        a.x[at] = k_rounded(a.x[at] * a.by, a.round);
}

/* One kernel tells for all: they are built for the same devices. */
bool k_cuda_is_built_for_device(void)
{
#ifndef K_CUDA_EMULATED
    struct cudaFuncAttributes a;
    if (cudaFuncGetAttributes(&a, scale_value) != cudaSuccess) {
        (void)cudaGetLastError();
        return false;
    }
#endif
    return true;
}

void k_scale_cuda(struct kernels *k, const struct k_scale *a)
{
    if (a->n)
        K_LAUNCH(scale_value, dim3(k_div_up(a->n, THREADS)), dim3(THREADS), 0, k, *a);
}
