#include "kernels/host.h"

void k_scale_ref(struct kernels *k, const struct k_scale *a)
{
    if (k_failed(k))
        return;
    for (size_t i = 0; i < a->n; i++)
        a->x[i] = k_round_to(a->x[i] * a->by, a->round);
}
