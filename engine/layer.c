/* The model itself, one layer at a time: read from bottom to top, forward_layer() is the whole
 * block. Section numbers are those of the model description. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/engram_slots.h"
#include "engine/experts.h"
#include "engine/forward.h"
#include "engine/kv_gather.h"
#include "engine/loader.h"
#include "kernels/bits.h"
#include "kernels/math.h"

/* ---- what the observer sees ---------------------------------------------------------------
 */

/* Tokens of a run that are in rows `first` and up of the batch: all after `skip`. */
static uint32_t tokens_from(const struct run *r, uint32_t first, uint32_t *skip)
{
    *skip = first > r->row ? first - r->row : 0;
    return *skip < r->n ? r->n - *skip : 0;
}

/* Rows from `first` on, each n_bytes; `rows` is where row 0 of the batch lies. */
static void observe_run(const struct model *m, const struct run *r, const char *name,
                        uint32_t layer, uint32_t first, uint32_t width, enum observed_type type,
                        size_t n_bytes, const void *rows)
{
    uint32_t skip, n = tokens_from(r, first, &skip);
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

static void observe(const struct model *m, const struct batch *batch, const char *name,
                    uint32_t layer, uint32_t first, uint32_t width, enum observed_type type,
                    size_t n_bytes, const void *rows)
{
    for (uint32_t i = 0; i < batch->n_runs; i++)
        observe_run(m, &batch->runs[i], name, layer, first, width, type, n_bytes, rows);
}

static void observe_f32(const struct model *m, const struct batch *batch, const char *name,
                        uint32_t layer, uint32_t first, uint32_t width, const float *rows)
{
    observe(m, batch, name, layer, first, width, OBSERVED_F32, width * sizeof(*rows), rows);
}

static void observe_i32(const struct model *m, const struct batch *batch, const char *name,
                        uint32_t layer, uint32_t first, uint32_t width, const int32_t *rows)
{
    observe(m, batch, name, layer, first, width, OBSERVED_I32, width * sizeof(*rows), rows);
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

/* The same for n rows of the batch from `first` on; x and y are the buffers' starts. */
static void product(struct model *m, const struct k_weight *w, const float *x, float *y,
                    size_t first, size_t n)
{
    size_t n_in = (size_t)w->n_in * (w->n_groups ? w->n_groups : 1);
    forward_product(m, w, x + first * n_in, y + first * w->n_out, n, m->rounding.value);
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

/* Rotates the last rope_dim values of each of n_head heads of the batch's tokens. Layers with
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

/* The first token of a run that a KV source makes something of. In a replay that is only what
 * waits for a partner at its end. */
static uint32_t source_first(const struct run *r, uint32_t ratio)
{
    bool waits = (r->pos0 + r->n) % ratio != 0;
    return r->held ? r->n : r->replay ? r->n - (waits ? 1 : 0) : 0;
}

/* The runs that ops take as a list. */
static uint32_t n_listed(const struct batch *batch)
{
    return batch->n_runs - batch->n_alone;
}

/* Writes what was made of the batch's groups, d values each, behind the planes of each run. */
static void encode_groups(struct model *m, const struct batch *batch, uint32_t layer,
                          const float *x, uint32_t d, enum k_format format, bool keys)
{
    const struct config *c = &m->config;
    struct work *b = m->work;
    struct k_encode a = {.d = d, .format = format, .source = c->kv_of[layer], .keys = keys};
    for (uint32_t i = 0; i < batch->n_alone; i++) {
        uint64_t row0;
        a.x = x + (size_t)a.first * d;
        a.n = run_groups(&batch->runs[i], c->ratio[layer], &row0);
        a.rows = keys ? kv_keys(batch->runs[i].kv, a.source, row0)
                      : kv_rows(batch->runs[i].kv, a.source, row0);
        m->k.encode(&m->k, &a);
        a.first += (uint32_t)a.n;
    }
    a.x = x + (size_t)a.first * d;
    a.n = b->n_groups[a.source] - a.first;
    a.runs = b->d_runs + batch->n_alone, a.n_runs = n_listed(batch);
    if (a.n_runs)
        m->k.encode(&m->k, &a);
}

/* Index keys and rows of the batch's groups from their latents. */
static void store_rows(struct model *m, const struct batch *batch, uint32_t layer)
{
    const struct config *c = &m->config;
    const struct compressor_weights *w = &m->weights.layers[layer].compressor;
    struct work *b = m->work;
    uint32_t source = c->kv_of[layer];
    size_t n = b->n_groups[source];
    struct k_rope rope = {.cos = b->row_cos,
                          .sin = b->row_sin,
                          .n = n,
                          .n_head = 1,
                          .half = c->rope_dim / 2,
                          .round = m->rounding.value};
    m->k.rope_table(
        &m->k, &(struct k_rope_table){.pos = b->d_group_positions + (size_t)source * b->cap,
                                      .inv_freq = m->rope_yarn,
                                      .cos = b->row_cos,
                                      .sin = b->row_sin,
                                      .n = n,
                                      .half = rope.half});

    /* The index key comes from the latent before rotation and rounding. */
    product(m, &w->wk, b->latent, b->ikey, 0, n);
    norm_rows(m, b->ikey, w->k_norm, c->index_dim, 0, n);
    rope.x = b->ikey, rope.d = c->index_dim;
    m->k.rope(&m->k, &rope);
    encode_groups(m, batch, layer, b->ikey, c->index_dim, m->shape.key_format, true);

    rope.x = b->latent, rope.d = c->head_dim;
    m->k.rope(&m->k, &rope);
    encode_groups(m, batch, layer, b->latent, c->head_dim, m->shape.row_format, false);
}

/* Ratio 1: every token is its own row. The latents of the batch's groups go to w->latent, and
 * their number is returned. */
static size_t compress_each(struct model *m, const struct batch *batch, uint32_t layer)
{
    const struct compressor_weights *w = &m->weights.layers[layer].compressor;
    struct work *b = m->work;
    uint32_t first = source_first(&batch->runs[0], 1), n = batch->n - first;
    forward_product(m, &w->wkv, b->h + (size_t)first * m->config.dim, b->latent, n,
                    m->rounding.value);
    return n;
}

/* Pools the groups of one run into out. The first one may have begun in an earlier run: what
 * waited is put in front of its other tokens. Returns how many there are. */
static size_t pool_groups(struct model *m, const struct run *r, uint32_t layer, float *out)
{
    const struct config *c = &m->config;
    struct work *b = m->work;
    uint32_t source = c->kv_of[layer], ratio = c->ratio[layer], d = c->head_dim;
    uint32_t ahead = (uint32_t)(r->pos0 % ratio); /* tokens that waited */
    uint64_t row0;
    size_t n = run_groups(r, ratio, &row0), at = ((size_t)source * b->cap + r->row) * d;
    struct k_compress a = {
        .out = out, .n = 1, .ratio = ratio, .d = d, .round = m->rounding.value};
    if (n && ahead) {
        const float *waiting = kv_pending(r->kv, source);
        size_t n_new = (size_t)(ratio - ahead) * d;
        m->k.copy(&m->k, b->group_u, waiting, d * sizeof(float));
        m->k.copy(&m->k, b->group_g, waiting + d, d * sizeof(float));
        m->k.copy(&m->k, b->group_u + ahead * d, b->u + at, n_new * sizeof(float));
        m->k.copy(&m->k, b->group_g + ahead * d, b->g + at, n_new * sizeof(float));
        a.u = b->group_u, a.g = b->group_g;
        m->k.compress(&m->k, &a);
        at += n_new;
        a.out += d;
    }
    a.u = b->u + at, a.g = b->g + at;
    a.n = n - (n && ahead ? 1 : 0);
    m->k.compress(&m->k, &a);
    return n;
}

/* The same for the list of runs: groups from number `first` on. */
static void pool_list(struct model *m, const struct batch *batch, uint32_t layer, size_t first)
{
    const struct config *c = &m->config;
    struct work *b = m->work;
    uint32_t source = c->kv_of[layer], row0 = batch->runs[batch->n_alone].row;
    size_t at = ((size_t)source * b->cap + row0) * c->head_dim;
    m->k.compress(&m->k, &(struct k_compress){.u = b->u + at,
                                              .g = b->g + at,
                                              .out = b->latent + first * c->head_dim,
                                              .n = b->n_groups[source] - first,
                                              .ratio = c->ratio[layer],
                                              .d = c->head_dim,
                                              .round = m->rounding.value,
                                              .runs = b->d_runs + batch->n_alone,
                                              .n_runs = n_listed(batch),
                                              .row0 = row0,
                                              .first = (uint32_t)first,
                                              .source = source});
}

/* Ratio 2: a token that has no partner yet waits, as (u, g), for the next run. As
 * compress_each() otherwise. */
static size_t compress_groups(struct model *m, const struct batch *batch, uint32_t layer)
{
    const struct config *c = &m->config;
    const struct compressor_weights *w = &m->weights.layers[layer].compressor;
    struct work *b = m->work;
    uint32_t first = source_first(&batch->runs[0], c->ratio[layer]), n = batch->n - first;
    size_t at = ((size_t)c->kv_of[layer] * b->cap + first) * c->head_dim, groups = 0;
    const float *h = b->h + (size_t)first * c->dim;
    /* Values and gates stay exact until they are pooled. */
    forward_product(m, &w->wkv, h, b->u + at, n, K_EXACT);
    forward_product(m, &w->wgate, h, b->g + at, n, K_EXACT);
    for (uint32_t i = 0; i < batch->n_alone; i++)
        groups += pool_groups(m, &batch->runs[i], layer, b->latent + groups * c->head_dim);
    if (n_listed(batch))
        pool_list(m, batch, layer, groups);
    return b->n_groups[c->kv_of[layer]];
}

static void compress(struct model *m, const struct batch *batch, uint32_t layer)
{
    const struct config *c = &m->config;
    size_t n = c->ratio[layer] == 1 ? compress_each(m, batch, layer)
                                    : compress_groups(m, batch, layer);
    norm_rows(m, m->work->latent, m->weights.layers[layer].compressor.norm, c->head_dim, 0, n);
    store_rows(m, batch, layer);
}

/* ---- selection (section 7) ----------------------------------------------------------------
 */

/* Tokens whose rows may be looked at: all that are there and those of this run. */
static uint64_t visible_tokens(const struct run *r)
{
    return r->replay ? r->rows : r->pos0 + r->n;
}

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
    uint32_t skip, n = tokens_from(r, first, &skip);
    struct k_index a = selection(m, layer, r->row + skip, n);
    a.keys = kv_keys(r->kv, c->kv_of[layer], 0);
    a.n_row = visible_tokens(r) / c->ratio[layer];
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
    a.runs = b->d_runs + batch->n_alone, a.n_runs = n_listed(batch);
    a.row0 = row0;
    a.source = c->kv_of[layer];
    m->k.index(&m->k, &a);
}

static void select_rows(struct model *m, const struct batch *batch, uint32_t layer,
                        uint32_t first)
{
    const struct config *c = &m->config;
    const struct indexer_weights *w = &m->weights.layers[layer].indexer;
    struct work *b = m->work;
    size_t n = batch->n - first, width = (size_t)c->index_heads * c->index_dim;
    float *iq = b->iq + first * width, *iw = b->iw + (size_t)first * c->index_heads;

    m->gathered.of = NULL;
    product(m, &w->wq_b, b->qr, b->iq, first, n);
    rotate(m, layer, b->iq, c->index_heads, c->index_dim, first, n, false);
    if (m->rounding.quantise_index_q)
        m->k.fake_quant(&m->k, &(struct k_fake_quant){.x = iq,
                                                      .y = iq,
                                                      .n = n * c->index_heads,
                                                      .d = c->index_dim,
                                                      .format = m->shape.key_format});
    product(m, &w->weights_proj, b->h, b->iw, first, n);
    m->k.scale(&m->k,
               &(struct k_scale){.x = iw,
                                 .n = n * c->index_heads,
                                 .by = (float)(1 / sqrt((double)c->index_dim * c->index_heads)),
                                 .round = m->rounding.value});
    for (uint32_t i = 0; i < batch->n_alone; i++)
        select_of_run(m, &batch->runs[i], layer, first);
    if (n_listed(batch))
        select_of_list(m, batch, layer);
}

/* ---- attention (section 5) ----------------------------------------------------------------
 */

static uint8_t *staged_keys(const struct model *m, uint32_t layer, uint32_t first)
{
    return m->work->keys + ((size_t)layer * m->work->cap + first) * m->shape.ring_row;
}

/* Window keys of a layer for n rows of the batch from `first` on, from x (its start). */
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
    observe_run(m, r, "topk_rows", layer, first, width, OBSERVED_I32,
                width * sizeof(*m->work->d_sel), m->work->d_sel);
}

static bool sees_rows(const struct model *m, const struct run *r, uint32_t layer)
{
    uint32_t ratio = m->config.ratio[layer];
    return ratio && visible_tokens(r) / ratio;
}

static void attend_of_run(struct model *m, const struct run *r, uint32_t layer, uint32_t first)
{
    const struct config *c = &m->config;
    uint32_t skip, n = tokens_from(r, first, &skip), source = c->kv_of[layer];
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
    a.runs = b->d_runs + batch->n_alone, a.n_runs = n_listed(batch);
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

static void attention(struct model *m, const struct batch *batch, uint32_t layer,
                      uint32_t first)
{
    const struct config *c = &m->config;
    const struct layer_weights *w = &m->weights.layers[layer];
    struct work *b = m->work;
    size_t n = batch->n - first;

    product(m, &w->wq_a, b->h, b->qr, first, n);
    norm_rows(m, b->qr, w->q_norm, c->q_lora, first, n);
    product(m, &w->wq_b, b->qr, b->q, first, n);
    rotate(m, layer, b->q, c->n_heads, c->head_dim, first, n, false);

    window_keys(m, layer, b->h, first, n);
    if (config_is_index_source(c, layer))
        select_rows(m, batch, layer, first);
    for (uint32_t i = 0; i < batch->n_alone; i++)
        attend_of_run(m, &batch->runs[i], layer, first);
    if (n_listed(batch))
        attend_of_list(m, batch, layer, first);
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

/* The rows that a look-up counts in are slots of the backend's memory; false: one is broken. */
static bool engram_in_slots(struct model *m, uint32_t at, const uint64_t *ids, size_t n,
                            struct k_engram_rows *a)
{
    struct work *b = m->work;
    if (engram_slots_fetch(m->engram_slots, at, ids, n, b->engram_at, &m->broken))
        return false;
    work_to_device(m, b->d_engram_at, b->engram_at, n * sizeof(*b->engram_at));
    a->codes = engram_slots_codes(m->engram_slots);
    a->scales = engram_slots_scales(m->engram_slots);
    a->ids = b->d_engram_at;
    return true;
}

/* Takes n rows, number ids[i] of the tables that a names, to where ops can read them, side by
 * side, and has a name those. */
static void engram_to_device(struct model *m, const uint64_t *ids, size_t n,
                             struct k_engram_rows *a)
{
    struct work *b = m->work;
    size_t d = a->d, n_scales = d / 32;
    for (size_t i = 0; i < n; i++) {
        uint64_t id = ids[i];
        memcpy(b->engram_codes + i * d, a->codes + id * d, d);
        memcpy(b->engram_scales + i * n_scales, a->scales + id * n_scales, n_scales);
        b->engram_at[i] = i;
    }
    work_to_device(m, b->d_engram_codes, b->engram_codes, n * d);
    work_to_device(m, b->d_engram_scales, b->engram_scales, n * n_scales);
    work_to_device(m, b->d_engram_at, b->engram_at, n * sizeof(*b->engram_at));
    a->codes = b->d_engram_codes;
    a->scales = b->d_engram_scales;
    a->ids = b->d_engram_at;
}

/* Expands the Engram rows of n rows of the batch from `first` on, into `rows` (of its first
 * one); at: number of the Engram layer. */
static void look_up(struct model *m, uint32_t layer, uint32_t at, uint32_t first, size_t n,
                    float *rows)
{
    const struct config *c = &m->config;
    const struct engram_weights *w = &m->weights.layers[layer].engram;
    struct work *b = m->work;
    uint32_t tables = m->engram.n_tables;
    const size_t offset = ((size_t)at * b->cap + first) * tables;
    const uint64_t *ids = b->engram_ids + offset;
    struct k_engram_rows a = {.codes = w->codes,
                              .scales = w->scales,
                              .ids = b->d_engram_ids + offset,
                              .out = rows + (size_t)first * tables * c->engram_dim,
                              .n = n,
                              .n_id = tables,
                              .d = c->engram_dim};
    if (m->engram_slots) {
        if (engram_in_slots(m, at, ids, n * tables, &a))
            m->k.engram_rows(&m->k, &a);
        return;
    }
    if (m->engram_cache) {
        if (engram_cache_fetch(m->engram_cache, at, ids, n * tables, b->engram_at, &m->broken))
            return;
        a.codes = engram_cache_codes(m->engram_cache);
        a.scales = engram_cache_scales(m->engram_cache);
        a.ids = b->d_engram_at;
    }
    for (size_t i = 0; i < n * tables && !m->engram_cache; i++)
        if (engram_check(c, layer, ids[i], w->scales + ids[i] * (c->engram_dim / 32),
                         &m->broken))
            return;
    if (!m->k.host_memory)
        engram_to_device(m, m->engram_cache ? b->engram_at : ids, n * tables, &a);
    m->k.engram_rows(&m->k, &a);
}

/* ---- mixture of experts (section 8) -------------------------------------------------------
 */

/* How close the choice of experts was: smallest chosen biased score less the largest other one.
 */
static void observe_margins(struct model *m, const struct batch *batch, uint32_t layer,
                            uint32_t first)
{
    const struct layer_weights *w = &m->weights.layers[layer];
    size_t n_bytes = batch->n * w->n_experts * sizeof(float);
    if (!m->observer.tensor || batch->runs[0].block)
        return;
    AUTO_FREE float *bias = malloc(w->n_experts * sizeof(*bias));
    AUTO_FREE float *route = malloc(n_bytes);
    AUTO_FREE float *margins = calloc(batch->n, sizeof(*margins));
    if (!bias || !route || !margins)
        return;
    m->k.copy_out(&m->k, bias, w->gate_bias, w->n_experts * sizeof(*bias));
    m->k.copy_out(&m->k, route, m->work->route, n_bytes);
    for (uint32_t i = first; i < batch->n; i++) {
        const int32_t *chosen = m->work->experts + (size_t)i * w->n_active;
        double in = HUGE_VAL, out = -HUGE_VAL;
        for (uint32_t k = 0; k < w->n_experts; k++) {
            double score =
                sqrt(k_softplus((double)route[(size_t)i * w->n_experts + k])) + (double)bias[k];
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
    float *d_margins = m->work->oa; /* free between attention and the next layer */
    m->k.copy_in(&m->k, d_margins, margins, batch->n * sizeof(*margins));
    observe_f32(m, batch, "route_margin", layer, first, 1, d_margins);
}

/* Experts under a budget: those in memory at once, the others as they arrive. The order of the
 * sums is not that of arrival. */
static void run_cached(struct model *m, uint32_t layer, const int32_t *chosen, struct k_moe *a)
{
    struct experts *x = m->experts;
    struct experts_ready ready;
    enum err rc = experts_choose(x, layer, chosen, a->n * a->top_k, &m->broken);
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

static void moe(struct model *m, const struct batch *batch, uint32_t layer, uint32_t first)
{
    const struct config *c = &m->config;
    const struct layer_weights *w = &m->weights.layers[layer];
    struct work *b = m->work;
    size_t n = batch->n - first;
    int32_t *experts = b->d_experts + (size_t)first * w->n_active;
    int32_t *chosen = b->experts + (size_t)first * w->n_active;
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
    const struct experts_table *held = m->experts ? experts_hold(m->experts, layer) : NULL;
    if (!held || m->observer.tensor)
        work_to_host(m, chosen, experts, n * w->n_active * sizeof(*experts));
    if (held) {
        a.experts = held->experts;
        a.table = held->table;
        m->k.moe(&m->k, &a);
    } else if (m->experts) {
        run_cached(m, layer, chosen, &a);
    } else {
        for (size_t i = 0; i < n * w->n_active; i++)
            check_expert(m, layer, (uint32_t)chosen[i]);
        m->k.moe(&m->k, &a);
    }
    observe_margins(m, batch, layer, first);
    observe_i32(m, batch, "route_idx", layer, first, w->n_active, b->d_experts);
    observe_f32(m, batch, "route_w", layer, first, w->n_active, b->route_w);
}

/* ---- the block (section 4) ----------------------------------------------------------------
 */

/* A KV source makes rows of every token, even where the rest of the layer is skipped. What was
 * held has its rows. */
static uint32_t stream_first(const struct model *m, const struct batch *batch, uint32_t layer)
{
    if (config_is_kv_source(&m->config, layer) && !batch->runs[0].held)
        return 0;
    return batch_first(m, batch, layer);
}

/* Most rows that are looked up at once. */
static size_t engram_fetch_rows(const struct model *m)
{
    if (m->engram_slots)
        return engram_slots_rows(m->engram_slots);
    return m->engram_cache ? engram_cache_rows(m->engram_cache) : SIZE_MAX;
}

/* Where the expanded rows of Engram layer `at` are: those of a steady batch side by side, as
 * they are looked up before the first layer. */
static float *engram_rows_of(const struct model *m, const struct batch *batch, uint32_t at)
{
    size_t row = (size_t)m->engram.n_tables * m->config.engram_dim;
    return m->work->engram + (batch->is_steady ? (size_t)at * batch->n * row : 0);
}

static void look_up_all(struct model *m, const struct batch *batch, uint32_t layer, uint32_t at,
                        uint32_t first)
{
    uint32_t tables = m->engram.n_tables, most = batch->n;
    if (engram_fetch_rows(m) / tables < most)
        most = (uint32_t)(engram_fetch_rows(m) / tables);
    for (uint32_t i = first, n; i < batch->n; i += n) { /* as many tokens as the cache holds */
        n = batch->n - i < most ? batch->n - i : most;
        look_up(m, layer, at, i, n, engram_rows_of(m, batch, at));
        if (m->broken.code)
            return;
    }
    forward_expect(m, batch, at + 1);
}

void forward_engram_rows(struct model *m, const struct batch *batch)
{
    for (uint32_t at = 0; at < m->config.n_engram && !m->broken.code; at++)
        look_up_all(m, batch, m->config.engram_layers[at], at, 0);
}

void forward_engram(struct model *m, const struct batch *batch, uint32_t layer)
{
    const struct config *c = &m->config;
    uint32_t at = config_engram_at(c, layer), first = stream_first(m, batch, layer);
    if (at == CONFIG_NO_LAYER && m->engram_slots && !batch->is_steady)
        engram_slots_advance(m->engram_slots);
    if (at == CONFIG_NO_LAYER || first == batch->n)
        return;
    const struct engram_weights *w = &m->weights.layers[layer].engram;
    struct work *b = m->work;
    uint32_t tables = m->engram.n_tables;
    if (!batch->is_steady)
        look_up_all(m, batch, layer, at, first);
    if (m->broken.code)
        return;
    product(m, &w->wkv, engram_rows_of(m, batch, at), b->engram_kv, first, batch->n - first);
    m->k.engram_gate(&m->k, &(struct k_engram_gate){
                                .x = b->x + (size_t)first * c->hc * c->dim,
                                .kv = b->engram_kv + (size_t)first * (c->hc + 1) * c->dim,
                                .qw = w->q,
                                .kw = w->k,
                                .gate = b->engram_gate + (size_t)first * c->hc,
                                .n = batch->n - first,
                                .hc = c->hc,
                                .d = c->dim,
                                .eps = c->norm_eps,
                                .round = m->rounding.value});
    observe(m, batch, "engram_rows", layer, first, tables, OBSERVED_U64,
            tables * sizeof(*b->engram_ids), b->engram_ids + (size_t)at * b->cap * tables);
    observe_f32(m, batch, "engram_gate", layer, first, c->hc, b->engram_gate);
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
    product(m, &w->main_proj, b->target, b->y, first, n);
    norm_rows(m, b->y, w->main_norm, c->dim, first, n);
    for (uint32_t i = 0; i < c->n_drafts; i++)
        window_keys(m, c->n_layers + i, b->y, first, n);
}

void forward_layer(struct model *m, const struct batch *batch, uint32_t layer)
{
    const struct config *c = &m->config;
    const struct layer_weights *w = &m->weights.layers[layer];
    struct work *b = m->work;
    uint32_t stream = c->hc * c->dim;
    uint32_t first = batch_first(m, batch, layer), rows_first = stream_first(m, batch, layer);
    if (rows_first == batch->n)
        return;
    size_t n = batch->n - first;

    keep_target(m, batch, layer, rows_first);
    collapse(m, b->pre, w->attn_norm, rows_first, batch->n - rows_first);
    if (config_is_kv_source(c, layer))
        compress(m, batch, layer);
    if (!n)
        return;
    observe_f32(m, batch, "hc_in32", layer, first, stream, b->x);
    observe_f32(m, batch, "pre_in32", layer, first, c->hc, b->pre);

    mix(m, &w->hc_attn, b->next_pre, first, n);
    attention(m, batch, layer, first);
    update(m, first, n);
    observe_f32(m, batch, "attn_out32", layer, first, c->dim, b->y);
    observe_f32(m, batch, "hc_mid32", layer, first, stream, b->x);
    observe_f32(m, batch, "attn_pre", layer, first, c->hc, b->next_pre);

    collapse(m, b->next_pre, w->ffn_norm, first, n);
    mix(m, &w->hc_ffn, b->pre, first, n);
    moe(m, batch, layer, first);
    update(m, first, n);
    observe_f32(m, batch, "ffn_out32", layer, first, c->dim, b->y);
    observe_f32(m, batch, "hc_out32", layer, first, stream, b->x);
    observe_f32(m, batch, "pre_out32", layer, first, c->hc, b->pre);
}
