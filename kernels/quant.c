#include "kernels/quant.h"

#include <assert.h>

#include "kernels/host.h"

/* Largest magnitude; NaN if any is NaN. */
static float amax(const float *x, uint32_t n)
{
    uint32_t max = 0; /* magnitudes order like their bits, NaN on top */
    for (uint32_t i = 0; i < n; i++) {
        uint32_t u = k_f32_bits(x[i]) & 0x7fffffffu;
        max = u > max ? u : max;
    }
    return k_f32_from_bits(max);
}

/* amax or the floor, NaN kept */
static float at_least(float x, float floor)
{
    return x < floor ? floor : x;
}

static uint8_t scale_fp8_32(const float *x)
{
    return k_e8m0_ceil(at_least(amax(x, 32), 1e-4f) * (1.0f / 448.0f));
}

static void encode_fp8_32(const float *x, uint32_t d, uint8_t *row)
{
    for (uint32_t g = 0; g < d / 32; g++) {
        uint8_t code = scale_fp8_32(x + g * 32);
        float scale = k_e8m0_to_f32(code);
        row[d + g] = code;
        for (uint32_t i = g * 32; i < g * 32 + 32; i++)
            row[i] = k_f32_to_e4m3(x[i] / scale);
    }
}

/* Two codes to a byte, the even one low. */
static void put_nibbles(const float *x, float scale, uint32_t n, uint8_t *dst)
{
    for (uint32_t i = 0; i < n; i += 2)
        dst[i / 2] =
            (uint8_t)(k_f32_to_e2m1(x[i] / scale) | k_f32_to_e2m1(x[i + 1] / scale) << 4);
}

static void encode_fp4_16(const float *x, uint32_t d, uint8_t *row)
{
    for (uint32_t g = 0; g < d / 16; g++) {
        uint8_t code = k_f32_to_e4m3(at_least(amax(x + g * 16, 16), 6 * 0x1p-9f) / 6);
        row[d / 2 + g] = code;
        put_nibbles(x + g * 16, k_e4m3_to_f32(code), 16, row + g * 8);
    }
}

static void encode_fp4_32(const float *x, uint32_t d, uint8_t *row)
{
    for (uint32_t g = 0; g < d / 32; g++) {
        uint8_t code =
            k_e8m0_ceil(at_least(amax(x + g * 32, 32), 6 * 0x1p-126f) * (1.0f / 6.0f));
        row[d / 2 + g] = code;
        put_nibbles(x + g * 32, k_e8m0_to_f32(code), 32, row + g * 16);
    }
}

void k_encode_row(enum k_format format, const float *x, uint32_t d, uint8_t *row)
{
    assert(k_row_bytes(format, d));
    switch (format) {
    case K_ROW_F32:
        memcpy(row, x, (size_t)d * 4);
        break;
    case K_ROW_FP8_32:
        encode_fp8_32(x, d, row);
        break;
    case K_ROW_FP4_16:
        encode_fp4_16(x, d, row);
        break;
    case K_ROW_FP4_32:
        encode_fp4_32(x, d, row);
        break;
    }
}

static void decode_fp4(const uint8_t *codes, float scale, uint32_t n, float *x)
{
    for (uint32_t i = 0; i < n; i += 2) {
        x[i] = k_e2m1_to_f32(codes[i / 2]) * scale;
        x[i + 1] = k_e2m1_to_f32(codes[i / 2] >> 4) * scale;
    }
}

void k_decode_row(enum k_format format, const uint8_t *row, uint32_t d, float *x)
{
    switch (format) {
    case K_ROW_F32:
        memcpy(x, row, (size_t)d * 4);
        break;
    case K_ROW_FP8_32:
        for (uint32_t g = 0; g < d / 32; g++) {
            float scale = k_e8m0_to_f32(row[d + g]);
            for (uint32_t i = g * 32; i < g * 32 + 32; i++)
                x[i] = k_e4m3_to_f32(row[i]) * scale;
        }
        break;
    case K_ROW_FP4_16:
        for (uint32_t g = 0; g < d / 16; g++)
            decode_fp4(row + g * 8, k_e4m3_to_f32(row[d / 2 + g]), 16, x + g * 16);
        break;
    case K_ROW_FP4_32:
        for (uint32_t g = 0; g < d / 32; g++)
            decode_fp4(row + g * 16, k_e8m0_to_f32(row[d / 2 + g]), 32, x + g * 32);
        break;
    }
}

/* y may be x: a group is read whole before it is written. */
static void fake_group(enum k_format format, const float *x, uint32_t n, float *y)
{
    uint8_t row[64];
    k_encode_row(format, x, n, row);
    k_decode_row(format, row, n, y);
}

void k_quant_activation(const float *x, uint32_t d, float *y)
{
    assert(d % 32 == 0);
    for (uint32_t i = 0; i < d; i++)
        y[i] = k_bf16(x[i]);
    for (uint32_t i = 0; i < d; i += 32)
        fake_group(K_ROW_FP8_32, y + i, 32, y + i);
}

static void encode_rows(void *arg, size_t first, size_t last, uint32_t thread)
{
    const struct k_encode *a = arg;
    (void)thread;
    size_t bytes = k_row_bytes(a->format, a->d);
    for (size_t i = first; i < last; i++)
        k_encode_row(a->format, a->x + i * k_stride(a->x_stride, a->d), a->d,
                     (uint8_t *)a->rows + i * bytes);
}

void k_encode_ref(struct kernels *k, const struct k_encode *a)
{
    if (k_failed(k))
        return;
    struct k_encode args = *a;
    k_run(k, encode_rows, &args, a->n, a->n * a->d * 5);
}

static void decode_rows(void *arg, size_t first, size_t last, uint32_t thread)
{
    const struct k_decode *a = arg;
    (void)thread;
    size_t bytes = k_row_bytes(a->format, a->d);
    for (size_t i = first; i < last; i++)
        k_decode_row(a->format, (const uint8_t *)a->rows + i * bytes, a->d, a->x + i * a->d);
}

void k_decode_ref(struct kernels *k, const struct k_decode *a)
{
    if (k_failed(k))
        return;
    struct k_decode args = *a;
    k_run(k, decode_rows, &args, a->n, a->n * a->d * 3);
}

static void fake_rows(void *arg, size_t first, size_t last, uint32_t thread)
{
    const struct k_fake_quant *a = arg;
    (void)thread;
    size_t from = first * a->d, end = last * a->d;
    uint32_t group = a->format == K_ROW_FP4_16 ? 16 : 32;
    if (a->format == K_ROW_F32)
        memmove(a->y + from, a->x + from, (end - from) * sizeof(float));
    else
        for (size_t i = from; i < end; i += group)
            fake_group(a->format, a->x + i, group, a->y + i);
}

void k_fake_quant_ref(struct kernels *k, const struct k_fake_quant *a)
{
    if (k_failed(k))
        return;
    struct k_fake_quant args = *a;
    assert(k_row_bytes(a->format, a->d));
    k_run(k, fake_rows, &args, a->n, a->n * a->d * 8);
}
