/* Main KV rows under a byte budget: the newest rows of a sequence stay where they are written,
 * older ones move to a spill file (kv_spill.h) in pages of some rows each, and pages that are
 * asked for again are cached. One for all sequences of a model; struct kv knows which of its
 * rows are where.
 *
 *     |<------------- cold: pages, in the file ------------->|<-- tail: memory -->|
 *     0                                                    kv.cold              rows
 *
 * The budget pays for the tails of all sequences (a promise made when a sequence reserves its
 * first tokens, kv_pages_join), for the rows that one attention call looks at, gathered side by
 * side, and with what is left for cached pages; which one is evicted is decided by a clock.
 *
 * Belongs to the engine's thread. */
#ifndef ENGINE_KV_PAGES_H
#define ENGINE_KV_PAGES_H

#include "engine/kv.h"
#include "engine/kv_spill.h"
#include "engine/tier.h"

struct kv_pages;

struct kv_pages_options {
    const struct kv_shape *shape; /* must outlive it */
    uint32_t top_k;               /* rows that one token looks at */
    uint32_t least_tokens;        /* a run that may not be cut: 1, or with drafts more */
    uint32_t chunk_tokens;        /* wanted length of other runs */
    uint64_t budget_bytes;
    const char *dir; /* of the spill file */
};

/* The smallest budget: one sequence, one token. */
uint64_t kv_pages_min_bytes(const struct kv_pages_options *o);

/* What the budget takes of a device at least, where rows are not read in memory of the host:
 * the rows of one attention call and one sequence's tail. What else it pays for is the host's.
 */
uint64_t kv_pages_device_bytes(const struct kv_pages_options *o);

/* *chunk_tokens becomes what the budget leaves of it. ERR_LIMIT below the minimum; ERR_IO,
 * ERR_DENIED, ERR_NOTFOUND: no spill file in dir. */
NODISCARD enum err kv_pages_new(struct kv_pages **out, const struct kv_pages_options *o,
                                uint32_t *chunk_tokens, struct error *e);
void kv_pages_free(struct kv_pages *p);

/* Takes a sequence's tail of the budget; *owner names it in the calls below. ERR_LIMIT. */
NODISCARD enum err kv_pages_join(struct kv_pages *p, uint32_t *owner, struct error *e);
/* Gives it back, and forgets what is cached of it. */
void kv_pages_leave(struct kv_pages *p, uint32_t owner);

uint32_t kv_pages_rows(const struct kv_pages *p, uint32_t source); /* rows of one page */
/* Most rows of a source above its cold ones. */
uint64_t kv_pages_tail_rows(const struct kv_pages *p, uint32_t source);

/* Writes n whole pages of rows; out [n]. ERR_LIMIT (disk full), ERR_IO: nothing is kept. */
NODISCARD enum err kv_pages_write(struct kv_pages *p, uint32_t source, const uint8_t *rows,
                                  size_t n, struct kv_page *out, struct error *e);
/* These pages are not asked for any more. */
void kv_pages_drop(struct kv_pages *p, const struct kv_page *list, size_t n);

/* Rows that lie in one page, and where they go. */
struct kv_want {
    uint32_t page, first, n; /* of the plane; in the page */
    uint8_t *dst;
};

/* The planes of one sequence, and who has its late pages (NULL: there are none). */
struct kv_origin {
    uint32_t owner, source;
    const struct kv_page *list;
    const struct state_fetch *fetch;
};

/* Brings the wanted rows to their places, whatever is cached first. Pages ascend. ERR_IO,
 * ERR_CORRUPT with plane and page. */
NODISCARD enum err kv_pages_read(struct kv_pages *p, const struct kv_origin *from,
                                 const struct kv_want *want, size_t n, struct error *e);

/* Room for kv_pages_gather_rows() rows of any source. */
uint8_t *kv_pages_gather(struct kv_pages *p);
size_t kv_pages_gather_bytes(const struct kv_pages *p);
size_t kv_pages_gather_rows(const struct kv_pages *p, uint32_t source);

/* Its counters; never NULL. */
struct tier *kv_pages_tier(struct kv_pages *p);

#endif
