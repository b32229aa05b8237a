#include "engine/weights.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/bits.h"

#define NAME_BYTES 128

/* What one load carries along. */
struct loader {
    const struct config *c;
    const struct safetensors *st;
    struct kernels *k;
    struct weights *w;
    uint8_t *used; /* [n_tensors]: tensors that have found their place */
    char prefix[32];
    struct error *e;
};

/* ---- one tensor ---------------------------------------------------------------------------
 */

static void shape_text(char *out, size_t cap, const uint64_t *shape, uint32_t n)
{
    size_t at = 0;
    out[0] = 0;
    for (uint32_t i = 0; i < n && at < cap; i++) {
        int k = snprintf(out + at, cap - at, "%s%" PRIu64, i ? ", " : "", shape[i]);
        at += k > 0 ? (size_t)k : 0;
    }
}

/* Finds prefix + name + suffix and checks dtype and shape; marks it as used. */
static enum err find(struct loader *ld, const char *name, const char *suffix, enum dtype dtype,
                     uint32_t n_dims, const uint64_t *shape, const struct tensor **out)
{
    char full[NAME_BYTES];
    snprintf(full, sizeof(full), "%s%s%s", ld->prefix, name, suffix);
    const struct tensor *t = safetensors_find(ld->st, full);
    if (!t)
        return err_set(ld->e, ERR_NOTFOUND, "tensor %s: missing", full);
    if (t->dtype != dtype || t->n_dims != n_dims ||
        memcmp(t->shape, shape, n_dims * sizeof(*shape)) != 0) {
        char have[80], want[80];
        shape_text(have, sizeof(have), t->shape, t->n_dims);
        shape_text(want, sizeof(want), shape, n_dims);
        return err_set(ld->e, ERR_FORMAT, "tensor %s: %s [%s], want %s [%s]", full,
                       dtype_name(t->dtype), have, dtype_name(dtype), want);
    }
    size_t n;
    ld->used[t - safetensors_list(ld->st, &n)] = 1;
    *out = t;
    return OK;
}

static enum err own(struct loader *ld, size_t n_bytes, void **out)
{
    struct weights *w = ld->w;
    if (w->n_owned == w->cap_owned) {
        size_t cap = w->cap_owned ? 2 * w->cap_owned : 64;
        void **p = realloc(w->owned, cap * sizeof(*p));
        if (!p)
            return err_set(ld->e, ERR_NOMEM, "weights");
        w->owned = p;
        w->cap_owned = cap;
    }
    void *p = ld->k->alloc(ld->k, n_bytes);
    if (!p)
        return err_set(ld->e, ERR_NOMEM, "weights: %zu bytes", n_bytes);
    w->owned[w->n_owned++] = p;
    *out = p;
    return OK;
}

/* A vector or small matrix as f32 in the backend's memory. BF16 is expanded. */
static enum err floats(struct loader *ld, const char *name, const char *suffix,
                       bool may_be_bf16, uint32_t n_dims, const uint64_t *shape,
                       const float **out)
{
    char full[NAME_BYTES];
    snprintf(full, sizeof(full), "%s%s%s", ld->prefix, name, suffix);
    const struct tensor *t = safetensors_find(ld->st, full);
    bool bf16 = may_be_bf16 && t && t->dtype == DTYPE_BF16;
    enum err rc = find(ld, name, suffix, bf16 ? DTYPE_BF16 : DTYPE_F32, n_dims, shape, &t);
    if (rc)
        return rc;
    size_t n = t->n_bytes / dtype_bytes(t->dtype);
    float *host = malloc(n ? n * sizeof(*host) : 1);
    if (!host)
        return err_set(ld->e, ERR_NOMEM, "tensor %s", full);
    if (bf16) {
        for (size_t i = 0; i < n; i++) {
            uint16_t b;
            memcpy(&b, t->data + 2 * i, sizeof(b));
            host[i] = k_bf16_to_f32(b);
        }
    } else {
        memcpy(host, t->data, n * sizeof(*host));
    }
    void *p = NULL;
    if (!(rc = own(ld, n * sizeof(float), &p))) {
        ld->k->copy_in(ld->k, p, host, n * sizeof(float));
        *out = p;
    }
    free(host);
    return rc;
}

static enum err norm(struct loader *ld, const char *name, uint64_t n, const float **out)
{
    return floats(ld, name, ".weight", true, 1, &n, out);
}

/* A bare F32 tensor. */
static enum err vector(struct loader *ld, const char *name, uint64_t n, const float **out)
{
    return floats(ld, name, "", false, 1, &n, out);
}

static enum err pack(struct loader *ld, struct k_weight *w)
{
    return ld->k->pack ? ld->k->pack(ld->k, w, ld->e) : OK;
}

static enum err bf16(struct loader *ld, const char *name, uint64_t n_out, uint64_t n_in,
                     struct k_weight *w)
{
    const struct tensor *t = NULL;
    enum err rc = find(ld, name, ".weight", DTYPE_BF16, 2, (uint64_t[]){n_out, n_in}, &t);
    if (rc)
        return rc;
    *w = (struct k_weight){
        .type = K_W_BF16, .n_out = (uint32_t)n_out, .n_in = (uint32_t)n_in, .data = t->data};
    return OK;
}

static enum err bf16_packed(struct loader *ld, const char *name, uint64_t n_out, uint64_t n_in,
                            struct k_weight *w)
{
    enum err rc = bf16(ld, name, n_out, n_in, w);
    return rc ? rc : pack(ld, w);
}

static enum err fp8(struct loader *ld, const char *name, uint64_t n_out, uint64_t n_in,
                    uint32_t n_groups, struct k_weight *w)
{
    const struct tensor *t = NULL, *s = NULL;
    uint64_t tiles[] = {(n_out + 31) / 32, n_in / 32};
    enum err rc = find(ld, name, ".weight", DTYPE_E4M3, 2, (uint64_t[]){n_out, n_in}, &t);
    if (rc || (rc = find(ld, name, ".scale", DTYPE_E8M0, 2, tiles, &s)))
        return rc;
    *w = (struct k_weight){.type = K_W_FP8_32X32,
                           .n_out = (uint32_t)n_out,
                           .n_in = (uint32_t)n_in,
                           .n_groups = n_groups,
                           .data = t->data,
                           .scale = s->data};
    return pack(ld, w);
}

static enum err fp4(struct loader *ld, const char *name, uint64_t n_out, uint64_t n_in,
                    struct k_weight *w)
{
    const struct tensor *t = NULL, *s = NULL;
    enum err rc = find(ld, name, ".weight", DTYPE_I8, 2, (uint64_t[]){n_out, n_in / 2}, &t);
    if (rc ||
        (rc = find(ld, name, ".scale", DTYPE_E8M0, 2, (uint64_t[]){n_out, n_in / 32}, &s)))
        return rc;
    *w = (struct k_weight){.type = K_W_FP4_1X32,
                           .n_out = (uint32_t)n_out,
                           .n_in = (uint32_t)n_in,
                           .data = t->data,
                           .scale = s->data};
    return OK;
}

/* ---- one layer ----------------------------------------------------------------------------
 */

static enum err load_hc(struct loader *ld, const char *half, struct hc_weights *h)
{
    const struct config *c = ld->c;
    uint64_t n_out = (2 + c->hc) * c->hc, n_in = (uint64_t)c->hc * c->dim;
    char name[NAME_BYTES];
    const float *fn = NULL;
    snprintf(name, sizeof(name), "hc_%s_fn", half);
    enum err rc = floats(ld, name, "", false, 2, (uint64_t[]){n_out, n_in}, &fn);
    if (rc)
        return rc;
    h->fn = (struct k_weight){
        .type = K_W_F32, .n_out = (uint32_t)n_out, .n_in = (uint32_t)n_in, .data = fn};
    snprintf(name, sizeof(name), "hc_%s_base", half);
    if ((rc = vector(ld, name, n_out, &h->base)))
        return rc;
    snprintf(name, sizeof(name), "hc_%s_scale", half);
    return vector(ld, name, 3, &h->scale);
}

static enum err load_attention(struct loader *ld, struct layer_weights *w)
{
    const struct config *c = ld->c;
    uint64_t q = (uint64_t)c->n_heads * c->head_dim, o = (uint64_t)c->o_groups * c->o_lora;
    enum err rc;
    if ((rc = norm(ld, "attn_norm", c->dim, &w->attn_norm)) ||
        (rc = norm(ld, "attn.q_norm", c->q_lora, &w->q_norm)) ||
        (rc = norm(ld, "attn.kv_norm", c->head_dim, &w->kv_norm)) ||
        (rc = vector(ld, "attn.attn_sink", c->n_heads, &w->sink)) ||
        (rc = fp8(ld, "attn.wq_a", c->q_lora, c->dim, 0, &w->wq_a)) ||
        (rc = fp8(ld, "attn.wq_b", q, c->q_lora, 0, &w->wq_b)) ||
        (rc = fp8(ld, "attn.wkv", c->head_dim, c->dim, 0, &w->wkv)) ||
        (rc = fp8(ld, "attn.wo_a", o, q / c->o_groups, c->o_groups, &w->wo_a)) ||
        (rc = fp8(ld, "attn.wo_b", c->dim, o, 0, &w->wo_b)))
        return rc;
    return OK;
}

static enum err load_sources(struct loader *ld, uint32_t l, struct layer_weights *w)
{
    const struct config *c = ld->c;
    struct compressor_weights *x = &w->compressor;
    enum err rc;
    if (config_is_index_source(c, l)) {
        uint64_t q = (uint64_t)c->index_heads * c->index_dim;
        if ((rc = fp8(ld, "attn.indexer.wq_b", q, c->q_lora, 0, &w->indexer.wq_b)) ||
            (rc = bf16_packed(ld, "attn.indexer.weights_proj", c->index_heads, c->dim,
                              &w->indexer.weights_proj)))
            return rc;
    }
    if (!config_is_kv_source(c, l))
        return OK;
    if ((rc = bf16_packed(ld, "attn.compressor.wkv", c->head_dim, c->dim, &x->wkv)) ||
        (rc = norm(ld, "attn.compressor.norm", c->head_dim, &x->norm)) ||
        (rc = bf16_packed(ld, "attn.indexer.wk", c->index_dim, c->head_dim, &x->wk)) ||
        (rc = norm(ld, "attn.indexer.k_norm", c->index_dim, &x->k_norm)))
        return rc;
    return c->ratio[l] == 1
               ? OK
               : bf16_packed(ld, "attn.compressor.wgate", c->head_dim, c->dim, &x->wgate);
}

static enum err load_engram(struct loader *ld, uint32_t at, struct engram_weights *w)
{
    const struct config *c = ld->c;
    uint64_t rows = c->engram_rows[at], d = c->engram_dim;
    uint64_t n_in = (uint64_t)(c->engram_ngram - 1) * c->engram_heads * d;
    const struct tensor *codes = NULL, *scales = NULL;
    enum err rc;
    if ((rc = find(ld, "engram.embed", ".weight", DTYPE_E4M3, 2, (uint64_t[]){rows, d},
                   &codes)) ||
        (rc = find(ld, "engram.embed", ".scale", DTYPE_E8M0, 2, (uint64_t[]){rows, d / 32},
                   &scales)) ||
        (rc = fp8(ld, "engram.wkv", (uint64_t)(c->hc + 1) * c->dim, n_in, 0, &w->wkv)) ||
        (rc = floats(ld, "engram.q_weight", "", true, 2, (uint64_t[]){c->hc, c->dim}, &w->q)) ||
        (rc = floats(ld, "engram.k_weight", "", true, 2, (uint64_t[]){c->hc, c->dim}, &w->k)))
        return rc;
    w->codes = codes->data;
    w->scales = scales->data;
    return OK;
}

static enum err load_experts(struct loader *ld, struct layer_weights *w)
{
    const struct config *c = ld->c;
    uint64_t d = c->dim, m = c->moe_dim;
    enum err rc;
    if (!(w->experts = calloc(c->n_experts, sizeof(*w->experts))))
        return err_set(ld->e, ERR_NOMEM, "%u experts", c->n_experts);
    for (uint32_t i = 0; i < c->n_experts; i++) {
        char name[NAME_BYTES];
        struct k_expert *x = &w->experts[i];
        snprintf(name, sizeof(name), "ffn.experts.%u.w1", i);
        if ((rc = fp4(ld, name, m, d, &x->w1)))
            return rc;
        snprintf(name, sizeof(name), "ffn.experts.%u.w2", i);
        if ((rc = fp4(ld, name, d, m, &x->w2)))
            return rc;
        snprintf(name, sizeof(name), "ffn.experts.%u.w3", i);
        if ((rc = fp4(ld, name, m, d, &x->w3)))
            return rc;
    }
    if ((rc = fp8(ld, "ffn.shared_experts.w1", m, d, 0, &w->shared.w1)) ||
        (rc = fp8(ld, "ffn.shared_experts.w2", d, m, 0, &w->shared.w2)) ||
        (rc = fp8(ld, "ffn.shared_experts.w3", m, d, 0, &w->shared.w3)))
        return rc;
    return OK;
}

static enum err load_layer(struct loader *ld, uint32_t l)
{
    const struct config *c = ld->c;
    struct layer_weights *w = &ld->w->layers[l];
    uint32_t engram = config_engram_at(c, l);
    enum err rc;
    snprintf(ld->prefix, sizeof(ld->prefix), "layers.%u.", l);
    if ((rc = load_hc(ld, "attn", &w->hc_attn)) || (rc = load_hc(ld, "ffn", &w->hc_ffn)) ||
        (rc = load_attention(ld, w)) || (rc = load_sources(ld, l, w)) ||
        (rc = norm(ld, "ffn_norm", c->dim, &w->ffn_norm)) ||
        (rc = bf16_packed(ld, "ffn.gate", c->n_experts, c->dim, &w->gate)) ||
        (rc = vector(ld, "ffn.gate.bias", c->n_experts, &w->gate_bias)) ||
        (rc = vector(ld, "ffn.gate.bias_vl", c->n_experts, &w->gate_bias_vl)) ||
        (rc = load_experts(ld, w)))
        return rc;
    return engram == CONFIG_NO_LAYER ? OK : load_engram(ld, engram, &w->engram);
}

/* ---- the whole ----------------------------------------------------------------------------
 */

static bool is_skipped(const char *name)
{
    static const char *const PREFIXES[] = {"mtp.", "vision.", "aligner.", "image_"};
    for (size_t i = 0; i < sizeof(PREFIXES) / sizeof(*PREFIXES); i++)
        if (!strncmp(name, PREFIXES[i], strlen(PREFIXES[i])))
            return true;
    return false;
}

static enum err check_leftover(struct loader *ld)
{
    size_t n = 0;
    const struct tensor *t = safetensors_list(ld->st, &n);
    for (size_t i = 0; i < n; i++) {
        if (ld->used[i])
            continue;
        if (!is_skipped(t[i].name))
            return err_set(ld->e, ERR_FORMAT, "tensor %.100s: not of this model", t[i].name);
        ld->w->n_skipped++;
    }
    return OK;
}

static enum err load_all(struct loader *ld)
{
    const struct config *c = ld->c;
    struct weights *w = ld->w;
    enum err rc;
    if (!(w->layers = calloc(c->n_layers, sizeof(*w->layers))))
        return err_set(ld->e, ERR_NOMEM, "%u layers", c->n_layers);
    if ((rc = bf16(ld, "embed", c->vocab_size, c->dim, &w->embed)) ||
        (rc = bf16_packed(ld, "head", c->vocab_size, c->dim, &w->head)) ||
        (rc = norm(ld, "norm", c->dim, &w->norm)))
        return rc;
    for (uint32_t l = 0; l < c->n_layers; l++)
        if ((rc = load_layer(ld, l)))
            return rc;
    if ((rc = check_leftover(ld)))
        return rc;
    return ld->k->sync(ld->k, ld->e);
}

enum err weights_load(struct weights *w, const struct config *c, const struct safetensors *st,
                      struct kernels *k, struct error *e)
{
    size_t n_tensors = 0;
    struct weights fresh = {.k = k, .n_layers = c->n_layers, .n_experts = c->n_experts};
    struct loader ld = {.c = c, .st = st, .k = k, .w = &fresh, .e = e};
    safetensors_list(st, &n_tensors);
    if (!(ld.used = calloc(n_tensors ? n_tensors : 1, 1)))
        return err_set(e, ERR_NOMEM, "weights");
    enum err rc = load_all(&ld);
    free(ld.used);
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
}

void weights_fini(struct weights *w)
{
    if (!w->k)
        return;
    for (uint32_t l = 0; w->layers && l < w->n_layers; l++)
        fini_layer(w->k, &w->layers[l]);
    unpack(w->k, &w->head);
    for (size_t i = 0; i < w->n_owned; i++)
        w->k->free(w->k, w->owned[i]);
    free(w->owned);
    free(w->layers);
    *w = (struct weights){0};
}
