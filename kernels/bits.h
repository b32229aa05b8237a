/* Bit patterns of the storage formats, one value at a time. Exact unless it says "round".
 *
 * E4M3 (fn): bias 7, no infinity, 0x7f and 0xff are NaN, largest 448, subnormal step 2^-9.
 * E8M0: 2^(b-127), 255 is NaN. E2M1: sign bit 8, then {0, .5, 1, 1.5, 2, 3, 4, 6}.
 * Source: model.md sections 2.1 and 3; OCP microscaling formats 1.0. */
#ifndef KERNELS_BITS_H
#define KERNELS_BITS_H

#include <stdint.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

static inline uint32_t k_f32_bits(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

static inline float k_f32_from_bits(uint32_t u)
{
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

static inline float k_bf16_to_f32(uint16_t b)
{
    return k_f32_from_bits((uint32_t)b << 16);
}

/* Round to nearest even; NaN stays a (quiet) NaN of the same sign. */
static inline uint16_t k_f32_to_bf16(float x)
{
    uint32_t u = k_f32_bits(x);
    if ((u & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)((u >> 16) | 0x40u);
    return (uint16_t)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

/* x rounded to bf16, as f32. */
static inline float k_bf16(float x)
{
    return k_bf16_to_f32(k_f32_to_bf16(x));
}

/* 2^(b-127); 0 gives the subnormal 2^-127, 255 NaN. */
static inline float k_e8m0_to_f32(uint8_t b)
{
    if (b == 0)
        return k_f32_from_bits(0x00400000u);
    return k_f32_from_bits(b == 255 ? 0x7fc00000u : (uint32_t)b << 23);
}

static inline float k_e4m3_to_f32(uint8_t code)
{
    uint32_t sign = (uint32_t)(code & 0x80) << 24;
    uint32_t magnitude = code & 0x7fu;
    if (magnitude == 0x7f)
        return k_f32_from_bits(sign | 0x7fc00000u);
    if (magnitude < 8) /* subnormal: steps of 2^-9 */
        return k_f32_from_bits(sign | k_f32_bits((float)magnitude * 0x1p-9f));
    return k_f32_from_bits(sign | ((magnitude << 20) + (120u << 23)));
}

/* The lower four bits are the code. */
static inline float k_e2m1_to_f32(uint8_t nibble)
{
    static const float values[16] = {0,     0.5f,  1,  1.5f,  2,  3,  4,  6,
                                     -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6};
    return values[nibble & 15];
}

/* Round to nearest even after clamping to +-448; NaN gives NaN (0x7f). */
uint8_t k_f32_to_e4m3(float x);
/* Round to nearest, ties to the even code, after clamping to +-6; NaN gives +6 (the caller's
 * scale carries the NaN). -0 keeps its sign. */
uint8_t k_f32_to_e2m1(float x);
/* The E8M0 byte of 2^ceil(log2(x)), x > 0, on the bits; 255 for NaN, Inf and above 2^127. */
uint8_t k_e8m0_ceil(float x);

#ifdef __cplusplus
}
#endif
#endif
