#include "kernels/cuda.cuh"
#include "kernels/quant_groups.h"

#define THREADS 128u

/* Where row i of x goes; NULL: nowhere. */
__device__ static inline uint8_t *row_of(const struct k_encode &a, size_t i, size_t row_bytes)
{
    if (!a.runs)
        return (uint8_t *)a.rows + i * row_bytes;
    uint32_t group = a.first + (uint32_t)i;
    const struct k_run *r = k_run_of_group(a.runs, a.n_runs, a.source, group);
    if (!r)
        return NULL;
    const struct k_run_source &s = r->source[a.source];
    return (a.keys ? s.keys : s.rows) + (s.row + (group - s.first)) * row_bytes;
}

/* A thread a group; groups per row are d / size. */
__global__ void encode_group(struct k_encode a)
{
    uint32_t size = k_group_size(a.format), bytes = k_group_bytes(a.format);
    size_t per_row = a.d / size, at = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= a.n * per_row)
        return;
    size_t i = at / per_row, g = at % per_row;
    uint8_t *row = row_of(a, i, per_row * (bytes + 1));
    if (!row)
        return;
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

/* K_ROW_F32 is a copy of its values. */
__global__ void encode_copy(struct k_encode a)
{
    size_t at = (size_t)blockIdx.x * blockDim.x + threadIdx.x, d = a.d;
    if (at >= a.n * d)
        return;
    float *row = (float *)row_of(a, at / d, d * sizeof(float));
    if (row)
        row[at % d] = a.x[at / d * k_row_stride(a.x_stride, d) + at % d];
}

__global__ void copy_values(const float *x, float *y, size_t n)
{
    size_t at = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (at < n)
        y[at] = x[at];
}

static void copy(struct kernels *k, const float *x, float *y, size_t n)
{
    if (n && x != y)
        K_LAUNCH(copy_values, dim3(k_div_up(n, THREADS)), dim3(THREADS), 0, k, x, y, n);
}

void k_encode_cuda(struct kernels *k, const struct k_encode *a)
{
    uint32_t size = k_group_size(a->format);
    if (!size && a->n && a->d)
        K_LAUNCH(encode_copy, dim3(k_div_up(a->n * a->d, THREADS)), dim3(THREADS), 0, k, *a);
    else if (size && a->n)
        K_LAUNCH(encode_group, dim3(k_div_up(a->n * (a->d / size), THREADS)), dim3(THREADS), 0,
                 k, *a);
}

void k_decode_cuda(struct kernels *k, const struct k_decode *a)
{
    uint32_t size = k_group_size(a->format);
    if (!size)
        copy(k, (const float *)a->rows, a->x, a->n * a->d);
    else if (a->n)
        K_LAUNCH(decode_group, dim3(k_div_up(a->n * (a->d / size), THREADS)), dim3(THREADS), 0,
                 k, *a);
}

void k_fake_quant_cuda(struct kernels *k, const struct k_fake_quant *a)
{
    uint32_t size = k_group_size(a->format);
    if (!size)
        copy(k, a->x, a->y, a->n * a->d);
    else if (a->n)
        K_LAUNCH(fake_quant_group, dim3(k_div_up(a->n * (a->d / size), THREADS)), dim3(THREADS),
                 0, k, *a);
}
