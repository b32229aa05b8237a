#include "engine/engram_slots.h"
#include "engine/experts.h"
#include "engine/kv_pages.h"
#include "engine/loader.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define NAME_BYTES LOADER_NAME_BYTES

/* ---- one layer ----------------------------------------------------------------------------
 */

static enum err load_hc(struct loader *ld, const char *half, struct hc_weights *h)
{
    const struct config *c = ld->c;
    uint64_t n_out = (2 + c->hc) * c->hc, n_in = (uint64_t)c->hc * c->dim;
    char name[NAME_BYTES];
    const float *fn = NULL;
    snprintf(name, sizeof(name), "hc_%s_fn", half);
    enum err rc = load_floats(ld, name, "", false, 2, (uint64_t[]){n_out, n_in}, &fn);
    if (rc)
        return rc;
    h->fn = (struct k_weight){
        .type = K_W_F32, .n_out = (uint32_t)n_out, .n_in = (uint32_t)n_in, .data = fn};
    snprintf(name, sizeof(name), "hc_%s_base", half);
    if ((rc = load_vector(ld, name, n_out, &h->base)))
        return rc;
    snprintf(name, sizeof(name), "hc_%s_scale", half);
    return load_vector(ld, name, 3, &h->scale);
}

static enum err load_attention(struct loader *ld, struct layer_weights *w)
{
    const struct config *c = ld->c;
    uint64_t q = (uint64_t)c->n_heads * c->head_dim, o = (uint64_t)c->o_groups * c->o_lora;
    enum err rc;
    if ((rc = load_norm(ld, "attn_norm", c->dim, &w->attn_norm)) ||
        (rc = load_norm(ld, "attn.q_norm", c->q_lora, &w->q_norm)) ||
        (rc = load_norm(ld, "attn.kv_norm", c->head_dim, &w->kv_norm)) ||
        (rc = load_vector(ld, "attn.attn_sink", c->n_heads, &w->sink)) ||
        (rc = load_fp8(ld, "attn.wq_a", c->q_lora, c->dim, 0, &w->wq_a)) ||
        (rc = load_fp8(ld, "attn.wq_b", q, c->q_lora, 0, &w->wq_b)) ||
        (rc = load_fp8(ld, "attn.wkv", c->head_dim, c->dim, 0, &w->wkv)) ||
        (rc = load_fp8(ld, "attn.wo_a", o, q / c->o_groups, c->o_groups, &w->wo_a)) ||
        (rc = load_fp8(ld, "attn.wo_b", c->dim, o, 0, &w->wo_b)))
        return rc;
    return OK;
}

static enum err load_index(struct loader *ld, uint32_t l, struct layer_weights *w)
{
    const struct config *c = ld->c;
    uint64_t q = (uint64_t)c->index_heads * c->index_dim;
    if (!config_is_index_source(c, l))
        return OK;
    enum err rc = load_fp8(ld, "attn.indexer.wq_b", q, c->q_lora, 0, &w->indexer.wq_b);
    return rc ? rc
              : load_bf16_packed(ld, "attn.indexer.weights_proj", c->index_heads, c->dim,
                                 &w->indexer.weights_proj);
}

static enum err load_compressor(struct loader *ld, uint32_t l, struct layer_weights *w)
{
    const struct config *c = ld->c;
    struct compressor_weights *x = &w->compressor;
    enum err rc;
    if (!config_is_kv_source(c, l))
        return OK;
    if ((rc = load_bf16_packed(ld, "attn.compressor.wkv", c->head_dim, c->dim, &x->wkv)) ||
        (rc = load_norm(ld, "attn.compressor.norm", c->head_dim, &x->norm)) ||
        (rc = load_bf16_packed(ld, "attn.indexer.wk", c->index_dim, c->head_dim, &x->wk)) ||
        (rc = load_norm(ld, "attn.indexer.k_norm", c->index_dim, &x->k_norm)))
        return rc;
    return c->ratio[l] == 1
               ? OK
               : load_bf16_packed(ld, "attn.compressor.wgate", c->head_dim, c->dim, &x->wgate);
}

static enum err load_engram(struct loader *ld, uint32_t at, struct engram_weights *w)
{
    const struct config *c = ld->c;
    uint64_t rows = c->engram_rows[at], d = c->engram_dim;
    uint64_t n_in = (uint64_t)(c->engram_ngram - 1) * c->engram_heads * d;
    ld->kind = KIND_ENGRAM;
    enum err rc = load_table(ld, "engram.embed", rows, d, &w->codes, &w->scales);
    ld->kind = KIND_DENSE;
    if (rc ||
        (rc = load_fp8(ld, "engram.wkv", (uint64_t)(c->hc + 1) * c->dim, n_in, 0, &w->wkv)) ||
        (rc = load_floats(ld, "engram.q_weight", "", true, 2, (uint64_t[]){c->hc, c->dim},
                          &w->q)) ||
        (rc = load_floats(ld, "engram.k_weight", "", true, 2, (uint64_t[]){c->hc, c->dim},
                          &w->k)))
        return rc;
    return OK;
}

/* Routed experts: only mapped, read when they are chosen. */
static enum err load_experts(struct loader *ld, uint32_t n, uint32_t n_active,
                             struct layer_weights *w)
{
    const struct config *c = ld->c;
    const enum tensor_kind dense = ld->kind;
    uint64_t d = c->dim, m = c->moe_dim;
    enum err rc = OK;
    w->n_experts = n;
    if (!(w->experts = calloc(n, sizeof(*w->experts))) || !(w->checked = calloc(n, 1)))
        return err_set(ld->e, ERR_NOMEM, "%u experts", n);
    ld->kind = dense == KIND_DRAFT ? KIND_DRAFT_EXPERT : KIND_EXPERT;
    ld->n_active = n_active, ld->n_of = n;
    for (uint32_t i = 0; i < n && !rc; i++) {
        char name[3][NAME_BYTES];
        struct k_expert *x = &w->experts[i];
        for (int k = 0; k < 3; k++)
            snprintf(name[k], sizeof(name[k]), "ffn.experts.%u.w%d", i, k + 1);
        if ((rc = load_fp4(ld, name[0], m, d, &x->w1)) ||
            (rc = load_fp4(ld, name[1], d, m, &x->w2)))
            break;
        rc = load_fp4(ld, name[2], m, d, &x->w3);
    }
    ld->kind = dense;
    ld->n_active = ld->n_of = 1;
    return rc;
}

static enum err load_shared(struct loader *ld, struct k_expert *x)
{
    const struct config *c = ld->c;
    enum err rc;
    if ((rc = load_fp8(ld, "ffn.shared_experts.w1", c->moe_dim, c->dim, 0, &x->w1)) ||
        (rc = load_fp8(ld, "ffn.shared_experts.w2", c->dim, c->moe_dim, 0, &x->w2)))
        return rc;
    return load_fp8(ld, "ffn.shared_experts.w3", c->moe_dim, c->dim, 0, &x->w3);
}

/* What every block has, those of the draft layers included. */
static enum err load_block(struct loader *ld, uint32_t n_experts, uint32_t n_active,
                           struct layer_weights *w)
{
    const struct config *c = ld->c;
    enum err rc;
    w->n_active = n_active;
    if ((rc = load_hc(ld, "attn", &w->hc_attn)) || (rc = load_hc(ld, "ffn", &w->hc_ffn)) ||
        (rc = load_attention(ld, w)) ||
        (rc = load_norm(ld, "ffn_norm", c->dim, &w->ffn_norm)) ||
        (rc = load_bf16_packed(ld, "ffn.gate", n_experts, c->dim, &w->gate)) ||
        (rc = load_vector(ld, "ffn.gate.bias", n_experts, &w->gate_bias)) ||
        (rc = load_vector(ld, "ffn.gate.bias_vl", n_experts, &w->gate_bias_vl)) ||
        (rc = load_experts(ld, n_experts, n_active, w)))
        return rc;
    return load_shared(ld, &w->shared);
}

static enum err load_layer(struct loader *ld, uint32_t l)
{
    const struct config *c = ld->c;
    struct layer_weights *w = &ld->w->layers[l];
    uint32_t engram = config_engram_at(c, l);
    enum err rc;
    snprintf(ld->prefix, sizeof(ld->prefix), "layers.%u.", l);
    ld->kind = KIND_DENSE;
    ld->in_prefill = l <= c->last_source;
    if ((rc = load_block(ld, c->n_experts, c->n_active, w)) || (rc = load_index(ld, l, w)) ||
        (rc = load_compressor(ld, l, w)))
        return rc;
    return engram == CONFIG_NO_LAYER ? OK : load_engram(ld, engram, &w->engram);
}

/* Draft layers (section 12) lie behind the others: the first takes the target's streams in, the
 * last holds the heads. */
static enum err load_draft(struct loader *ld, uint32_t i)
{
    const struct config *c = ld->c;
    struct draft_weights *d = &ld->w->draft;
    enum err rc;
    snprintf(ld->prefix, sizeof(ld->prefix), "mtp.%u.", i);
    ld->kind = KIND_DRAFT;
    ld->in_prefill = false;
    if ((rc = load_block(ld, c->draft_experts, c->draft_active,
                         &ld->w->layers[c->n_layers + i])))
        return rc;
    if (i == 0 && ((rc = load_fp8(ld, "main_proj", c->dim,
                                  (uint64_t)c->n_draft_targets * c->dim, 0, &d->main_proj)) ||
                   (rc = load_norm(ld, "main_norm", c->dim, &d->main_norm))))
        return rc;
    if (i + 1 < c->n_drafts)
        return OK;
    if ((rc = load_norm(ld, "norm", c->dim, &d->norm)) ||
        (rc = load_bf16(ld, "markov_head.embed", c->vocab_size, c->draft_rank,
                        &d->markov_embed)) ||
        (rc = load_bf16_packed(ld, "markov_head.head", c->vocab_size, c->draft_rank,
                               &d->markov_head)) ||
        (rc = load_bf16_packed(ld, "confidence_head.proj", 1, (uint64_t)c->dim + c->draft_rank,
                               &d->confidence)))
        return rc;
    return OK;
}

/* ---- the whole ----------------------------------------------------------------------------
 */

static enum err load_all(struct loader *ld)
{
    const struct config *c = ld->c;
    struct weights *w = ld->w;
    enum err rc;
    w->n_layers = c->n_layers + c->n_drafts;
    if (!(w->layers = calloc(w->n_layers, sizeof(*w->layers))))
        return err_set(ld->e, ERR_NOMEM, "%u layers", w->n_layers);
    ld->kind = KIND_DENSE;
    ld->n_active = 0; /* a look-up, no product */
    ld->n_of = 1;
    if ((rc = load_bf16(ld, "embed", c->vocab_size, c->dim, &w->embed)))
        return rc;
    ld->n_active = 1;
    if ((rc = load_bf16_packed(ld, "head", c->vocab_size, c->dim, &w->head)) ||
        (rc = load_norm(ld, "norm", c->dim, &w->norm)))
        return rc;
    for (uint32_t l = 0; l < c->n_layers; l++)
        if ((rc = load_layer(ld, l)))
            return rc;
    for (uint32_t i = 0; i < c->n_drafts; i++)
        if ((rc = load_draft(ld, i)))
            return rc;
    return load_leftovers(ld);
}

static enum err load(struct loader *ld)
{
    size_t n_tensors = 0;
    safetensors_list(ld->st, &n_tensors);
    if (!(ld->used = calloc(n_tensors ? n_tensors : 1, 1)))
        return err_set(ld->e, ERR_NOMEM, "weights");
    enum err rc = load_all(ld);
    free(ld->used);
    return rc;
}

static void list_tiers(struct inventory *v, const struct config *c)
{
    struct kv_shape s;
    uint64_t kv = 0;
    v->tiers[v->n_tiers++] =
        (struct inventory_tier){"--expert-ram", experts_slot_bytes(c), experts_all_bytes(c)};
    if (c->n_engram)
        v->tiers[v->n_tiers++] = (struct inventory_tier){
            "--engram-ram", engram_cache_min_bytes(c), engram_cache_all_bytes(c)};
    if (c->n_engram)
        v->tiers[v->n_tiers++] = (struct inventory_tier){
            "--engram-device", engram_slots_min_bytes(c), engram_slots_all_bytes(c)};
    kv_shape_init(&s, c, PRECISION_FAST);
    for (uint32_t i = 0; i < s.n_sources; i++)
        kv += state_rows(&s.planes[2 * (size_t)i], s.max_tokens) *
              s.planes[2 * (size_t)i].row_bytes;
    const struct kv_pages_options o = {
        .shape = &s, .top_k = c->index_topk, .least_tokens = 1, .chunk_tokens = 1};
    if (s.n_sources)
        v->tiers[v->n_tiers++] =
            (struct inventory_tier){"--kv-resident", kv_pages_min_bytes(&o), kv};
}

enum err weights_survey(struct inventory *v, const struct config *c,
                        const struct safetensors *st, struct error *e)
{
    struct weights none = {0};
    *v = (struct inventory){.n_shards = safetensors_n_shards(st)};
    struct loader ld = {.c = c, .st = st, .inventory = v, .w = &none, .e = e};
    enum err rc = load(&ld);
    weights_fini(&none);
    list_tiers(v, c);
    for (size_t i = 0; i < v->n_shards && !rc; i++) {
        uint64_t n_bytes = 0;
        safetensors_shard(st, i, &n_bytes);
        v->n_file_bytes += n_bytes;
        v->n_disk_bytes += safetensors_shard_on_disk(st, i);
    }
    if (rc)
        inventory_fini(v);
    return rc;
}

enum err weights_load(struct weights *w, const struct config *c, const struct safetensors *st,
                      struct kernels *k, struct error *e)
{
    struct weights fresh = {.k = k};
    struct loader ld = {.c = c, .st = st, .k = k, .w = &fresh, .e = e};
    enum err rc = load(&ld);
    if (!rc)
        rc = k->sync(k, e);
    if (rc)
        weights_fini(&fresh);
    else
        *w = fresh;
    return rc;
}

static void unpack(struct kernels *k, struct k_weight *w)
{
    if (w->packed)
        k->unpack(k, w);
}

static void fini_layer(struct kernels *k, struct layer_weights *l)
{
    struct k_weight *dense[] = {&l->wq_a,
                                &l->wq_b,
                                &l->wkv,
                                &l->wo_a,
                                &l->wo_b,
                                &l->gate,
                                &l->compressor.wkv,
                                &l->compressor.wgate,
                                &l->compressor.wk,
                                &l->indexer.wq_b,
                                &l->engram.wkv,
                                &l->indexer.weights_proj,
                                &l->shared.w1,
                                &l->shared.w2,
                                &l->shared.w3};
    for (size_t i = 0; i < sizeof(dense) / sizeof(*dense); i++)
        unpack(k, dense[i]);
    free(l->experts);
    free(l->checked);
}

void weights_fini(struct weights *w)
{
    struct draft_weights *d = &w->draft;
    struct k_weight *packed[] = {&w->embed,        &w->head,        &d->main_proj,
                                 &d->markov_embed, &d->markov_head, &d->confidence};
    for (uint32_t l = 0; w->layers && l < w->n_layers; l++)
        fini_layer(w->k, &w->layers[l]);
    for (size_t i = 0; i < sizeof(packed) / sizeof(*packed); i++)
        unpack(w->k, packed[i]);
    for (size_t i = 0; i < w->n_owned; i++)
        w->k->free(w->k, w->owned[i]);
    free(w->owned);
    free(w->layers);
    *w = (struct weights){0};
}
