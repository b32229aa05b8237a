/* Philox4x32-10: counter-based random numbers (Salmon et al., SC 2011).
 *
 * The draw for (seed, counter) needs no state, so a sampler can be restarted at any position
 * and on any device. Host and device share the text. */
#ifndef KERNELS_PHILOX_H
#define KERNELS_PHILOX_H

#include "kernels/bits.h"

/* Four words from key (seed low, seed high) and counter (lo low, lo high, hi low, hi high). */
K_FN void k_philox(uint64_t seed, uint64_t counter_lo, uint64_t counter_hi, uint32_t out[4])
{
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    uint32_t c0 = (uint32_t)counter_lo, c1 = (uint32_t)(counter_lo >> 32);
    uint32_t c2 = (uint32_t)counter_hi, c3 = (uint32_t)(counter_hi >> 32);
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xd2511f53u * c0, p1 = (uint64_t)0xcd9e8d57u * c2;
        uint32_t n0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0, n2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)p1;
        c3 = (uint32_t)p0;
        c0 = n0;
        c2 = n2;
        k0 += 0x9e3779b9u;
        k1 += 0xbb67ae85u;
    }
    out[0] = c0, out[1] = c1, out[2] = c2, out[3] = c3;
}

/* Uniform double in [0, 1) with 53 bits, from words 0 and 1 of the same draw. */
K_FN double k_philox_uniform(uint64_t seed, uint64_t counter_lo, uint64_t counter_hi)
{
    uint32_t w[4];
    k_philox(seed, counter_lo, counter_hi, w);
    uint64_t bits = (((uint64_t)w[1] << 32) | w[0]) >> 11;
    return (double)bits * 0x1p-53;
}

#endif
