/* Rows of Engram tables under a byte budget: hot ones in memory, the others read from the disk,
 * asked for as soon as the token ids are known.
 *
 *     engram_cache_prefetch(x, k, ids, n);        the rows of a whole chunk, long before ...
 *     rc = engram_cache_fetch(x, k, ids, n, at, e);    ... a layer looks some of them up
 *
 * A fetched row stays where it is until the next fetch: `at` counts in engram_cache_codes() and
 * _scales(), which is what kernels/engram.h wants. Which row is evicted is decided by a clock
 * (second chance). What was prefetched never takes more than half of the cache before it is
 * used, so that reading ahead cannot push out what it reads ahead for.
 *
 * The budget pays for rows and what is kept about each; the buffers of reads in flight (at most
 * 1 MiB) come on top. Belongs to the engine's thread. */
#ifndef ENGINE_ENGRAM_CACHE_H
#define ENGINE_ENGRAM_CACHE_H

#include "engine/tier.h"
#include "engine/weights.h"

struct engram_cache;

/* The rows of one token in one layer: the smallest budget. 0 for a model without Engram. */
uint64_t engram_cache_min_bytes(const struct config *c);
/* Every row of every table. */
uint64_t engram_cache_all_bytes(const struct config *c);

/* w and files must outlive it. ERR_LIMIT below the minimum, ERR_NOMEM. */
NODISCARD enum err engram_cache_new(struct engram_cache **out, const struct config *c,
                                    const struct weights *w, const struct tier_files *files,
                                    uint64_t budget_bytes, struct error *e);
void engram_cache_free(struct engram_cache *x);

/* Most rows of one fetch: at least those of a token. */
size_t engram_cache_rows(const struct engram_cache *x);

/* Starts to read rows of Engram layer number k that are not there, from the first on; returns
 * how many are there or on their way. Never waits; what there is no room for, or fails, is left
 * to the fetch. */
size_t engram_cache_prefetch(struct engram_cache *x, uint32_t k, const uint64_t *ids, size_t n);
/* Whether a fetch of this row would not wait. */
bool engram_cache_has(const struct engram_cache *x, uint32_t k, uint64_t id);
/* Brings n <= engram_cache_rows() rows in; at [n] says where. ERR_IO or ERR_FORMAT (a read, a
 * NaN scale) with the tensor's name and row: the cache stays good. */
NODISCARD enum err engram_cache_fetch(struct engram_cache *x, uint32_t k, const uint64_t *ids,
                                      size_t n, uint64_t *at, struct error *e);

/* What `at` of a fetch counts in: codes [rows][engram_dim] E4M3 and scales
 * [rows][engram_dim/32] E8M0. Borrowed; good until the next fetch. */
const uint8_t *engram_cache_codes(const struct engram_cache *x);
const uint8_t *engram_cache_scales(const struct engram_cache *x);
/* Its counters; never NULL. */
const struct tier *engram_cache_tier(const struct engram_cache *x);

/* ERR_FORMAT when one of these scales [engram_dim/32] of a row is NaN, with names. */
NODISCARD enum err engram_check(const struct config *c, uint32_t layer, uint64_t row,
                                const uint8_t *scales, struct error *e);

#endif
