/* Makes a random checkpoint in the official layout for any config: same tensor names, dtypes,
 * shapes and index file as the release, deterministic by seed (each tensor's bytes depend on
 * seed and name alone, on no library's rounding).
 *
 * Statistics are those of the golden models: weights are normal with a spread chosen so that
 * each layer adds a few percent to a residual stream of size 1, whatever the depth; logits
 * spread by 3. Draft layers are not made: num_nextn_predict_layers must be 0. */
#ifndef TESTS_SUPPORT_CHECKPOINT_H
#define TESTS_SUPPORT_CHECKPOINT_H

#include <stdint.h>

#include "base/err.h"

struct checkpoint_options {
    const char *config;    /* path of a config.json */
    const char *tokenizer; /* path of the tokenizer.json to copy */
    const char *out;       /* folder, made if missing; files in it are replaced */
    uint64_t seed;
    uint64_t shard_bytes; /* most data of one shard; 0: 2 GiB */
};

/* Written as a stream: needs little memory for any size. */
NODISCARD enum err checkpoint_make(const struct checkpoint_options *o, struct error *e);

#define CHECKPOINT_TOKENIZER "tests/golden/a_tiny/model/tokenizer.json"

#endif
