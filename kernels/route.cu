#include "kernels/cuda.cuh"

#define NONE 0xffffffffu

/* The better of two candidates: larger score, then lower number. NONE loses. */
__device__ static inline bool better(float score, uint32_t number, float best, uint32_t of)
{
    return number != NONE && (of == NONE || score > best || (score == best && number < of));
}

/* A warp a token. Scores are kept in shared memory: plain, and with the bias for the choice. */
__global__ void route_token(struct k_route a)
{
    K_SHARED(float, score);
    float *biased = score + a.n_expert;
    size_t i = blockIdx.x;
    const float *logits = a.logits + i * a.n_expert;
    const float *bias = a.bias_alt && a.alt && a.alt[i] ? a.bias_alt : a.bias;
    for (uint32_t j = threadIdx.x; j < a.n_expert; j += K_WARP) {
        score[j] = (float)sqrt(k_softplus((double)logits[j]));
        biased[j] = score[j] + bias[j];
        if (biased[j] != biased[j])
            biased[j] = -INFINITY;
    }
    double sum = 0;
    for (uint32_t t = 0; t < a.top_k; t++) {
        float best = 0;
        uint32_t at = NONE;
        __syncwarp();
        for (uint32_t j = threadIdx.x; j < a.n_expert; j += K_WARP)
            /* NaN marks the ones taken */
            if (biased[j] == biased[j] && better(biased[j], j, best, at))
                best = biased[j], at = j;
        for (int bits = 16; bits; bits /= 2) {
            float other = __shfl_xor_sync(K_ALL_LANES, best, bits);
            uint32_t number = __shfl_xor_sync(K_ALL_LANES, at, bits);
            if (better(other, number, best, at))
                best = other, at = number;
        }
        if (threadIdx.x == 0) {
            a.expert[i * a.top_k + t] = (int32_t)at;
            biased[at] = NAN;
        }
        sum += (double)score[at];
    }
    double factor = (double)a.scale / (a.norm && a.top_k > 1 ? sum + 1e-20 : 1);
    __syncwarp();
    for (uint32_t t = threadIdx.x; t < a.top_k; t += K_WARP)
        a.weight[i * a.top_k + t] = (float)((double)score[a.expert[i * a.top_k + t]] * factor);
}

void k_route_cuda(struct kernels *k, const struct k_route *a)
{
    if (a->n && a->top_k)
        K_LAUNCH(route_token, dim3((unsigned)a->n), dim3(K_WARP),
                 2 * a->n_expert * sizeof(float), k, *a);
}
