#include "engine/layer.h"

#include <math.h>

/* A selection as it is for one run or for the list, for n rows of the batch from `row` on. */
static struct k_index selection(const struct model *m, uint32_t layer, size_t row, size_t n)
{
    const struct config *c = &m->config;
    struct work *b = m->work;
    int32_t *blocks = b->blocks + row * c->candidate_blocks;
    return (struct k_index){.q = b->iq + row * c->index_heads * c->index_dim,
                            .w = b->iw + row * c->index_heads,
                            .format = m->shape.key_format,
                            .sel = b->d_sel + row * c->index_topk,
                            .n = n,
                            .n_head = c->index_heads,
                            .d = c->index_dim,
                            .ratio = c->ratio[layer],
                            .top_k = c->index_topk,
                            .block_rows = c->candidate_block,
                            .n_blocks = c->candidate_blocks,
                            .blocks_out = layer == c->candidate_source ? blocks : NULL,
                            .blocks_in = config_is_masked(c, layer) ? blocks : NULL,
                            .score_round = m->rounding.value};
}

static void select_of_run(struct model *m, const struct run *r, uint32_t layer, uint32_t first)
{
    const struct config *c = &m->config;
    uint32_t skip, n = run_from(r, first, &skip);
    struct k_index a = selection(m, layer, r->row + skip, n);
    a.keys = kv_keys(r->kv, c->kv_of[layer], 0);
    a.n_row = run_visible(r) / c->ratio[layer];
    a.pos0 = r->pos0 + skip;
    m->k.index(&m->k, &a);
}

static void select_of_list(struct model *m, const struct batch *batch, uint32_t layer)
{
    const struct config *c = &m->config;
    struct work *b = m->work;
    uint32_t row0 = batch->runs[batch->n_alone].row;
    struct k_index a = selection(m, layer, row0, batch->n - row0);
    a.n_row = b->n_seen / c->ratio[layer];
    a.runs = b->d_runs + batch->n_alone, a.n_runs = batch_n_listed(batch);
    a.row0 = row0;
    a.source = c->kv_of[layer];
    m->k.index(&m->k, &a);
}

void layer_select(struct model *m, const struct batch *batch, uint32_t layer, uint32_t first)
{
    const struct config *c = &m->config;
    const struct indexer_weights *w = &m->weights.layers[layer].indexer;
    struct work *b = m->work;
    size_t n = batch->n - first, width = (size_t)c->index_heads * c->index_dim;
    float *iq = b->iq + first * width, *iw = b->iw + (size_t)first * c->index_heads;

    m->gathered.of = NULL;
    layer_product(m, &w->wq_b, b->qr, b->iq, first, n);
    layer_rotate(m, layer, b->iq, c->index_heads, c->index_dim, first, n, false);
    if (m->rounding.quantise_index_q)
        m->k.fake_quant(&m->k, &(struct k_fake_quant){.x = iq,
                                                      .y = iq,
                                                      .n = n * c->index_heads,
                                                      .d = c->index_dim,
                                                      .format = m->shape.key_format});
    layer_product(m, &w->weights_proj, b->h, b->iw, first, n);
    m->k.scale(&m->k,
               &(struct k_scale){.x = iw,
                                 .n = n * c->index_heads,
                                 .by = (float)(1 / sqrt((double)c->index_dim * c->index_heads)),
                                 .round = m->rounding.value});
    for (uint32_t i = 0; i < batch->n_alone; i++)
        select_of_run(m, &batch->runs[i], layer, first);
    if (batch_n_listed(batch))
        select_of_list(m, batch, layer);
}
