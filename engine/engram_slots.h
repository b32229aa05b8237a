/* Rows of Engram tables in memory of the backend, under a byte budget of their own: where the
 * host may not touch that memory, a row that is there already is not copied again with the
 * tokens that look it up.
 *
 *     engram_slots_expect(x, k, ids, n);              as soon as ids are known
 *     engram_slots_advance(x);                        now and then; never waits
 *     rc = engram_slots_fetch(x, k, ids, n, at, e);   as the layer runs
 *
 * Rows come from the host: from its cache (engram_cache.h), or mapped ones. Missing rows are
 * put side by side, copied at once and put into their slots by one op. What is expected is
 * filled ahead only as far as the host has it without waiting: rows that its cache has, or
 * tables so small that they are in memory (ENGRAM_SMALL_BYTES). It never takes more than half
 * of the slots before it is used.
 *
 * Ops are in order, so a slot may be given away as soon as the op that reads it is queued. The
 * budget pays for slots; buffers that missing rows pass through (at most 0.3 MB) come on top.
 * Belongs to the engine's thread. */
#ifndef ENGINE_ENGRAM_SLOTS_H
#define ENGINE_ENGRAM_SLOTS_H

#include "engine/engram_cache.h"

/* Tables above this size are read from the disk; below it they are taken to be in memory. */
#define ENGRAM_SMALL_BYTES (UINT64_C(64) << 20)

struct engram_slots;

/* The rows of one token in one layer: the smallest budget. 0 for a model without Engram. */
uint64_t engram_slots_min_bytes(const struct config *c);
/* Every row of every table. */
uint64_t engram_slots_all_bytes(const struct config *c);

/* cache NULL: rows are mapped. All of c, w and cache must outlive it. ERR_LIMIT below the
 * minimum, ERR_NOMEM: the backend has no such memory. */
NODISCARD enum err engram_slots_new(struct engram_slots **out, const struct config *c,
                                    const struct weights *w, struct engram_cache *cache,
                                    uint64_t budget_bytes, struct error *e);
void engram_slots_free(struct engram_slots *x);

/* Most rows of one fetch: at least those of a token. */
size_t engram_slots_rows(const struct engram_slots *x);

/* Rows ids [n] of Engram layer number k are wanted next, in this order; replaces what was
 * expected before. Copies nothing: ids stay the caller's until the next call. */
void engram_slots_expect(struct engram_slots *x, uint32_t k, const uint64_t *ids, size_t n);
/* Fills what is expected as far as it goes without waiting. What fails is left to the fetch. */
void engram_slots_advance(struct engram_slots *x);

/* Queues what brings n <= engram_slots_rows() rows in; at [n] says where. ERR_IO or ERR_FORMAT
 * (a read, a NaN scale) with the tensor's name and row: the slots stay good. */
NODISCARD enum err engram_slots_fetch(struct engram_slots *x, uint32_t k, const uint64_t *ids,
                                      size_t n, uint64_t *at, struct error *e);
/* Nothing is there any more: ops that were queued have not happened. */
void engram_slots_forget(struct engram_slots *x);

/* What `at` of a fetch counts in: codes [rows][engram_dim], scales [rows][engram_dim/32],
 * memory of the backend. */
const uint8_t *engram_slots_codes(const struct engram_slots *x);
const uint8_t *engram_slots_scales(const struct engram_slots *x);
/* Its counters; read_bytes: copied to the backend. Never NULL. */
const struct tier *engram_slots_tier(const struct engram_slots *x);
/* Rows that were there when they were first looked up because they had been expected. */
uint64_t engram_slots_ahead_hits(const struct engram_slots *x);

#endif
