/* The master key of a store, and the file that holds it.
 *
 * Everything secret follows from one random 256-bit master key: the tags of database rows and
 * superblocks are derived from it, and it wraps one data key per namespace (in the namespace's
 * row, and in every pack's superblock), from which the keys of extents are derived.
 *
 * The file (default: master.key in the state folder, mode 0600) has one of two forms:
 *
 *     plain        the 32 bytes. Who has the file has the store.
 *     passphrase   128 bytes, little endian: magic "AGDKEY1\n" 8, version 1 4, passes 4, memory
 *                  in bytes 8, salt 16, nonce 24, wrapped master key 32, its tag 16,
 * BLAKE2b-128 of all that 16. The wrapping key comes from the passphrase by Argon2id with that
 * salt and cost, and from the fields themselves.
 *
 * So a new passphrase rewraps 32 bytes and touches nothing else; and whoever kept an old copy
 * of the file and the old passphrase still has the master key. What a namespace's wrapped key
 * was wrapped for is unreadable once that is gone everywhere: see namespace_erase in
 * store_internal.h.
 *
 * Passphrases are bytes, 1 to KEYS_MAX_PASSPHRASE of them. Any thread; the file
 * may be replaced while the store is open. */
#ifndef SESSIONS_KEYS_H
#define SESSIONS_KEYS_H

#include <stdbool.h>

#include "base/crypto.h"

#define KEYS_FILE "master.key"
#define KEYS_MAX_PASSPHRASE 1024u

/* NULL bytes: none. Borrowed. */
struct keys_passphrase {
    const void *bytes;
    size_t n;
};

/* Makes a file with a new key: plain, or under a passphrase at the given cost. ERR_CONFLICT:
 * there is one already. ERR_INVAL: passphrase empty or too long, cost out of bounds. */
NODISCARD enum err keys_make(const char *path, struct keys_passphrase pass,
                             struct crypto_cost cost, uint8_t master[CRYPTO_KEY_BYTES],
                             struct error *e);

/* Reads it. ERR_NOTFOUND: no file. ERR_DENIED: it wants a passphrase and none was given, or the
 * wrong one was. ERR_INVAL: a passphrase was given for a plain file. ERR_CORRUPT: neither form,
 * damaged, or a cost out of bounds; ERR_UNSUPPORTED: a later version. Nothing is changed. */
NODISCARD enum err keys_read(const char *path, struct keys_passphrase pass,
                             uint8_t master[CRYPTO_KEY_BYTES], struct error *e);

/* Whether the file is under a passphrase, and at which cost (cost_out may be NULL). */
NODISCARD enum err keys_is_wrapped(const char *path, bool *out, struct crypto_cost *cost_out,
                                   struct error *e);

/* Replaces the file by the same master key under another passphrase (or none: plain). Atomic:
 * a crash leaves the old file or the new one. Errors as both of the above; the file is then as
 * it was. */
NODISCARD enum err keys_rewrap(const char *path, struct keys_passphrase old,
                               struct keys_passphrase fresh, struct crypto_cost cost,
                               struct error *e);

#endif
