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

/* The same on tensor cores: 64 M outputs by 8 N rows. */
template <unsigned M, unsigned N>
__global__ void linear_mma(struct k_linear a, struct k_weight w, uint32_t groups)
{
    typedef struct k_mma_shared<M, N> shared;
    K_SHARED(shared, s);
    size_t per_group = w.n_out / groups, g = blockIdx.z, row0 = blockIdx.x * (size_t)(8 * N);
    size_t o0 = g * per_group + blockIdx.y * (size_t)(64 * M), o_end = (g + 1) * per_group;
    auto x = [&](size_t r) {
        return row0 + r < a.n ? a.x + (row0 + r) * a.x_stride + g * w.n_in
                              : (const float *)NULL;
    };
    float sum[M][N][4];
    k_mma_product<M, N>(s, w, o0, o_end, x, sum);
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

template <unsigned M, unsigned N>
static void launch_mma(struct kernels *k, const struct k_linear *a, uint32_t groups)
{
    auto linear_mma = ::linear_mma<M, N>;
    dim3 grid(k_div_up(a->n, 8 * N), k_div_up(a->w->n_out / groups, 64 * M), groups);
    K_LAUNCH(linear_mma, grid, dim3(K_MMA_THREADS), sizeof(struct k_mma_shared<M, N>), k, *a,
             *a->w, groups);
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
    if (mma && a->n <= 8)
        launch_mma<1, 1>(k, &args, groups);
    else if (mma)
        launch_mma<2, 8>(k, &args, groups);
    else
        K_LAUNCH(linear_tile, grid, dim3(K_TILE_THREADS), sizeof(struct k_tile_shared), k, args,
                 *a->w, groups);
}
