#include "engine/layer.h"

#include <stdlib.h>

#include "base/auto.h"

void layer_observe_run(const struct model *m, const struct run *r, const char *name,
                       uint32_t layer, uint32_t first, uint32_t width, enum observed_type type,
                       size_t n_bytes, const void *rows)
{
    uint32_t skip, n = run_from(r, first, &skip);
    if (!m->observer.tensor || r->block || !n)
        return;
    struct observed t = {.name = name,
                         .layer = layer,
                         .pos0 = r->pos0 + skip,
                         .n = n,
                         .width = width,
                         .type = type,
                         .data = (const char *)rows + (r->row + skip) * n_bytes};
    AUTO_FREE void *copy = NULL;
    if (!m->k.host_memory && type != OBSERVED_U64) { /* ids are the host's */
        struct kernels *k = &model_of(r->seq->m)->k;
        if (!(copy = malloc(n * n_bytes)))
            return;
        k->copy_out(k, copy, t.data, n * n_bytes);
        t.data = copy;
    }
    m->observer.tensor(m->observer.user, r->seq, &t);
}

void layer_observe(const struct model *m, const struct batch *batch, const char *name,
                   uint32_t layer, uint32_t first, uint32_t width, enum observed_type type,
                   size_t n_bytes, const void *rows)
{
    for (uint32_t i = 0; i < batch->n_runs; i++)
        layer_observe_run(m, &batch->runs[i], name, layer, first, width, type, n_bytes, rows);
}

void layer_observe_f32(const struct model *m, const struct batch *batch, const char *name,
                       uint32_t layer, uint32_t first, uint32_t width, const float *rows)
{
    layer_observe(m, batch, name, layer, first, width, OBSERVED_F32, width * sizeof(*rows),
                  rows);
}

void layer_observe_i32(const struct model *m, const struct batch *batch, const char *name,
                       uint32_t layer, uint32_t first, uint32_t width, const int32_t *rows)
{
    layer_observe(m, batch, name, layer, first, width, OBSERVED_I32, width * sizeof(*rows),
                  rows);
}
