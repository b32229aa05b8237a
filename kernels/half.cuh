/* Tensor-core products of numbers that bf16 is too short for: fp16 pairs. For attention.cu and
 * index.cu.
 *
 * A f32 operand becomes two fp16 terms, high and low, 22 bits of it, and every product is made
 * twice; a cached FP8 or FP4 value is one fp16 exactly. What fp16 lacks is range: a row is
 * divided by a power of two that is near its largest value (exact), and the sum is multiplied
 * by it. Three bf16 terms need no such care, at half as many products again and six bytes a
 * value. Sums are f32. Fragments are those of linear_mma.cuh. */
#ifndef KERNELS_HALF_CUH
#define KERNELS_HALF_CUH

#include "kernels/cuda.cuh"
#include "kernels/quant_groups.h"

/* D += A B, m16 n8 k16, fp16 in and f32 sums. */
__device__ static inline void k_half_mma(float d[4], const uint32_t a[4], const uint32_t b[2])
{
#ifdef K_CUDA_EMULATED
    cuda_emulated_mma_f16(d, a, b);
#else
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
                 "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#endif
}

/* Four 8x8 matrices of shared memory as fragments; lane l gives the address of row l % 8 of
 * matrix l / 8, 16 bytes aligned to 16. */
__device__ static inline void k_half_load(uint32_t r[4], const uint16_t *row)
{
#ifdef K_CUDA_EMULATED
    cuda_emulated_ldmatrix(r, row, false);
#else
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"((unsigned)__cvta_generic_to_shared(row))
                 : "memory");
#endif
}

/* The same, each matrix transposed. */
__device__ static inline void k_half_load_transposed(uint32_t r[4], const uint16_t *row)
{
#ifdef K_CUDA_EMULATED
    cuda_emulated_ldmatrix(r, row, true);
#else
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"((unsigned)__cvta_generic_to_shared(row))
                 : "memory");
#endif
}

/* Two values as fp16, nearest even; x in the low half. */
__device__ static inline uint32_t k_half_pair(float x, float y)
{
#ifdef K_CUDA_EMULATED
    return cuda_emulated_f16x2(x, y);
#else
    uint32_t pair;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(y), "f"(x));
    return pair;
#endif
}

__device__ static inline float k_half_to_f32(uint32_t half)
{
#ifdef K_CUDA_EMULATED
    return cuda_emulated_f16_to_f32((uint16_t)half);
#else
    float x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"((uint16_t)half));
    return x;
#endif
}

/* Both halves of a by both halves of b. */
__device__ static inline uint32_t k_half_mul(uint32_t a, uint32_t b)
{
#ifdef K_CUDA_EMULATED
    return cuda_emulated_f16x2(cuda_emulated_f16_to_f32((uint16_t)a) *
                                   cuda_emulated_f16_to_f32((uint16_t)b),
                               cuda_emulated_f16_to_f32((uint16_t)(a >> 16)) *
                                   cuda_emulated_f16_to_f32((uint16_t)(b >> 16)));
#else
    uint32_t product;
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(product) : "r"(a), "r"(b));
    return product;
#endif
}

/* x and y, two values below 2^15, as pairs of their high and low terms. An infinity or a NaN
 * has no low term. */
__device__ static inline void k_half_split(float x, float y, uint32_t *high, uint32_t *low)
{
    uint32_t pair = k_half_pair(x, y);
    float rest_x = x - k_half_to_f32(pair & 0xffffu), rest_y = y - k_half_to_f32(pair >> 16);
    *high = pair;
    *low = k_half_pair(rest_x == rest_x ? rest_x : 0, rest_y == rest_y ? rest_y : 0);
}

/* Two E4M3 codes, in bits 8..15 and 24..31, as fp16, divided by 2^8: the exponent's bias is 8
 * more, subnormals fall into place, only NaN (0x7f) has to be made. */
__device__ static inline uint32_t k_half_e4m3(uint32_t codes)
{
    uint32_t nan = ((codes & 0x7f007f00u) + 0x01000100u) & 0x80008000u;
    return (codes & 0x80008000u) | (codes & 0x7f007f00u) >> 1 | (nan >> 15) * 0x7e00u;
}

/* The two E2M1 codes of the low byte as fp16, divided by 2^14. */
__device__ static inline uint32_t k_half_e2m1(uint32_t codes)
{
    uint32_t y = (codes & 0x0fu) << 12 | (codes & 0xf0u) << 24;
    return (y & 0x80008000u) | (y & 0x70007000u) >> 3;
}

/* Rows of a format have their values divided by 2^(exponent - 127) when they become fp16: for
 * scales of E8M0 the largest scale, for scales of E4M3 the power of two below it. NaN scales do
 * not count. `exponent` begins with 0; code is one scale of the row. */
__device__ static inline uint32_t k_half_exponent(enum k_format format, uint32_t exponent,
                                                  uint8_t code)
{
    uint32_t e = code;
    if (format == K_ROW_FP4_16)
        e = k_f32_bits(k_e4m3_to_f32(code & 0x7fu)) >> 23;
    return e < 255 && e > exponent ? e : exponent;
}

/* What brings codes of a group, as k_half_e4m3 or k_half_e2m1 gave them, to their value divided
 * by 2^(exponent - 127): twice, as a pair. */
__device__ static inline uint32_t k_half_factor(enum k_format format, uint32_t exponent,
                                                uint8_t code)
{
    if (format ==
        K_ROW_FP4_16) { /* scale 2^14 / 2^(exponent - 127), exponent 118 .. 135 or 0 */
        float down = exponent ? k_f32_from_bits((268 - exponent) << 23) : 1;
        float f = k_e4m3_to_f32(code) * down;
        return k_half_pair(f, f);
    }
    int shift = (int)code - (int)exponent + (format == K_ROW_FP8_32 ? 8 : 14);
    float f = code == 255 ? k_e8m0_to_f32(255)
                          : k_f32_from_bits((uint32_t)(shift < -60 ? 0 : shift + 127) << 23);
    return k_half_pair(f, f);
}

/* Queries are divided so that the largest value of a row is below 2^(K_HALF_QUERY_BITS + 1). */
#define K_HALF_QUERY_BITS 7u

/* The biased exponent by which a warp divides a row: `most` is the largest of a lane's bits
 * without their sign. Multiply by k_half_query_down() of it. */
__device__ static inline uint32_t k_half_query_exponent(uint32_t most)
{
    for (int bits = 16; bits; bits /= 2) {
        uint32_t other = __shfl_xor_sync(K_ALL_LANES, most, bits);
        most = other > most ? other : most;
    }
    uint32_t exponent = most >> 23;
    return exponent == 255 ? 127 + K_HALF_QUERY_BITS : exponent < 8 ? 8 : exponent;
}

__device__ static inline float k_half_query_down(uint32_t exponent)
{
    return k_f32_from_bits((254 + K_HALF_QUERY_BITS - exponent) << 23);
}

#endif
