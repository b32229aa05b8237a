/* What a model's rows depend on, as one digest: the root of every block key. */
#ifndef ENGINE_FINGERPRINT_H
#define ENGINE_FINGERPRINT_H

#include "engine/model.h"
#include "engine/weight_digests.h"

/* BLAKE2b-256 over: every tensor (name, dtype, shape, digest of its bytes) in order of name, so
 * that how they are spread over shards does not count; the config; the Engram token map; the
 * plane layout; the tie rule; the precision mode. Errors of weight_digests(). */
NODISCARD enum err fingerprint_model(const struct model *m,
                                     const struct weight_digests_options *o,
                                     uint8_t out[STATE_KEY_BYTES], struct error *e);

#endif
