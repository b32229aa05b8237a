/* What a query may choose from, for index.cu and index_mma.cu: all that they read of where a
 * run stands. */
#ifndef KERNELS_INDEX_ROWS_CUH
#define KERNELS_INDEX_ROWS_CUH

#include "kernels/cuda.cuh"

/* Query i sees rows 0 .. this - 1. */
__device__ static inline size_t k_visible_rows(const struct k_index &a, size_t i)
{
    return (size_t)((a.pos0 + i + 1) / a.ratio);
}

/* index_mma.cu: score [n][n_row] on tensor cores. False where this shape or format does not
 * allow it; nothing was done then. */
bool k_index_score_mma_cuda(struct kernels *k, const struct k_index *a, float *score);

#endif
