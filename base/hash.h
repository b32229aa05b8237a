/* BLAKE2b, plain and keyed, at once and in pieces.
 *
 * Identity (block keys, fingerprints, digests of files) is HASH_BYTES = 32 long; the tag of a
 * database row is HASH_TAG_BYTES = 16, keyed. Compound values are hashed as fields: each with
 * its length in front, so that moving a byte from one field to the next gives another hash.
 *
 *     struct hash h;
 *     hash_init(&h, namespace_key, HASH_BYTES);
 *     hash_field(&h, "block", 5);
 *     hash_field(&h, parent, HASH_BYTES);
 *     hash_final(&h, key_out);
 *
 * Keys are HASH_KEY_BYTES = 32 bytes. No call fails. A struct hash may be copied: both go on
 * from the same point. */
#ifndef BASE_HASH_H
#define BASE_HASH_H

#include <stddef.h>
#include <stdint.h>

#define HASH_BYTES 32
#define HASH_TAG_BYTES 16
#define HASH_KEY_BYTES 32

struct hash {
    /* libsodium's state, opaque. It asks for 64-byte alignment, which malloc does not give, but
     * reads its state by unaligned loads only: 16 let a struct hash stand in any object. */
    uint8_t state[384] __attribute__((aligned(16)));
    size_t out_bytes;
};

/* key NULL: not keyed. out_bytes is HASH_BYTES or HASH_TAG_BYTES; the length is part of the
 * hash: a short one is not the beginning of a long one. */
void hash_init(struct hash *h, const uint8_t *key, size_t out_bytes);
/* Raw bytes, as they come (a file in pieces). */
void hash_add(struct hash *h, const void *data, size_t n);
/* A field: u64 little-endian length, then the bytes. */
void hash_field(struct hash *h, const void *data, size_t n);
void hash_u32le(struct hash *h, uint32_t v);
void hash_u64le(struct hash *h, uint64_t v);
/* Writes out_bytes. The state is used up. */
void hash_final(struct hash *h, uint8_t *out);

/* All at once: BLAKE2b-256 of n bytes. */
void hash_bytes(const uint8_t *key, const void *data, size_t n, uint8_t out[HASH_BYTES]);

#endif
