/* The model itself, one layer at a time: read from bottom to top, forward_layer() is the whole
 * block. Section numbers are those of the model description. */
#include "engine/layer.h"

/* ---- steps that the parts share -----------------------------------------------------------
 */

void forward_product(struct model *m, const struct k_weight *w, const float *x, float *y,
                     size_t n, enum k_round out)
{
    bool quantised =
        w->type == K_W_FP8_32X32 && !w->n_groups; /* wo_a has groups, if only one */
    m->k.linear(
        &m->k, &(struct k_linear){.w = w,
                                  .x = x,
                                  .y = y,
                                  .n = n,
                                  .in = quantised ? m->rounding.quantised : m->rounding.product,
                                  .out = out});
}

void layer_product(struct model *m, const struct k_weight *w, const float *x, float *y,
                   size_t first, size_t n)
{
    size_t n_in = (size_t)w->n_in * (w->n_groups ? w->n_groups : 1);
    forward_product(m, w, x + first * n_in, y + first * w->n_out, n, m->rounding.value);
}

void layer_norm(struct model *m, float *x, const float *w, uint32_t d, size_t first, size_t n)
{
    m->k.rmsnorm(&m->k, &(struct k_rmsnorm){.x = x + first * d,
                                            .w = w,
                                            .y = x + first * d,
                                            .n = n,
                                            .d = d,
                                            .eps = m->config.norm_eps,
                                            .round = m->rounding.value});
}

void layer_rotate(struct model *m, uint32_t layer, float *x, uint32_t n_head, uint32_t d,
                  size_t first, size_t n, bool inverse)
{
    uint32_t half = m->config.rope_dim / 2;
    const float *cos = m->config.ratio[layer] ? m->work->yarn_cos : m->work->plain_cos;
    const float *sin = m->config.ratio[layer] ? m->work->yarn_sin : m->work->plain_sin;
    m->k.rope(&m->k, &(struct k_rope){.x = x + first * n_head * d,
                                      .cos = cos + first * half,
                                      .sin = sin + first * half,
                                      .n = n,
                                      .n_head = n_head,
                                      .d = d,
                                      .half = half,
                                      .inverse = inverse,
                                      .round = m->rounding.value});
}

/* ---- streams (section 4) ------------------------------------------------------------------
 */

uint32_t layer_stream_first(const struct model *m, const struct batch *batch, uint32_t layer)
{
    if (config_is_kv_source(&m->config, layer) && !batch->runs[0].held)
        return 0; /* what was held has its rows */
    return batch_first(m, batch, layer);
}

/* h = norm(sum_c pre_c X_c), the input of a half. */
static void collapse(struct model *m, const float *pre, const float *w, uint32_t first,
                     size_t n)
{
    const struct config *c = &m->config;
    struct work *b = m->work;
    m->k.hc_collapse(&m->k, &(struct k_hc_collapse){.x = b->x + (size_t)first * c->hc * c->dim,
                                                    .pre = pre + (size_t)first * c->hc,
                                                    .h = b->h + (size_t)first * c->dim,
                                                    .n = n,
                                                    .hc = c->hc,
                                                    .d = c->dim,
                                                    .round = m->rounding.value});
    layer_norm(m, b->h, w, c->dim, first, n);
}

/* Coefficients of a half from the stream that comes in; pre is for the half that follows. */
static void mix(struct model *m, const struct hc_weights *w, float *pre, uint32_t first,
                size_t n)
{
    const struct config *c = &m->config;
    struct work *b = m->work;
    m->k.hc_mix(&m->k, &(struct k_hc_mix){.x = b->x + (size_t)first * c->hc * c->dim,
                                          .fn = &w->fn,
                                          .scale = w->scale,
                                          .base = w->base,
                                          .pre = pre + (size_t)first * c->hc,
                                          .post = b->post + (size_t)first * c->hc,
                                          .comb = b->comb + (size_t)first * c->hc * c->hc,
                                          .n = n,
                                          .hc = c->hc,
                                          .d = c->dim,
                                          .iters = c->hc_iters,
                                          .hc_eps = c->hc_eps,
                                          .norm_eps = c->norm_eps});
}

/* X_c = post_c y + sum_b comb[b][c] X_b, in place. */
static void update(struct model *m, uint32_t first, size_t n)
{
    const struct config *c = &m->config;
    struct work *b = m->work;
    float *x = b->x + (size_t)first * c->hc * c->dim;
    m->k.hc_update(&m->k, &(struct k_hc_update){.x = x,
                                                .y = b->y + (size_t)first * c->dim,
                                                .post = b->post + (size_t)first * c->hc,
                                                .comb = b->comb + (size_t)first * c->hc * c->hc,
                                                .out = x,
                                                .n = n,
                                                .hc = c->hc,
                                                .d = c->dim,
                                                .round = m->rounding.value});
}

/* ---- what the draft layers are fed (section 12) -------------------------------------------
 */

/* Keeps the mean of the streams that enter a target layer. */
static void keep_target(struct model *m, const struct batch *batch, uint32_t layer,
                        uint32_t first)
{
    const struct config *c = &m->config;
    struct work *b = m->work;
    size_t width = (size_t)c->n_draft_targets * c->dim;
    for (uint32_t k = 0; k < c->n_draft_targets; k++) {
        if (c->draft_targets[k] != layer)
            continue;
        m->k.hc_collapse(&m->k,
                         &(struct k_hc_collapse){.x = b->x + (size_t)first * c->hc * c->dim,
                                                 .h = b->y,
                                                 .n = batch->n - first,
                                                 .hc = c->hc,
                                                 .d = c->dim,
                                                 .round = m->rounding.value});
        for (uint32_t i = first; i < batch->n; i++)
            m->k.copy(&m->k, b->target + i * width + (size_t)k * c->dim,
                      b->y + (size_t)(i - first) * c->dim, c->dim * sizeof(float));
    }
}

void forward_draft_keys(struct model *m, const struct batch *batch)
{
    const struct config *c = &m->config;
    const struct draft_weights *w = &m->weights.draft;
    struct work *b = m->work;
    if (!c->n_drafts)
        return;
    uint32_t first = batch_first(m, batch, c->n_layers);
    uint32_t n_chunk = batch->runs[0].is_chunk ? batch->runs[0].n : 0;
    if (n_chunk > c->window && first < n_chunk - c->window)
        first = n_chunk - c->window; /* older ones are pushed out of the rings at once */
    size_t n = batch->n - first;
    layer_product(m, &w->main_proj, b->target, b->y, first, n);
    layer_norm(m, b->y, w->main_norm, c->dim, first, n);
    for (uint32_t i = 0; i < c->n_drafts; i++)
        layer_window_keys(m, c->n_layers + i, b->y, first, n);
}

/* ---- the block ----------------------------------------------------------------------------
 */

void forward_layer(struct model *m, const struct batch *batch, uint32_t layer)
{
    const struct config *c = &m->config;
    const struct layer_weights *w = &m->weights.layers[layer];
    struct work *b = m->work;
    uint32_t stream = c->hc * c->dim;
    uint32_t first = batch_first(m, batch, layer),
             rows_first = layer_stream_first(m, batch, layer);
    if (rows_first == batch->n)
        return;
    size_t n = batch->n - first;

    keep_target(m, batch, layer, rows_first);
    collapse(m, b->pre, w->attn_norm, rows_first, batch->n - rows_first);
    if (config_is_kv_source(c, layer))
        layer_compress(m, batch, layer);
    if (!n)
        return;
    layer_observe_f32(m, batch, "hc_in32", layer, first, stream, b->x);
    layer_observe_f32(m, batch, "pre_in32", layer, first, c->hc, b->pre);

    mix(m, &w->hc_attn, b->next_pre, first, n);
    layer_attention(m, batch, layer, first);
    update(m, first, n);
    layer_observe_f32(m, batch, "attn_out32", layer, first, c->dim, b->y);
    layer_observe_f32(m, batch, "hc_mid32", layer, first, stream, b->x);
    layer_observe_f32(m, batch, "attn_pre", layer, first, c->hc, b->next_pre);

    collapse(m, b->next_pre, w->ffn_norm, first, n);
    mix(m, &w->hc_ffn, b->pre, first, n);
    layer_moe(m, batch, layer, first);
    update(m, first, n);
    layer_observe_f32(m, batch, "ffn_out32", layer, first, c->dim, b->y);
    layer_observe_f32(m, batch, "hc_out32", layer, first, stream, b->x);
    layer_observe_f32(m, batch, "pre_out32", layer, first, c->hc, b->pre);
}
