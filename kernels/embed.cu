#include "kernels/cuda.cuh"

/* A block a token. */
__global__ void embed_token(struct k_embed a, struct k_weight w)
{
    size_t i = blockIdx.x, d = w.n_in;
    for (size_t j = threadIdx.x; j < d; j += blockDim.x) {
        float v = k_weight_value(w, a.ids[i], j);
        for (uint32_t c = 0; c < a.copies; c++)
            a.x[(i * a.copies + c) * d + j] = v;
    }
    if (a.pre && threadIdx.x < a.copies)
        a.pre[i * a.copies + threadIdx.x] = threadIdx.x == 0;
}

void k_embed_cuda(struct kernels *k, const struct k_embed *a)
{
    if (a->n)
        K_LAUNCH(embed_token, dim3((unsigned)a->n), dim3(128), 0, k, *a, *a->w);
}
