/* Python's random.Random, bit for bit, and the little of numpy's legacy generator that RULER
 * uses.
 *
 * Both are MT19937 (Matsumoto and Nishimura 1998); they differ in how a seed becomes a state
 * and in how raw words become numbers:
 *
 *   Python    seed: init_by_array over the 32-bit words of |seed|; below(n): the top bits of a
 *             word, drawn again until less than n (also for n = 1: that uses words up);
 *             sample(): a shuffled pool for small populations, else a set of what was drawn.
 *   numpy     seed: init_genrand; randint: a word under a power-of-two mask, drawn again until
 *             in range.
 *
 * The sequence that a caller draws is part of a suite's identity: every function here consumes
 * words exactly as the original does. Source: the documented behaviour of CPython 3.9 and later
 * (Lib/random.py) and of numpy.random.RandomState. */
#ifndef EVALS_PYRANDOM_H
#define EVALS_PYRANDOM_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

#define MT19937_WORDS 624

struct pyrandom {
    uint32_t state[MT19937_WORDS];
    uint32_t at; /* next word of state to be tempered; MT19937_WORDS: make new ones first */
};

/* random.seed(seed) for a seed that is not negative. */
void pyrandom_init(struct pyrandom *r, uint64_t seed);
/* The next 32 bits. */
uint32_t pyrandom_u32(struct pyrandom *r);
/* getrandbits(64), and getrandbits(128) as {low, high}: the least significant word is drawn
 * first. */
uint64_t pyrandom_u64(struct pyrandom *r);
void pyrandom_u128(struct pyrandom *r, uint64_t out[2]);
/* random(): 53 bits in [0, 1), from two words. */
double pyrandom_real(struct pyrandom *r);
/* _randbelow(n), 1 <= n < 2^32; randrange, randint and choice are this plus an offset. */
uint32_t pyrandom_below(struct pyrandom *r, uint32_t n);
/* One element of choices() over n equally likely ones: floor(random() * n). */
uint32_t pyrandom_choice_real(struct pyrandom *r, uint32_t n);
/* sample(range(n), k): k indices into out, k <= n < 2^32 (else ERR_INVAL). ERR_NOMEM. */
NODISCARD enum err pyrandom_sample(struct pyrandom *r, uint32_t n, uint32_t k, uint32_t *out,
                                   struct error *e);
/* shuffle(): from the last element down. */
void pyrandom_shuffle(struct pyrandom *r, uint32_t *v, size_t n);

/* numpy.random.seed(seed). Draw from it with nprandom_between only. */
void nprandom_init(struct pyrandom *r, uint32_t seed);
/* numpy.random.randint(low, high), low < high <= low + 2^32 - 1. */
int64_t nprandom_between(struct pyrandom *r, int64_t low, int64_t high);

#endif
