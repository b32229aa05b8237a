#include "kernels/types.h"

#include <assert.h>

#include "kernels/host.h"

size_t k_row_bytes(enum k_format format, uint32_t d)
{
    switch (format) {
    case K_ROW_F32:
        return (size_t)d * 4;
    case K_ROW_FP8_32:
        return d % 32 ? 0 : (size_t)d + d / 32;
    case K_ROW_FP4_16:
        return d % 16 ? 0 : (size_t)d / 2 + d / 16;
    case K_ROW_FP4_32:
        return d % 32 ? 0 : (size_t)d / 2 + d / 32;
    }
    return 0;
}

bool k_weight_bytes(const struct k_weight *w, size_t *data_bytes, size_t *scale_bytes)
{
    size_t n_out = w->n_out, n_in = w->n_in;
    *scale_bytes = 0;
    switch (w->type) {
    case K_W_F32:
        *data_bytes = n_out * n_in * 4;
        return true;
    case K_W_BF16:
        *data_bytes = n_out * n_in * 2;
        return true;
    case K_W_FP8_32X32:
        *data_bytes = n_out * n_in;
        *scale_bytes = (n_out + 31) / 32 * (n_in / 32);
        return n_in % 32 == 0;
    case K_W_FP4_1X32:
        *data_bytes = n_out * (n_in / 2);
        *scale_bytes = n_out * (n_in / 32);
        return n_in % 32 == 0;
    }
    return false;
}

static void expand_bf16(const uint8_t *src, size_t n, float *dst)
{
    for (size_t i = 0; i < n; i++) {
        uint16_t b;
        memcpy(&b, src + 2 * i, 2);
        dst[i] = k_bf16_to_f32(b);
    }
}

static void expand_fp8(const struct k_weight *w, size_t o, float *dst)
{
    const uint8_t *codes = (const uint8_t *)w->data + o * w->n_in;
    const uint8_t *scale = w->scale + o / 32 * (w->n_in / 32);
    for (uint32_t i = 0; i < w->n_in; i++)
        dst[i] = k_e4m3_to_f32(codes[i]) * k_e8m0_to_f32(scale[i / 32]);
}

static void expand_fp4(const struct k_weight *w, size_t o, float *dst)
{
    const uint8_t *codes = (const uint8_t *)w->data + o * (w->n_in / 2);
    const uint8_t *scale = w->scale + o * (w->n_in / 32);
    for (uint32_t i = 0; i < w->n_in; i++)
        dst[i] = k_e2m1_to_f32((uint8_t)(codes[i / 2] >> (i % 2 * 4)) & 15) *
                 k_e8m0_to_f32(scale[i / 32]);
}

void k_expand_row(const struct k_weight *w, size_t o, float *dst)
{
    assert(o < w->n_out);
    switch (w->type) {
    case K_W_F32:
        memcpy(dst, (const uint8_t *)w->data + o * w->n_in * 4, (size_t)w->n_in * 4);
        break;
    case K_W_BF16:
        expand_bf16((const uint8_t *)w->data + o * w->n_in * 2, w->n_in, dst);
        break;
    case K_W_FP8_32X32:
        expand_fp8(w, o, dst);
        break;
    case K_W_FP4_1X32:
        expand_fp4(w, o, dst);
        break;
    }
}
