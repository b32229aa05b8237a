/* One tensor of a checkpoint after the other, for weights.c: found by name, checked, and put
 * where the forward pass wants it. Or only looked at: with an inventory, nothing is loaded, and
 * what does not fit is noted and passed over. Private to engine/. */
#ifndef ENGINE_LOADER_H
#define ENGINE_LOADER_H

#include "engine/inventory.h"
#include "engine/weights.h"

#define LOADER_NAME_BYTES 128

struct loader {
    const struct config *c;
    const struct safetensors *st;
    struct inventory *inventory; /* NULL: load */
    struct kernels *k;           /* the rest is for loading */
    struct weights *w;
    uint8_t *used; /* [n_tensors]: tensors that have found their place */
    /* Of the tensors that follow. */
    char prefix[32];
    enum tensor_kind kind;
    bool in_prefill;         /* takes part in a prompt's token */
    uint32_t n_active, n_of; /* of n_of alike, n_active take part in a token */
    struct error *e;
};

/* Each takes the name without the prefix. A matrix [n_out][n_in] has suffix .weight and, when
 * quantised, a .scale. */
NODISCARD enum err load_floats(struct loader *ld, const char *name, const char *suffix,
                               bool may_be_bf16, uint32_t n_dims, const uint64_t *shape,
                               const float **out);
NODISCARD enum err load_norm(struct loader *ld, const char *name, uint64_t n,
                             const float **out);
/* A bare F32 tensor. */
NODISCARD enum err load_vector(struct loader *ld, const char *name, uint64_t n,
                               const float **out);
/* BF16, left in the file where the backend can read it there; and packed. */
NODISCARD enum err load_bf16(struct loader *ld, const char *name, uint64_t n_out, uint64_t n_in,
                             struct k_weight *w);
NODISCARD enum err load_bf16_packed(struct loader *ld, const char *name, uint64_t n_out,
                                    uint64_t n_in, struct k_weight *w);
/* Packed; a NaN scale is refused with its index. */
NODISCARD enum err load_fp8(struct loader *ld, const char *name, uint64_t n_out, uint64_t n_in,
                            uint32_t n_groups, struct k_weight *w);
/* Mapped only. */
NODISCARD enum err load_fp4(struct loader *ld, const char *name, uint64_t n_out, uint64_t n_in,
                            struct k_weight *w);
/* An E4M3 table [rows][d] with E8M0 [rows][d/32], mapped only. */
NODISCARD enum err load_table(struct loader *ld, const char *name, uint64_t rows, uint64_t d,
                              const uint8_t **codes, const uint8_t **scales);
/* Tensors that nothing has asked for: vision is counted, everything else refused. */
NODISCARD enum err load_leftovers(struct loader *ld);

/* Index of the first E8M0 NaN among n scales; n: there is none. */
size_t find_nan_scale(const uint8_t *scales, size_t n);

#endif
