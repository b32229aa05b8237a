/* The keys of blocks and tips: what has to be equal before state may be used again.
 *
 *     root    = H("root", fingerprint, plane table, tip size, block size)
 *     block_i = H("block", block_{i-1}, n, ids)                block_{-1} = root
 *     tip     = H("tip", block before it, n, ids behind that block, shape)
 *     shape   = H("shape", segments that begin before the tip, replay marks, inside or not)
 *     digest  = H("digest", digest before, first token, rows)
 *
 * H is BLAKE2b-256 under a key of the namespace, over fields with their lengths (base/hash.h);
 * the first field separates the domains. Rows depend on token ids alone, so shape is not in a
 * block's key; the windows in a tip depend on segments and prefill modes, so it is in a tip's.
 * Any thread; nothing fails. */
#ifndef SESSIONS_IDENTITY_H
#define SESSIONS_IDENTITY_H

#include "base/hash.h"
#include "base/state.h"

void identity_root(const uint8_t key[HASH_KEY_BYTES], const struct state_layout *l,
                   uint32_t block_tokens, uint8_t out[HASH_BYTES]);

/* ids: the n tokens of the block. */
void identity_block(const uint8_t key[HASH_KEY_BYTES], const uint8_t parent[HASH_BYTES],
                    const uint32_t *ids, uint32_t n, uint8_t out[HASH_BYTES]);

/* Of the first `position` tokens of a tape. *inside (may be NULL): whether the position is
 * inside an input segment that goes on behind it. */
void identity_shape(const uint8_t key[HASH_KEY_BYTES], const struct tape_view *tape,
                    uint64_t position, bool *inside, uint8_t out[HASH_BYTES]);

/* ids: the n tokens behind the last full block before the tip. */
void identity_tip(const uint8_t key[HASH_KEY_BYTES], const uint8_t block[HASH_BYTES],
                  const uint32_t *ids, uint32_t n, const uint8_t shape[HASH_BYTES],
                  uint8_t out[HASH_BYTES]);

/* The key of the last full block before `position`, from the beginning of the tape. */
void identity_chain(const uint8_t key[HASH_KEY_BYTES], const uint8_t root[HASH_BYTES],
                    const uint32_t *ids, uint64_t position, uint32_t block_tokens,
                    uint8_t out[HASH_BYTES]);

/* The plane table as bytes: what layouts are compared by. out has
 * IDENTITY_SPEC_BYTES(n_planes).
 */
#define IDENTITY_PLANE_BYTES 36
#define IDENTITY_SPEC_BYTES(n_planes) ((n_planes) * (size_t)IDENTITY_PLANE_BYTES + 8)
void identity_spec(const struct state_layout *l, uint8_t *out);

#endif
