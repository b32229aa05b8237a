/* Philox4x32-10: counter-based random numbers (Salmon et al., SC 2011).
 *
 * The draw for (seed, counter) needs no state, so a sampler can be restarted at any position
 * and on any device. */
#ifndef KERNELS_PHILOX_H
#define KERNELS_PHILOX_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Four words from key (seed low, seed high) and counter (lo low, lo high, hi low, hi high). */
void k_philox(uint64_t seed, uint64_t counter_lo, uint64_t counter_hi, uint32_t out[4]);

/* Uniform double in [0, 1) with 53 bits, from words 0 and 1 of the same draw. */
double k_philox_uniform(uint64_t seed, uint64_t counter_lo, uint64_t counter_hi);

#ifdef __cplusplus
}
#endif
#endif
