#include "base/crypto.h"

#include <sodium.h>
#include <string.h>

_Static_assert(CRYPTO_KEY_BYTES == crypto_aead_xchacha20poly1305_ietf_KEYBYTES, "key");
_Static_assert(CRYPTO_NONCE_BYTES == crypto_aead_xchacha20poly1305_ietf_NPUBBYTES, "nonce");
_Static_assert(CRYPTO_TAG_BYTES == crypto_aead_xchacha20poly1305_ietf_ABYTES, "tag");
_Static_assert(CRYPTO_KEY_BYTES == HASH_BYTES && CRYPTO_KEY_BYTES == HASH_KEY_BYTES, "derive");

/* nonce + chunk, as 192-bit little-endian numbers. */
static void chunk_nonce(const struct crypto_extent *x, uint64_t chunk,
                        uint8_t out[CRYPTO_NONCE_BYTES])
{
    uint8_t number[CRYPTO_NONCE_BYTES] = {0};
    for (unsigned i = 0; i < 8; i++)
        number[i] = (uint8_t)(chunk >> (8 * i));
    memcpy(out, x->nonce, CRYPTO_NONCE_BYTES);
    sodium_add(out, number, CRYPTO_NONCE_BYTES);
}

static enum err corrupt(uint64_t chunk, size_t n, struct error *e)
{
    return err_set(e, ERR_CORRUPT, "chunk %llu: tag does not match its %zu bytes",
                   (unsigned long long)chunk, n);
}

void crypto_seal(const struct crypto_extent *x, uint64_t chunk, const void *src, size_t n,
                 void *dst, uint8_t tag[CRYPTO_TAG_BYTES])
{
    uint8_t nonce[CRYPTO_NONCE_BYTES];
    chunk_nonce(x, chunk, nonce);
    crypto_aead_xchacha20poly1305_ietf_encrypt_detached(dst, tag, NULL, src, n, NULL, 0, NULL,
                                                        nonce, x->key);
}

enum err crypto_open(const struct crypto_extent *x, uint64_t chunk, const void *src, size_t n,
                     const uint8_t tag[CRYPTO_TAG_BYTES], void *dst, struct error *e)
{
    uint8_t nonce[CRYPTO_NONCE_BYTES];
    chunk_nonce(x, chunk, nonce);
    if (crypto_aead_xchacha20poly1305_ietf_decrypt_detached(dst, NULL, src, n, tag, NULL, 0,
                                                            nonce, x->key) != 0)
        return corrupt(chunk, n, e);
    return OK;
}

void crypto_tag(const struct crypto_extent *x, uint64_t chunk, const void *data, size_t n,
                uint8_t tag[CRYPTO_TAG_BYTES])
{
    uint8_t nonce[CRYPTO_NONCE_BYTES], nothing[1] = {0};
    chunk_nonce(x, chunk, nonce);
    crypto_aead_xchacha20poly1305_ietf_encrypt_detached(nothing, tag, NULL, nothing, 0, data, n,
                                                        NULL, nonce, x->key);
}

enum err crypto_check(const struct crypto_extent *x, uint64_t chunk, const void *data, size_t n,
                      const uint8_t tag[CRYPTO_TAG_BYTES], struct error *e)
{
    uint8_t want[CRYPTO_TAG_BYTES];
    crypto_tag(x, chunk, data, n, want);
    return crypto_equal(want, tag, sizeof want) ? OK : corrupt(chunk, n, e);
}

void crypto_derive(const uint8_t key[CRYPTO_KEY_BYTES], const char *purpose,
                   const void *context, size_t context_bytes, uint8_t out[CRYPTO_KEY_BYTES])
{
    struct hash h;
    hash_init(&h, key, HASH_BYTES);
    hash_field(&h, purpose, strlen(purpose));
    hash_field(&h, context, context_bytes);
    hash_final(&h, out);
    crypto_wipe(&h, sizeof h);
}

bool crypto_equal(const void *a, const void *b, size_t n)
{
    return sodium_memcmp(a, b, n) == 0;
}

void crypto_random(void *dst, size_t n)
{
    randombytes_buf(dst, n);
}

void crypto_wipe(void *p, size_t n)
{
    sodium_memzero(p, n);
}
