#include "kernels/embed.h"

#include <assert.h>

#include "kernels/host.h"

static void embed_rows(void *arg, size_t first, size_t last, uint32_t thread)
{
    const struct k_embed *a = arg;
    (void)thread;
    size_t d = a->w->n_in;
    for (size_t i = first; i < last; i++) {
        float *x = a->x + i * a->copies * d;
        assert(a->ids[i] < a->w->n_out);
        k_expand_row(a->w, a->ids[i], x);
        for (uint32_t c = 1; c < a->copies; c++)
            memcpy(x + c * d, x, d * sizeof *x);
        for (uint32_t c = 0; a->pre && c < a->copies; c++)
            a->pre[i * a->copies + c] = c == 0;
    }
}

void k_embed_ref(struct kernels *k, const struct k_embed *a)
{
    if (k_failed(k))
        return;
    struct k_embed args = *a;
    k_run(k, embed_rows, &args, a->n, a->n * a->copies * a->w->n_in);
}
