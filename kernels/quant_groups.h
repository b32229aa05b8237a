/* The grids of quant.h one group at a time. Host and device share the text. Internal to
 * kernels/. */
#ifndef KERNELS_QUANT_GROUPS_H
#define KERNELS_QUANT_GROUPS_H

#include "kernels/bits.h"
#include "kernels/types.h"

/* Values that share a scale; 0: no scale. */
K_FN uint32_t k_group_size(enum k_format format)
{
    return format == K_ROW_FP4_16 ? 16 : format == K_ROW_F32 ? 0 : 32;
}

/* Largest magnitude; NaN if any is NaN. */
K_FN float k_amax(const float *x, uint32_t n)
{
    uint32_t max = 0; /* magnitudes order like their bits, NaN on top */
    for (uint32_t i = 0; i < n; i++) {
        uint32_t u = k_f32_bits(x[i]) & 0x7fffffffu;
        max = u > max ? u : max;
    }
    return k_f32_from_bits(max);
}

/* amax or the floor, NaN kept */
K_FN float k_at_least(float x, float floor)
{
    return x < floor ? floor : x;
}

/* Two codes to a byte, the even one low. */
K_FN void k_put_nibbles(const float *x, float scale, uint32_t n, uint8_t *dst)
{
    for (uint32_t i = 0; i < n; i += 2)
        dst[i / 2] =
            (uint8_t)(k_f32_to_e2m1(x[i] / scale) | k_f32_to_e2m1(x[i + 1] / scale) << 4);
}

/* x [k_group_size] -> codes, and the byte of their scale. */
K_FN uint8_t k_encode_group(enum k_format format, const float *x, uint8_t *codes)
{
    uint8_t code = 0;
    if (format == K_ROW_FP8_32) {
        code = k_e8m0_ceil(k_at_least(k_amax(x, 32), 1e-4f) * (1.0f / 448.0f));
        float scale = k_e8m0_to_f32(code);
        for (uint32_t i = 0; i < 32; i++)
            codes[i] = k_f32_to_e4m3(x[i] / scale);
    } else if (format == K_ROW_FP4_16) {
        code = k_f32_to_e4m3(k_at_least(k_amax(x, 16), 6 * 0x1p-9f) / 6);
        k_put_nibbles(x, k_e4m3_to_f32(code), 16, codes);
    } else if (format == K_ROW_FP4_32) {
        code = k_e8m0_ceil(k_at_least(k_amax(x, 32), 6 * 0x1p-126f) * (1.0f / 6.0f));
        k_put_nibbles(x, k_e8m0_to_f32(code), 32, codes);
    }
    return code;
}

/* codes and scale byte of a group -> x [k_group_size]. */
K_FN void k_decode_group(enum k_format format, const uint8_t *codes, uint8_t code, float *x)
{
    float scale = format == K_ROW_FP4_16 ? k_e4m3_to_f32(code) : k_e8m0_to_f32(code);
    if (format == K_ROW_FP8_32) {
        for (uint32_t i = 0; i < 32; i++)
            x[i] = k_e4m3_to_f32(codes[i]) * scale;
        return;
    }
    for (uint32_t i = 0; i < k_group_size(format); i += 2) {
        x[i] = k_e2m1_to_f32(codes[i / 2]) * scale;
        x[i + 1] = k_e2m1_to_f32((uint8_t)(codes[i / 2] >> 4)) * scale;
    }
}

/* Bytes of the codes of one group; the scales of a row stand behind all its codes. */
K_FN uint32_t k_group_bytes(enum k_format format)
{
    return format == K_ROW_FP8_32 ? 32 : format == K_ROW_FP4_32 ? 16 : 8;
}

#endif
