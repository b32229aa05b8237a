/* Engram: which table rows a token looks up. Depends on token ids alone, so the rows of a whole
 * chunk are known before its first layer runs. (Model description, section 9.)
 *
 * Per Engram layer there are (ngram - 1) orders x heads tables of consecutive prime sizes in
 * one tensor; a row number is the XOR hash of the last 2..ngram compressed ids modulo a prime,
 * plus the table's offset. Primes and multipliers are derived from the config exactly as the
 * release does: the multipliers come from numpy's default_rng (SeedSequence, PCG64, Lemire). */
#ifndef ENGINE_ENGRAM_H
#define ENGINE_ENGRAM_H

#include "engine/config.h"

/* Stands for "no token" in a compressed history: before the start, or inside an image span. */
#define ENGRAM_DEAD UINT32_MAX
#define ENGRAM_MAX_TABLES ((CONFIG_MAX_NGRAM - 1) * 64)

struct engram_layer {
    uint64_t multiplier[CONFIG_MAX_NGRAM];
    uint64_t prime[ENGRAM_MAX_TABLES];  /* order-major, head-minor */
    uint64_t offset[ENGRAM_MAX_TABLES]; /* sum of the primes before */
};

struct engram {
    uint32_t n_layers, ngram, n_heads, n_tables; /* n_tables = (ngram - 1) * n_heads */
    uint32_t pad;                                /* compressed id of the pad token */
    struct engram_layer layer[CONFIG_MAX_ENGRAM];
};

/* Derives primes, offsets and multipliers; pad is the compressed id of engram_pad_token_id.
 * ERR_FORMAT if the table sizes do not add up to engram_num_embeddings. */
NODISCARD enum err engram_init(struct engram *g, const struct config *c, uint32_t pad,
                               struct error *e);

/* Row numbers of n tokens in Engram layer k.
 * ids   [ngram - 1 + n] compressed ids, the history first; ENGRAM_DEAD blocks longer look-backs
 * rows  [n][n_tables] out */
void engram_rows(const struct engram *g, uint32_t k, const uint32_t *ids, uint32_t n,
                 uint64_t *rows);

/* numpy: default_rng(seed).integers(0, bound, n), bound above 2^32. */
void engram_random(uint32_t seed, uint64_t bound, uint32_t n, uint64_t *out);

#endif
