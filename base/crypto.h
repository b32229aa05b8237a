/* Ciphers, keys and randomness over libsodium.
 *
 * Stored bytes are protected in chunks by XChaCha20-Poly1305 (IETF). Two ways, same key size,
 * nonce and tag: sealed (the chunk is the message) and tagged (the chunk is the associated data
 * of an empty message: readable, but not changeable). An extent has one random nonce; chunk i
 * uses nonce + i, added as 192-bit little-endian numbers. Give each extent a fresh nonce, and
 * use a key for one of the two ways only.
 *
 * Any thread. Only the open and check functions can fail, all with ERR_CORRUPT. */
#ifndef BASE_CRYPTO_H
#define BASE_CRYPTO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/hash.h"

#define CRYPTO_KEY_BYTES 32
#define CRYPTO_NONCE_BYTES 24
#define CRYPTO_TAG_BYTES 16

/* What all chunks of one extent share. */
struct crypto_extent {
    uint8_t key[CRYPTO_KEY_BYTES];
    uint8_t nonce[CRYPTO_NONCE_BYTES];
};

/* Encrypts n bytes of src to dst (the same memory, or not overlapping) and writes the tag. */
void crypto_seal(const struct crypto_extent *x, uint64_t chunk, const void *src, size_t n,
                 void *dst, uint8_t tag[CRYPTO_TAG_BYTES]);
/* Checks the tag, then decrypts to dst (may be src). ERR_CORRUPT: dst holds zeros or is as it
 * was, never a byte of plain text. */
NODISCARD enum err crypto_open(const struct crypto_extent *x, uint64_t chunk, const void *src,
                               size_t n, const uint8_t tag[CRYPTO_TAG_BYTES], void *dst,
                               struct error *e);

/* The tag of a chunk that stays readable. */
void crypto_tag(const struct crypto_extent *x, uint64_t chunk, const void *data, size_t n,
                uint8_t tag[CRYPTO_TAG_BYTES]);
/* ERR_CORRUPT unless `tag` is the tag of these bytes at this place. */
NODISCARD enum err crypto_check(const struct crypto_extent *x, uint64_t chunk, const void *data,
                                size_t n, const uint8_t tag[CRYPTO_TAG_BYTES], struct error *e);

/* A key for one purpose, from another: keyed BLAKE2b-256 over the fields `purpose` ("pack
 * data") and `context` (a namespace name, say). Different purposes or contexts give unrelated
 * keys. */
void crypto_derive(const uint8_t key[CRYPTO_KEY_BYTES], const char *purpose,
                   const void *context, size_t context_bytes, uint8_t out[CRYPTO_KEY_BYTES]);

/* Compares in a time that does not depend on where they differ. */
bool crypto_equal(const void *a, const void *b, size_t n);
void crypto_random(void *dst, size_t n);
/* Overwrites; the compiler may not drop it. */
void crypto_wipe(void *p, size_t n);

/* Memory for keys: n bytes of zeros in pages of their own, that are neither swapped out (as far
 * as RLIMIT_MEMLOCK allows) nor part of a core dump. NULL: no memory. Freeing wipes; NULL is
 * fine. */
void *crypto_secret_new(size_t n);
void crypto_secret_free(void *p, size_t n);

/* ---- passphrases ------------------------------------------------------------------------- */

#define CRYPTO_SALT_BYTES 16

/* What one guess at a passphrase costs: Argon2id, version 1.3, one lane. */
struct crypto_cost {
    uint32_t ops;       /* passes over the memory */
    uint64_t mem_bytes; /* rounded down to KiB */
};
/* Bounds: a file that says less was not written by us, one that says more would be a way to
 * take the machine's memory. */
#define CRYPTO_COST_MIN ((struct crypto_cost){1, 8u << 10})
#define CRYPTO_COST_MAX ((struct crypto_cost){64, 1ull << 30})
/* What libsodium calls moderate: 0.5 to 1 s a guess. */
#define CRYPTO_COST_DEFAULT ((struct crypto_cost){3, 256u << 20})

/* A key from a passphrase. ERR_INVAL: a cost out of bounds. ERR_NOMEM: no room for it. */
NODISCARD enum err crypto_stretch(const void *pass, size_t n_pass,
                                  const uint8_t salt[CRYPTO_SALT_BYTES],
                                  struct crypto_cost cost, uint8_t out[CRYPTO_KEY_BYTES],
                                  struct error *e);

#endif
