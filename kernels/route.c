#include "kernels/route.h"

#include <assert.h>
#include <math.h>

#include "kernels/host.h"
#include "kernels/math.h"

static void route_row(const struct k_route *a, size_t i)
{
    const float *logits = a->logits + i * a->n_expert;
    const float *bias = a->bias_alt && a->alt && a->alt[i] ? a->bias_alt : a->bias;
    float score[K_MAX_EXPERTS], biased[K_MAX_EXPERTS];
    for (uint32_t j = 0; j < a->n_expert; j++) {
        score[j] = (float)sqrt(k_softplus((double)logits[j]));
        biased[j] = score[j] + bias[j];
        if (biased[j] != biased[j])
            biased[j] = -INFINITY;
    }
    int32_t *expert = a->expert + i * a->top_k;
    double sum = 0;
    for (uint32_t t = 0; t < a->top_k; t++) {
        uint32_t best = 0;
        for (uint32_t j = 0; j < a->n_expert; j++) {
            /* NaN marks the ones taken; it loses every comparison */
            if (biased[best] != biased[best] || biased[j] > biased[best])
                best = j;
        }
        expert[t] = (int32_t)best;
        biased[best] = NAN;
        sum += (double)score[best];
    }
    double factor = (double)a->scale / (a->norm && a->top_k > 1 ? sum + 1e-20 : 1);
    for (uint32_t t = 0; t < a->top_k; t++)
        a->weight[i * a->top_k + t] = (float)((double)score[expert[t]] * factor);
}

static void route_rows(void *arg, size_t first, size_t last, uint32_t thread)
{
    (void)thread;
    for (size_t i = first; i < last; i++)
        route_row(arg, i);
}

void k_route_ref(struct kernels *k, const struct k_route *a)
{
    if (k_failed(k))
        return;
    struct k_route args = *a;
    assert(a->n_expert <= K_MAX_EXPERTS && a->top_k <= K_MAX_TOP_K);
    assert(a->top_k <= a->n_expert);
    k_run(k, route_rows, &args, a->n, a->n * a->n_expert * 60);
}
