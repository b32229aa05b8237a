/* The digest of every tensor of a checkpoint: remembered ones where a shard is as it was, the
 * others by reading it once, on several threads. Private to engine/. */
#ifndef ENGINE_WEIGHT_DIGESTS_H
#define ENGINE_WEIGHT_DIGESTS_H

#include "base/clock.h"
#include "base/hash.h"
#include "engine/engine.h"
#include "engine/safetensors.h"

struct weight_digests_options {
    const char *dir;       /* folder of the checkpoint */
    const char *cache_dir; /* of engine/digest_cache.h; NULL: nothing is remembered */
    bool verify;           /* do not believe what is remembered */
    uint32_t n_threads;    /* at least 1 */
    const struct engine_watch *watch; /* NULL: nobody */
    const struct clock *clock;
};

/* out[i]: BLAKE2b-256 of the bytes of tensor i of safetensors_list(). A shard is hashed from
 * the file, not from its mapping, and looked at again when it is done.
 *
 * Whatever is wrong with the cache is a notice: ERR_CONFLICT (a shard was replaced or written
 * to since it was mapped), ERR_IO, ERR_FORMAT (it ends early), ERR_NOMEM, ERR_LIMIT (threads).
 */
NODISCARD enum err weight_digests(const struct safetensors *st,
                                  const struct weight_digests_options *o,
                                  uint8_t (*out)[HASH_BYTES], struct error *e);

#endif
