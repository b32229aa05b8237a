/* A model's config.json, read once and checked whole: what comes out of config_parse() is
 * consistent, and every other file of engine/ relies on it.
 *
 * The nested Hugging Face form (deepseek_v41 with text_config) is read; every count comes from
 * the file. A missing, contradictory or unsupported value is refused with the field's name and
 * what it holds. vision_config may be absent and is not looked at. */
#ifndef ENGINE_CONFIG_H
#define ENGINE_CONFIG_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"

#define CONFIG_MAX_LAYERS 256
#define CONFIG_MAX_SOURCES 32
#define CONFIG_MAX_ENGRAM 8
#define CONFIG_MAX_NGRAM 8
#define CONFIG_MAX_DRAFT_BLOCK 15
#define CONFIG_MAX_DRAFT_TARGETS 8
#define CONFIG_MAX_BYTES (4u << 20)
#define CONFIG_NO_LAYER UINT32_MAX

struct config {
    uint32_t vocab_size, dim, n_layers;
    uint32_t n_heads, head_dim, rope_dim, q_lora, o_lora, o_groups, window;
    uint32_t n_experts, n_active, moe_dim;
    uint32_t hc, hc_iters; /* residual streams, Sinkhorn rounds */
    uint32_t index_heads, index_dim, index_topk;
    uint32_t candidate_source; /* layer, or CONFIG_NO_LAYER: no candidate filter */
    uint32_t candidate_blocks, candidate_block;
    uint32_t bos_id, eos_id, pad_id, image_id;
    uint64_t max_tokens;
    float hc_eps, norm_eps, swiglu_limit, route_scale;
    bool norm_topk;

    double rope_theta, compress_theta, yarn_factor, yarn_beta_fast, yarn_beta_slow;
    uint32_t yarn_original;

    uint32_t ratio[CONFIG_MAX_LAYERS]; /* 0: window only, else tokens of one row */
    uint32_t n_kv_sources, kv_sources[CONFIG_MAX_SOURCES];
    uint32_t n_index_sources, index_sources[CONFIG_MAX_LAYERS];

    uint32_t n_engram, engram_layers[CONFIG_MAX_ENGRAM];
    uint64_t engram_rows[CONFIG_MAX_ENGRAM];
    uint32_t engram_ngram, engram_heads, engram_dim, engram_pad, engram_vocab;
    uint32_t engram_compressed; /* distinct compressed token ids */

    uint32_t n_drafts; /* num_nextn_predict_layers; 0: what follows is 0, too */
    uint32_t draft_block, draft_noise_id, draft_rank, draft_experts, draft_active;
    uint32_t n_draft_targets, draft_targets[CONFIG_MAX_DRAFT_TARGETS];

    /* Derived. Index into kv_sources / layer number; CONFIG_NO_LAYER where ratio is 0. */
    uint32_t kv_of[CONFIG_MAX_LAYERS];    /* whose rows layer l reads: index into kv_sources */
    uint32_t index_of[CONFIG_MAX_LAYERS]; /* whose selection layer l uses: a layer number */
    uint32_t last_source; /* layer of the last KV source; without any, n_layers */
};

/* Parses the text of a config.json. Errors: ERR_FORMAT (missing, wrong type, contradiction),
 * ERR_UNSUPPORTED (well formed, not this model), ERR_LIMIT. */
NODISCARD enum err config_parse(struct config *c, const char *json, size_t n, struct error *e);
/* Reads dir/config.json. */
NODISCARD enum err config_load(struct config *c, const char *dir, struct error *e);

/* Appends every value that results depend on, one `name value` a line: for the fingerprint. The
 * context length is not among them. */
NODISCARD enum err config_text(const struct config *c, struct buf *out, struct error *e);

bool config_is_kv_source(const struct config *c, uint32_t layer);
bool config_is_index_source(const struct config *c, uint32_t layer);
/* Index into engram_layers, or CONFIG_NO_LAYER. */
uint32_t config_engram_at(const struct config *c, uint32_t layer);
/* Does this layer's own selection go through the candidate blocks of another layer? */
bool config_is_masked(const struct config *c, uint32_t layer);

/* Bytes of one packed row: E2M1 nibbles and a scale per 16 (main) or per 32 (index). */
static inline uint32_t config_row_bytes(uint32_t d)
{
    return d / 2 + d / 16;
}
static inline uint32_t config_key_bytes(uint32_t d)
{
    return d / 2 + d / 32;
}

#endif
