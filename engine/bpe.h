/* Byte-pair merges: joins the symbols of one piece, lowest rank first, leftmost on ties.
 *
 * Short pieces are searched in place; long ones keep their candidate merges in a heap, so that
 * a piece of n bytes costs O(n log n). The table is constant once filled; the scratch memory
 * belongs to one call chain. */
#ifndef ENGINE_BPE_H
#define ENGINE_BPE_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "engine/ids.h"

struct bpe_slot {
    uint64_t pair; /* left << 32 | right */
    uint32_t rank; /* UINT32_MAX: empty */
    uint32_t id;   /* what the pair becomes */
};

struct bpe {
    struct bpe_slot *slots; /* open addressing, at most half full */
    uint32_t mask;
    uint32_t byte_ids[256]; /* the symbols to start from */
};

/* Room for n_merges (at most 2^22). ERR_LIMIT, ERR_NOMEM. byte_ids is the caller's to fill. */
NODISCARD enum err bpe_init(struct bpe *b, uint32_t n_merges, struct error *e);
void bpe_fini(struct bpe *b);
/* ERR_FORMAT when the pair has a merge already. At most n_merges calls. */
NODISCARD enum err bpe_add(struct bpe *b, uint32_t left, uint32_t right, uint32_t rank,
                           uint32_t id, struct error *e);

struct bpe_node {
    uint32_t id;
    uint32_t rank; /* of the merge with the next symbol; UINT32_MAX: none */
    uint32_t merged_id;
    uint32_t prev, next; /* indices; UINT32_MAX: none */
};

struct bpe_scratch {
    struct bpe_node *nodes;
    uint64_t *heap; /* rank << 32 | index of the left symbol */
    size_t node_cap, heap_cap;
};

void bpe_scratch_fini(struct bpe_scratch *s);

/* Appends the ids of one piece of n >= 1 bytes. ERR_LIMIT (n over 2^31, or out's maximum),
 * ERR_NOMEM. */
NODISCARD enum err bpe_encode(const struct bpe *b, struct bpe_scratch *s, const uint8_t *piece,
                              size_t n, struct ids *out, struct error *e);

#endif
