/* The model itself, one layer at a time: read from bottom to top, forward_layer() is the whole
 * block. Section numbers are those of the model description. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/engram_cache.h"
#include "engine/experts.h"
#include "engine/forward.h"
#include "engine/kv_gather.h"
#include "engine/loader.h"
#include "kernels/bits.h"
#include "kernels/math.h"

/* ---- what the observer sees ---------------------------------------------------------------
 */

static void observe(const struct model *m, const struct run *r, const char *name,
                    uint32_t layer, uint32_t first, uint32_t width, enum observed_type type,
                    const void *data)
{
    if (!m->observer.tensor || r->block)
        return;
    struct observed t = {.name = name,
                         .layer = layer,
                         .pos0 = r->pos0 + first,
                         .n = r->n - first,
                         .width = width,
                         .type = type,
                         .data = data};
    m->observer.tensor(m->observer.user, r->seq, &t);
}

static void observe_f32(const struct model *m, const struct run *r, const char *name,
                        uint32_t layer, uint32_t first, uint32_t width, const float *rows)
{
    observe(m, r, name, layer, first, width, OBSERVED_F32, rows + (size_t)first * width);
}

static void observe_i32(const struct model *m, const struct run *r, const char *name,
                        uint32_t layer, uint32_t first, uint32_t width, const int32_t *rows)
{
    observe(m, r, name, layer, first, width, OBSERVED_I32, rows + (size_t)first * width);
}

/* ---- small steps --------------------------------------------------------------------------
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

/* The same for the run's tokens from `first` on; x and y are the buffers' starts. */
static void product(struct model *m, const struct k_weight *w, const float *x, float *y,
                    size_t first, size_t n)
{
    size_t n_in = (size_t)w->n_in * (w->n_groups ? w->n_groups : 1);
    forward_product(m, w, x + first * n_in, y + first * w->n_out, n, m->rounding.value);
}

static float rounded(const struct model *m, float x)
{
    return m->rounding.value == K_BF16 ? k_bf16(x) : x;
}

static void norm_rows(struct model *m, float *x, const float *w, uint32_t d, size_t first,
                      size_t n)
{
    m->k.rmsnorm(&m->k, &(struct k_rmsnorm){.x = x + first * d,
                                            .w = w,
                                            .y = x + first * d,
                                            .n = n,
                                            .d = d,
                                            .eps = m->config.norm_eps,
                                            .round = m->rounding.value});
}

/* Rotates the last rope_dim values of each of n_head heads of the run's tokens. Layers with
 * compressed rows use the long-context frequencies for everything in them. */
static void rotate(struct model *m, uint32_t layer, float *x, uint32_t n_head, uint32_t d,
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
    norm_rows(m, b->h, w, c->dim, first, n);
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

/* ---- compressed rows (section 6) ----------------------------------------------------------
 */

/* Index keys and rows of n groups from their latents, the first being row number row0. */
static void store_rows(struct model *m, const struct run *r, uint32_t layer, uint64_t row0,
                       size_t n)
{
    const struct config *c = &m->config;
    const struct compressor_weights *w = &m->weights.layers[layer].compressor;
    struct work *b = m->work;
    uint32_t source = c->kv_of[layer], half = c->rope_dim / 2;
    struct k_rope rope = {.cos = b->row_cos,
                          .sin = b->row_sin,
                          .n = n,
                          .n_head = 1,
                          .half = half,
                          .round = m->rounding.value};

    /* A row stands for its group's first token: that is its position. */
    for (size_t i = 0; i < n; i++)
        b->positions[i] = (row0 + i) * c->ratio[layer];
    m->k.rope_table(&m->k, &(struct k_rope_table){.pos = b->positions,
                                                  .inv_freq = m->rope_yarn,
                                                  .cos = b->row_cos,
                                                  .sin = b->row_sin,
                                                  .n = n,
                                                  .half = half});

    /* The index key comes from the latent before rotation and rounding. */
    product(m, &w->wk, b->latent, b->ikey, 0, n);
    norm_rows(m, b->ikey, w->k_norm, c->index_dim, 0, n);
    rope.x = b->ikey, rope.d = c->index_dim;
    m->k.rope(&m->k, &rope);
    m->k.encode(&m->k, &(struct k_encode){.x = b->ikey,
                                          .rows = kv_keys(r->kv, source, row0),
                                          .n = n,
                                          .d = c->index_dim,
                                          .format = m->shape.key_format});

    rope.x = b->latent, rope.d = c->head_dim;
    m->k.rope(&m->k, &rope);
    m->k.encode(&m->k, &(struct k_encode){.x = b->latent,
                                          .rows = kv_rows(r->kv, source, row0),
                                          .n = n,
                                          .d = c->head_dim,
                                          .format = m->shape.row_format});
}

/* Ratio 1: every token is its own row. */
static void compress_each(struct model *m, const struct run *r, uint32_t layer)
{
    const struct compressor_weights *w = &m->weights.layers[layer].compressor;
    if (r->replay)
        return;
    product(m, &w->wkv, m->work->h, m->work->latent, 0, r->n);
    norm_rows(m, m->work->latent, w->norm, m->config.head_dim, 0, r->n);
    store_rows(m, r, layer, r->pos0, r->n);
}

/* Ratio 2: a token that has no partner yet waits, as (u, g), for the next run. */
static void compress_groups(struct model *m, const struct run *r, uint32_t layer)
{
    const struct config *c = &m->config;
    const struct compressor_weights *w = &m->weights.layers[layer].compressor;
    struct work *b = m->work;
    uint32_t source = c->kv_of[layer], ratio = c->ratio[layer], d = c->head_dim;
    uint32_t ahead = (uint32_t)(r->pos0 % ratio); /* tokens that waited */
    uint32_t left = (uint32_t)((r->pos0 + r->n) % ratio);
    uint32_t first = r->replay ? r->n - (left ? 1 : 0) : 0;
    size_t d_bytes = d * sizeof(float);

    if (ahead) {
        const float *waiting = kv_pending(r->kv, source);
        m->k.copy(&m->k, b->u, waiting, d_bytes);
        m->k.copy(&m->k, b->g, waiting + d, d_bytes);
    }
    float *u = b->u + (size_t)ahead * d, *g = b->g + (size_t)ahead * d;
    size_t n = r->n - first;
    /* Values and gates stay exact until they are pooled. */
    forward_product(m, &w->wkv, b->h + (size_t)first * c->dim, u + (size_t)first * d, n,
                    K_EXACT);
    forward_product(m, &w->wgate, b->h + (size_t)first * c->dim, g + (size_t)first * d, n,
                    K_EXACT);
    uint32_t last_rows = r->n > LOGIT_ROWS ? r->n - LOGIT_ROWS : 0;
    for (uint32_t t = first > last_rows ? first : last_rows; t < r->n; t++) {
        float *staged = b->pending + ((size_t)source * LOGIT_ROWS + t % LOGIT_ROWS) * 2 * d;
        m->k.copy(&m->k, staged, u + (size_t)t * d, d_bytes);
        m->k.copy(&m->k, staged + d, g + (size_t)t * d, d_bytes);
    }
    size_t groups = (ahead + r->n) / ratio;
    if (r->replay || !groups)
        return;
    m->k.compress(&m->k, &(struct k_compress){.u = b->u,
                                              .g = b->g,
                                              .out = b->latent,
                                              .n = groups,
                                              .ratio = ratio,
                                              .d = d,
                                              .round = m->rounding.value});
    norm_rows(m, b->latent, w->norm, d, 0, groups);
    store_rows(m, r, layer, r->pos0 / ratio, groups);
}

/* ---- selection (section 7) ----------------------------------------------------------------
 */

/* Tokens whose rows may be looked at: all that are there and those of this run. */
static uint64_t visible_tokens(const struct run *r)
{
    return r->replay ? r->rows : r->pos0 + r->n;
}

static void select_rows(struct model *m, const struct run *r, uint32_t layer, uint32_t first)
{
    const struct config *c = &m->config;
    const struct indexer_weights *w = &m->weights.layers[layer].indexer;
    struct work *b = m->work;
    size_t n = r->n - first, width = (size_t)c->index_heads * c->index_dim;
    float *iq = b->iq + first * width, *iw = b->iw + (size_t)first * c->index_heads;
    int32_t *blocks = b->blocks + (size_t)first * c->candidate_blocks;

    m->gathered.is_valid = false;
    product(m, &w->wq_b, b->qr, b->iq, first, n);
    rotate(m, layer, b->iq, c->index_heads, c->index_dim, first, n, false);
    if (m->rounding.quantise_index_q)
        m->k.fake_quant(&m->k, &(struct k_fake_quant){.x = iq,
                                                      .y = iq,
                                                      .n = n * c->index_heads,
                                                      .d = c->index_dim,
                                                      .format = m->shape.key_format});
    product(m, &w->weights_proj, b->h, b->iw, first, n);
    float scale = (float)(1 / sqrt((double)c->index_dim * c->index_heads));
    for (size_t i = 0; i < n * c->index_heads; i++)
        iw[i] = rounded(m, iw[i] * scale);

    m->k.index(&m->k,
               &(struct k_index){.q = iq,
                                 .w = iw,
                                 .keys = kv_keys(r->kv, c->kv_of[layer], 0),
                                 .format = m->shape.key_format,
                                 .sel = b->sel + (size_t)first * c->index_topk,
                                 .n = n,
                                 .n_row = visible_tokens(r) / c->ratio[layer],
                                 .pos0 = r->pos0 + first,
                                 .n_head = c->index_heads,
                                 .d = c->index_dim,
                                 .ratio = c->ratio[layer],
                                 .top_k = c->index_topk,
                                 .block_rows = c->candidate_block,
                                 .n_blocks = c->candidate_blocks,
                                 .blocks_out = layer == c->candidate_source ? blocks : NULL,
                                 .blocks_in = config_is_masked(c, layer) ? blocks : NULL,
                                 .score_round = m->rounding.value});
}

/* ---- attention (section 5) ----------------------------------------------------------------
 */

static uint8_t *staged_keys(const struct model *m, uint32_t layer, uint32_t first)
{
    return m->work->keys + ((size_t)layer * m->work->cap + first) * m->shape.ring_row;
}

/* Window keys of a layer for the run's tokens from `first` on, from x [n][D] (its start). */
static void window_keys(struct model *m, uint32_t layer, const float *x, uint32_t first,
                        size_t n)
{
    const struct config *c = &m->config;
    const struct layer_weights *w = &m->weights.layers[layer];
    struct work *b = m->work;
    product(m, &w->wkv, x, b->key, first, n);
    norm_rows(m, b->key, w->kv_norm, c->head_dim, first, n);
    rotate(m, layer, b->key, 1, c->head_dim, first, n, false);
    m->k.encode(&m->k, &(struct k_encode){.x = b->key + (size_t)first * c->head_dim,
                                          .rows = staged_keys(m, layer, first),
                                          .n = n,
                                          .d = c->head_dim,
                                          .format = m->shape.ring_format});
}

/* Rows that are not all in memory: gathered for as many tokens at once as there is room for.
 * The layers that share a selection share what was gathered, if that was for all. */
static void attend_cold(struct model *m, const struct run *r, uint32_t layer, uint32_t first,
                        struct k_attention *a)
{
    const struct config *c = &m->config;
    uint32_t source = c->kv_of[layer];
    int32_t *at = m->work->sel_at + (size_t)first * c->index_topk;
    bool is_there =
        m->gathered.is_valid && m->gathered.source == source && m->gathered.first == first;
    const int32_t *sel = a->sel;
    a->rows = kv_gather_rows(m->gather);
    a->sel = at;
    for (size_t n = a->n, done = 0; done < n; done = a->to) {
        size_t i = done * c->index_topk, k = n;
        if (!is_there && kv_gather_take(m->gather, r->kv, source, sel + i, c->index_topk,
                                        n - done, at + i, &k, &m->broken))
            return;
        a->from = done;
        a->to = is_there ? n : done + k;
        m->k.attention(&m->k, a);
        m->gathered.is_valid = is_there || k == n;
        m->gathered.source = source;
        m->gathered.first = first;
    }
}

static void attend(struct model *m, const struct run *r, uint32_t layer, uint32_t first)
{
    const struct config *c = &m->config;
    struct work *b = m->work;
    size_t width = (size_t)c->n_heads * c->head_dim;
    struct k_attention a = {.q = b->q + first * width,
                            .out = b->o + first * width,
                            .n = r->n - first,
                            .n_head = c->n_heads,
                            .d = c->head_dim,
                            .ring = kv_ring(r->kv, layer),
                            .keys = staged_keys(m, layer, first),
                            .window_format = m->shape.ring_format,
                            .window = c->window,
                            .pos0 = r->pos0 + first,
                            .lo = r->lo[m->shape.class[layer]],
                            .block = r->block,
                            .sink = m->weights.layers[layer].sink,
                            .scale = (float)(1 / sqrt((double)c->head_dim)),
                            .prob = m->rounding.value,
                            .round = m->rounding.value};
    if (c->ratio[layer] && visible_tokens(r) / c->ratio[layer]) {
        a.rows = kv_rows(r->kv, c->kv_of[layer], 0);
        a.row_format = m->shape.row_format;
        a.sel = b->sel + (size_t)first * c->index_topk;
        a.n_sel = c->index_topk;
        observe_i32(m, r, "topk_rows", layer, first, c->index_topk, b->sel);
        if (r->kv->cold[c->kv_of[layer]]) {
            attend_cold(m, r, layer, first, &a);
            return;
        }
    }
    m->k.attention(&m->k, &a);
}

static void attention(struct model *m, const struct run *r, uint32_t layer, uint32_t first)
{
    const struct config *c = &m->config;
    const struct layer_weights *w = &m->weights.layers[layer];
    struct work *b = m->work;
    size_t n = r->n - first;

    product(m, &w->wq_a, b->h, b->qr, first, n);
    norm_rows(m, b->qr, w->q_norm, c->q_lora, first, n);
    product(m, &w->wq_b, b->qr, b->q, first, n);
    rotate(m, layer, b->q, c->n_heads, c->head_dim, first, n, false);

    window_keys(m, layer, b->h, first, n);
    if (config_is_index_source(c, layer))
        select_rows(m, r, layer, first);
    attend(m, r, layer, first);
    rotate(m, layer, b->o, c->n_heads, c->head_dim, first, n, true);
    product(m, &w->wo_a, b->o, b->oa, first, n);
    product(m, &w->wo_b, b->oa, b->y, first, n);
}

/* ---- weights that are only mapped ----------------------------------------------------------
 */

/* What is mapped is not read when the model opens: a NaN scale shows when its expert or row is
 * first used, and fails the run by name. */
static void check_expert(struct model *m, uint32_t layer, uint32_t expert)
{
    struct layer_weights *w = &m->weights.layers[layer];
    if (w->checked[expert] || m->broken.code)
        return;
    if (!experts_check(&m->config, layer, expert, &w->experts[expert], &m->broken))
        w->checked[expert] = 1;
}

/* Expands the Engram rows of n tokens from `first` on; at: number of the Engram layer. */
static void look_up(struct model *m, uint32_t layer, uint32_t at, uint32_t first, size_t n)
{
    const struct config *c = &m->config;
    const struct engram_weights *w = &m->weights.layers[layer].engram;
    struct work *b = m->work;
    uint32_t tables = m->engram.n_tables;
    const uint64_t *ids = b->engram_ids + ((size_t)at * b->cap + first) * tables;
    struct k_engram_rows a = {.codes = w->codes,
                              .scales = w->scales,
                              .ids = ids,
                              .out = b->engram + (size_t)first * tables * c->engram_dim,
                              .n = n,
                              .n_id = tables,
                              .d = c->engram_dim};
    if (m->engram_cache) {
        if (engram_cache_fetch(m->engram_cache, at, ids, n * tables, b->engram_at, &m->broken))
            return;
        a.codes = engram_cache_codes(m->engram_cache);
        a.scales = engram_cache_scales(m->engram_cache);
        a.ids = b->engram_at;
    }
    for (size_t i = 0; i < n * tables && !m->engram_cache; i++)
        if (engram_check(c, layer, ids[i], w->scales + ids[i] * (c->engram_dim / 32),
                         &m->broken))
            return;
    m->k.engram_rows(&m->k, &a);
}

/* ---- mixture of experts (section 8) -------------------------------------------------------
 */

/* How close the choice of experts was: smallest chosen biased score less the largest other one.
 */
static void observe_margins(struct model *m, const struct run *r, uint32_t layer,
                            uint32_t first)
{
    const struct layer_weights *w = &m->weights.layers[layer];
    const float *bias = w->gate_bias;
    float *margins = m->work->oa; /* free between attention and the next layer */
    for (uint32_t i = first; m->observer.tensor && !r->block && i < r->n; i++) {
        const int32_t *chosen = m->work->experts + (size_t)i * w->n_active;
        double in = HUGE_VAL, out = -HUGE_VAL;
        for (uint32_t k = 0; k < w->n_experts; k++) {
            double score =
                sqrt(k_softplus((double)m->work->route[(size_t)i * w->n_experts + k])) +
                (double)bias[k];
            bool is_chosen = false;
            for (uint32_t j = 0; j < w->n_active; j++)
                is_chosen = is_chosen || chosen[j] == (int32_t)k;
            if (is_chosen)
                in = fmin(in, score);
            else
                out = fmax(out, score);
        }
        margins[i] = (float)(in - out);
    }
    observe_f32(m, r, "route_margin", layer, first, 1, margins);
}

/* Experts under a budget: those in memory at once, the others as they arrive. The order of the
 * sums is not that of arrival. */
static void run_cached(struct model *m, uint32_t layer, struct k_moe *a)
{
    struct experts *x = m->experts;
    struct experts_ready ready;
    enum err rc = experts_choose(x, layer, a->expert, a->n * a->top_k, &m->broken);
    if (!rc && experts_are_here(x)) {
        if (!experts_next(x, &ready, &m->broken)) {
            a->experts = ready.experts;
            m->k.moe(&m->k, a);
        }
        return;
    }
    a->part = m->work->parts;
    if (!rc) { /* the shared expert, while the disk is at work */
        uint8_t only[K_MAX_EXPERTS + 1] = {0};
        only[a->n_expert] = 1;
        a->only = only;
        m->k.moe_part(&m->k, a);
    }
    while (!rc && !(rc = experts_next(x, &ready, &m->broken)) && ready.n) {
        a->experts = ready.experts;
        a->only = ready.only;
        m->k.moe_part(&m->k, a);
    }
    if (!rc)
        m->k.moe_sum(&m->k, a);
}

static void moe(struct model *m, const struct run *r, uint32_t layer, uint32_t first)
{
    const struct config *c = &m->config;
    const struct layer_weights *w = &m->weights.layers[layer];
    struct work *b = m->work;
    size_t n = r->n - first;
    int32_t *experts = b->experts + (size_t)first * w->n_active;
    float *weights = b->route_w + (size_t)first * w->n_active;

    forward_product(m, &w->gate, b->h + (size_t)first * c->dim,
                    b->route + (size_t)first * w->n_experts, n, K_EXACT);
    m->k.route(&m->k, &(struct k_route){.logits = b->route + (size_t)first * w->n_experts,
                                        .bias = w->gate_bias,
                                        .expert = experts,
                                        .weight = weights,
                                        .n = n,
                                        .n_expert = w->n_experts,
                                        .top_k = w->n_active,
                                        .norm = c->norm_topk,
                                        .scale = c->route_scale});
    struct k_moe a = {.x = b->h + (size_t)first * c->dim,
                      .expert = experts,
                      .weight = weights,
                      .experts = w->experts,
                      .shared = &w->shared,
                      .y = b->y + (size_t)first * c->dim,
                      .n = n,
                      .d = c->dim,
                      .top_k = w->n_active,
                      .n_expert = w->n_experts,
                      .limit = c->swiglu_limit,
                      .in = m->rounding.quantised,
                      .mid = m->rounding.value,
                      .out = m->rounding.value};
    if (m->experts) {
        run_cached(m, layer, &a);
    } else {
        for (size_t i = 0; i < n * w->n_active; i++)
            check_expert(m, layer, (uint32_t)experts[i]);
        m->k.moe(&m->k, &a);
    }
    observe_margins(m, r, layer, first);
    observe_i32(m, r, "route_idx", layer, first, w->n_active, b->experts);
    observe_f32(m, r, "route_w", layer, first, w->n_active, b->route_w);
}

/* ---- the block (section 4) ----------------------------------------------------------------
 */

uint32_t run_first(const struct model *m, const struct run *r, uint32_t layer)
{
    uint64_t from = r->from[m->shape.class[layer]];
    if (from <= r->pos0)
        return 0;
    return from - r->pos0 < r->n ? (uint32_t)(from - r->pos0) : r->n;
}

/* A KV source makes rows of every token, even where the rest of the layer is skipped. */
static uint32_t stream_first(const struct model *m, const struct run *r, uint32_t layer)
{
    return config_is_kv_source(&m->config, layer) ? 0 : run_first(m, r, layer);
}

void forward_engram(struct model *m, const struct run *r, uint32_t layer)
{
    const struct config *c = &m->config;
    uint32_t at = config_engram_at(c, layer), first = stream_first(m, r, layer);
    if (at == CONFIG_NO_LAYER || first == r->n)
        return;
    const struct engram_weights *w = &m->weights.layers[layer].engram;
    struct work *b = m->work;
    uint32_t tables = m->engram.n_tables, most = r->n;
    if (m->engram_cache && engram_cache_rows(m->engram_cache) / tables < most)
        most = (uint32_t)(engram_cache_rows(m->engram_cache) / tables);
    for (uint32_t i = first, n; i < r->n; i += n) { /* as many tokens as the cache holds */
        n = r->n - i < most ? r->n - i : most;
        look_up(m, layer, at, i, n);
        if (m->broken.code)
            return;
    }
    product(m, &w->wkv, b->engram, b->engram_kv, first, r->n - first);
    m->k.engram_gate(&m->k, &(struct k_engram_gate){
                                .x = b->x + (size_t)first * c->hc * c->dim,
                                .kv = b->engram_kv + (size_t)first * (c->hc + 1) * c->dim,
                                .qw = w->q,
                                .kw = w->k,
                                .gate = b->engram_gate + (size_t)first * c->hc,
                                .n = r->n - first,
                                .hc = c->hc,
                                .d = c->dim,
                                .eps = c->norm_eps,
                                .round = m->rounding.value});
    observe(m, r, "engram_rows", layer, first, tables, OBSERVED_U64,
            b->engram_ids + ((size_t)at * b->cap + first) * tables);
    observe_f32(m, r, "engram_gate", layer, first, c->hc, b->engram_gate);
}

/* ---- what the draft layers are fed (section 12) -------------------------------------------
 */

/* Keeps the mean of the streams that enter a target layer. */
static void keep_target(struct model *m, const struct run *r, uint32_t layer, uint32_t first)
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
                                                 .n = r->n - first,
                                                 .hc = c->hc,
                                                 .d = c->dim,
                                                 .round = m->rounding.value});
        for (uint32_t i = first; i < r->n; i++)
            m->k.copy(&m->k, b->target + i * width + (size_t)k * c->dim,
                      b->y + (size_t)(i - first) * c->dim, c->dim * sizeof(float));
    }
}

void forward_draft_keys(struct model *m, const struct run *r)
{
    const struct config *c = &m->config;
    const struct draft_weights *w = &m->weights.draft;
    struct work *b = m->work;
    if (!c->n_drafts)
        return;
    uint32_t first = run_first(m, r, c->n_layers);
    if (r->n > c->window && first < r->n - c->window)
        first = r->n - c->window; /* older ones are pushed out of the rings at once */
    size_t n = r->n - first;
    if (!n)
        return;
    product(m, &w->main_proj, b->target, b->y, first, n);
    norm_rows(m, b->y, w->main_norm, c->dim, first, n);
    for (uint32_t i = 0; i < c->n_drafts; i++)
        window_keys(m, c->n_layers + i, b->y, first, n);
}

void forward_layer(struct model *m, const struct run *r, uint32_t layer)
{
    const struct config *c = &m->config;
    const struct layer_weights *w = &m->weights.layers[layer];
    struct work *b = m->work;
    uint32_t stream = c->hc * c->dim;
    uint32_t first = run_first(m, r, layer), rows_first = stream_first(m, r, layer);
    if (rows_first == r->n)
        return;
    size_t n = r->n - first;

    keep_target(m, r, layer, rows_first);
    collapse(m, b->pre, w->attn_norm, rows_first, r->n - rows_first);
    if (config_is_kv_source(c, layer)) {
        if (c->ratio[layer] == 1)
            compress_each(m, r, layer);
        else
            compress_groups(m, r, layer);
    }
    if (!n)
        return;
    observe_f32(m, r, "hc_in32", layer, first, stream, b->x);
    observe_f32(m, r, "pre_in32", layer, first, c->hc, b->pre);

    mix(m, &w->hc_attn, b->next_pre, first, n);
    attention(m, r, layer, first);
    update(m, first, n);
    observe_f32(m, r, "attn_out32", layer, first, c->dim, b->y);
    observe_f32(m, r, "hc_mid32", layer, first, stream, b->x);
    observe_f32(m, r, "attn_pre", layer, first, c->hc, b->next_pre);

    collapse(m, b->next_pre, w->ffn_norm, first, n);
    mix(m, &w->hc_ffn, b->pre, first, n);
    moe(m, r, layer, first);
    update(m, first, n);
    observe_f32(m, r, "ffn_out32", layer, first, c->dim, b->y);
    observe_f32(m, r, "hc_out32", layer, first, stream, b->x);
    observe_f32(m, r, "pre_out32", layer, first, c->hc, b->pre);
}
