/* What the weights of a shard hash to, remembered between runs, so that half a terabyte is
 * hashed once and not at every start. Private to engine/.
 *
 * One file a shard in a folder that is ours alone, named by device and inode. It is believed
 * when all of this is as it was when the shard was hashed: device, inode, size, mtime and ctime
 * in nanoseconds, and the digest of the shard's header. Whoever writes to a shard changes its
 * ctime, which no call sets; what this cannot see is a disk written to below its file system,
 * a clock that was set back to the nanosecond, and a mapping whose stores have not reached the
 * file yet. Those are what engine_options.verify_weights is for.
 *
 * Any number of processes may share a folder: a file appears whole or not at all, and all
 * write the same. Losing one costs the time to hash again, never more. */
#ifndef ENGINE_DIGEST_CACHE_H
#define ENGINE_DIGEST_CACHE_H

#include "base/fs.h"
#include "base/hash.h"

/* In a folder; the one that was not written for longest goes when another one comes. */
#define DIGEST_CACHE_MAX_FILES 8192

struct digest_key {
    struct fs_identity file;
    uint8_t header[HASH_BYTES]; /* digest of the shard's bytes before its data */
    uint32_t n_tensors;
};

/* The digests of the shard's tensors, in order of their names: [n_tensors][HASH_BYTES].
 * ERR_NOTFOUND: nothing is remembered of this state of the file. ERR_CORRUPT: there is a file
 * that nobody here has written so (cut, damaged, of another version); ERR_IO, ERR_DENIED,
 * ERR_NOMEM. The shard is then to be hashed; out is undefined. */
NODISCARD enum err digest_cache_find(const char *dir, const struct digest_key *key,
                                     uint8_t *out, struct error *e);
/* Remembers them, durably. Makes the folder. Errors of base/fs.h: nothing is remembered. */
NODISCARD enum err digest_cache_keep(const char *dir, const struct digest_key *key,
                                     const uint8_t *digests, struct error *e);

/* The file itself, for tests: appended to out; read back under a key, as digest_cache_find().
 */
NODISCARD enum err digest_cache_format(const struct digest_key *key, const uint8_t *digests,
                                       struct buf *out, struct error *e);
NODISCARD enum err digest_cache_parse(const uint8_t *bytes, size_t n,
                                      const struct digest_key *key, uint8_t *out,
                                      struct error *e);

#endif
