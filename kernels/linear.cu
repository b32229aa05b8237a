#include "kernels/linear_mma.cuh"
#include "kernels/linear_tile.cuh"
#include "kernels/quant_groups.h"

/* A thread a group of 32. */
__global__ void quant_activation_group(const float *x, size_t n, size_t x_stride, size_t width,
                                       float *y)
{
    size_t at = (size_t)blockIdx.x * blockDim.x + threadIdx.x, per_row = width / 32;
    if (at >= n * per_row)
        return;
    const float *from = x + at / per_row * x_stride + at % per_row * 32;
    float values[32];
    uint8_t codes[32];
    for (unsigned i = 0; i < 32; i++)
        values[i] = k_bf16(from[i]);
    uint8_t scale = k_encode_group(K_ROW_FP8_32, values, codes);
    k_decode_group(K_ROW_FP8_32, codes, scale, values);
    for (unsigned i = 0; i < 32; i++)
        y[at * 32 + i] = values[i];
}

void k_quant_activation_cuda(struct kernels *k, const float *x, size_t n, size_t x_stride,
                             size_t width, float *y)
{
    K_LAUNCH(quant_activation_group, dim3(k_div_up(n * (width / 32), 128)), dim3(128), 0, k, x,
             n, x_stride, width, y);
}

/* blockIdx: x rows, y outputs of a group, z group. */
__global__ void linear_tile(struct k_linear a, struct k_weight w, uint32_t groups)
{
    K_SHARED(struct k_tile_shared, s);
    size_t per_group = w.n_out / groups, g = blockIdx.z, row0 = blockIdx.x * K_TILE_ROWS;
    size_t o0 = g * per_group + blockIdx.y * K_TILE_OUT, o_end = (g + 1) * per_group;
    auto x = [&](size_t r) {
        return row0 + r < a.n ? a.x + (row0 + r) * a.x_stride + g * w.n_in
                              : (const float *)NULL;
    };
    float sum[K_THREAD_OUT];
    k_tile_product(s, w, o0, o_end, x, a.in, sum);
    size_t i = row0 + k_tile_row();
    for (unsigned q = 0; q < K_THREAD_OUT; q++)
        if (i < a.n && o0 + k_tile_out(q) < o_end)
            a.y[i * a.y_stride + o0 + k_tile_out(q)] = k_rounded(sum[q], a.out);
}

#define FILL_BLOCKS                                                                            \
    132u /* fewer leave multiprocessors idle; no device's own number, as sums                  \
            may not depend on it */
#define LEAST_PART 256u

/* Where a weight has few outputs its inner dimension is summed in parts, which are added
 * ascending, so that at few rows each part can be a block of its own. It depends on the weight
 * alone. Returns the inputs of a part. */
static uint32_t part_inputs(const struct k_weight &w, uint32_t groups)
{
    uint32_t in = w.n_in;
    unsigned blocks = k_div_up(w.n_out / groups, 64) * groups;
    for (; blocks < FILL_BLOCKS && in % (2 * K_MMA_IN) == 0 && in / 2 >= LEAST_PART; in /= 2)
        blocks *= 2;
    return in;
}

/* The same on tensor cores: 64 M outputs by 8 N rows. */
template <unsigned M, unsigned N, bool PARTS>
__global__ void linear_mma(struct k_linear a, struct k_weight w, uint32_t groups,
                           uint32_t inputs)
{
    typedef struct k_mma_shared<M, N> shared;
    K_SHARED(shared, s);
    size_t per_group = w.n_out / groups, g = blockIdx.z, row0 = blockIdx.x * (size_t)(8 * N);
    size_t o0 = g * per_group + blockIdx.y * (size_t)(64 * M), o_end = (g + 1) * per_group;
    size_t rows = a.n - row0 < 8 * N ? a.n - row0 : 8 * N;
    auto x = [&](size_t r) {
        return row0 + r < a.n ? a.x + (row0 + r) * a.x_stride + g * w.n_in
                              : (const float *)NULL;
    };
    unsigned used = (unsigned)(rows + 7) / 8;
    float sum[M][N][4];
    k_mma_product<M, N>(s, w, o0, o_end, x, 0, PARTS ? inputs : w.n_in, used, sum);
    for (uint32_t from = inputs; PARTS && from < w.n_in; from += inputs) {
        float part[M][N][4];
        k_mma_product<M, N>(s, w, o0, o_end, x, from, from + inputs, used, part);
        K_UNROLL
        for (unsigned at = 0; at < M * N * 4; at++)
            sum[at / (N * 4)][at / 4 % N][at % 4] += part[at / (N * 4)][at / 4 % N][at % 4];
    }
    K_UNROLL
    for (unsigned m = 0; m < M; m++) {
        K_UNROLL
        for (unsigned n = 0; n < N; n++) {
            K_UNROLL
            for (unsigned i = 0; i < 4; i++) {
                size_t o = o0 + k_mma_out<M>(m, i), r = row0 + k_mma_row(n, i);
                if (o < o_end && r < a.n)
                    a.y[r * a.y_stride + o] = k_rounded(sum[m][n][i], a.out);
            }
        }
    }
}

/* Up to eight rows, blockIdx.x a part of the inputs: sums of parts [part][n][n_out]. */
__global__ void linear_mma_part(struct k_linear a, struct k_weight w, uint32_t groups,
                                uint32_t inputs, float *parts)
{
    typedef struct k_mma_shared<1, 1> shared;
    K_SHARED(shared, s);
    size_t per_group = w.n_out / groups, g = blockIdx.z;
    size_t o0 = g * per_group + blockIdx.y * (size_t)64, o_end = (g + 1) * per_group;
    auto x = [&](size_t r) {
        return r < a.n ? a.x + r * a.x_stride + g * w.n_in : (const float *)NULL;
    };
    float sum[1][1][4];
    uint32_t from = blockIdx.x * inputs;
    k_mma_product<1, 1>(s, w, o0, o_end, x, from, from + inputs, 1, sum);
    for (unsigned i = 0; i < 4; i++) {
        size_t o = o0 + k_mma_out<1>(0, i), r = k_mma_row(0, i);
        if (o < o_end && r < a.n)
            parts[(blockIdx.x * a.n + r) * w.n_out + o] = sum[0][0][i];
    }
}

/* A thread an output of a row. */
__global__ void linear_add(struct k_linear a, uint32_t n_out, uint32_t n_part,
                           const float *parts)
{
    size_t at = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= a.n * n_out)
        return;
    float sum = parts[at];
    for (uint32_t p = 1; p < n_part; p++)
        sum += parts[p * a.n * n_out + at];
    a.y[at / n_out * a.y_stride + at % n_out] = k_rounded(sum, a.out);
}

template <unsigned M, unsigned N, bool PARTS>
static void launch_rows(struct kernels *k, const struct k_linear *a, uint32_t groups,
                        uint32_t inputs)
{
    auto linear_mma = ::linear_mma<M, N, PARTS>;
    dim3 grid(k_div_up(a->n, 8 * N), k_div_up(a->w->n_out / groups, 64 * M), groups);
    K_LAUNCH(linear_mma, grid, dim3(K_MMA_THREADS), sizeof(struct k_mma_shared<M, N>), k, *a,
             *a->w, groups, inputs);
}

static void launch_parts(struct kernels *k, const struct k_linear *a, uint32_t groups,
                         uint32_t inputs)
{
    uint32_t n_part = a->w->n_in / inputs, n_out = a->w->n_out;
    float *parts =
        (float *)k_cuda_scratch(k, K_CUDA_LINEAR_PART, n_part * a->n * n_out * sizeof(float));
    if (!parts)
        return;
    K_LAUNCH(linear_mma_part, dim3(n_part, k_div_up(n_out / groups, 64), groups),
             dim3(K_MMA_THREADS), sizeof(struct k_mma_shared<1, 1>), k, *a, *a->w, groups,
             inputs, parts);
    K_LAUNCH(linear_add, dim3(k_div_up(a->n * n_out, 128)), dim3(128), 0, k, *a, n_out, n_part,
             parts);
}

static void launch_mma(struct kernels *k, const struct k_linear *a, uint32_t groups)
{
    uint32_t inputs = part_inputs(*a->w, groups);
    bool parts = inputs < a->w->n_in;
    if (a->n <= 8 && parts)
        launch_parts(k, a, groups, inputs);
    else if (a->n <= 8)
        launch_rows<1, 1, false>(k, a, groups, inputs);
    else if (parts)
        launch_rows<2, 8, true>(k, a, groups, inputs);
    else
        launch_rows<2, 8, false>(k, a, groups, inputs);
}

void k_linear_cuda(struct kernels *k, const struct k_linear *a)
{
    if (!a->n)
        return;
    struct k_linear args = *a;
    uint32_t groups = a->w->n_groups ? a->w->n_groups : 1;
    size_t width = (size_t)groups * a->w->n_in;
    args.x_stride = k_row_stride(a->x_stride, width);
    args.y_stride = k_row_stride(a->y_stride, a->w->n_out);
    bool mma = k_mma_takes(*a->w, a->in);
    if (a->in == K_FP8_32) {
        float *y = (float *)k_cuda_scratch(k, K_CUDA_LINEAR_X, a->n * width * sizeof(float));
        if (!y)
            return;
        k_quant_activation_cuda(k, a->x, a->n, args.x_stride, width, y);
        args.x = y, args.x_stride = width, args.in = K_EXACT; /* its values are bf16 */
    }
    dim3 grid(k_div_up(a->n, K_TILE_ROWS), k_div_up(a->w->n_out / groups, K_TILE_OUT), groups);
    if (mma)
        launch_mma(k, &args, groups);
    else
        K_LAUNCH(linear_tile, grid, dim3(K_TILE_THREADS), sizeof(struct k_tile_shared), k, args,
                 *a->w, groups);
}
