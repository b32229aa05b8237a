#include "kernels/cuda.cuh"
#include "kernels/quant_groups.h"

#define THREADS 128u

/* A thread a group; groups per row are d / size. K_ROW_F32 is a copy of its values. */
__global__ void encode_group(struct k_encode a)
{
    uint32_t size = k_group_size(a.format), bytes = k_group_bytes(a.format);
    size_t per_row = a.d / size, at = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= a.n * per_row)
        return;
    size_t i = at / per_row, g = at % per_row;
    uint8_t *row = (uint8_t *)a.rows + i * per_row * (bytes + 1);
    const float *x = a.x + i * k_row_stride(a.x_stride, a.d) + g * size;
    row[per_row * bytes + g] = k_encode_group(a.format, x, row + g * bytes);
}

__global__ void decode_group(struct k_decode a)
{
    uint32_t size = k_group_size(a.format), bytes = k_group_bytes(a.format);
    size_t per_row = a.d / size, at = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= a.n * per_row)
        return;
    size_t i = at / per_row, g = at % per_row;
    const uint8_t *row = (const uint8_t *)a.rows + i * per_row * (bytes + 1);
    k_decode_group(a.format, row + g * bytes, row[per_row * bytes + g],
                   a.x + i * a.d + g * size);
}

__global__ void fake_quant_group(struct k_fake_quant a)
{
    uint32_t size = k_group_size(a.format);
    size_t at = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= a.n * (a.d / size))
        return;
    uint8_t codes[32];
    uint8_t scale = k_encode_group(a.format, a.x + at * size, codes);
    k_decode_group(a.format, codes, scale, a.y + at * size);
}

__global__ void copy_rows(const float *x, float *y, size_t n, size_t d, size_t stride)
{
    size_t at = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (at < n * d)
        y[at] = x[at / d * stride + at % d];
}

static void copy(struct kernels *k, const float *x, float *y, size_t n, size_t d, size_t stride)
{
    if (n && d && x != y)
        K_LAUNCH(copy_rows, dim3(k_div_up(n * d, THREADS)), dim3(THREADS), 0, k, x, y, n, d,
                 k_row_stride(stride, d));
}

void k_encode_cuda(struct kernels *k, const struct k_encode *a)
{
    uint32_t size = k_group_size(a->format);
    if (!size)
        copy(k, a->x, (float *)a->rows, a->n, a->d, a->x_stride);
    else if (a->n)
        K_LAUNCH(encode_group, dim3(k_div_up(a->n * (a->d / size), THREADS)), dim3(THREADS), 0,
                 k, *a);
}

void k_decode_cuda(struct kernels *k, const struct k_decode *a)
{
    uint32_t size = k_group_size(a->format);
    if (!size)
        copy(k, (const float *)a->rows, a->x, a->n, a->d, 0);
    else if (a->n)
        K_LAUNCH(decode_group, dim3(k_div_up(a->n * (a->d / size), THREADS)), dim3(THREADS), 0,
                 k, *a);
}

void k_fake_quant_cuda(struct kernels *k, const struct k_fake_quant *a)
{
    uint32_t size = k_group_size(a->format);
    if (!size)
        copy(k, a->x, a->y, a->n, a->d, 0);
    else if (a->n)
        K_LAUNCH(fake_quant_group, dim3(k_div_up(a->n * (a->d / size), THREADS)), dim3(THREADS),
                 0, k, *a);
}
