#include "base/hash.h"

#include <sodium.h>
#include <stdlib.h>

_Static_assert(sizeof(crypto_generichash_blake2b_state) <= sizeof((struct hash){0}.state),
               "libsodium's state fits");

/* libsodium picks its SIMD implementations and seeds its randomness here, once, before main();
 * everything in hash.c and crypto.c may then be called from any thread. */
__attribute__((constructor)) static void init_sodium(void)
{
    if (sodium_init() < 0)
        abort();
}

static crypto_generichash_blake2b_state *state_of(struct hash *h)
{
    return (crypto_generichash_blake2b_state *)(void *)h->state;
}

void hash_init(struct hash *h, const uint8_t *key, size_t out_bytes)
{
    h->out_bytes = out_bytes;
    crypto_generichash_blake2b_init(state_of(h), key, key ? HASH_KEY_BYTES : 0, out_bytes);
}

void hash_add(struct hash *h, const void *data, size_t n)
{
    crypto_generichash_blake2b_update(state_of(h), data, n);
}

void hash_field(struct hash *h, const void *data, size_t n)
{
    hash_u64le(h, n);
    hash_add(h, data, n);
}

void hash_u32le(struct hash *h, uint32_t v)
{
    uint8_t le[4];
    for (unsigned i = 0; i < sizeof le; i++)
        le[i] = (uint8_t)(v >> (8 * i));
    hash_add(h, le, sizeof le);
}

void hash_u64le(struct hash *h, uint64_t v)
{
    uint8_t le[8];
    for (unsigned i = 0; i < sizeof le; i++)
        le[i] = (uint8_t)(v >> (8 * i));
    hash_add(h, le, sizeof le);
}

void hash_final(struct hash *h, uint8_t *out)
{
    crypto_generichash_blake2b_final(state_of(h), out, h->out_bytes);
}

void hash_bytes(const uint8_t *key, const void *data, size_t n, uint8_t out[HASH_BYTES])
{
    crypto_generichash_blake2b(out, HASH_BYTES, data, n, key, key ? HASH_KEY_BYTES : 0);
}
