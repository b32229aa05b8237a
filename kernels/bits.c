#include "kernels/bits.h"

uint8_t k_f32_to_e4m3(float x)
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

uint8_t k_f32_to_e2m1(float x)
{
    uint32_t sign = (k_f32_bits(x) >> 28) & 8u;
    float a = k_f32_from_bits(k_f32_bits(x) & 0x7fffffffu);
    if (!(a <= 5))
        return (uint8_t)(sign | 7);
    int code =
        (a > 0.25f) + (a >= 0.75f) + (a > 1.25f) + (a >= 1.75f) + (a > 2.5f) + (a >= 3.5f);
    return (uint8_t)(sign | (uint32_t)code);
}

uint8_t k_e8m0_ceil(float x)
{
    uint32_t u = k_f32_bits(x);
    if (u >= 0x7f800000u)
        return 255;
    return (uint8_t)((u >> 23) + ((u & 0x7fffffu) != 0));
}
