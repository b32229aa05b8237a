#include "kernels/cuda.cuh"

#define THREADS 128u

/* A block a key of a layer. */
__global__ void ring_key(struct k_ring a, size_t first)
{
    size_t i = first + blockIdx.x, l = blockIdx.y, row = a.row_bytes;
    uint8_t *to = a.ring + (l * a.window + (a.pos0 + i) % a.window) * row;
    const uint8_t *from = a.keys + l * a.key_stride + i * row;
    for (size_t j = threadIdx.x; j < row; j += THREADS)
        to[j] = from[j];
}

void k_ring_cuda(struct kernels *k, const struct k_ring *a)
{
    size_t first = a->n > a->window ? a->n - a->window : 0;
    if (a->n && a->n_layers)
        K_LAUNCH(ring_key, dim3((unsigned)(a->n - first), a->n_layers), dim3(THREADS), 0, k, *a,
                 first);
}
