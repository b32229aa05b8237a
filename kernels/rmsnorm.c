#include "kernels/rmsnorm.h"

#include <math.h>

#include "kernels/host.h"

static void rmsnorm_rows(void *arg, size_t first, size_t last, uint32_t thread)
{
    const struct k_rmsnorm *a = arg;
    (void)thread;
    for (size_t i = first; i < last; i++) {
        const float *x = a->x + i * k_stride(a->x_stride, a->d);
        float *y = a->y + i * a->d;
        double r = 1 / sqrt(k_dot_ref(x, x, a->d) / a->d + (double)a->eps);
        for (uint32_t j = 0; j < a->d; j++) {
            double w = a->w ? (double)a->w[j] : 1.0;
            y[j] = k_round_to((float)(w * ((double)x[j] * r)), a->round);
        }
    }
}

void k_rmsnorm_ref(struct kernels *k, const struct k_rmsnorm *a)
{
    if (k_failed(k))
        return;
    struct k_rmsnorm args = *a;
    k_run(k, rmsnorm_rows, &args, a->n, a->n * a->d * 3);
}
