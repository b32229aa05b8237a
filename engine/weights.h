/* The tensors of a checkpoint as the forward pass uses them.
 *
 * Every name, shape and dtype of the official layout (model description, section 2.2) is
 * checked; a tensor that should not be there is refused like one that is missing. Vectors are
 * copied and expanded to f32 (norm weights may be BF16 or F32). Matrices stay where the file
 * has them, in their storage format; the dense ones are handed to the backend's pack(). Routed
 * experts and Engram tables are only mapped. Draft (mtp.*) and vision tensors are skipped. */
#ifndef ENGINE_WEIGHTS_H
#define ENGINE_WEIGHTS_H

#include "engine/config.h"
#include "engine/safetensors.h"
#include "kernels/kernels.h"

struct hc_weights {
    struct k_weight fn; /* [(2+hc)*hc][hc*dim] */
    const float *scale; /* [3] */
    const float *base;  /* [(2+hc)*hc] */
};

struct compressor_weights {     /* KV sources only */
    struct k_weight wkv, wgate; /* [head_dim][dim]; wgate with ratio 2 only */
    const float *norm;          /* [head_dim] */
    struct k_weight wk;         /* [index_dim][head_dim]: index key from latent */
    const float *k_norm;        /* [index_dim] */
};

struct indexer_weights {          /* index sources only */
    struct k_weight wq_b;         /* [index_heads*index_dim][q_lora] */
    struct k_weight weights_proj; /* [index_heads][dim] */
};

struct engram_weights {    /* Engram layers only */
    const uint8_t *codes;  /* [rows][engram_dim] E4M3, mapped */
    const uint8_t *scales; /* [rows][engram_dim/32] E8M0, mapped */
    struct k_weight wkv;   /* [(hc+1)*dim][n_tables*engram_dim] */
    const float *q, *k;    /* [hc][dim] */
};

struct layer_weights {
    struct hc_weights hc_attn, hc_ffn;
    const float *attn_norm, *ffn_norm; /* [dim] */
    const float *q_norm;               /* [q_lora] */
    const float *kv_norm;              /* [head_dim] */
    const float *sink;                 /* [n_heads] */
    struct k_weight wq_a, wq_b, wkv, wo_a, wo_b;
    struct compressor_weights compressor;
    struct indexer_weights indexer;
    struct engram_weights engram;
    struct k_weight gate;                  /* [n_experts][dim] */
    const float *gate_bias, *gate_bias_vl; /* [n_experts] */
    struct k_expert *experts;              /* [n_experts] */
    struct k_expert shared;
};

struct weights {
    struct k_weight embed, head; /* [vocab][dim] */
    const float *norm;           /* [dim] */
    struct layer_weights *layers;
    uint32_t n_layers, n_experts;
    uint64_t n_skipped; /* draft and vision tensors that are in the checkpoint */

    /* What weights_fini() gives back. */
    struct kernels *k;
    void **owned;
    size_t n_owned, cap_owned;
};

/* st stays mapped as long as w lives; k must outlive it, too. Errors: ERR_FORMAT with the
 * tensor and both values, ERR_NOTFOUND for a missing tensor, ERR_NOMEM. */
NODISCARD enum err weights_load(struct weights *w, const struct config *c,
                                const struct safetensors *st, struct kernels *k,
                                struct error *e);
void weights_fini(struct weights *w);

#endif
