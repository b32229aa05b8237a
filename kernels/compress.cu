#include "kernels/cuda.cuh"

#define THREADS 128u

/* A thread a channel of a group. */
__global__ void compress_channel(struct k_compress a)
{
    size_t at = (size_t)blockIdx.x * blockDim.x + threadIdx.x, d = a.d;
    if (at >= a.n * d)
        return;
    size_t first = at / d * a.ratio * d + at % d;
    const float *u = a.u + first, *g = a.g + first;
    const float *u0 = u, *g0 = g; /* of the first token, which may lie elsewhere */
    if (a.runs) {
        uint32_t group = a.first + (uint32_t)(at / d);
        const struct k_run *r = k_run_of_group(a.runs, a.n_runs, a.source, group);
        if (!r)
            return;
        const struct k_run_source &s = r->source[a.source];
        /* The first token's place in the batch; with one that waited it is one too early. */
        int64_t p = (int64_t)((s.row + (group - s.first)) * a.ratio) - (int64_t)r->pos0;
        int64_t row = (int64_t)r->row - a.row0 + p;
        const float *waiting = r->pending + (size_t)a.source * 2 * d + at % d;
        u = a.u + (row * (int64_t)d + (int64_t)(at % d));
        g = a.g + (row * (int64_t)d + (int64_t)(at % d));
        u0 = p < 0 ? waiting : u, g0 = p < 0 ? waiting + d : g;
    }
    if (a.ratio == 1) {
        a.out[at] = k_rounded(u0[0], a.round);
        return;
    }
    double max = (double)g0[0], weight = 0, sum = 0;
    for (uint32_t t = 1; t < a.ratio; t++)
        max = (double)g[t * d] > max ? (double)g[t * d] : max;
    for (uint32_t t = 0; t < a.ratio; t++) {
        double p = k_exp((double)(t ? g[t * d] : g0[0]) - max);
        weight += p;
        sum += p * (double)(t ? u[t * d] : u0[0]);
    }
    a.out[at] = k_rounded((float)(sum / weight), a.round);
}

void k_compress_cuda(struct kernels *k, const struct k_compress *a)
{
    if (a->n)
        K_LAUNCH(compress_channel, dim3(k_div_up(a->n * a->d, THREADS)), dim3(THREADS), 0, k,
                 *a);
}
