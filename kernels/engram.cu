#include "kernels/cuda.cuh"

#define THREADS 128u

/* A thread a value. */
__global__ void engram_rows_value(struct k_engram_rows a)
{
    size_t at = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= a.n * a.n_id * a.d)
        return;
    uint64_t row = a.ids[at / a.d];
    uint32_t j = (uint32_t)(at % a.d);
    a.out[at] = k_e4m3_to_f32(a.codes[row * a.d + j]) *
                k_e8m0_to_f32(a.scales[row * (a.d / 32) + j / 32]);
}

void k_engram_rows_cuda(struct kernels *k, const struct k_engram_rows *a)
{
    size_t n = a->n * a->n_id * a->d;
    if (n)
        K_LAUNCH(engram_rows_value, dim3(k_div_up(n, THREADS)), dim3(THREADS), 0, k, *a);
}

/* A thread a group of 32 codes and its scale. */
__global__ void engram_put_group(struct k_engram_put a)
{
    size_t at = (size_t)blockIdx.x * blockDim.x + threadIdx.x, per_row = a.d / 32;
    if (at >= a.n * per_row)
        return;
    size_t to = a.at[at / per_row] * per_row + at % per_row;
    const uint64_t *from = (const uint64_t *)(const void *)a.from_codes + at * 4;
    uint64_t *codes = (uint64_t *)(void *)a.codes + to * 4;
    for (unsigned i = 0; i < 4; i++)
        codes[i] = from[i];
    a.scales[to] = a.from_scales[at];
}

void k_engram_put_cuda(struct kernels *k, const struct k_engram_put *a)
{
    size_t n = a->n * (a->d / 32);
    if (n)
        K_LAUNCH(engram_put_group, dim3(k_div_up(n, THREADS)), dim3(THREADS), 0, k, *a);
}

/* A block a stream of a token. */
__global__ void engram_gate_stream(struct k_engram_gate a)
{
    K_SHARED(float, scratch);
    size_t i = blockIdx.x / a.hc, c = blockIdx.x % a.hc, d = a.d;
    if (a.dead && a.dead[i]) {
        if (a.gate && threadIdx.x == 0)
            a.gate[i * a.hc + c] = 0;
        return;
    }
    float *x = a.x + (i * a.hc + c) * d;
    const float *key = a.kv + (i * (a.hc + 1) + c) * d;
    const float *value = a.kv + (i * (a.hc + 1) + a.hc) * d;
    float xx = 0, kk = 0, xk = 0;
    for (size_t j = threadIdx.x; j < d; j += blockDim.x) {
        xx = fmaf(x[j], x[j], xx);
        kk = fmaf(key[j], key[j], kk);
        xk = fmaf(x[j] * (a.qw[c * d + j] * a.kw[c * d + j]), key[j], xk);
    }
    xx = k_block_sum(xx, scratch), kk = k_block_sum(kk, scratch), xk = k_block_sum(xk, scratch);
    double dot = (double)xk / sqrt((double)xx / (double)d + (double)a.eps);
    dot /= sqrt((double)kk / (double)d + (double)a.eps);
    dot /= sqrt((double)d);
    double size = dot < 0 ? -dot : dot, root = sqrt(size < 1e-6 ? 1e-6 : size);
    double gate = k_sigmoid(dot < 0 ? -root : root);
    for (size_t j = threadIdx.x; j < d; j += blockDim.x)
        x[j] = k_rounded((float)((double)x[j] + gate * (double)value[j]), a.round);
    if (a.gate && threadIdx.x == 0)
        a.gate[i * a.hc + c] = (float)gate;
}

void k_engram_gate_cuda(struct kernels *k, const struct k_engram_gate *a)
{
    if (a->n)
        K_LAUNCH(engram_gate_stream, dim3((unsigned)(a->n * a->hc)), dim3(THREADS),
                 THREADS / K_WARP * sizeof(float), k, *a);
}
