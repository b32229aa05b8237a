/* The plain product of a tile of rows with a tile of a weight's outputs, for linear.cu and
 * moe.cu.
 *
 * A block of 128 threads makes K_TILE_ROWS rows by K_TILE_OUT outputs; each thread has one row
 * and eight outputs. The inner dimension goes by in pieces of 32: a piece is summed by itself
 * in ascending order and then added to the whole, so the order depends on n_in alone and the
 * error grows with the root of n_in / 32. */
#ifndef KERNELS_LINEAR_TILE_CUH
#define KERNELS_LINEAR_TILE_CUH

#include "kernels/cuda.cuh"

#define K_TILE_ROWS 16u
#define K_TILE_OUT 64u
#define K_TILE_IN 32u
#define K_TILE_THREADS 128u
#define K_THREAD_OUT (K_TILE_OUT * K_TILE_ROWS / K_TILE_THREADS)

struct k_tile_shared {
    float x[K_TILE_ROWS][K_TILE_IN + 1]; /* + 1: rows in different banks */
    float w[K_TILE_OUT][K_TILE_IN + 1];
};

/* sum[q] = w[o0 + column + q] x[row] for this thread's row and its eight columns.
 *
 * x(r) points at the n_in inputs of tile row r, NULL for a row that is not there. Outputs from
 * o_end on are left 0. All threads of the block call it. */
template <typename X>
__device__ static inline void k_tile_product(struct k_tile_shared *s, const struct k_weight &w,
                                             size_t o0, size_t o_end, X x, enum k_round in,
                                             float sum[K_THREAD_OUT])
{
    unsigned row = threadIdx.x / (K_TILE_OUT / K_THREAD_OUT);
    unsigned column = threadIdx.x % (K_TILE_OUT / K_THREAD_OUT);
    for (unsigned q = 0; q < K_THREAD_OUT; q++)
        sum[q] = 0;
    for (uint32_t k0 = 0; k0 < w.n_in; k0 += K_TILE_IN) {
        for (unsigned at = threadIdx.x; at < K_TILE_ROWS * K_TILE_IN; at += K_TILE_THREADS) {
            uint32_t r = at / K_TILE_IN, i = at % K_TILE_IN;
            const float *from = x(r);
            s->x[r][i] = from && k0 + i < w.n_in ? k_rounded(from[k0 + i], in) : 0;
        }
        for (unsigned at = threadIdx.x; at < K_TILE_OUT * K_TILE_IN; at += K_TILE_THREADS) {
            uint32_t o = at / K_TILE_IN, i = at % K_TILE_IN;
            s->w[o][i] =
                o0 + o < o_end && k0 + i < w.n_in ? k_weight_value(w, o0 + o, k0 + i) : 0;
        }
        __syncthreads();
        float piece[K_THREAD_OUT] = {0};
        for (unsigned i = 0; i < K_TILE_IN; i++)
            for (unsigned q = 0; q < K_THREAD_OUT; q++)
                piece[q] = fmaf(s->w[column + q * (K_TILE_OUT / K_THREAD_OUT)][i], s->x[row][i],
                                piece[q]);
        for (unsigned q = 0; q < K_THREAD_OUT; q++)
            sum[q] += piece[q];
        __syncthreads();
    }
}

/* Row of the tile, and q-th output of it, that this thread has. */
__device__ static inline unsigned k_tile_row()
{
    return threadIdx.x / (K_TILE_OUT / K_THREAD_OUT);
}

__device__ static inline unsigned k_tile_out(unsigned q)
{
    return threadIdx.x % (K_TILE_OUT / K_THREAD_OUT) + q * (K_TILE_OUT / K_THREAD_OUT);
}

/* x rounded for a product with K_FP8_32: y [n][width] = bf16(x) on the grid of groups of 32. */
void k_quant_activation_cuda(struct kernels *k, const float *x, size_t n, size_t x_stride,
                             size_t width, float *y);

#endif
