/* Routed experts under a byte budget: a cache of whole experts in memory, read from the disk
 * as soon as the router has chosen.
 *
 *     rc = experts_choose(x, layer, chosen, n, e);         all that this layer's run needs
 *     unless experts_are_here(x): compute what needs none of them
 *     while (!(rc = experts_next(x, &ready, e)) && ready.n)
 *         compute ready.only from ready.experts
 *
 * Each expert that was chosen is handed out exactly once, those in memory first, the others as
 * they arrive; while one is being computed the next ones are on their way. What was handed out
 * stays until the next call and may be evicted then: one slot is enough to make progress.
 *
 * Who is evicted. One token goes through all layers in turn, so to the cache its accesses look
 * like a scan, and the least recently used expert is the one that is needed next. What counts
 * instead is how often an expert was chosen when its layer ran: each choice counts one, and
 * halves with every EXPERTS_HALF_LIFE runs of that layer (CRF of Lee et al., LRFU, 2001). Among
 * about equals (the same power of two) goes the one whose layer comes again last.
 *
 * Where the backend cannot read what the disk writes, a slot is the backend's memory, and what
 * was read is copied there from one of a few buffers, beside the ops that compute the shared
 * expert and those that were there. Behind them only where they may be using that very slot: a
 * choice was read back from the backend, so nothing that was queued before it still does.
 * `experts` of experts_ready then holds sizes and types of all experts, and memory of those
 * that are there.
 *
 * Belongs to the engine's thread. */
#ifndef ENGINE_EXPERTS_H
#define ENGINE_EXPERTS_H

#include "engine/tier.h"
#include "engine/weights.h"

#define EXPERTS_HALF_LIFE 32

struct experts;

/* Bytes of one slot: the smallest budget. All experts are of one size. */
size_t experts_slot_bytes(const struct config *c);
/* The largest of use: every expert of every layer, those of the draft layers included. */
uint64_t experts_all_bytes(const struct config *c);

/* w and files must outlive it. Memory is taken slot by slot as it is needed. ERR_LIMIT when the
 * budget is less than one slot. */
NODISCARD enum err experts_new(struct experts **out, const struct config *c,
                               const struct weights *w, const struct tier_files *files,
                               uint64_t budget_bytes, struct error *e);
void experts_free(struct experts *x);

/* Starts on the experts that occur in chosen [n] (below 0: none). Replaces a choice that was
 * not handed out to its end. */
NODISCARD enum err experts_choose(struct experts *x, uint32_t layer, const int32_t *chosen,
                                  size_t n, struct error *e);

/* Whether the whole choice is in memory, so that experts_next() hands it out at once. */
bool experts_are_here(const struct experts *x);

/* All experts of a layer at once, where the budget is enough for all there are and they are
 * copied to the backend: from then on nobody has to ask which ones a router has chosen. */
struct experts_table {
    const struct k_expert *experts; /* [n_experts] */
    const struct k_expert *table;   /* [n_experts + 1] the same and the shared one, there */
};
/* Whether experts are ever held. */
bool experts_can_hold(const struct experts *x);
/* Reads what is missing of them, which is all at first. NULL: they cannot be held, or one of
 * them cannot be read or is not usable: which one shows when a router chooses it. */
const struct experts_table *experts_hold(struct experts *x, uint32_t layer);
/* NULL: they are not held, or not yet. */
const struct experts_table *experts_held(const struct experts *x, uint32_t layer);

struct experts_ready {
    const struct k_expert *experts; /* [n_experts], filled where only is set */
    uint8_t *only;                  /* [n_experts + 1]; the last is the caller's */
    size_t n;
};

/* Waits until at least one more is there; n = 0: all have been handed out. ERR_IO or ERR_FORMAT
 * (a read, a NaN scale) with the tensor's name: the choice is dropped, the cache stays good. */
NODISCARD enum err experts_next(struct experts *x, struct experts_ready *out, struct error *e);

/* Its counters; never NULL. */
const struct tier *experts_tier(const struct experts *x);

/* ERR_FORMAT when a scale of this expert is NaN, with the tensor's name and the index. */
NODISCARD enum err experts_check(const struct config *c, uint32_t layer, uint32_t expert,
                                 const struct k_expert *x, struct error *e);

#endif
