#include "engine/layer.h"

#include <math.h>

#include "engine/kv_gather.h"

static uint8_t *staged_keys(const struct model *m, uint32_t layer, uint32_t first)
{
    return m->work->keys + ((size_t)layer * m->work->cap + first) * m->shape.ring_row;
}

void layer_window_keys(struct model *m, uint32_t layer, const float *x, uint32_t first,
                       size_t n)
{
    const struct config *c = &m->config;
    const struct layer_weights *w = &m->weights.layers[layer];
    struct work *b = m->work;
    layer_product(m, &w->wkv, x, b->key, first, n);
    layer_norm(m, b->key, w->kv_norm, c->head_dim, first, n);
    layer_rotate(m, layer, b->key, 1, c->head_dim, first, n, false);
    m->k.encode(&m->k, &(struct k_encode){.x = b->key + (size_t)first * c->head_dim,
                                          .rows = staged_keys(m, layer, first),
                                          .n = n,
                                          .d = c->head_dim,
                                          .format = m->shape.ring_format});
}

/* Rows that are not all in memory: gathered for as many tokens at once as there is room for.
 * The layers that share a selection share what was gathered, if that was for all. */
static void attend_cold(struct model *m, const struct run *r, uint32_t layer, uint32_t skip,
                        struct k_attention *a)
{
    const struct config *c = &m->config;
    uint32_t source = c->kv_of[layer];
    size_t offset = (size_t)(r->row + skip) * c->index_topk;
    int32_t *at = m->work->sel_at + offset, *d_at = m->work->d_sel_at + offset;
    bool is_there =
        m->gathered.of == r && m->gathered.source == source && m->gathered.first == skip;
    int32_t *sel = m->work->sel + offset;
    a->rows = kv_gather_rows(m->gather);
    a->sel = d_at;
    if (!is_there)
        work_to_host(m, sel, m->work->d_sel + offset, a->n * c->index_topk * sizeof(*sel));
    for (size_t n = a->n, done = 0; done < n; done = a->to) {
        size_t i = done * c->index_topk, k = n;
        if (!is_there) {
            if (kv_gather_take(m->gather, r->kv, source, sel + i, c->index_topk, n - done,
                               at + i, &k, &m->broken))
                return;
            work_to_device(m, d_at + i, at + i, k * c->index_topk * sizeof(*at));
        }
        a->from = done;
        a->to = is_there ? n : done + k;
        m->k.attention(&m->k, a);
        m->gathered.of = is_there || k == n ? r : NULL;
        m->gathered.source = source;
        m->gathered.first = skip;
    }
}

/* Attention as it is for one run or for the list, for n rows of the batch from `row` on. */
static struct k_attention attending(const struct model *m, uint32_t layer, size_t row, size_t n,
                                    bool has_rows)
{
    const struct config *c = &m->config;
    struct work *b = m->work;
    size_t width = (size_t)c->n_heads * c->head_dim;
    return (struct k_attention){.q = b->q + row * width,
                                .out = b->o + row * width,
                                .n = n,
                                .n_head = c->n_heads,
                                .d = c->head_dim,
                                .keys = staged_keys(m, layer, (uint32_t)row),
                                .window_format = m->shape.ring_format,
                                .window = c->window,
                                .row_format = m->shape.row_format,
                                .sel = has_rows ? b->d_sel + row * c->index_topk : NULL,
                                .n_sel = has_rows ? c->index_topk : 0,
                                .sink = m->weights.layers[layer].sink,
                                .scale = (float)(1 / sqrt((double)c->head_dim)),
                                .prob = m->rounding.value,
                                .round = m->rounding.value};
}

static void observe_selection(const struct model *m, const struct run *r, uint32_t layer,
                              uint32_t first)
{
    uint32_t width = m->config.index_topk;
    layer_observe_run(m, r, "topk_rows", layer, first, width, OBSERVED_I32,
                      width * sizeof(*m->work->d_sel), m->work->d_sel);
}

static bool sees_rows(const struct model *m, const struct run *r, uint32_t layer)
{
    uint32_t ratio = m->config.ratio[layer];
    return ratio && run_visible(r) / ratio;
}

static void attend_of_run(struct model *m, const struct run *r, uint32_t layer, uint32_t first)
{
    const struct config *c = &m->config;
    uint32_t skip, n = run_from(r, first, &skip), source = c->kv_of[layer];
    bool has_rows = sees_rows(m, r, layer);
    struct k_attention a = attending(m, layer, r->row + skip, n, has_rows);
    a.ring = kv_ring(r->kv, layer);
    a.pos0 = r->pos0 + skip;
    a.lo = r->lo[m->shape.class[layer]];
    a.block = r->block;
    if (has_rows) {
        a.rows = kv_rows(r->kv, source, 0);
        observe_selection(m, r, layer, first);
        if (r->kv->cold[source]) {
            attend_cold(m, r, layer, skip, &a);
            return;
        }
    }
    m->k.attention(&m->k, &a);
}

static void attend_of_list(struct model *m, const struct batch *batch, uint32_t layer,
                           uint32_t first)
{
    const struct config *c = &m->config;
    struct work *b = m->work;
    const struct run *runs = batch->runs + batch->n_alone;
    struct k_attention a =
        attending(m, layer, runs->row, batch->n - runs->row, c->ratio[layer] != 0);
    a.runs = b->d_runs + batch->n_alone, a.n_runs = batch_n_listed(batch);
    a.row0 = runs->row;
    a.most = b->n_most;
    a.source = c->ratio[layer] ? c->kv_of[layer] : 0;
    a.layer_class = m->shape.class[layer];
    a.ring_at = (size_t)layer * c->window * m->shape.ring_row;
    a.block = runs->block;
    for (uint32_t i = 0; i < a.n_runs; i++)
        if (sees_rows(m, &runs[i], layer))
            observe_selection(m, &runs[i], layer, first);
    m->k.attention(&m->k, &a);
}

void layer_attention(struct model *m, const struct batch *batch, uint32_t layer, uint32_t first)
{
    const struct config *c = &m->config;
    const struct layer_weights *w = &m->weights.layers[layer];
    struct work *b = m->work;
    size_t n = batch->n - first;

    layer_product(m, &w->wq_a, b->h, b->qr, first, n);
    layer_norm(m, b->qr, w->q_norm, c->q_lora, first, n);
    layer_product(m, &w->wq_b, b->qr, b->q, first, n);
    layer_rotate(m, layer, b->q, c->n_heads, c->head_dim, first, n, false);

    layer_window_keys(m, layer, b->h, first, n);
    if (config_is_index_source(c, layer))
        layer_select(m, batch, layer, first);
    for (uint32_t i = 0; i < batch->n_alone; i++)
        attend_of_run(m, &batch->runs[i], layer, first);
    if (batch_n_listed(batch))
        attend_of_list(m, batch, layer, first);
    layer_rotate(m, layer, b->o, c->n_heads, c->head_dim, first, n, true);
    layer_product(m, &w->wo_a, b->o, b->oa, first, n);
    layer_product(m, &w->wo_b, b->oa, b->y, first, n);
}
