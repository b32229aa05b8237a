/* Bit patterns of the storage formats, one value at a time. Exact unless it says "round".
 *
 * E4M3 (fn): bias 7, no infinity, 0x7f and 0xff are NaN, largest 448, subnormal step 2^-9.
 * E8M0: 2^(b-127), 255 is NaN. E2M1: sign bit 8, then {0, .5, 1, 1.5, 2, 3, 4, 6}.
 * Source: model.md sections 2.1 and 3; OCP microscaling formats 1.0. */
#ifndef KERNELS_BITS_H
#define KERNELS_BITS_H

#include <stdint.h>
#include <string.h>

/* A function whose text host and device share. */
#ifdef __CUDACC__
#define K_FN static __host__ __device__ inline
#else
#define K_FN static inline
#endif

K_FN uint32_t k_f32_bits(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

K_FN float k_f32_from_bits(uint32_t u)
{
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

K_FN float k_bf16_to_f32(uint16_t b)
{
    return k_f32_from_bits((uint32_t)b << 16);
}

/* Round to nearest even; NaN stays a (quiet) NaN of the same sign. */
K_FN uint16_t k_f32_to_bf16(float x)
{
    uint32_t u = k_f32_bits(x);
    if ((u & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)((u >> 16) | 0x40u);
    return (uint16_t)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

/* x rounded to bf16, as f32. */
K_FN float k_bf16(float x)
{
    return k_bf16_to_f32(k_f32_to_bf16(x));
}

/* 2^(b-127); 0 gives the subnormal 2^-127, 255 NaN. */
K_FN float k_e8m0_to_f32(uint8_t b)
{
    if (b == 0)
        return k_f32_from_bits(0x00400000u);
    return k_f32_from_bits(b == 255 ? 0x7fc00000u : (uint32_t)b << 23);
}

K_FN float k_e4m3_to_f32(uint8_t code)
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
K_FN float k_e2m1_to_f32(uint8_t nibble)
{
    static const float values[16] = {0,     0.5f,  1,  1.5f,  2,  3,  4,  6,
                                     -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6};
    return values[nibble & 15];
}

/* Round to nearest even after clamping to +-448; NaN gives NaN (0x7f). */
K_FN uint8_t k_f32_to_e4m3(float x)
{
    uint32_t u = k_f32_bits(x);
    uint32_t sign = (u >> 24) & 0x80u;
    u &= 0x7fffffffu;
    if (u > 0x7f800000u)
        return (uint8_t)(sign | 0x7f);
    if (u >= 0x43e00000u) /* 448 and above */
        return (uint8_t)(sign | 0x7e);
    if (u < 0x3c800000u) { /* below 2^-6: 2^14 has an ulp of 2^-9, so the sum rounds there */
        float sum = k_f32_from_bits(u) + 0x1p14f;
        return (uint8_t)(sign | (k_f32_bits(sum) & 0xfu));
    }
    u += 0x7ffffu + ((u >> 20) & 1u);
    return (uint8_t)(sign | ((u - (120u << 23)) >> 20));
}

/* Round to nearest, ties to the even code, after clamping to +-6; NaN gives +6 (the caller's
 * scale carries the NaN). -0 keeps its sign. */
K_FN uint8_t k_f32_to_e2m1(float x)
{
    uint32_t sign = (k_f32_bits(x) >> 28) & 8u;
    float a = k_f32_from_bits(k_f32_bits(x) & 0x7fffffffu);
    if (!(a <= 5))
        return (uint8_t)(sign | 7);
    int code =
        (a > 0.25f) + (a >= 0.75f) + (a > 1.25f) + (a >= 1.75f) + (a > 2.5f) + (a >= 3.5f);
    return (uint8_t)(sign | (uint32_t)code);
}

/* The E8M0 byte of 2^ceil(log2(x)), x > 0, on the bits; 255 for NaN, Inf and above 2^127. */
K_FN uint8_t k_e8m0_ceil(float x)
{
    uint32_t u = k_f32_bits(x);
    if (u >= 0x7f800000u)
        return 255;
    return (uint8_t)((u >> 23) + ((u & 0x7fffffu) != 0));
}

#endif
