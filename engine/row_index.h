/* Which row is in which slot of a cache of Engram rows, or which page in one of KV rows: a hash
 * of slots, and a clock (second chance) that says which slot is filled next. Where the bytes
 * are is the owner's matter.
 *
 *     slot = row_index_find(x, row_key(k, row));     ROW_NO_SLOT: not there
 *     slot = row_index_room(x);                      a slot that may be filled, or ROW_NO_SLOT
 *     row_index_put(x, slot, key, ROW_LOADING);      what was in it is forgotten
 *
 * A fetch is one use of many rows at once: x->fetch counts them, and a slot whose `fetch` is
 * that number is not given away before the next one. One thread. */
#ifndef ENGINE_ROW_INDEX_H
#define ENGINE_ROW_INDEX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

#define ROW_NO_SLOT UINT32_MAX

enum row_state { ROW_EMPTY, ROW_LOADING, ROW_READY };

struct row_slot {
    uint64_t key;
    uint32_t next;  /* in its bucket */
    uint32_t fetch; /* the last one that asked for it */
    uint8_t state;  /* enum row_state; while it is loading it is not given away */
    bool is_hot;    /* second chance */
    bool is_ahead;  /* filled ahead, not used yet */
};

struct row_index {
    struct row_slot *slots; /* [n_slots] */
    uint32_t *bucket;       /* [n_buckets] first slot, or ROW_NO_SLOT */
    size_t n_slots, n_buckets, hand;
    size_t n_used;  /* slots that are filled: all, unless the owner says fewer */
    size_t n_ahead; /* slots with is_ahead */
    uint32_t fetch; /* number of the fetch now */
};

#define ROW_KEY_BITS 56

/* Row `row` of Engram layer number k; owners of something else make their own keys. */
static inline uint64_t row_key(uint32_t k, uint64_t row)
{
    return (uint64_t)k << ROW_KEY_BITS | row;
}
static inline uint32_t row_key_layer(uint64_t key)
{
    return (uint32_t)(key >> ROW_KEY_BITS);
}
static inline uint64_t row_key_row(uint64_t key)
{
    return key & ((UINT64_C(1) << ROW_KEY_BITS) - 1);
}

/* Bytes that a slot takes, at most. */
#define ROW_INDEX_BYTES (sizeof(struct row_slot) + 2 * sizeof(uint32_t))

/* ERR_LIMIT: more slots than there are numbers; ERR_NOMEM. */
NODISCARD enum err row_index_init(struct row_index *x, size_t n_slots, struct error *e);
void row_index_fini(struct row_index *x); /* a zeroed one is fine */

uint32_t row_index_find(const struct row_index *x, uint64_t key);
uint32_t row_index_room(struct row_index *x);
/* The slot holds this row from now on, is hot, and belongs to no fetch yet. */
void row_index_put(struct row_index *x, uint32_t slot, uint64_t key, enum row_state state);
void row_index_forget(struct row_index *x, uint32_t slot);
void row_index_forget_all(struct row_index *x);
/* A row that is there, or on its way, is used by the fetch now. True: it was filled ahead. */
bool row_index_use(struct row_index *x, uint32_t slot);

#endif
