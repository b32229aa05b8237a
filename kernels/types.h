/* What every op shares: where values are rounded, how weights and cached rows are stored.
 *
 * Activations are f32 in every precision mode; a mode only adds roundings, and each rounding
 * point is a field of an op's argument struct (model.md section 18). A value that was rounded
 * to bf16 or to a quantiser's grid stays in its f32 buffer. Weights and cached rows keep the
 * bit patterns of the checkpoint or of the grid. */
#ifndef KERNELS_TYPES_H
#define KERNELS_TYPES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Largest values that fixed arrays in the kernels allow for; the engine checks its config. */
#define K_MAX_HC 8     /* residual streams */
#define K_MAX_RATIO 8  /* tokens of one compressed row */
#define K_MAX_TOP_K 32 /* experts per token */
#define K_MAX_EXPERTS 4096

/* How a value is rounded at one point of the forward pass. */
enum k_round {
    K_EXACT, /* kept in f32 */
    K_BF16,  /* to bf16, nearest even */
    K_FP8_32 /* input of a product only: bf16, then E4M3 with one power-of-two scale for each 32
                inputs (model.md section 3, "Activation quantisation"); n_in % 32 == 0 */
};

/* How a weight matrix [n_out][n_in] is stored. Every value but K_W_F32's is exactly a bf16. */
enum k_type {
    K_W_F32,       /* f32, row-major */
    K_W_BF16,      /* bf16, row-major */
    K_W_FP8_32X32, /* E4M3 [n_out][n_in]; scales E8M0 [ceil(n_out/32)][n_in/32], one per tile */
    K_W_FP4_1X32   /* E2M1 pairs [n_out][n_in/2], even input in the low nibble;
                      scales E8M0 [n_out][n_in/32] */
};

/* A weight matrix, borrowed. data and scale are in the backend's memory (on a host backend the
 * mapped checkpoint) and must outlive the weight. Any alignment. */
struct k_weight {
    enum k_type type;
    uint32_t n_out;    /* rows, all groups together */
    uint32_t n_in;     /* columns; K of the product. A multiple of 32 for FP8 and FP4 */
    uint32_t n_groups; /* 0 or 1: plain. Else rows [g*n_out/n_groups, ...) read input slice g */
    const void *data;
    const uint8_t *scale; /* NULL for K_W_F32 and K_W_BF16 */
    void *packed; /* the backend's own form after pack(), else NULL; unpack() frees it */
};

/* How one row of d cached values is stored, and on which grid the values lie. */
enum k_format {
    K_ROW_F32,    /* f32, no grid; 4*d bytes (mode math only) */
    K_ROW_FP8_32, /* window KV: E4M3 d bytes, then E8M0 d/32 bytes */
    K_ROW_FP4_16, /* compressed KV: E2M1 d/2 bytes, then E4M3 d/16 bytes */
    K_ROW_FP4_32  /* index key and query: E2M1 d/2 bytes, then E8M0 d/32 bytes */
};

/* Bytes of one row of d values; rows lie densely one after another. 0 when d does not fit the
 * format (FP8_32, FP4_32: d % 32; FP4_16: d % 16). */
size_t k_row_bytes(enum k_format format, uint32_t d);

/* Bytes of data and of scale that a weight must have; false when n_in does not fit the type. */
bool k_weight_bytes(const struct k_weight *w, size_t *data_bytes, size_t *scale_bytes);

#ifdef __cplusplus
}
#endif
#endif
