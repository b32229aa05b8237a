#include "engine/layer.h"

/* ---- latents of groups --------------------------------------------------------------------
 */

/* The first token of a run that a KV source makes something of. In a replay that is only what
 * waits for a partner at its end. */
static uint32_t source_first(const struct run *r, uint32_t ratio)
{
    bool waits = (r->pos0 + r->n) % ratio != 0;
    return r->held ? r->n : r->replay ? r->n - (waits ? 1 : 0) : 0;
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
                                              .n_runs = batch_n_listed(batch),
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
    if (batch_n_listed(batch))
        pool_list(m, batch, layer, groups);
    return b->n_groups[c->kv_of[layer]];
}

/* ---- index keys and rows of them ----------------------------------------------------------
 */

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
    a.runs = b->d_runs + batch->n_alone, a.n_runs = batch_n_listed(batch);
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
    layer_product(m, &w->wk, b->latent, b->ikey, 0, n);
    layer_norm(m, b->ikey, w->k_norm, c->index_dim, 0, n);
    rope.x = b->ikey, rope.d = c->index_dim;
    m->k.rope(&m->k, &rope);
    encode_groups(m, batch, layer, b->ikey, c->index_dim, m->shape.key_format, true);

    rope.x = b->latent, rope.d = c->head_dim;
    m->k.rope(&m->k, &rope);
    encode_groups(m, batch, layer, b->latent, c->head_dim, m->shape.row_format, false);
}

void layer_compress(struct model *m, const struct batch *batch, uint32_t layer)
{
    const struct config *c = &m->config;
    size_t n = c->ratio[layer] == 1 ? compress_each(m, batch, layer)
                                    : compress_groups(m, batch, layer);
    layer_norm(m, m->work->latent, m->weights.layers[layer].compressor.norm, c->head_dim, 0, n);
    store_rows(m, batch, layer);
}
