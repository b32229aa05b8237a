/* Compressed token ids of the Engram tables: tokens that read alike share one number.
 *
 * Computed from the tokenizer alone (model.md, 9.1): ids in order, each one's text is
 * normalised (NFKC, NFD, marks removed, lower case, white space folded) and keys are numbered
 * in the order of their first appearance. The Unicode data is that of utf8proc. */
#ifndef ENGINE_TOKEN_MAP_H
#define ENGINE_TOKEN_MAP_H

#include "base/buf.h"
#include "engine/tokenizer.h"

/* Fills map[0 .. n_ids) with compressed ids; n_ids is the vocabulary size of the model, ids
 * beyond the tokenizer's included (each such id decodes to the empty string). ERR_FORMAT, with
 * both numbers, unless the number of distinct keys is n_compressed; ERR_NOMEM. */
NODISCARD enum err token_map_build(const struct tokenizer *t, uint32_t *map, uint32_t n_ids,
                                   uint32_t n_compressed, struct error *e);

/* Appends the normal form of n bytes of valid UTF-8 (may be empty). ERR_FORMAT for other bytes.
 */
NODISCARD enum err token_map_normalize(const void *text, size_t n, struct buf *out,
                                       struct error *e);

#endif
