/* The tensors of a checkpoint as the forward pass uses them.
 *
 * Every name, shape and dtype of the official layout (model description, section 2.2) is
 * checked; a tensor that should not be there is refused like one that is missing. Vectors are
 * copied and expanded to f32 (norm weights may be BF16 or F32). Matrices stay where the file
 * has them, in their storage format; the dense ones are handed to the backend's pack(). Routed
 * experts and Engram tables are only mapped. Vision tensors are skipped. */
#ifndef ENGINE_WEIGHTS_H
#define ENGINE_WEIGHTS_H

#include "engine/config.h"
#include "engine/inventory.h"
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
    uint8_t *checked; /* [n_experts] its scales have been read: none is NaN */
    struct k_expert shared;
    uint32_t n_experts, n_active;
};

struct draft_weights {                         /* with draft layers only */
    struct k_weight main_proj;                 /* [dim][n_draft_targets*dim] */
    const float *main_norm;                    /* [dim] */
    const float *norm;                         /* [dim] */
    struct k_weight markov_embed, markov_head; /* [vocab][rank] */
    struct k_weight confidence;                /* [1][dim+rank] */
};

struct weights {
    struct k_weight embed, head;  /* [vocab][dim] */
    const float *norm;            /* [dim] */
    struct layer_weights *layers; /* [n_layers]: those of the model, then the draft layers */
    uint32_t n_layers;
    struct draft_weights draft;
    uint64_t n_skipped; /* tensors that are in the checkpoint and no part of the model */

    /* What weights_fini() gives back. */
    struct kernels *k;
    void **owned;
    size_t n_owned, cap_owned;
};

/* Looks at the headers alone: sums and problems go to *v (inventory_fini() frees). OK whatever
 * is wrong with the checkpoint; ERR_NOMEM. */
NODISCARD enum err weights_survey(struct inventory *v, const struct config *c,
                                  const struct safetensors *st, struct error *e);

/* st stays mapped as long as w lives; k must outlive it, too. Errors: ERR_FORMAT with the
 * tensor and both values, ERR_NOTFOUND for a missing tensor, ERR_NOMEM. */
NODISCARD enum err weights_load(struct weights *w, const struct config *c,
                                const struct safetensors *st, struct kernels *k,
                                struct error *e);
void weights_fini(struct weights *w);

#endif
