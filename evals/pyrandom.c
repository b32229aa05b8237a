#include "evals/pyrandom.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/auto.h"

#define PERIOD 397
#define UPPER 0x80000000u
#define LOWER 0x7fffffffu
#define TWIST 0x9908b0dfu

/* ---- seeds ------------------------------------------------------------------------------ */

void nprandom_init(struct pyrandom *r, uint32_t seed)
{
    r->state[0] = seed;
    for (uint32_t i = 1; i < MT19937_WORDS; i++)
        r->state[i] = 1812433253u * (r->state[i - 1] ^ r->state[i - 1] >> 30) + i;
    r->at = MT19937_WORDS;
}

/* The reference's init_by_array: every word of the key is mixed into every word of the state.
 */
void pyrandom_init(struct pyrandom *r, uint64_t seed)
{
    const uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    const uint32_t n_key = key[1] ? 2 : 1;
    uint32_t *s = r->state, i = 1, j = 0;
    nprandom_init(r, 19650218u);
    for (uint32_t k = 0; k < MT19937_WORDS; k++) {
        s[i] = (s[i] ^ (s[i - 1] ^ s[i - 1] >> 30) * 1664525u) + key[j] + j;
        j = (j + 1) % n_key;
        if (++i == MT19937_WORDS) {
            s[0] = s[MT19937_WORDS - 1];
            i = 1;
        }
    }
    for (uint32_t k = 0; k < MT19937_WORDS - 1; k++) {
        s[i] = (s[i] ^ (s[i - 1] ^ s[i - 1] >> 30) * 1566083941u) - i;
        if (++i == MT19937_WORDS) {
            s[0] = s[MT19937_WORDS - 1];
            i = 1;
        }
    }
    s[0] = UPPER;
}

/* ---- words ------------------------------------------------------------------------------ */

static void next_state(uint32_t *s)
{
    for (uint32_t i = 0; i < MT19937_WORDS; i++) {
        uint32_t y = (s[i] & UPPER) | (s[(i + 1) % MT19937_WORDS] & LOWER);
        s[i] = s[(i + PERIOD) % MT19937_WORDS] ^ y >> 1 ^ (y & 1 ? TWIST : 0);
    }
}

uint32_t pyrandom_u32(struct pyrandom *r)
{
    if (r->at == MT19937_WORDS) {
        next_state(r->state);
        r->at = 0;
    }
    uint32_t y = r->state[r->at++];
    y ^= y >> 11;
    y ^= y << 7 & 0x9d2c5680u;
    y ^= y << 15 & 0xefc60000u;
    return y ^ y >> 18;
}

uint64_t pyrandom_u64(struct pyrandom *r)
{
    uint64_t low = pyrandom_u32(r);
    return low | (uint64_t)pyrandom_u32(r) << 32;
}

void pyrandom_u128(struct pyrandom *r, uint64_t out[2])
{
    out[0] = pyrandom_u64(r);
    out[1] = pyrandom_u64(r);
}

double pyrandom_real(struct pyrandom *r)
{
    uint32_t high = pyrandom_u32(r) >> 5, low = pyrandom_u32(r) >> 6;
    return (high * 67108864.0 + low) / 9007199254740992.0;
}

uint32_t pyrandom_below(struct pyrandom *r, uint32_t n)
{
    assert(n > 0);
    const int shift = __builtin_clz(n); /* 32 - n.bit_length() */
    uint32_t v = pyrandom_u32(r) >> shift;
    while (v >= n)
        v = pyrandom_u32(r) >> shift;
    return v;
}

uint32_t pyrandom_choice_real(struct pyrandom *r, uint32_t n)
{
    return (uint32_t)floor(pyrandom_real(r) * n);
}

int64_t nprandom_between(struct pyrandom *r, int64_t low, int64_t high)
{
    assert(low < high && high - low <= UINT32_MAX);
    const uint32_t range = (uint32_t)(high - 1 - low);
    if (!range)
        return low;
    const uint32_t mask = UINT32_MAX >> __builtin_clz(range);
    uint32_t v = pyrandom_u32(r) & mask;
    while (v > range)
        v = pyrandom_u32(r) & mask;
    return low + v;
}

/* ---- samples ---------------------------------------------------------------------------- */

static enum err sample_pool(struct pyrandom *r, uint32_t n, uint32_t k, uint32_t *out,
                            struct error *e)
{
    AUTO_FREE uint32_t *pool = calloc(n ? n : 1, sizeof *pool);
    if (!pool)
        return err_set(e, ERR_NOMEM, "no memory for a pool of %u", n);
    for (uint32_t i = 0; i < n; i++)
        pool[i] = i;
    for (uint32_t i = 0; i < k; i++) {
        uint32_t j = pyrandom_below(r, n - i);
        out[i] = pool[j];
        pool[j] = pool[n - i - 1];
    }
    return OK;
}

static enum err sample_set(struct pyrandom *r, uint32_t n, uint32_t k, uint32_t *out,
                           struct error *e)
{
    AUTO_FREE uint8_t *taken = calloc(n / 8 + 1, 1);
    if (!taken)
        return err_set(e, ERR_NOMEM, "no memory for a set over %u", n);
    for (uint32_t i = 0; i < k; i++) {
        uint32_t j;
        do {
            j = pyrandom_below(r, n);
        } while (taken[j / 8] >> j % 8 & 1);
        taken[j / 8] |= (uint8_t)(1u << j % 8);
        out[i] = j;
    }
    return OK;
}

enum err pyrandom_sample(struct pyrandom *r, uint32_t n, uint32_t k, uint32_t *out,
                         struct error *e)
{
    if (k > n)
        return err_set(e, ERR_INVAL, "cannot draw %u different ones out of %u", k, n);
    /* Python takes the pool while a list of n is smaller than its estimate of a set of k: 21
     * plus the power of four not below 3k. */
    uint64_t set_size = 21;
    if (k > 5) {
        uint64_t table = 1;
        while (table < UINT64_C(3) * k)
            table *= 4;
        set_size += table;
    }
    return n <= set_size ? sample_pool(r, n, k, out, e) : sample_set(r, n, k, out, e);
}

void pyrandom_shuffle(struct pyrandom *r, uint32_t *v, size_t n)
{
    assert(n <= UINT32_MAX);
    for (uint32_t i = (uint32_t)n; i-- > 1;) {
        uint32_t j = pyrandom_below(r, i + 1);
        uint32_t swap = v[i];
        v[i] = v[j];
        v[j] = swap;
    }
}
