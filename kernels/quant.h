/* The grids that cached values live on: encode to codes, decode back, or both at once.
 *
 * | format       | element | group | scale | amax floor | scale from amax                  |
 * |--------------|---------|-------|-------|------------|----------------------------------|
 * | K_ROW_FP8_32 | E4M3    | 32    | E8M0  | 1e-4       | 2^ceil(log2(amax * fp32(1/448))) |
 * | K_ROW_FP4_16 | E2M1    | 16    | E4M3  | 6*2^-9     | RNE_e4m3(amax / 6)               |
 * | K_ROW_FP4_32 | E2M1    | 32    | E8M0  | 6*2^-126   | 2^ceil(log2(amax * fp32(1/6)))   |
 * | K_ROW_F32    | copy    |       |       |            |                                  |
 *
 * Codes are nearest even of x / scale, clamped to the largest code (448, 6). A group that holds
 * a NaN (or an Inf, for the power-of-two scales) decodes to NaN as a whole: nothing is hidden.
 * Same bits on every host backend. decode(encode(x)) is what fake_quant gives, and encoding
 * decoded values gives the same values again.
 * Source: model.md section 3, "Fake quantisation of cached values". */
#ifndef KERNELS_QUANT_H
#define KERNELS_QUANT_H

#include "kernels/run.h"

#ifdef __cplusplus
extern "C" {
#endif

/* rows [n][k_row_bytes(format, d)] <- x [n][d] f32, x_stride floats apart (0: dense).
 *
 * With `runs`: x are the groups of a list of runs, from number `first` on, and go to the rows
 * (keys: the index keys) of source `source` that their run completes. Groups of no run are left
 * out. rows is not used. */
struct k_encode {
    const float *x;
    void *rows;
    size_t n, x_stride;
    uint32_t d;
    enum k_format format;
    const struct k_run *runs; /* memory of the backend; NULL: rows */
    uint32_t n_runs, first, source;
    bool keys;
};

/* x [n][d] f32 dense <- rows [n][k_row_bytes(format, d)]. */
struct k_decode {
    const void *rows;
    float *x;
    size_t n;
    uint32_t d;
    enum k_format format;
};

/* y [n][d] <- x [n][d], dense, on the format's grid; y may be x. The index query. */
struct k_fake_quant {
    const float *x;
    float *y;
    size_t n;
    uint32_t d;
    enum k_format format;
};

/* One row, on the host, for every host backend and for tests. */
void k_encode_row(enum k_format format, const float *x, uint32_t d, uint8_t *row);
void k_decode_row(enum k_format format, const uint8_t *row, uint32_t d, float *x);

/* Activation quantisation in front of FP8 and FP4 weights (K_FP8_32), one row of d % 32 == 0
 * values: y = bf16(x) on the grid of K_ROW_FP8_32. y may be x. */
void k_quant_activation(const float *x, uint32_t d, float *y);

#ifdef __cplusplus
}
#endif
#endif
