#include "engine/engram.h"

#include <assert.h>
#include <inttypes.h>

/* ---- numpy's default_rng ------------------------------------------------------------------
 */

__extension__ typedef unsigned __int128 u128; /* C11 has no name for it */

struct pcg64 {
    u128 state, inc;
};

static uint32_t hash_word(uint32_t v, uint32_t *hash, uint32_t mult)
{
    v ^= *hash;
    *hash *= mult;
    v *= *hash;
    return v ^ v >> 16;
}

static uint32_t mix_words(uint32_t x, uint32_t y)
{
    uint32_t r = 0xca01f9ddu * x - 0x4973f715u * y;
    return r ^ r >> 16;
}

/* SeedSequence(seed).generate_state(4, uint64), for a seed of one 32-bit word. */
static void seed_sequence(uint32_t seed, uint64_t out[4])
{
    uint32_t pool[4] = {seed, 0, 0, 0}, hash = 0x43b0d7e5u;
    for (int i = 0; i < 4; i++)
        pool[i] = hash_word(pool[i], &hash, 0x931e8875u);
    for (int src = 0; src < 4; src++)
        for (int dst = 0; dst < 4; dst++)
            if (src != dst)
                pool[dst] = mix_words(pool[dst], hash_word(pool[src], &hash, 0x931e8875u));
    hash = 0x8b51f9ddu;
    for (int i = 0; i < 4; i++) {
        uint64_t low = hash_word(pool[2 * i % 4], &hash, 0x58f38dedu);
        uint64_t high = hash_word(pool[(2 * i + 1) % 4], &hash, 0x58f38dedu);
        out[i] = high << 32 | low;
    }
}

static void pcg64_step(struct pcg64 *r)
{
    r->state = r->state * ((u128)0x2360ed051fc65da4u << 64 | 0x4385df649fccf645u) + r->inc;
}

static void pcg64_seed(struct pcg64 *r, uint32_t seed)
{
    uint64_t s[4];
    seed_sequence(seed, s);
    r->inc = ((u128)s[2] << 64 | s[3]) << 1 | 1;
    r->state = 0;
    pcg64_step(r);
    r->state += (u128)s[0] << 64 | s[1];
    pcg64_step(r);
}

static uint64_t pcg64_next(struct pcg64 *r)
{
    pcg64_step(r);
    uint64_t x = (uint64_t)(r->state >> 64) ^ (uint64_t)r->state;
    unsigned rot = (unsigned)(r->state >> 122);
    return x >> rot | x << (-rot & 63);
}

void engram_random(uint32_t seed, uint64_t bound, uint32_t n, uint64_t *out)
{
    struct pcg64 r;
    pcg64_seed(&r, seed);
    uint64_t reject_below = -bound % bound; /* 2^64 mod bound (Lemire) */
    for (uint32_t i = 0; i < n; i++) {
        u128 m;
        do
            m = (u128)pcg64_next(&r) * bound;
        while ((uint64_t)m < reject_below);
        out[i] = (uint64_t)(m >> 64);
    }
}

/* ---- tables -------------------------------------------------------------------------------
 */

static bool is_prime(uint64_t n)
{
    if (n < 4 || n % 2 == 0)
        return n == 2 || n == 3;
    for (uint64_t d = 3; d * d <= n; d += 2)
        if (n % d == 0)
            return false;
    return true;
}

static uint64_t next_prime(uint64_t n)
{
    do
        n++;
    while (!is_prime(n));
    return n;
}

enum err engram_init(struct engram *g, const struct config *c, uint32_t pad, struct error *e)
{
    *g = (struct engram){.n_layers = c->n_engram,
                         .ngram = c->engram_ngram,
                         .n_heads = c->engram_heads,
                         .n_tables = (c->engram_ngram - 1) * c->engram_heads,
                         .pad = pad};
    uint64_t bound = (uint64_t)INT64_MAX / c->engram_compressed / 2;
    assert(bound > UINT32_MAX && g->n_tables <= ENGRAM_MAX_TABLES); /* caps of the config */

    /* No prime is used twice over all orders and layers, so they are simply consecutive. */
    uint64_t prime = c->engram_vocab - 1;
    for (uint32_t k = 0; k < g->n_layers; k++) {
        struct engram_layer *l = &g->layer[k];
        uint64_t sum = 0;
        for (uint32_t t = 0; t < g->n_tables; t++) {
            prime = next_prime(prime);
            l->prime[t] = prime;
            l->offset[t] = sum;
            sum += prime;
        }
        if (sum != c->engram_rows[k])
            return err_set(e, ERR_FORMAT,
                           "engram_num_embeddings[%u] is %" PRIu64
                           ", the table sizes add up to %" PRIu64,
                           k, c->engram_rows[k], sum);
        engram_random(10007 * c->engram_layers[k], bound, g->ngram, l->multiplier);
        for (uint32_t i = 0; i < g->ngram; i++)
            l->multiplier[i] = l->multiplier[i] * 2 + 1;
    }
    return OK;
}

static void hash_token(const struct engram *g, const struct engram_layer *l, const uint32_t *id,
                       uint64_t *rows)
{
    uint64_t hash = 0;
    bool blocked = false;
    for (uint32_t s = 0; s < g->ngram; s++) {
        uint32_t back = *(id - s);
        blocked = blocked || back == ENGRAM_DEAD;
        hash ^= (blocked ? g->pad : back) * l->multiplier[s];
        for (uint32_t h = 0; s && h < g->n_heads; h++) {
            uint32_t t = (s - 1) * g->n_heads + h;
            rows[t] = hash % l->prime[t] + l->offset[t];
        }
    }
}

void engram_rows(const struct engram *g, uint32_t k, const uint32_t *ids, uint32_t n,
                 uint64_t *rows)
{
    for (uint32_t i = 0; i < n; i++)
        hash_token(g, &g->layer[k], ids + g->ngram - 1 + i, rows + (size_t)i * g->n_tables);
}
