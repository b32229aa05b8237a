/* Attention in plain instructions: any format and device, in mode math and where
 * attention_mma.cu does not run. */
#include "kernels/attention_keys.cuh"
#include "kernels/quant_groups.h"

#define THREADS 128u
#define BLOCK K_ATTENTION_BLOCK
#define K_MAX_HEAD_DIM 1024u

__device__ static inline float row_value(enum k_format format, const uint8_t *row, uint32_t d,
                                         uint32_t j)
{
    switch (format) {
    case K_ROW_F32:
        return ((const float *)row)[j];
    case K_ROW_FP8_32:
        return k_e4m3_to_f32(row[j]) * k_e8m0_to_f32(row[d + j / 32]);
    case K_ROW_FP4_16:
        return k_e2m1_to_f32((uint8_t)(row[j / 2] >> (j % 2 * 4))) *
               k_e4m3_to_f32(row[d / 2 + j / 16]);
    case K_ROW_FP4_32:
        return k_e2m1_to_f32((uint8_t)(row[j / 2] >> (j % 2 * 4))) *
               k_e8m0_to_f32(row[d / 2 + j / 32]);
    }
    return 0;
}

/* score [n]: the scaled products of a query with its list, a thread an entry, in pieces of 32;
 * -inf where a key is missing. */
__device__ static inline void scores(const struct k_attention &a, const struct k_key_list &l,
                                     size_t i, size_t h, size_t window_bytes, size_t row_bytes,
                                     float *score)
{
    const float *q = a.q + (i * a.n_head + h) * a.d;
    for (uint32_t t = threadIdx.x; t < l.pad + l.n_sel; t += THREADS) {
        const uint8_t *row = k_key_at(a, l, i, t, window_bytes, row_bytes);
        enum k_format format = t < l.pad ? a.window_format : a.row_format;
        float dot = 0;
        for (uint32_t j0 = 0; row && j0 < a.d; j0 += 32) {
            float piece = 0;
            for (uint32_t j = j0; j < j0 + 32 && j < a.d; j++)
                piece = fmaf(q[j], row_value(format, row, a.d, j), piece);
            dot += piece;
        }
        score[t] = row ? dot * a.scale : -INFINITY;
    }
    __syncthreads();
}

/* sum of p_t k_t[j] over entries [from, to) of the list, ascending. */
__device__ static inline float weighted(const struct k_attention &a, const struct k_key_list &l,
                                        size_t i, size_t window_bytes, size_t row_bytes,
                                        const float *p, uint32_t from, uint32_t to, uint32_t j)
{
    float sum = 0;
    for (uint32_t t = from; t < to; t++) {
        const uint8_t *row = k_key_at(a, l, i, t, window_bytes, row_bytes);
        if (row)
            sum = fmaf(p[t], row_value(t < l.pad ? a.window_format : a.row_format, row, a.d, j),
                       sum);
    }
    return sum;
}

/* A block a head of a query; scores and then weights of the whole list lie in shared memory. */
__global__ void attention_head(struct k_attention a, size_t window_bytes, size_t row_bytes,
                               uint32_t n_max)
{
    K_SHARED(float, p);
    float *scratch = p + n_max, sink = a.sink[blockIdx.y], max = sink, sum = 0;
    size_t i = a.from + blockIdx.x, h = blockIdx.y;
    k_single_run(a, i, window_bytes);
    struct k_key_list l = k_keys_of(a, i);
    uint32_t n = l.pad + l.n_sel;
    scores(a, l, i, h, window_bytes, row_bytes, p);
    for (uint32_t t = 0; t < n; t++)
        max = p[t] > max ? p[t] : max;
    __syncthreads();
    for (uint32_t t = threadIdx.x; t < n; t += THREADS)
        sum += p[t] = (float)k_exp((double)p[t] - (double)max);
    sum = k_block_sum(sum, scratch); /* and everybody sees p */
    sum += (float)k_exp((double)sink - (double)max);
    for (uint32_t j = threadIdx.x; j < a.d; j += THREADS) {
        float value = 0;
        for (uint32_t b = 0; b < n; b += BLOCK)
            value += weighted(a, l, i, window_bytes, row_bytes, p, b,
                              b + BLOCK < n ? b + BLOCK : n, j);
        a.out[(i * a.n_head + h) * a.d + j] = k_rounded(n ? value / sum : 0, a.round);
    }
}

/* The released reference's form: maximum and sums carried over blocks of BLOCK entries. */
__global__ void attention_head_online(struct k_attention a, size_t window_bytes,
                                      size_t row_bytes, uint32_t n_max)
{
    K_SHARED(float, p);
    float *scratch = p + n_max;
    size_t i = a.from + blockIdx.x, h = blockIdx.y;
    k_single_run(a, i, window_bytes);
    struct k_key_list l = k_keys_of(a, i);
    uint32_t n = l.pad + l.n_sel;
    scores(a, l, i, h, window_bytes, row_bytes, p);
    float max = -1e30f, weight = 0, value[K_MAX_HEAD_DIM / THREADS] = {0};
    for (uint32_t b = 0; b < n; b += BLOCK) {
        uint32_t end = b + BLOCK < n ? b + BLOCK : n, t = b + threadIdx.x;
        float before = max, part = 0;
        for (uint32_t u = b; u < end; u++)
            max = p[u] > max ? p[u] : max;
        float shrink = (float)k_exp((double)before - (double)max);
        __syncthreads();
        if (t < end)
            part = (float)k_exp((double)p[t] - (double)max);
        weight = weight * shrink + k_block_sum(part, scratch);
        if (t < end)
            p[t] = k_bf16(part);
        __syncthreads();
        for (uint32_t j = threadIdx.x, v = 0; j < a.d; j += THREADS, v++)
            value[v] =
                value[v] * shrink + weighted(a, l, i, window_bytes, row_bytes, p, b, end, j);
    }
    weight += (float)k_exp((double)a.sink[h] - (double)max);
    for (uint32_t j = threadIdx.x, v = 0; j < a.d; j += THREADS, v++)
        a.out[(i * a.n_head + h) * a.d + j] = k_rounded(value[v] / weight, a.round);
}

void k_attention_cuda(struct kernels *k, const struct k_attention *a)
{
    size_t to = k_attention_to(*a);
    if (!a->n || !a->n_head || to <= a->from || k_attention_mma_cuda(k, a))
        return;
    size_t n_max = k_attention_most(*a);
    size_t window_bytes = k_row_bytes(a->window_format, a->d);
    size_t row_bytes = k_row_bytes(a->row_format, a->d);
    size_t shared = (n_max + THREADS / K_WARP) * sizeof(float);
    dim3 grid((unsigned)(to - a->from), a->n_head);
    if (a->prob == K_BF16)
        K_LAUNCH(attention_head_online, grid, dim3(THREADS), shared, k, *a, window_bytes,
                 row_bytes, (uint32_t)n_max);
    else
        K_LAUNCH(attention_head, grid, dim3(THREADS), shared, k, *a, window_bytes, row_bytes,
                 (uint32_t)n_max);
}
