#include "base/crypto.h"

#include <sodium.h>
#include <string.h>
#include <sys/mman.h>

#include "base/fault.h"

_Static_assert(CRYPTO_KEY_BYTES == crypto_aead_xchacha20poly1305_ietf_KEYBYTES, "key");
_Static_assert(CRYPTO_NONCE_BYTES == crypto_aead_xchacha20poly1305_ietf_NPUBBYTES, "nonce");
_Static_assert(CRYPTO_SALT_BYTES == crypto_pwhash_argon2id_SALTBYTES, "salt");
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

void *crypto_secret_new(size_t n)
{
    void *p = fault_point("crypto.secret")
                  ? MAP_FAILED
                  : mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        return NULL;
    /* Refused where RLIMIT_MEMLOCK is used up; the rest of the protection stays. */
    (void)!sodium_mlock(p, n);
    return p;
}

void crypto_secret_free(void *p, size_t n)
{
    if (!p)
        return;
    sodium_munlock(p, n); /* wipes */
    munmap(p, n);
}

/* ---- passphrases ------------------------------------------------------------------------- */

enum err crypto_stretch(const void *pass, size_t n_pass, const uint8_t salt[CRYPTO_SALT_BYTES],
                        struct crypto_cost cost, uint8_t out[CRYPTO_KEY_BYTES], struct error *e)
{
    const struct crypto_cost least = CRYPTO_COST_MIN, most = CRYPTO_COST_MAX;
    if (cost.ops < least.ops || cost.ops > most.ops || cost.mem_bytes < least.mem_bytes ||
        cost.mem_bytes > most.mem_bytes)
        return err_set(e, ERR_INVAL,
                       "Argon2id: %u passes over %llu bytes; at most %u over %llu are allowed",
                       cost.ops, (unsigned long long)cost.mem_bytes, most.ops,
                       (unsigned long long)most.mem_bytes);
    if (fault_point("crypto.stretch") ||
        crypto_pwhash_argon2id(out, CRYPTO_KEY_BYTES, pass, n_pass, salt, cost.ops,
                               (size_t)cost.mem_bytes, crypto_pwhash_ALG_ARGON2ID13) != 0)
        return err_set(e, ERR_NOMEM, "Argon2id: no memory for %llu bytes",
                       (unsigned long long)cost.mem_bytes);
    return OK;
}
