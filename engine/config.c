#include "engine/config.h"

#include <inttypes.h>
#include <math.h>
#include <stddef.h>
#include <string.h>

#include "base/auto.h"
#include "base/buf.h"
#include "base/fs.h"
#include "base/json.h"
#include "base/state.h"

/* ---- scalar fields ------------------------------------------------------------------------
 */

struct field {
    const char *name;
    size_t offset; /* of a uint32_t in struct config */
    uint32_t min, max;
};

#define F(json, member, lo, hi)                                                                \
    {                                                                                          \
        json, offsetof(struct config, member), lo, hi                                          \
    }

static const struct field TOP_FIELDS[] = {
    F("bos_token_id", bos_id, 0, UINT32_MAX),
    F("eos_token_id", eos_id, 0, UINT32_MAX),
    F("pad_token_id", pad_id, 0, UINT32_MAX),
    F("image_token_id", image_id, 0, UINT32_MAX),
};

static const struct field TEXT_FIELDS[] = {
    F("vocab_size", vocab_size, 1, 1u << 24),
    F("hidden_size", dim, 32, 1u << 16),
    F("num_hidden_layers", n_layers, 1, CONFIG_MAX_LAYERS),
    F("num_attention_heads", n_heads, 1, 1024),
    F("head_dim", head_dim, 32, 4096),
    F("qk_rope_head_dim", rope_dim, 2, 4096),
    F("q_lora_rank", q_lora, 32, 1u << 16),
    F("o_lora_rank", o_lora, 1, 1u << 16),
    F("o_groups", o_groups, 1, 1024),
    F("sliding_window", window, 1, 1u << 16),
    F("n_routed_experts", n_experts, 1, 4096),
    F("num_experts_per_tok", n_active, 1, 64),
    F("moe_intermediate_size", moe_dim, 32, 1u << 16),
    F("hc_mult", hc, 1, 8),
    F("hc_sinkhorn_iters", hc_iters, 1, 1000),
    F("index_n_heads", index_heads, 1, 1024),
    F("index_head_dim", index_dim, 32, 4096),
    F("index_topk", index_topk, 1, 1u << 16),
    F("candidate_topk_blocks", candidate_blocks, 1, 1u << 20),
    F("candidate_block_size", candidate_block, 1, 1u << 16),
    F("num_nextn_predict_layers", n_drafts, 0, 16),
};

static const struct field ENGRAM_FIELDS[] = {
    F("engram_max_ngram_size", engram_ngram, 2, CONFIG_MAX_NGRAM),
    F("engram_vocab_size", engram_vocab, 2, 1u << 30),
    F("engram_n_heads", engram_heads, 1, 64),
    F("engram_head_dim", engram_dim, 32, 4096),
    F("engram_pad_token_id", engram_pad, 0, UINT32_MAX),
    F("engram_compressed_vocab_size", engram_compressed, 1, 1u << 24),
};

static const struct field DRAFT_FIELDS[] = {
    F("dspark_block_size", draft_block, 1, CONFIG_MAX_DRAFT_BLOCK),
    F("dspark_noise_token_id", draft_noise_id, 0, UINT32_MAX),
    F("dspark_markov_rank", draft_rank, 1, 1u << 16),
    F("dspark_n_routed_experts", draft_experts, 1, 4096),
    F("dspark_num_experts_per_tok", draft_active, 1, 64),
};

#undef F
#define N_OF(a) (sizeof(a) / sizeof((a)[0]))

static enum err read_fields(struct config *c, const json_t *o, const struct field *f, size_t n,
                            struct error *e)
{
    for (size_t i = 0; i < n; i++) {
        const json_t *v = json_object_get(o, f[i].name);
        if (!json_is_integer(v))
            return err_set(e, ERR_FORMAT, "%s: %s", f[i].name, v ? "no integer" : "missing");
        json_int_t x = json_integer_value(v);
        if (x < (json_int_t)f[i].min || x > (json_int_t)f[i].max)
            return err_set(e, ERR_UNSUPPORTED, "%s is %" JSON_INTEGER_FORMAT ", want %u to %u",
                           f[i].name, x, f[i].min, f[i].max);
        *(uint32_t *)(void *)((char *)c + f[i].offset) = (uint32_t)x;
    }
    return OK;
}

static enum err read_number(const json_t *o, const char *name, double min, double max,
                            double *out, struct error *e)
{
    const json_t *v = json_object_get(o, name);
    if (!json_is_number(v))
        return err_set(e, ERR_FORMAT, "%s: %s", name, v ? "no number" : "missing");
    double x = json_number_value(v);
    if (!(x >= min && x <= max))
        return err_set(e, ERR_UNSUPPORTED, "%s is %g, want %g to %g", name, x, min, max);
    *out = x;
    return OK;
}

static enum err read_float(const json_t *o, const char *name, double min, double max,
                           float *out, struct error *e)
{
    double x = 0;
    enum err rc = read_number(o, name, min, max, &x, e);
    if (!rc)
        *out = (float)x;
    return rc;
}

static enum err want_string(const json_t *o, const char *name, const char *want,
                            struct error *e)
{
    const char *s = json_string_value(json_object_get(o, name));
    if (!s)
        return err_set(e, ERR_FORMAT, "%s: missing", name);
    if (strcmp(s, want) != 0)
        return err_set(e, ERR_UNSUPPORTED, "%s is \"%.60s\", want \"%s\"", name, s, want);
    return OK;
}

static enum err want_int(const json_t *o, const char *name, json_int_t want, struct error *e)
{
    const json_t *v = json_object_get(o, name);
    if (!json_is_integer(v))
        return err_set(e, ERR_FORMAT, "%s: %s", name, v ? "no integer" : "missing");
    if (json_integer_value(v) != want)
        return err_set(e, ERR_UNSUPPORTED,
                       "%s is %" JSON_INTEGER_FORMAT ", want %" JSON_INTEGER_FORMAT, name,
                       json_integer_value(v), want);
    return OK;
}

static enum err read_bool(const json_t *o, const char *name, bool *out, struct error *e)
{
    const json_t *v = json_object_get(o, name);
    if (!json_is_boolean(v))
        return err_set(e, ERR_FORMAT, "%s: %s", name, v ? "no boolean" : "missing");
    *out = json_is_true(v);
    return OK;
}

/* ---- lists --------------------------------------------------------------------------------
 */

/* A list of layer numbers, strictly ascending, below n_layers. */
static enum err read_layers(const json_t *o, const char *name, uint32_t n_layers, uint32_t cap,
                            uint32_t *out, uint32_t *n_out, struct error *e)
{
    const json_t *v = json_object_get(o, name);
    size_t n = json_array_size(v);
    if (!json_is_array(v))
        return err_set(e, ERR_FORMAT, "%s: %s", name, v ? "no list" : "missing");
    if (n > cap)
        return err_set(e, ERR_LIMIT, "%s has %zu entries, at most %u", name, n, cap);
    for (size_t i = 0; i < n; i++) {
        const json_t *x = json_array_get(v, i);
        json_int_t k = json_integer_value(x);
        if (!json_is_integer(x) || k < 0 || k >= (json_int_t)n_layers)
            return err_set(e, ERR_FORMAT, "%s[%zu] is no layer of %u", name, i, n_layers);
        if (i && (json_int_t)out[i - 1] >= k)
            return err_set(e, ERR_FORMAT, "%s: %" JSON_INTEGER_FORMAT " behind %u", name, k,
                           out[i - 1]);
        out[i] = (uint32_t)k;
    }
    *n_out = (uint32_t)n;
    return OK;
}

/* 40 or 43 entries are both in use: what is missing at the end is 0. */
static enum err read_ratios(struct config *c, const json_t *o, struct error *e)
{
    const json_t *v = json_object_get(o, "compress_ratios");
    size_t n = json_array_size(v);
    if (!json_is_array(v))
        return err_set(e, ERR_FORMAT, "compress_ratios: %s", v ? "no list" : "missing");
    if (n > c->n_layers + c->n_drafts)
        return err_set(e, ERR_FORMAT,
                       "compress_ratios has %zu entries for %u layers + %u drafts", n,
                       c->n_layers, c->n_drafts);
    for (size_t i = 0; i < n; i++) {
        const json_t *x = json_array_get(v, i);
        json_int_t r = json_integer_value(x);
        if (!json_is_integer(x) || r < 0 || r > 2 || (i >= c->n_layers && r))
            return err_set(e, ERR_UNSUPPORTED, "compress_ratios[%zu] is %" JSON_INTEGER_FORMAT,
                           i, r);
        if (i < c->n_layers)
            c->ratio[i] = (uint32_t)r;
    }
    return OK;
}

static enum err read_engram(struct config *c, const json_t *o, struct error *e)
{
    enum err rc = read_layers(o, "engram_layer_ids", c->n_layers, CONFIG_MAX_ENGRAM,
                              c->engram_layers, &c->n_engram, e);
    if (rc || (rc = read_fields(c, o, ENGRAM_FIELDS, N_OF(ENGRAM_FIELDS), e)))
        return rc;
    const json_t *rows = json_object_get(o, "engram_num_embeddings");
    if (json_array_size(rows) != c->n_engram)
        return err_set(e, ERR_FORMAT, "engram_num_embeddings has %zu entries for %u layers",
                       json_array_size(rows), c->n_engram);
    for (uint32_t i = 0; i < c->n_engram; i++) {
        json_int_t n = json_integer_value(json_array_get(rows, i));
        if (n < 1 || n > (json_int_t)1 << 40)
            return err_set(e, ERR_FORMAT, "engram_num_embeddings[%u] is %" JSON_INTEGER_FORMAT,
                           i, n);
        c->engram_rows[i] = (uint64_t)n;
    }
    return OK;
}

/* Without draft layers the other dspark fields are ignored. */
static enum err read_drafts(struct config *c, const json_t *o, struct error *e)
{
    enum err rc;
    if (!c->n_drafts)
        return OK;
    if ((rc = read_fields(c, o, DRAFT_FIELDS, N_OF(DRAFT_FIELDS), e)) ||
        (rc = read_layers(o, "dspark_target_layer_ids", c->n_layers, CONFIG_MAX_DRAFT_TARGETS,
                          c->draft_targets, &c->n_draft_targets, e)))
        return rc;
    if (c->n_layers + c->n_drafts > CONFIG_MAX_LAYERS)
        return err_set(e, ERR_LIMIT, "%u layers and %u draft layers, at most %d in all",
                       c->n_layers, c->n_drafts, CONFIG_MAX_LAYERS);
    if (!c->n_draft_targets)
        return err_set(e, ERR_FORMAT, "dspark_target_layer_ids is empty, with %u draft layers",
                       c->n_drafts);
    if (c->draft_noise_id >= c->vocab_size)
        return err_set(e, ERR_FORMAT, "dspark_noise_token_id is %u, vocab_size %u",
                       c->draft_noise_id, c->vocab_size);
    if (c->draft_active > c->draft_experts)
        return err_set(e, ERR_FORMAT,
                       "dspark_num_experts_per_tok %u of dspark_n_routed_experts %u",
                       c->draft_active, c->draft_experts);
    return OK;
}

static enum err read_rope(struct config *c, const json_t *o, struct error *e)
{
    const json_t *s = json_object_get(o, "rope_scaling");
    const char *type = json_object_get(s, "rope_type") ? "rope_type" : "type";
    enum err rc;
    double original = 0;
    if (!json_is_object(s))
        return err_set(e, ERR_FORMAT, "rope_scaling: missing");
    if ((rc = want_string(s, type, "yarn", e)) ||
        (rc = read_number(s, "factor", 1, 1e6, &c->yarn_factor, e)) ||
        (rc = read_number(s, "beta_fast", 1e-3, 1e6, &c->yarn_beta_fast, e)) ||
        (rc = read_number(s, "beta_slow", 1e-3, 1e6, &c->yarn_beta_slow, e)) ||
        (rc = read_number(s, "original_max_position_embeddings", 1, 1e9, &original, e)))
        return err_wrap(e, rc, "rope_scaling");
    c->yarn_original = (uint32_t)original;
    if ((rc = read_number(o, "rope_theta", 1, 1e12, &c->rope_theta, e)) ||
        (rc = read_number(o, "compress_rope_theta", 1, 1e12, &c->compress_theta, e)))
        return rc;
    return OK;
}

/* ---- consistency --------------------------------------------------------------------------
 */

static enum err check_multiple(const char *name, uint64_t v, uint32_t of, struct error *e)
{
    return v % of ? err_set(e, ERR_UNSUPPORTED, "%s is %" PRIu64 ", no multiple of %u", name, v,
                            of)
                  : OK;
}

static enum err check_shapes(const struct config *c, struct error *e)
{
    uint64_t group = (uint64_t)c->n_heads * c->head_dim / c->o_groups;
    enum err rc;
    if (c->n_heads % c->o_groups)
        return err_set(e, ERR_FORMAT, "num_attention_heads %u is no multiple of o_groups %u",
                       c->n_heads, c->o_groups);
    if ((rc = check_multiple("hidden_size", c->dim, 32, e)) ||
        (rc = check_multiple("q_lora_rank", c->q_lora, 32, e)) ||
        (rc = check_multiple("head_dim", c->head_dim, 32, e)) ||
        (rc = check_multiple("index_head_dim", c->index_dim, 32, e)) ||
        (rc = check_multiple("qk_rope_head_dim", c->rope_dim, 2, e)) ||
        (rc = check_multiple("moe_intermediate_size", c->moe_dim, 32, e)) ||
        (rc = check_multiple("heads * head_dim / o_groups", group, 32, e)) ||
        (rc = check_multiple("o_groups * o_lora_rank", (uint64_t)c->o_groups * c->o_lora, 32,
                             e)) ||
        (rc = check_multiple("engram_head_dim", c->n_engram ? c->engram_dim : 32, 32, e)))
        return rc;
    if (c->rope_dim > c->head_dim || c->rope_dim > c->index_dim)
        return err_set(e, ERR_FORMAT,
                       "qk_rope_head_dim %u is above head_dim %u or index_head_dim %u",
                       c->rope_dim, c->head_dim, c->index_dim);
    if (c->n_active > c->n_experts)
        return err_set(e, ERR_FORMAT, "num_experts_per_tok %u of n_routed_experts %u",
                       c->n_active, c->n_experts);
    const uint32_t ids[] = {c->bos_id, c->eos_id, c->pad_id};
    for (size_t i = 0; i < N_OF(ids); i++)
        if (ids[i] >= c->vocab_size)
            return err_set(e, ERR_FORMAT, "%s is %u, vocab_size %u", TOP_FIELDS[i].name, ids[i],
                           c->vocab_size);
    if (c->n_engram && c->engram_pad >= c->vocab_size)
        return err_set(e, ERR_FORMAT, "engram_pad_token_id is %u, vocab_size %u", c->engram_pad,
                       c->vocab_size);
    return OK;
}

/* Largest entry <= layer of an ascending list; its index, or CONFIG_NO_LAYER. */
static uint32_t latest(const uint32_t *list, uint32_t n, uint32_t layer)
{
    uint32_t found = CONFIG_NO_LAYER;
    for (uint32_t i = 0; i < n && list[i] <= layer; i++)
        found = i;
    return found;
}

/* Model description, section 1.3: rows and selections come from the latest source below. */
static enum err derive_sources(struct config *c, struct error *e)
{
    for (uint32_t l = 0; l < c->n_layers; l++) {
        c->kv_of[l] = c->index_of[l] = CONFIG_NO_LAYER;
        bool source = config_is_kv_source(c, l) || config_is_index_source(c, l);
        if (!c->ratio[l]) {
            if (source)
                return err_set(e, ERR_FORMAT, "layer %u is a source, its compress_ratio is 0",
                               l);
            continue;
        }
        uint32_t kv = latest(c->kv_sources, c->n_kv_sources, l);
        uint32_t index = latest(c->index_sources, c->n_index_sources, l);
        if (kv == CONFIG_NO_LAYER || index == CONFIG_NO_LAYER)
            return err_set(e, ERR_FORMAT, "layer %u: compress_ratio %u, no source below", l,
                           c->ratio[l]);
        c->kv_of[l] = kv;
        c->index_of[l] = c->index_sources[index];
        if (c->ratio[c->kv_sources[kv]] != c->ratio[l])
            return err_set(e, ERR_FORMAT, "layer %u: compress_ratio %u, its source %u has %u",
                           l, c->ratio[l], c->kv_sources[kv], c->ratio[c->kv_sources[kv]]);
        if (c->index_of[l] < c->kv_sources[kv])
            return err_set(e, ERR_FORMAT, "kv source %u is no index source", c->kv_sources[kv]);
    }
    c->last_source = c->n_kv_sources ? c->kv_sources[c->n_kv_sources - 1] : c->n_layers;
    return OK;
}

static enum err check_candidates(struct config *c, const json_t *o, struct error *e)
{
    const json_t *v = json_object_get(o, "candidate_source_layer_id");
    json_int_t layer = v ? json_integer_value(v) : -1;
    c->candidate_source = CONFIG_NO_LAYER;
    if (v && !json_is_integer(v))
        return err_set(e, ERR_FORMAT, "candidate_source_layer_id: no integer");
    if (layer == -1)
        return OK;
    if (layer < 0 || layer >= (json_int_t)c->n_layers ||
        !config_is_index_source(c, (uint32_t)layer))
        return err_set(e, ERR_FORMAT,
                       "candidate_source_layer_id %" JSON_INTEGER_FORMAT " is no index source",
                       layer);
    c->candidate_source = (uint32_t)layer;
    for (uint32_t i = 0; i < c->n_index_sources; i++) {
        uint32_t l = c->index_sources[i];
        if (l > c->candidate_source && c->kv_of[l] != c->kv_of[c->candidate_source])
            return err_set(e, ERR_UNSUPPORTED,
                           "index source %u does not read the rows of candidate source %u", l,
                           c->candidate_source);
    }
    return OK;
}

/* ---- the whole file -----------------------------------------------------------------------
 */

static enum err read_constants(const json_t *top, const json_t *text, struct error *e)
{
    const json_t *q = json_object_get(top, "quantization_config");
    const json_t *block = json_object_get(q, "weight_block_size");
    enum err rc;
    if (!json_is_object(q))
        return err_set(e, ERR_FORMAT, "quantization_config: missing");
    if ((rc = want_string(q, "quant_method", "fp8", e)) ||
        (rc = want_string(q, "scale_fmt", "ue8m0", e)) ||
        (rc = want_string(q, "expert_dtype", "fp4", e)))
        return err_wrap(e, rc, "quantization_config");
    if (json_array_size(block) != 2 || json_integer_value(json_array_get(block, 0)) != 32 ||
        json_integer_value(json_array_get(block, 1)) != 32)
        return err_set(e, ERR_UNSUPPORTED, "weight_block_size is not [32, 32]");
    bool bias = false;
    if ((rc = want_int(text, "num_key_value_heads", 1, e)) ||
        (rc = want_int(text, "n_shared_experts", 1, e)) ||
        (rc = want_string(text, "hidden_act", "silu", e)) ||
        (rc = want_string(text, "scoring_func", "sqrtsoftplus", e)) ||
        (rc = want_string(text, "topk_method", "noaux_tc", e)) ||
        (rc = read_bool(text, "attention_bias", &bias, e)))
        return rc;
    return bias ? err_set(e, ERR_UNSUPPORTED, "attention_bias is true") : OK;
}

static enum err read_config(struct config *c, const json_t *top, struct error *e)
{
    const json_t *text = json_object_get(top, "text_config");
    enum err rc;
    double max_tokens = 0;
    if (!json_is_object(text))
        return err_set(e, ERR_FORMAT, "text_config: missing");
    if ((rc = want_string(top, "model_type", "deepseek_v41", e)) ||
        (rc = read_fields(c, top, TOP_FIELDS, N_OF(TOP_FIELDS), e)) ||
        (rc = read_constants(top, text, e)) ||
        (rc = read_fields(c, text, TEXT_FIELDS, N_OF(TEXT_FIELDS), e)) ||
        (rc = read_number(text, "max_position_embeddings", 1, 1 << 30, &max_tokens, e)) ||
        (rc = read_float(text, "hc_eps", 0, 1, &c->hc_eps, e)) ||
        (rc = read_float(text, "rms_norm_eps", 0, 1, &c->norm_eps, e)) ||
        (rc = read_float(text, "swiglu_limit", 1e-3, 1e6, &c->swiglu_limit, e)) ||
        (rc = read_float(text, "routed_scaling_factor", 1e-6, 1e6, &c->route_scale, e)) ||
        (rc = read_bool(text, "norm_topk_prob", &c->norm_topk, e)) ||
        (rc = read_rope(c, text, e)) || (rc = read_ratios(c, text, e)) ||
        (rc = read_layers(text, "kv_source_layer_ids", c->n_layers, CONFIG_MAX_SOURCES,
                          c->kv_sources, &c->n_kv_sources, e)) ||
        (rc = read_layers(text, "index_source_layer_ids", c->n_layers, CONFIG_MAX_LAYERS,
                          c->index_sources, &c->n_index_sources, e)) ||
        (rc = read_engram(c, text, e)) || (rc = read_drafts(c, text, e)) ||
        (rc = check_shapes(c, e)) || (rc = derive_sources(c, e)) ||
        (rc = check_candidates(c, text, e)))
        return rc;
    c->max_tokens = (uint64_t)max_tokens;
    return OK;
}

enum err config_parse(struct config *c, const char *json, size_t n, struct error *e)
{
    static const struct json_limits limits = {.max_bytes = CONFIG_MAX_BYTES, .max_depth = 64};
    json_auto_t *top = NULL;
    struct config fresh = {0};
    enum err rc = json_parse(json, n, &limits, &top, e);
    if (rc || (rc = read_config(&fresh, top, e)))
        return err_wrap(e, rc, "config.json");
    *c = fresh;
    return OK;
}

enum err config_load(struct config *c, const char *dir, struct error *e)
{
    AUTO(buf) struct buf text = BUF_INIT(CONFIG_MAX_BYTES);
    char path[FS_PATH_BYTES];
    enum err rc = fs_path(path, sizeof(path), e, "%s/config.json", dir);
    if (rc || (rc = fs_read_regular(path, &text, e)))
        return rc;
    rc = config_parse(c, buf_str(&text), text.len, e);
    return rc ? err_wrap(e, rc, "%s", dir) : OK;
}

/* ---- fingerprint --------------------------------------------------------------------------
 */

static enum err text_fields(const struct config *c, const struct field *f, size_t n,
                            struct buf *out, struct error *e)
{
    enum err rc = OK;
    for (size_t i = 0; i < n && !rc; i++) {
        const void *at = (const char *)c + f[i].offset;
        rc = buf_printf(out, e, "%s %u\n", f[i].name, *(const uint32_t *)at);
    }
    return rc;
}

static enum err text_list(const char *name, const uint32_t *v, uint32_t n, struct buf *out,
                          struct error *e)
{
    enum err rc = buf_printf(out, e, "%s", name);
    for (uint32_t i = 0; i < n && !rc; i++)
        rc = buf_printf(out, e, " %u", v[i]);
    return rc ? rc : buf_add_byte(out, '\n', e);
}

enum err config_text(const struct config *c, struct buf *out, struct error *e)
{
    const struct {
        const char *name;
        double v;
    } numbers[] = {
        {"hc_eps", (double)c->hc_eps},
        {"rms_norm_eps", (double)c->norm_eps},
        {"swiglu_limit", (double)c->swiglu_limit},
        {"routed_scaling_factor", (double)c->route_scale},
        {"norm_topk_prob", c->norm_topk},
        {"rope_theta", c->rope_theta},
        {"compress_rope_theta", c->compress_theta},
        {"rope_scaling.factor", c->yarn_factor},
        {"rope_scaling.beta_fast", c->yarn_beta_fast},
        {"rope_scaling.beta_slow", c->yarn_beta_slow},
        {"rope_scaling.original_max_position_embeddings", c->yarn_original},
    };
    enum err rc;
    if ((rc = text_fields(c, TOP_FIELDS, N_OF(TOP_FIELDS), out, e)) ||
        (rc = text_fields(c, TEXT_FIELDS, N_OF(TEXT_FIELDS), out, e)) ||
        (rc = text_fields(c, ENGRAM_FIELDS, N_OF(ENGRAM_FIELDS), out, e)) ||
        (rc = text_list("candidate_source_layer_id", &c->candidate_source, 1, out, e)) ||
        (rc = text_list("compress_ratios", c->ratio, c->n_layers, out, e)) ||
        (rc = text_list("kv_source_layer_ids", c->kv_sources, c->n_kv_sources, out, e)) ||
        (rc = text_list("index_source_layer_ids", c->index_sources, c->n_index_sources, out,
                        e)) ||
        (rc = text_list("engram_layer_ids", c->engram_layers, c->n_engram, out, e)))
        return rc;
    for (size_t i = 0; i < N_OF(numbers) && !rc; i++)
        rc = buf_printf(out, e, "%s %a\n", numbers[i].name, numbers[i].v);
    return rc;
}

static bool has(const uint32_t *list, uint32_t n, uint32_t x)
{
    for (uint32_t i = 0; i < n; i++)
        if (list[i] == x)
            return true;
    return false;
}

bool config_is_kv_source(const struct config *c, uint32_t layer)
{
    return has(c->kv_sources, c->n_kv_sources, layer);
}

bool config_is_index_source(const struct config *c, uint32_t layer)
{
    return has(c->index_sources, c->n_index_sources, layer);
}

uint32_t config_engram_at(const struct config *c, uint32_t layer)
{
    for (uint32_t i = 0; i < c->n_engram; i++)
        if (c->engram_layers[i] == layer)
            return i;
    return CONFIG_NO_LAYER;
}

bool config_is_masked(const struct config *c, uint32_t layer)
{
    return c->candidate_source != CONFIG_NO_LAYER && layer > c->candidate_source &&
           config_is_index_source(c, layer);
}
