/* Ids of text that was tokenised before, so that a file which is read again does not pay twice.
 *
 * Plain text is cut into chunks at places where a cut changes no id: behind a line's end, when
 * blanks or tabs and then a printable ASCII character follow. There the pre-tokenizer always
 * ends a piece, and no piece before or after depends on what lies across (test_token_cache
 * compares). Which of these places are taken depends on the lines of the chunk alone, so equal
 * text gives equal chunks wherever it stands in a prompt, and a changed line spoils its own
 * chunk only.
 *
 * A chunk is found by its hash and by comparing all of its bytes: equal hashes of different
 * texts only compete for one place. The budget pays for texts, ids and places; what has not
 * been asked for since the hand of a clock passed is evicted. Any thread: one lock, held while
 * a chunk is compared and copied. */
#ifndef ENGINE_TOKEN_CACHE_H
#define ENGINE_TOKEN_CACHE_H

#include <stdbool.h>

#include "engine/ids.h"

struct token_cache;

#define TOKEN_CACHE_BYTES ((size_t)16 << 20) /* budget where nobody asks for another */
#define TOKEN_CACHE_MIN_BYTES ((size_t)64 << 10)

/* ERR_LIMIT below TOKEN_CACHE_MIN_BYTES, ERR_NOMEM. */
NODISCARD enum err token_cache_new(struct token_cache **out, size_t budget_bytes,
                                   struct error *e);
void token_cache_free(struct token_cache *c);

/* Whether a text that goes on to `end` may be cut in front of p, which stands behind a '\n'. */
bool token_cache_may_cut(const uint8_t *p, const uint8_t *end);

/* The chunk that n > 0 bytes begin with: its length and its hash. *is_whole: it ends at a cut,
 * so that no bytes behind these n make it another one. */
size_t token_cache_cut(const uint8_t *bytes, size_t n, uint64_t *hash, bool *is_whole);

/* Appends the ids of a chunk; *found says whether it is known, and out is as it was if not.
 * ERR_LIMIT past the list's maximum, ERR_NOMEM. */
NODISCARD enum err token_cache_find(struct token_cache *c, uint64_t hash, const uint8_t *bytes,
                                    size_t n, struct ids *out, bool *found, struct error *e);
/* Remembers it, unless it is too short to be worth it or more than an eighth of the budget.
 * ERR_NOMEM: nothing has changed. */
NODISCARD enum err token_cache_put(struct token_cache *c, uint64_t hash, const uint8_t *bytes,
                                   size_t n, const uint32_t *ids, size_t n_ids,
                                   struct error *e);

struct token_cache_use {
    size_t budget_bytes, used_bytes;
    uint64_t hit_bytes, missed_bytes; /* of text that was asked for */
    uint64_t n_evicted;
};
struct token_cache_use token_cache_use(struct token_cache *c);

#endif
