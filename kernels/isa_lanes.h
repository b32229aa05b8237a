/* The vector vocabulary of isa_rows.h: LANES floats, by the compiler's vector extension.
 *
 * The including file has defined LANES and the primitives listed in isa_rows.h. `part` counts
 * the lanes that are in memory: constants where it is LANES, so that those branches vanish; the
 * other lanes read as 0. */
#ifndef KERNELS_ISA_LANES_H
#define KERNELS_ISA_LANES_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "kernels/bits.h"
#include "kernels/isa_types.h"

INLINE vf vf_all(float x)
{
    return (vf){0} + x;
}

INLINE vf vf_load_part(const float *p, size_t part)
{
    vf v = {0};
    if (part == LANES)
        memcpy(&v, p, sizeof v);
    else
        memcpy(&v, p, part * sizeof *p);
    return v;
}

INLINE void vf_store_part(float *p, vf v, size_t part)
{
    if (part == LANES)
        memcpy(p, &v, sizeof v);
    else
        memcpy(p, &v, part * sizeof *p);
}

/* a where mask is all ones, b where it is 0 */
INLINE vf vf_select(vi mask, vf a, vf b)
{
    return (vf)(((vi)a & mask) | ((vi)b & ~mask));
}

INLINE vi vi_select(vi mask, vi a, vi b)
{
    return (a & mask) | (b & ~mask);
}

INLINE vi vi_load(const int32_t *p)
{
    vi v;
    memcpy(&v, p, sizeof v);
    return v;
}

#ifndef OWN_KEEP
/* Whether a lane of the mask is set. */
INLINE bool vi_any(vi mask)
{
    uint64_t words[LANES / 2], any = 0;
    memcpy(words, &mask, sizeof mask);
    for (size_t i = 0; i < LANES / 2; i++)
        any |= words[i];
    return any;
}
#endif

/* 0, 1, 2, ... */
INLINE vi vi_lane(void)
{
    const int32_t lane[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    return vi_load(lane);
}

/* NaN in v stays. */
INLINE vf vf_min(vf v, vf limit)
{
    return vf_select(v > limit, limit, v);
}

INLINE vf vf_max(vf v, vf limit)
{
    return vf_select(v < limit, limit, v);
}

INLINE vf vf_relu(vf v)
{
    return vf_max(v, vf_all(0));
}

/* {sum a, sum b, sum c, sum d}, each as (0+1)+(2+3) */
INLINE v4 v4_sums(v4 a, v4 b, v4 c, v4 d)
{
    v4 ab =
        __builtin_shuffle(a, b, (v4i){0, 4, 2, 6}) + __builtin_shuffle(a, b, (v4i){1, 5, 3, 7});
    v4 cd =
        __builtin_shuffle(c, d, (v4i){0, 4, 2, 6}) + __builtin_shuffle(c, d, (v4i){1, 5, 3, 7});
    return __builtin_shuffle(ab, cd, (v4i){0, 1, 4, 5}) +
           __builtin_shuffle(ab, cd, (v4i){2, 3, 6, 7});
}

INLINE float vf_sum(vf v)
{
    v4 zero = {0};
    return v4_sums(vf_fold(v), zero, zero, zero)[0];
}

/* e^x within 2 ulp; 0 below -87.3, infinite above 88.7; NaN stays. */
INLINE vf vf_exp(vf x)
{
    vf at = vf_max(vf_min(x, vf_all(89)), vf_all(-88));
    vf magic = vf_all(0x1.8p23f);
    vf n = (at * vf_all(0x1.715476p0f) + magic) - magic;
    vf r = vf_fma(n, vf_all(-0x1.62e4p-1f), at);
    r = vf_fma(n, vf_all(-0x1.7f7d1cp-20f), r);
    vf p = vf_all(1.0f / 5040);
    p = vf_fma(p, r, vf_all(1.0f / 720));
    p = vf_fma(p, r, vf_all(1.0f / 120));
    p = vf_fma(p, r, vf_all(1.0f / 24));
    p = vf_fma(p, r, vf_all(1.0f / 6));
    p = vf_fma(p, r, vf_all(0.5f));
    p = vf_fma(p * r, r, r) + vf_all(1);
    /* 2^n in two factors: n reaches 128; NaN is whatever the conversion says, p carries it */
    vi ni = __builtin_convertvector(vf_select(n == n, n, vf_all(0)), vi), half = ni >> 1;
    p = p * (vf)((half + 127) << 23) * (vf)((ni - half + 127) << 23);
    return vf_select(x < vf_all(-87.33654f), vf_all(0), p);
}

INLINE vf vf_from_bf16(const uint16_t *p, size_t part)
{
    vh h = {0};
    if (part == LANES)
        memcpy(&h, p, sizeof h);
    else
        memcpy(&h, p, part * sizeof *p);
    return (vf)(vu_widen16(h) << 16);
}

/* Nearest even, NaN quiet: the bits of k_f32_to_bf16 in the upper half of each lane. */
INLINE vu bf16_bits(vf v)
{
    vu u = (vu)v;
    vu rounded = u + 0x7fffu + ((u >> 16) & 1u);
    vu nan = (vu)(v != v);
    return (rounded & ~nan) | ((u | 0x400000u) & nan);
}

INLINE vf vf_bf16(vf v)
{
    return (vf)(bf16_bits(v) & 0xffff0000u);
}

INLINE void vf_store_bf16(uint16_t *p, vf v)
{
    vh h = vu_narrow16(bf16_bits(v) >> 16);
    memcpy(p, &h, sizeof h);
}

/* n (2, 4, 8 or 16) bytes, the rest 0: through a register, as a store of few bytes and a load
 * of sixteen would wait for each other. */
INLINE v16b load_bytes(const uint8_t *p, size_t n)
{
    v16b b;
    uint64_t u = 0;
    if (n == 16)
        memcpy(&b, p, 16);
    else
        memcpy(&u, p, n), b = (v16b)(v2u){u, 0};
    return b;
}

INLINE vu vu_load_bytes(const uint8_t *p)
{
    return vu_widen8(load_bytes(p, LANES));
}

/* LANES nibbles from LANES/2 bytes, the low one first. */
INLINE vu vu_load_nibbles(const uint8_t *p)
{
    const v16b zip = {0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23};
    v16b b = load_bytes(p, LANES / 2);
    return vu_widen8(__builtin_shuffle(b & 15, b >> 4, zip));
}

/* Lanes of 0..255 as k_e4m3_to_f32. */
INLINE vf vf_e4m3(vu c)
{
    vu magnitude = c & 0x7fu;
    vf normal = (vf)((magnitude << 20) + (120u << 23));
    vf subnormal = __builtin_convertvector((vi)magnitude, vf) * vf_all(0x1p-9f);
    vf v = vf_select((vi)(magnitude < 8u), subnormal, normal);
    v = vf_select((vi)(magnitude == 0x7fu), (vf)((vu){0} + 0x7fc00000u), v);
    return (vf)((vu)v | ((c & 0x80u) << 24));
}

/* LANES E4M3 codes. */
INLINE vf vf_from_e4m3(const uint8_t *codes)
{
    return vf_e4m3(vu_load_bytes(codes));
}

/* The lower four bits of each lane, as k_e2m1_to_f32. */
INLINE vf vf_e2m1(vu c)
{
#if LANES == 16
    const vf values = {0, .5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -.5f, -1, -1.5f, -2, -3, -4, -6};
    return __builtin_shuffle(values, (vi)c);
#else
    static const float magnitudes[8] = {0, .5f, 1, 1.5f, 2, 3, 4, 6};
    vf v;
#if LANES == 8
    memcpy(&v, magnitudes, sizeof v);
    v = __builtin_shuffle(v, (vi)(c & 7u));
#else
    for (size_t i = 0; i < LANES; i++)
        v[i] = magnitudes[c[i] & 7u];
#endif
    return (vf)((vu)v | ((c & 8u) << 28));
#endif
}

/* LANES E2M1 codes from LANES/2 bytes, the even one low. */
INLINE vf vf_from_e2m1(const uint8_t *codes)
{
    return vf_e2m1(vu_load_nibbles(codes));
}

#endif
