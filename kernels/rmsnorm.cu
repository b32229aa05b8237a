#include "kernels/cuda.cuh"

#define THREADS 256u

/* A block a row. */
__global__ void rmsnorm_row(struct k_rmsnorm a)
{
    K_SHARED(float, scratch);
    size_t i = blockIdx.x;
    const float *x = a.x + i * k_row_stride(a.x_stride, a.d);
    float *y = a.y + i * a.d;
    float sum = 0;
    for (uint32_t j = threadIdx.x; j < a.d; j += blockDim.x)
        sum = fmaf(x[j], x[j], sum);
    sum = k_block_sum(sum, scratch);
    double r = 1 / sqrt((double)sum / a.d + (double)a.eps);
    for (uint32_t j = threadIdx.x; j < a.d; j += blockDim.x) {
        double w = a.w ? (double)a.w[j] : 1.0;
        y[j] = k_rounded((float)(w * ((double)x[j] * r)), a.round);
    }
}

void k_rmsnorm_cuda(struct kernels *k, const struct k_rmsnorm *a)
{
    if (a->n)
        K_LAUNCH(rmsnorm_row, dim3((unsigned)a->n), dim3(THREADS),
                 THREADS / K_WARP * sizeof(float), k, *a);
}
