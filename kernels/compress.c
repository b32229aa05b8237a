#include "kernels/compress.h"

#include <assert.h>

#include "kernels/host.h"
#include "kernels/math.h"

static double pool_channel(const float *u, const float *g, uint32_t ratio, size_t d)
{
    double max = (double)g[0], weight = 0, sum = 0;
    for (uint32_t t = 1; t < ratio; t++)
        max = (double)g[t * d] > max ? (double)g[t * d] : max;
    for (uint32_t t = 0; t < ratio; t++) {
        double p = k_exp((double)g[t * d] - max);
        weight += p;
        sum += p * (double)u[t * d];
    }
    return sum / weight;
}

static void compress_rows(void *arg, size_t first, size_t last, uint32_t thread)
{
    const struct k_compress *a = arg;
    (void)thread;
    size_t d = a->d;
    for (size_t i = first; i < last; i++) {
        size_t at = i * a->ratio * d;
        for (size_t j = 0; j < d; j++) {
            float c = a->ratio == 1
                          ? a->u[at + j]
                          : (float)pool_channel(a->u + at + j, a->g + at + j, a->ratio, d);
            a->out[i * d + j] = k_round_to(c, a->round);
        }
    }
}

void k_compress_ref(struct kernels *k, const struct k_compress *a)
{
    if (k_failed(k))
        return;
    struct k_compress args = *a;
    assert(a->ratio >= 1 && a->ratio <= K_MAX_RATIO);
    k_run(k, compress_rows, &args, a->n, a->n * a->ratio * a->d * 40);
}
